"""One machine of a shard, in one round of its store: the shell that all of them share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from lsmq.errors import LsmqError, ShuttingDown, Unavailable
from lsmq_node.broker import Ack, ShardPort
from lsmq_node.storage import ShardStore

from .clock import AwakeClock
from .idle import IdleNames
from .step import Step

if TYPE_CHECKING:
    from .service import MachineService


class ShardMachine(ABC):
    """Loop thread only. :meth:`load` before anything else, :meth:`end` at the end; its service sees to both."""

    #: What it is a machine of, for errors, and details that these carry.
    subject: ClassVar[str]
    details: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, service: MachineService[Any], port: ShardPort, what: Hashable = None) -> None:
        self.service = service
        self.port = port
        self.key = (port.number, what)
        self.store: ShardStore = port.store
        self.round = self.store.round
        self.epoch = service.broker.topology.leadership(port.number).epoch
        self._start = service.background.start
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._clock = AwakeClock(self.used_at)
        self._broken: LsmqError | None = None
        self._refused: str | None = None  # with which code the last step was that nobody waits for
        self._log = structlog.get_logger(f"lsmq.{service.name}")

    # What each machine says for itself

    @abstractmethod
    async def load(self, left: Any) -> None:
        """Build it from what is stored, after a :meth:`barrier`.

        ``left``: what the machine before it has :meth:`left <leaves>`, where nobody else can have led since; else None.
        """

    def due(self) -> Iterable[Step]:
        """Called each ``TICK_S`` while the shard is served here: what is due by now. Each is put before the next."""
        return ()

    def leaves(self) -> Any:
        """What the next machine can go on with, though it is not stored; None: nothing."""
        return None

    @property
    def is_idle(self) -> bool:
        """Whether it may be dropped when nobody asked for it for long: all it knows can be read again."""
        return False

    def load_idle(self, idle: IdleNames) -> None:
        """Read again what is stored of it."""
        hours = self.store.document(idle.hours_key)
        idle.load([*([] if hours is None else [(idle.hours_key, hours)]), *self.store.documents(idle.used_prefix)])

    def end(self) -> None:
        """It is not used again."""
        self.break_off(ShuttingDown(f"{self.subject} of shard {self.port.number} is not used any more", sent=False))

    # Whether it is good

    @property
    def now(self) -> float:
        """Seconds, for sessions."""
        return self._clock.now(self._loop.time())

    @property
    def is_current(self) -> bool:
        """Whether memory still is what is stored."""
        try:
            return self._broken is None and self.port.store is self.store and self.store.round == self.round
        except LsmqError:  # The replica is being opened again.
            return False

    def check(self) -> None:
        """Raises ``NotLeader`` where this node does not serve the shard, ``Unavailable`` for a moment after changes."""
        self.port.check_readable()
        if not self.is_current:
            raise Unavailable(
                f"what shard {self.port.number} knows of {self.subject} is being read again; try again",
                shard=self.port.number,
                **self.details,
            ) from self._broken

    def break_off(self, error: LsmqError) -> None:
        """What is in memory is not used again: it could not be stored, or another one takes its place."""
        self._broken = self._broken or error
        self.wake()

    def tick(self) -> None:
        """To be called each ``TICK_S``."""
        time = self._loop.time()
        try:
            self.check()
        except LsmqError:
            self._clock.advance(time, serving=False)
            self.wake()
            return
        self._clock.advance(time, serving=True)
        for step in self.due():
            self.put_aside(step)

    # Storing

    def put(self, step: Step) -> asyncio.Future[None] | None:
        """Put a step in line; to be awaited with :meth:`durable`. Raises what a write raises: then it has not happened.

        When the step is committed, ``step.stored`` is called before anybody who awaits it goes on; at once, where there
        is nothing to store.
        """
        if not step:
            step.appended()
            step.stored()
            return None
        self.port.check_writable(Ack.QUORUM)
        future = self.port.wait(step.append_to(self.store), Ack.QUORUM)
        step.appended()
        if future is None:
            step.stored()
        else:
            future.add_done_callback(partial(self._committed, step))
        return future

    def _committed(self, step: Step, future: asyncio.Future[None]) -> None:
        error = ShuttingDown("the loop ends", sent=True) if future.cancelled() else future.exception()
        if isinstance(error, LsmqError):
            self._log.info("step_not_stored", shard=self.port.number, subject=self.subject, code=error.code)
            self.break_off(error)
        elif self.is_current:
            step.stored()

    def put_aside(self, step: Step) -> bool:
        """Put a step that nobody waits for; False where it is refused, and may be tried again."""
        try:
            self.put(step)
        except LsmqError as error:
            if error.code != self._refused:
                self._refused = error.code
                self._log.info("step_refused", shard=self.port.number, subject=self.subject, code=error.code)
            return False
        self._refused = None
        return True

    async def durable(self, future: asyncio.Future[None] | None) -> None:
        """Await a write. Whatever its failure: what is in memory cannot be trusted then."""
        try:
            if future is not None:
                await asyncio.shield(future)
        except LsmqError as error:
            self.break_off(error)
            raise

    async def barrier(self) -> None:
        """Return when all that is in line is committed."""
        barrier = self.store.barrier()
        if barrier is not None:
            await self.durable(self.port.wait(barrier, Ack.QUORUM))

    async def done(self, step: Step) -> None:
        """Return when the step is durable, or, where it is empty, what was done before in its stead."""
        if step:
            await self.durable(self.put(step))
        else:
            await self.barrier()
        self.check()

    # Waiting

    async def wait(self, *names: tuple[Hashable, ...], deadline: float | None) -> None:
        """Hold a request until one of the names is woken, or the whole machine; or until ``deadline``."""
        await self.service.held.wait([(self.key,), *((self.key, *name) for name in names)], deadline)

    def wake(self, *name: Hashable) -> None:
        """Have requests look again that wait for the name; all that are held by the machine, without one."""
        self.service.held.wake((self.key, *name))

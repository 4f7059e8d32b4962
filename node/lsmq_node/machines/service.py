"""The machines of the shards that a node leads: built when leadership begins, or when somebody asks; dropped after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from lsmq.errors import Unavailable
from lsmq_coordinator.parts import kept
from lsmq_node.broker import Background, Broker, ShardPort

from .clock import TICK_S
from .held import HeldRequests
from .machine import ShardMachine

#: Machines are ticked for so long before others on the loop have their turn.
_TURN_S = 0.01
#: A machine that nobody uses is dropped after so long; so is what one has left for the next.
IDLE_S = 300.0

MachineKey = tuple[int, Hashable]
"""A shard, and which of its machines."""

M = TypeVar("M", bound=ShardMachine)


class MachineService(Generic[M]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name: ClassVar[str]

    def __init__(self, broker: Broker, each: Callable[[ShardPort], M] | None) -> None:
        """``each`` makes the machine that every shard led here has; None: they are made when somebody asks."""
        self.broker = broker
        self.background = Background(self.name)
        self.held = HeldRequests()
        self._log = structlog.get_logger(f"lsmq.{self.name}")
        self._each = each
        self._known: dict[MachineKey, M] = {}
        self._loading: dict[MachineKey, asyncio.Task[M]] = {}
        self._unready: dict[MachineKey, M] = {}  # those that are being read
        self._left: dict[
            MachineKey, tuple[int, float, Any]
        ] = {}  # epoch, when, and what a machine left for the next one
        self.lost = 0  # machines that were not current any more, or could not be built

    def start(self) -> None:
        self._timer = self.broker.parts.part(f"{self.name}-timer")
        self.background.start(kept(self._timer, self._tick))

    def begin_stop(self) -> Awaitable[None] | None:
        """Answer held requests at once, now and from here on."""
        self.held.close()
        return None

    async def stop(self) -> None:
        """No request may be in progress."""
        self.held.close()
        for known in self._known.values():
            known.end()
        await self.background.stop()

    def hold_s(self, wait_ms: int) -> float:
        """How long a request may be held that asks for ``wait_ms``."""
        full = self.held.count >= self.broker.config.max_waiters
        return 0.0 if self.held.closed or full else wait_ms / 1000

    # Finding

    def shards(self) -> Sequence[M]:
        """What is known of the shards led here, by number."""
        return [known for _, known in sorted(self._known.items(), key=lambda item: item[0][0]) if known.is_current]

    @property
    def count(self) -> int:
        """How many machines there are, or are to be."""
        return len(self._known) + len(self._loading)

    def find(self, number: int, what: Hashable = None) -> M | None:
        """What is known, current or not."""
        return self._known.get((number, what))

    async def shard(self, number: int, what: Hashable = None, make: Callable[[ShardPort], M] | None = None) -> M:
        """The machine in a shard that this node leads; made by ``make``, or as each is, where it is not known.

        Raises ``NotLeader``, and what reading it may raise.
        """
        port = self.broker.topology.port(number)
        port.check_readable()
        key = number, what
        known = self._known.get(key)
        if known is not None:
            if known.port is port and known.is_current:
                known.used_at = asyncio.get_running_loop().time()
                return known
            self._retire(key, known)
        make = make or self._each
        assert make is not None
        return await asyncio.shield(self._loading.get(key) or self._begin(key, port, make))

    def begin(self, port: ShardPort, make: Callable[[ShardPort], M], what: Hashable = None) -> None:
        """Have a machine built where there is none, and none is to be."""
        key = port.number, what
        known = self._known.get(key)
        if known is not None and not (known.port is port and known.is_current):
            self._retire(key, known)
            known = None
        if known is None and key not in self._loading:
            self._begin(key, port, make)

    def _begin(self, key: MachineKey, port: ShardPort, make: Callable[[ShardPort], M]) -> asyncio.Task[M]:
        task = self._loading[key] = self.background.start(self._build(key, port, make))
        return task

    async def _build(self, key: MachineKey, port: ShardPort, make: Callable[[ShardPort], M]) -> M:
        found = None
        try:
            found = self._unready[key] = make(port)
            epoch, _, left = self._left.get(key, (-1, 0.0, None))
            await found.load(left if epoch == found.epoch else None)
            found.check()
        except BaseException:
            self.lost += 1
            if found is not None:
                found.end()
            raise
        finally:
            del self._loading[key]
            self._unready.pop(key, None)
        self._left.pop(key, None)
        self._known[key] = found
        return found

    # Dropping

    def _retire(self, key: MachineKey, known: M) -> None:
        """It is read again from what is stored."""
        self.lost += 1
        left = known.leaves()
        if left is not None:
            self._left[key] = known.epoch, asyncio.get_running_loop().time(), left
        self.drop(key)

    def drop(self, key: MachineKey) -> None:
        """Forget it, as far as it is not stored."""
        known = self._known.pop(key, None)
        if known is not None:
            known.end()

    def forget_all(self, chosen: Callable[[int, Any], bool]) -> None:
        """Drop those ``chosen`` by shard and what they are, and what others have left for them.

        What is put in line in the same step of the loop is seen by those that are made from here on.
        """
        for key in [key for key in self._known if chosen(*key)]:
            self.drop(key)
        for key, unready in self._unready.items():
            if chosen(*key):
                unready.break_off(Unavailable("what it reads was changed; it is read again", sent=False))
        self._left = {key: left for key, left in self._left.items() if not chosen(*key)}

    def drop_idle(self) -> bool:
        """Make room: drop what was not used for longest and is idle; whether there was any."""
        idle = [(known.used_at, key) for key, known in self._known.items() if known.is_idle]
        if idle:
            self.drop(min(idle, key=lambda item: item[0])[1])
        return bool(idle)

    # Time

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        failing: dict[MachineKey, str] = {}
        while True:
            await asyncio.sleep(TICK_S)
            now, former, failing = loop.time(), failing, {}
            turn_ends = now + _TURN_S
            for key, known in list(self._known.items()):
                if loop.time() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = loop.time() + _TURN_S
                if self._known.get(key) is not known:
                    continue  # It was dropped meanwhile.
                began = loop.time()
                try:
                    known.tick()
                except Exception as error:  # Whatever it is, the others have theirs, and this one may have the next.
                    failing[key] = f"what is due in shard {key[0]} fails: {type(error).__name__}: {error}"
                    if former.get(key) != failing[key]:
                        self._log.error(f"{self.name}_tick_fails", shard=key[0], exc_info=error)
                if not known.is_current:
                    self._retire(key, known)
                elif known.is_idle and now - known.used_at > IDLE_S:
                    self.drop(key)
                if (took := loop.time() - began) > TICK_S:
                    self._log.warning(f"{self.name}_tick_slow", shard=key[0], seconds=round(took, 3))
            self._left = {key: left for key, left in self._left.items() if now - left[1] <= IDLE_S}
            self.look()
            if failing:
                self._timer.retrying(min(failing.values()))
            elif former:
                self._timer.running()

    def look(self) -> None:
        """Called each tick: begin with shards that are led here by now."""
        if self._each is not None:
            for port in self.broker.topology.ports():
                if self.broker.topology.leadership(port.number).here:
                    self.begin(port, self._each)

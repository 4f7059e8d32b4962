"""Work queues: consumers of one group compete for single messages, and settle each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lsmq._arguments import check_counts, check_poll, check_times
from lsmq._lifecycle import Iterated
from lsmq._paths import group_path
from lsmq._pop_loop import PopLoop, Waiting
from lsmq._rate_limited import RateLimitedWarnings
from lsmq._retries import NEVER_MS
from lsmq._settler import Settler
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.client import Client, _together
from lsmq.errors import ClientClosed, InvalidRequest, LsmqError, ReceiptExpired
from lsmq.filters import MessageFilter
from lsmq.record_batch import Message
from lsmq.topics import Topic
from lsmq.work_queue_values import HeldMessage, PoppedMessage, WorkQueueState, describe_work_queue, list_held

DEFAULT_MAX_MESSAGES = 10
DEFAULT_WAIT_MS = 5_000
DEFAULT_MAX_HANDLER_MS = 300_000
_RELEASE_DEADLINE_MS = 2_000
_MAX_REASON = 500
#: How somebody else's delivery may be ended, and what the request says of it.
_ENDS: dict[str, dict[str, bool]] = {"release": {"release": True}, "dead_letter": {"dead_letter": True}, "ack": {}}
_EXTENSIONS_PER_VISIBILITY = 3
#: An answer is not longer on its way than this, mostly, nor than a third of the visibility. If it is, the broker says
#: so when the task is settled.
_MAX_TRANSIT_MS = 1_000
#: Each leader is asked for all that there is room for, and several may have it. What has had no room for so long is
#: given back; handlers that take less have worked it off by then.
_SPARE_S = 0.1

TaskHandler = Callable[["Task"], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Task:
    """A message to work on, hidden from others until it is settled or its visibility ends.

    Attributes:
        message: what was sent.
        deliveries: which delivery of it this is, from 1. Those that were under way when its shard changed its leader
            are not counted.
        receipt: names this delivery.
        visibility_ms: how long it is hidden, from its delivery or from when it was extended last.
        settled: whether it was acknowledged or given back here.
    """

    message: Message
    deliveries: int
    receipt: str
    visibility_ms: int
    settled: bool = field(default=False, init=False)
    _queue: WorkQueue = field(repr=False)
    _topic: Topic = field(repr=False)
    _shard: int = field(repr=False)
    _until: float = field(repr=False)
    _since: float = field(repr=False)  # it came, and then: its handler began
    _lost: bool = field(default=False, init=False, repr=False)
    _extending: int = field(default=0, init=False, repr=False)  # requests that do are under way
    #: When whoever has it said last for how long it is hidden, and that, since the queue began to extend it.
    _said: tuple[float, int] | None = field(default=None, init=False, repr=False)
    _acknowledging: bool = field(default=False, init=False, repr=False)  # the same, whoever waits for it still

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self.message.text()

    @property
    def remaining_ms(self) -> float:
        """How long it is hidden from now on, by this machine's clock; below 0 when that is over."""
        return 1000 * (self._until - asyncio.get_running_loop().time())

    async def ack(self) -> None:
        """It is done, and never comes again. Durable on return.

        Raises ``ReceiptExpired`` when its visibility had ended before: then it comes, or came, to somebody again.
        """
        self._acknowledging = True
        try:
            await self._queue._settler.ack(self._topic, self._shard, self.receipt)
        except LsmqError:
            self._acknowledging = False
            raise
        self._settle()

    async def nack(self, *, delay_ms: int | None = None, reason: str = "", dead_letter: bool = False) -> None:
        """It failed, and comes again after ``delay_ms``: left out, a delay that doubles each time.

        ``reason`` is kept with a dead letter. With ``dead_letter`` it is one now, and takes no delay. Raises
        ``ReceiptExpired``.
        """
        more: dict[str, Any] = {"reason": reason[:_MAX_REASON], "dead_letter": dead_letter}
        if delay_ms is not None:
            more["delay_ms"] = delay_ms
        await self._ask("nack", **more)
        self._settle()

    async def extend(self, visibility_ms: int | None = None) -> None:
        """Hide it for so long from now on; as long as at first, when left out. Raises ``ReceiptExpired``."""
        wanted_ms = self.visibility_ms if visibility_ms is None else visibility_ms
        asked_at = asyncio.get_running_loop().time()
        self._said = asked_at, wanted_ms
        self._extending += 1
        try:
            await self._ask("extend", visibility_ms=wanted_ms)
            self._hidden(asked_at, wanted_ms)
        finally:
            self._extending -= 1

    async def _say_again(self) -> None:
        """What was said last for how long it is hidden, in case the node heard something else after it."""
        if self._said is None or self.settled or self._lost:
            return
        asked_at, wanted_ms = self._said
        left_ms = round(wanted_ms - 1000 * (asyncio.get_running_loop().time() - asked_at))
        if left_ms > 0:
            with contextlib.suppress(LsmqError):
                await self._ask("extend", visibility_ms=left_ms)

    async def _ask(self, how: str, **more: Any) -> None:
        (error,) = await self._queue._settler.settle(how, self._topic, self._shard, [self.receipt], **more)
        if error is not None:
            self._lost = True
            raise error

    def _hidden(self, since: float, visibility_ms: int) -> None:
        self.visibility_ms = visibility_ms
        self._until = since + visibility_ms / 1000

    def _settle(self) -> None:
        self.settled = True
        self._queue._kept.pop(self, None)


class WorkQueue(Iterated[Task]):
    """Takes messages of a topic to work on, together with all others of its ``group``.

    Nobody owns queues: whoever asks gets the next messages of any. Each message is hidden from the others for
    ``visibility_ms`` (left out: what the work queue says, 30 s) and comes again unless it is acknowledged. At least
    once: what failed, and what nobody acknowledged in time. Order is kept where the work queue is configured so.

    ``async for task in work`` gets up to ``max_messages`` ahead and keeps them hidden until they are handed out; then
    the application settles or extends each in time. :meth:`run` does all of that.

    Where nodes are gone it tries for ever to get more, and warns of it (see :class:`lsmq.Client`); with ``deadline_ms``
    for so long, and then raises. A call that settles a task has the client's deadline, or this one. ``wait_ms`` is how
    long a pop is held when there is nothing. With ``order`` nodes refuse to hand out messages in another order:
    the work queue is to be configured so.

    ``tag`` and ``type``, a word or several, and ``filter``, a condition such as ``"region = 'eu' AND priority > 3"``
    (see :mod:`lsmq.filter_expressions`), say which messages it takes; all others stay for others of the group.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        *,
        visibility_ms: int | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        wait_ms: int = DEFAULT_WAIT_MS,
        max_handler_ms: int | None = DEFAULT_MAX_HANDLER_MS,
        deadline_ms: int | None = None,
        order: Literal["none", "key", "priority"] | None = None,
        tag: str | Iterable[str] | None = None,
        type: str | Iterable[str] | None = None,
        filter: str | None = None,
    ) -> None:
        """``max_handler_ms``: a handler of :meth:`run` that takes longer is not covered any more: its message comes
        to somebody else. So does one that was fetched ahead so long ago. None: no limit."""
        check_counts(max_messages=max_messages)
        check_times(least=0, wait_ms=wait_ms)
        check_times(deadline_ms=deadline_ms, max_handler_ms=max_handler_ms, or_inf=True)
        self.topic = topic
        self.group = group
        self._client = client
        self._max_messages = max_messages
        self._max_handler_ms = max_handler_ms
        self._deadline_ms = NEVER_MS if deadline_ms is None else deadline_ms
        self._settler = Settler(client, group, client.deadline_ms if deadline_ms is None else deadline_ms)
        self._puller = PopLoop(
            client,
            topic,
            group,
            wanted=self._wanted,
            found=self._found,
            visibility_ms=visibility_ms,
            wait_ms=wait_ms,
            deadline_ms=self._deadline_ms,
            order=order,
            picked=MessageFilter.of(tag, type, filter),
        )
        self._ahead: deque[Task] = deque()
        self._kept: dict[Task, None] = {}  # tasks whose visibility is extended here
        self._asking = 0
        self._hands = 0  # of those who run it: tasks that may be here at a time
        self._polled = False  # somebody takes tasks, and nobody runs it
        self._changed = Waiting()
        self._pulling: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._sparing: asyncio.Task[None] | None = None
        self._background, self._extensions = BackgroundTasks(self._broke), BackgroundTasks(self._broke)
        self._failed, self._late, self._unsettled, self._shown = (RateLimitedWarnings() for _ in range(4))
        self._error: LsmqError | None = None
        self._closed = False
        self._closing = asyncio.Lock()  # who closes it a second time waits for the first

    def _left_open(self) -> str:
        used = self._pulling is not None and not self._closed and self._client._transport.is_open
        return f"a work queue of {self.topic} in group {self.group!r}" if used else ""

    async def close(self) -> None:
        """Stop asking, and give back what was not handed out, which does not count as delivered."""
        async with self._closing:
            if self._closed:
                return
            self._closed = True
            self._changed.wake()
            await self._put_back()
            await self._settler.close()

    async def _put_back(self) -> None:
        """Ask for nothing more until somebody takes tasks again, and give back what nobody took."""
        self._polled = False
        if self._pulling is not None:
            self._background.drop(self._pulling)
            await asyncio.gather(self._pulling, return_exceptions=True)
        if self._sparing is not None:
            self._background.drop(self._sparing)
            await asyncio.gather(self._sparing, return_exceptions=True)
        self._end_keeping()
        await self._give_back(len(self._ahead))
        self._changed.wake()

    async def poll(self, max_messages: int = DEFAULT_MAX_MESSAGES, timeout_ms: float | None = None) -> list[Task]:
        """Up to ``max_messages`` tasks, waiting for the first; none after ``timeout_ms``."""
        check_poll(max_messages, timeout_ms)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                tasks = [await self._next()]
        except TimeoutError:
            return []
        while len(tasks) < max_messages and (task := self._take()) is not None:
            tasks.append(task)
        return tasks

    async def run(self, handler: TaskHandler, *, concurrency: int = 1) -> None:
        """Call ``handler`` with each task, ``concurrency`` at a time, until :meth:`close` or an error that stays.

        A task is kept hidden while its handler runs. When that returns, the task is acknowledged, unless the handler
        settled it; when it raises, the task is given back as failed, with the exception as the reason. A handler that
        is cancelled gives its task back as if it had not been delivered. So does this, when it ends or is cancelled,
        with tasks that wait for a handler.

        What fails is said in warnings of the logger ``lsmq``: at once, then at most once a minute with how many more.
        """
        await self._run(handler, concurrency)

    async def _run(self, handler: TaskHandler, concurrency: int, *, cancel: bool = True) -> None:
        """``cancel``: handlers can be, as coroutines; threads run on, and are waited for."""
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}; it must be at least 1")
        if (tracing := self._client._tracing) is not None:
            handler = tracing.handling(handler, lambda task: task.message)
        self._hands += concurrency
        workers, busy, over = BackgroundTasks(), set[asyncio.Task[None]](), asyncio.Event()
        name = f"lsmq worker of {self.topic}"
        working = [workers.begin(self._work(handler, busy, over), name) for _ in range(concurrency)]
        try:
            await workers.until(asyncio.wait(working))
        finally:
            over.set()
            self._hands -= concurrency
            if not cancel:
                for idle in set(working) - busy:
                    workers.drop(idle)
                await asyncio.gather(*busy, return_exceptions=True)
            await workers.end()
            if not self._hands:
                await self._put_back()

    async def _work(self, handler: TaskHandler, busy: set[asyncio.Task[None]], over: asyncio.Event) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        while not over.is_set():
            try:
                task = await self._next()
            except ClientClosed:
                if self._closed:
                    return
                raise
            task._since = asyncio.get_running_loop().time()
            self._hold(task)
            self._asking += 1
            busy.add(worker)
            try:
                await self._handle(handler, task)
            finally:
                busy.discard(worker)
                self._asking -= 1
                self._kept.pop(task, None)
                self._puller.look()
                self._end_keeping()

    async def _handle(self, handler: TaskHandler, task: Task) -> None:
        try:
            try:
                await handler(task)
            except ReceiptExpired:
                raise  # of this task, most likely: the handler settled it, too late
            except Exception as error:
                self._failed.warn("the handler failed with message %s: %r", task.message.id, error)
                if not task.settled:
                    await task.nack(reason=_said_by(error))
            else:
                if not task.settled:
                    await task.ack()
        except ReceiptExpired as error:
            self._late.warn("message %s was handled too late and comes again: %s", task.message.id, error)
        except LsmqError as error:
            if self._deadline_ms != NEVER_MS or not self._client._router.worth_retrying(error):
                raise
            self._unsettled.warn("message %s could not be settled and comes again: %s", task.message.id, error)
        except asyncio.CancelledError:
            if not task.settled:
                await self._release([task])
            worker = asyncio.current_task()
            if worker is None or worker.cancelling():
                raise  # Else it was the handler alone that was cancelled, by itself.

    async def configure(
        self,
        *,
        max_deliveries: int | None = None,
        visibility_ms: int | None = None,
        retry_first_ms: int | None = None,
        retry_max_ms: int | None = None,
        dead_letter: str | None = None,
        delete_on_ack: bool | None = None,
        order: Literal["none", "key", "priority"] | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | Mapping[int, int] | None = None,
        max_in_flight_per: int | None = None,
        max_rate_per: float | None = None,
        priority_ageing_ms: int | None = None,
    ) -> None:
        """Say how the work queue behaves, for all its consumers; what is left out is the default. Durable on return.

        ``fair_by`` is ``queue``, ``key``, ``tag``, ``type`` or a property, such as ``properties.customer``; ``weights``
        are by queues, whose numbers may be numbers or text, or by these. See docs/work-queues.md for what each means.
        """
        given = {
            "max_deliveries": max_deliveries,
            "visibility_ms": visibility_ms,
            "retry_first_ms": retry_first_ms,
            "retry_max_ms": retry_max_ms,
            "dead_letter": dead_letter,
            "delete_on_ack": delete_on_ack,
            "order": order,
            "fair_by": fair_by,
            "weights": None if weights is None else {_tenant(name): weight for name, weight in weights.items()},
            "max_in_flight_per": max_in_flight_per,
            "max_rate_per": max_rate_per,
            "priority_ageing_ms": priority_ageing_ms,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        path, deadline = f"{group_path(self.group)}/work-queue", self._client._deadline()

        async def put(topic: Topic) -> None:
            await _together(
                self._client._router.ask_leader(
                    topic,
                    shard,
                    "PUT",
                    path,
                    value={"topic": topic.name, "shards": [shard], **settings},
                    deadline=deadline,
                )
                for shard in {route.shard for route in topic.routes}
            )

        await self._client._with_topic(self.topic, put)

    async def describe(self) -> WorkQueueState:
        """How it behaves, and how many messages are in which state. Raises ``UnknownGroup`` before the first pop.

        Costs the nodes a look at the ends of all the topic's queues.
        """
        return await describe_work_queue(self._client, self.topic, self.group, self._client._deadline())

    async def held(self, limit: int = 1_000) -> list[HeldMessage]:
        """Up to so many messages that somebody has and has not settled, here or anywhere, by shard, queue and offset.

        Raises ``UnknownGroup`` before the first pop. Costs the nodes a look at all that are in flight.
        """
        return await list_held(self._client, self.topic, self.group, limit)

    async def end_held(self, held: HeldMessage, how: Literal["release", "dead_letter", "ack"]) -> None:
        """End a delivery in its consumer's stead, who is refused when he settles it: durable on return.

        ``release``: somebody else gets the message at once, as if it had not been delivered. ``dead_letter``: it is
        not tried again. ``ack``: it is done. Raises ``ReceiptExpired`` where the delivery is over already.
        """
        if not isinstance(held, HeldMessage):
            raise InvalidRequest(f"held is of type {type(held).__name__}; it must be one of the messages of held()")
        if how not in _ENDS:
            raise InvalidRequest(f"how is {how!r}; it must be one of {', '.join(_ENDS)}")
        more = _ENDS[how]
        call = "ack" if how == "ack" else "nack"

        async def end(topic: Topic) -> None:
            (error,) = await self._settler.settle(call, topic, held.shard, [held.receipt], **more)
            if error is not None:
                raise error

        await self._client._with_topic(self.topic, end)

    # Within

    def _wanted(self) -> int:
        if self._hands:
            return self._hands - self._asking - len(self._ahead)
        return self._max_messages - len(self._ahead) if self._polled else 0

    def _found(self, topic: Topic, popped: PoppedMessage, asked_at: float) -> None:
        visibility_ms = popped.visibility_ms
        # The message was hidden after it was asked for: a pop that was held says nothing of when.
        now = asyncio.get_running_loop().time()
        transit_ms = min(_MAX_TRANSIT_MS, visibility_ms / _EXTENSIONS_PER_VISIBILITY)
        until = max(asked_at, now - transit_ms / 1000) + visibility_ms / 1000
        message, deliveries, receipt = popped.message, popped.deliveries, popped.receipt
        task = Task(message, deliveries, receipt, visibility_ms, self, topic, popped.shard, until, now)
        self._ahead.append(task)
        self._hold(task)
        self._changed.wake_one()
        if self._wanted() < 0 and (self._sparing is None or self._sparing.done()):
            self._sparing = self._background.begin(self._spare(), f"lsmq give back {self.topic}")

    async def _spare(self) -> None:
        """Give back what there is no room for, so that nobody else waits for it."""
        while (over := min(-self._wanted(), len(self._ahead))) > 0:
            left_s = self._ahead[-over]._since + _SPARE_S - asyncio.get_running_loop().time()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self._give_back(over)

    async def _give_back(self, count: int) -> None:
        """The last ones that nobody took."""
        given = [self._ahead.pop() for _ in range(count)]
        for task in given:
            self._kept.pop(task, None)
        try:
            await self._release(given)
        except asyncio.CancelledError:
            self._ahead.extend(reversed(given))
            raise

    def _take(self) -> Task | None:
        """The next task that is ours still."""
        while self._ahead:
            task = self._ahead.popleft()
            self._kept.pop(task, None)
            if not task._lost and task.remaining_ms > 0:
                return task
        return None

    def _take_back(self, tasks: Iterable[Task]) -> None:
        """They were handed out, and got nowhere: they are the next, or given back with the others."""
        for task in reversed(list(tasks)):
            self._ahead.appendleft(task)
            self._hold(task)
            self._changed.wake_one()

    async def _next(self) -> Task:
        while True:
            if self._closed:
                raise ClientClosed("this work queue is closed; make a new one")
            self._polled = self._polled or not self._hands
            if self._error is None and (self._pulling is None or self._pulling.done()):
                self._pulling = self._background.begin(
                    self._puller.run(), f"lsmq work queue {self.topic}", lasting=True
                )
            task = self._take()
            if task is not None:
                self._puller.look()
                return task
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._puller.look()
            await self._changed.wait()

    def _broke(self, error: Exception) -> None:
        """Whoever takes the next task is told, and both begin anew after that."""
        self._error = as_lsmq_error(error, f"the work queue of topic {self.topic!r}")
        self._changed.wake()

    def _hold(self, task: Task) -> None:
        """Keep it hidden from now on. Where nothing is held nothing waits: what nobody closes leaves no task then."""
        self._kept[task] = None
        if not self._closed and (self._keeping is None or self._keeping.done()):
            self._keeping = self._background.begin(self._keep(), f"lsmq keep {self.topic}")

    def _end_keeping(self) -> None:
        """Once it is closed, and the last handler has ended."""
        if self._closed and not self._asking and self._keeping is not None:
            self._background.drop(self._keeping)
            for extension in self._extensions:
                self._extensions.drop(extension)

    async def _keep(self) -> None:
        """Extend what is held here, before its visibility ends. Nobody waits for the leader of another's shard."""
        loop = asyncio.get_running_loop()
        while self._kept:
            shortest_ms = min(task.visibility_ms for task in self._kept)
            await asyncio.sleep(min(1.0, shortest_ms / 1000 / _EXTENSIONS_PER_VISIBILITY / 2))
            now = loop.time()
            due = [
                task
                for task in self._kept
                if not (task.settled or task._lost or task._extending)
                and task._until - now < task.visibility_ms / 1000 * (1 - 1 / _EXTENSIONS_PER_VISIBILITY)
                and (self._max_handler_ms is None or 1000 * (now - task._since) < self._max_handler_ms)
            ]
            for group in _by_shard(due):
                for task in group:
                    task._extending += 1
                    task._said = None
                self._extensions.begin(self._extend(group), f"lsmq extend {self.topic}")

    async def _extend(self, tasks: list[Task]) -> None:
        topic, shard, visibility_ms = tasks[0]._topic, tasks[0]._shard, tasks[0].visibility_ms
        asked_at = asyncio.get_running_loop().time()
        try:
            outcome = await self._settler.settle(
                "extend",
                topic,
                shard,
                [task.receipt for task in tasks],
                deadline_ms=visibility_ms,
                visibility_ms=visibility_ms,
            )
        except LsmqError as error:
            self._shown.warn("%d tasks could not be kept hidden: %s", len(tasks), error)
            outcome = []
        finally:
            for task in tasks:
                task._extending -= 1
        for task, refused in zip(tasks, outcome, strict=False):
            if refused is None and task._said is None:
                task._hidden(asked_at, visibility_ms)
            elif refused is not None and not task.settled:
                task._lost = True
        await _together(task._say_again() for task in tasks if task._said is not None)

    async def _release(self, tasks: Iterable[Task]) -> None:
        async def release(group: list[Task]) -> None:
            first, receipts = group[0], [task.receipt for task in group]
            with contextlib.suppress(LsmqError):
                await self._settler.settle(
                    "nack", first._topic, first._shard, receipts, deadline_ms=_RELEASE_DEADLINE_MS, release=True
                )

        left = (task for task in tasks if not (task.settled or task._acknowledging))
        await _together(release(group) for group in _by_shard(left))


def _by_shard(tasks: Iterable[Task]) -> Iterable[list[Task]]:
    """Tasks of one shard and one visibility."""
    found: dict[tuple[int, int], list[Task]] = {}
    for task in tasks:
        found.setdefault((task._shard, task.visibility_ms), []).append(task)
    return found.values()


def _said_by(error: Exception) -> str:
    """Text that can be sent, whatever the application's error is made of."""
    try:
        said = str(error)
    except Exception as broken:
        said = f"what it says cannot be had ({type(broken).__name__})"
    return f"{type(error).__name__}: {said}".encode(errors="backslashreplace").decode()


def _tenant(name: object) -> str:
    if not isinstance(name, str | int):
        raise InvalidRequest(f"weights names {name!r}; it must be text, or the number of a queue")
    return str(name)

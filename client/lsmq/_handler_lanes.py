"""Handing messages to a handler: in order where order is promised, many at a time where it is not.

Messages go through *lanes*. A lane is worked on by one worker at a time and in order; there is one for each queue, for
each key, or for each message. Messages are taken from the reader up to a window. When the window is full of messages
that all wait behind others, the waiting ones are put back and their queues paused, so that a handler that does not come
back holds up its own lane and no other.

What may be committed of a queue is everything before its first message that is not handled: a gap is never committed.
So whoever stops, or lets a queue go, handles what is left in gaps first: else what lies behind them would come again.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from itertools import chain
from typing import Any, Literal, Protocol

from lsmq._queue_ranges import contains
from lsmq._work_in_progress import WorkInProgress
from lsmq.background_tasks import BackgroundTasks
from lsmq.errors import InvalidRequest
from lsmq.group_values import Ranges
from lsmq.record_batch import Message

MessageHandler = Callable[[Message], object]
"""What it returns is awaited where it can be, and then dropped."""
Order = Literal["queue", "key", "none"]
TopicQueue = tuple[str, int]
Where = Callable[[TopicQueue], bool]

ORDERS = ("queue", "key", "none")
_WINDOW_A_WORKER = 16
_MIN_WINDOW = 100
_TURN = 64  # messages of a lane before another lane gets its turn


class Queues(Protocol):
    """Where messages of one topic come from."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to hand out of each queue."""

    def hand_back(self, offsets: Mapping[int, int]) -> None:
        """Hand out again what follows these offsets."""

    def share(self, queue: int) -> int:
        """What members share out when they share out ``queue``; ranges are of these."""

    def hold(self, queue: int) -> None:
        """Hand out nothing of it until it is released."""

    def release(self, queue: int) -> None: ...


class Wakeable(Protocol):
    def wake(self) -> None:
        """Have who waits look again."""


class MessageSource(Protocol):
    """Where messages come from: a :class:`lsmq._reader.Reader`, or what the broker pushes."""

    @property
    def loops(self) -> Mapping[str, Queues]: ...

    @property
    def buffer(self) -> Wakeable: ...

    def take(self, max_messages: int) -> list[Message]: ...

    async def ready(self) -> None: ...


class HandlerLane:
    """Messages that must be handled one after the other."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.running = False


class QueueProgress:
    """Of one queue: what was taken and is not behind us."""

    __slots__ = ("_handled", "_owed", "_taken", "_taken_to")

    def __init__(self) -> None:
        self._taken: list[int] = []  # a heap, as the next
        self._owed: list[int] = []  # of those taken: put back, to come again
        self._handled: set[int] = set()
        self._taken_to = 0

    def take(self, offset: int) -> bool:
        """A message comes; false when it has come before and was not put back. They come in order."""
        while self._owed and self._owed[0] < offset:
            self.handle(heapq.heappop(self._owed))  # It is gone: retention was faster.
        if self._owed and self._owed[0] == offset:
            heapq.heappop(self._owed)
            return True
        if offset < self._taken_to:
            return False
        heapq.heappush(self._taken, offset)
        self._taken_to = offset + 1
        return True

    def handle(self, offset: int) -> None:
        self._handled.add(offset)
        while self._taken and self._taken[0] in self._handled:
            self._handled.discard(heapq.heappop(self._taken))

    def put_back(self, offset: int) -> None:
        heapq.heappush(self._owed, offset)

    @property
    def first(self) -> int | None:
        """The first offset that is not handled; ``None`` when all that was taken is."""
        return self._taken[0] if self._taken else None

    @property
    def handled_to(self) -> int:
        """One past the last offset that is handled with others before it that are not; 0 when there is none."""
        return max(self._handled, default=-1) + 1


class HandlerWorker:
    """One of those that call the handler. ``dropped``: what it does counts no more."""

    __slots__ = ("dropped", "message", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.message: Message | None = None
        self.dropped = False


class LettingGo:
    """Queues that are given up, and what is left of them: in hand, or in gaps."""

    __slots__ = ("done", "left", "where")

    def __init__(self, where: Where) -> None:
        self.where = where
        self.left: set[tuple[str, int, int]] = set()  # topic, queue, offset
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class HandlerRun:
    """One :meth:`lsmq.Consumer.run`. ``look`` is called before each message; it may call :meth:`forget`."""

    def __init__(
        self,
        reader: MessageSource,
        in_progress: WorkInProgress,
        handler: MessageHandler,
        *,
        concurrency: int,
        order: Order,
        look: Callable[[], None],
        cancel: bool = True,
    ) -> None:
        if concurrency < 1 or order not in ORDERS:
            raise InvalidRequest(
                f"concurrency is {concurrency} and order {order!r}; they must be 1 or more, and one of {ORDERS}"
            )
        self.handled = asyncio.Event()
        self.stopping = self.closed_inside = False
        self._failed = False  # and what waits is not handled any more
        self._reader = reader
        self._in_progress = in_progress
        self._handler = handler
        self._order: Order = order
        self._look = look
        self._cancel = cancel
        self._window = max(_MIN_WINDOW, _WINDOW_A_WORKER * concurrency)
        self._open = 0  # messages taken and not handled
        self._lanes: dict[Hashable, HandlerLane] = {}
        self._ready: deque[Hashable] = deque()
        self._progress: dict[TopicQueue, QueueProgress] = {}
        self._paused: dict[TopicQueue, set[Hashable]] = {}  # and behind which lanes
        self._workers = [HandlerWorker() for _ in range(concurrency)]
        self._idle = 0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._letting_go: list[LettingGo] = []
        self._abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, beside: Coroutine[Any, Any, None] | None) -> None:
        """Until :meth:`stop`, or until the handler, reading or what runs ``beside`` raises.

        What is not handled then was put back.
        """
        background = BackgroundTasks()
        for worker in self._workers:
            worker.task = background.begin(self._serve(worker), "lsmq handler")
        background.begin(self._feed(), "lsmq feed")
        if beside is not None:
            background.begin(beside, "lsmq commit")
        try:
            await background.until(self._over(list(background)))
        finally:
            self.stopping = self._failed = True  # A worker that is cancelled for its queue as well would go on.
            await background.end()
            self._put_back(None)
            self._look_who_waits()

    async def _over(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Return when all of them have, or when they are abandoned."""
        over = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            await asyncio.wait((over, self._abandoned), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    def abandon(self) -> None:
        """Have :meth:`run` return whatever the handlers do."""
        if not self._abandoned.done():
            self._abandoned.set_result(None)

    def is_inside(self) -> bool:
        """Whether it is a handler that asks."""
        return asyncio.current_task() in {worker.task for worker in self._workers}

    def stop(self) -> None:
        """Begin nothing more but what is left in gaps; :meth:`run` returns when that is handled."""
        self.stopping = True
        self._put_back(None, but_gaps=True)
        self.handled.set()
        self._work.set()
        self._room.set()
        self._reader.buffer.wake()

    # Taking

    async def _feed(self) -> None:
        while not self.stopping:
            room = self._window - self._open
            if room <= 0:
                if not (self._idle and self._shed()):
                    self._room.clear()
                    await self._room.wait()
                continue
            messages = self._reader.take(room)
            if messages:
                self._sort(messages)
                await asyncio.sleep(0)
            else:
                await self._reader.ready()

    def _sort(self, messages: Iterable[Message]) -> None:
        for message in messages:
            place = (message.topic, message.queue)
            progress = self._progress.get(place)
            if progress is None:
                progress = self._progress[place] = QueueProgress()
            if not progress.take(message.offset):
                continue
            self._open += 1
            name = self._lane_of(message)
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = HandlerLane()
            lane.waiting.append(message)
            if not lane.running and len(lane.waiting) == 1:
                self._ready.append(name)
        self._work.set()

    def _lane_of(self, message: Message) -> Hashable:
        if self._order == "none":
            return (message.topic, message.queue, message.offset)
        if self._order == "key" and message.key is not None:
            key = message.key
            return (message.topic, key.encode() if isinstance(key, str) else key)
        return (message.topic, message.queue)

    def _shed(self) -> bool:
        """Somebody is idle although the window is full: all that waits, waits behind what is being handled.

        Whether that made room.
        """
        if self._ready:
            return False
        back = self._put_back(None)
        for (topic, queue), lanes in back.items():
            self._reader.loops[topic].hold(queue)
            self._paused.setdefault((topic, queue), set()).update(lanes)
        return bool(back)

    def _those_in(self, topic: str, ranges: Ranges) -> Where:
        """Whether a place is one of the topic's in these ranges."""
        loop = self._reader.loops.get(topic)

        def is_one(place: TopicQueue) -> bool:
            return place[0] == topic and loop is not None and contains(ranges, loop.share(place[1]))

        return is_one

    def _put_back(self, where: Where | None, *, but_gaps: bool = False) -> dict[TopicQueue, set[Hashable]]:
        """Let what has not begun come again later: of these queues, or all; which queues waited in which lanes.

        ``but_gaps``: not what lies before others of its queue that were handled, or are.
        """
        begun_to = self._begun_to() if but_gaps else {}
        back: dict[TopicQueue, set[Hashable]] = {}
        first: dict[TopicQueue, int] = {}
        for name, lane in list(self._lanes.items()):
            kept: deque[Message] = deque()
            for message in lane.waiting:
                place = (message.topic, message.queue)
                if (where is None or where(place)) and message.offset >= begun_to.get(place, 0):
                    back.setdefault(place, set()).add(name)
                    first[place] = min(first.get(place, message.offset), message.offset)
                    self._progress[place].put_back(message.offset)
                    self._open -= 1
                else:
                    kept.append(message)
            lane.waiting = kept
            if not kept and not lane.running:
                del self._lanes[name]
        self._ready = deque(name for name in self._ready if name in self._lanes)
        for (topic, queue), offset in first.items():
            self._hand_back(topic, queue, offset)
        self._room.set()
        return back

    def _begun_to(self) -> dict[TopicQueue, int]:
        """One past the last offset of each queue that was handled, or is, where others before it may be left."""
        begun_to = {place: progress.handled_to for place, progress in self._progress.items()}
        for worker in self._workers:
            if (message := worker.message) is not None and not worker.dropped:
                place = (message.topic, message.queue)
                begun_to[place] = max(begun_to[place], message.offset + 1)
        return begun_to

    def _hand_back(self, topic: str, queue: int, offset: int) -> None:
        """Have the reader hand out again what follows the offset, unless it does anyway."""
        positions = self._reader.loops[topic].positions
        if queue in positions and offset < positions[queue]:
            self._reader.loops[topic].hand_back({queue: offset})

    # Handling

    async def _serve(self, worker: HandlerWorker) -> None:
        while not self._failed:
            if not self._ready:
                if self.stopping:
                    return  # What comes behind in a lane is for whoever works on it.
                self._work.clear()
                self._idle += 1
                self._room.set()
                try:
                    await self._work.wait()
                finally:
                    self._idle -= 1
                continue
            name = self._ready.popleft()
            lane = self._lanes[name]
            lane.running = True
            try:
                await self._work_on(worker, name, lane)
            finally:
                lane.running = False
                if lane.waiting:
                    self._ready.append(name)
                    self._work.set()
                else:
                    del self._lanes[name]

    async def _work_on(self, worker: HandlerWorker, name: Hashable, lane: HandlerLane) -> None:
        for _ in range(_TURN):
            self._look()
            if self._failed or not lane.waiting:
                return
            message = worker.message = lane.waiting.popleft()
            place = (message.topic, message.queue)
            progress = self._progress[place]
            worker.dropped = False
            self._in_progress.take(worker)
            try:
                pending = self._handler(message)
                if inspect.isawaitable(pending):
                    await pending
                if not worker.dropped:
                    progress.handle(message.offset)
                    if progress.first is None:
                        del self._progress[place]  # Idle queues cost nothing.
                    self.handled.set()
            except BaseException as error:
                if not worker.dropped:
                    self.stopping = self._failed = True  # Nobody goes on with what is behind it.
                    progress.put_back(message.offset)
                    self._hand_back(*place, message.offset)
                    raise
                if isinstance(error, asyncio.CancelledError):
                    assert worker.task is not None
                    worker.task.uncancel()
            finally:
                worker.message = None
                self._in_progress.put_down(worker)
                self._open -= 1
                self._room.set()
                if self._paused:
                    self._resume_behind(name)
                for going in self._letting_go:
                    going.left.discard((*place, message.offset))
                if self._letting_go:
                    self._wake_those_who_wait()

    def _resume_behind(self, lane: Hashable) -> None:
        """A message of this lane is done with: others that waited may come again."""
        for (topic, queue), lanes in list(self._paused.items()):
            lanes.discard(lane)
            if not lanes:
                del self._paused[topic, queue]
                self._reader.loops[topic].release(queue)

    # Giving up queues

    def unfinished(self, topic: str) -> dict[int, int]:
        """The first offset of each queue that is not handled, where there is one."""
        return {
            queue: first
            for (name, queue), progress in self._progress.items()
            if name == topic and (first := progress.first) is not None
        }

    def put_back(self, topic: str, ranges: Ranges) -> None:
        """Begin nothing of these queues that was taken: it comes again from where it is read."""
        self._put_back(self._those_in(topic, ranges))
        self._look_who_waits()

    def lose(self, topic: str, ranges: Ranges) -> None:
        """:meth:`put_back` what comes again without being asked for, or to somebody else."""
        where = self._those_in(topic, ranges)
        self._put_back(where)
        self._stay_paused(where)

    async def let_go(self, topic: str, ranges: Ranges) -> None:
        """Begin nothing more of these queues but what is left in gaps; return when that is handled."""
        where = self._those_in(topic, ranges)
        self._put_back(where, but_gaps=True)
        self._stay_paused(where)
        going = LettingGo(where)
        self._letting_go.append(going)
        self._look_who_waits()
        await going.done

    def _look_who_waits(self) -> None:
        """What is left of queues that are given up may be less than it was."""
        handled = (each.message for each in self._workers if each.message is not None and not each.dropped)
        open_now = list(chain(handled, *(lane.waiting for lane in self._lanes.values()))) if self._letting_go else []
        for going in self._letting_go:
            going.left = {
                (each.topic, each.queue, each.offset) for each in open_now if going.where((each.topic, each.queue))
            }
        self._wake_those_who_wait()

    def _wake_those_who_wait(self) -> None:
        for going in self._letting_go:
            if not going.left and not going.done.done():
                going.done.set_result(None)
        self._letting_go = [going for going in self._letting_go if going.left]

    def _stay_paused(self, where: Where) -> None:
        for place in [place for place in self._paused if where(place)]:
            del self._paused[place]

    def forget(self, topic: str, ranges: Ranges, *, cancel: bool = True) -> None:
        """What is handled of these queues counts no more, and is cancelled where it can be."""
        self._forget(self._those_in(topic, ranges), cancel=cancel)

    def forget_queue(self, topic: str, queue: int) -> None:
        """What is handled of this queue counts no more; it comes to its end."""
        self._forget(lambda place: place == (topic, queue), cancel=False)

    def _forget(self, where: Where, *, cancel: bool) -> None:
        self._put_back(where)
        self._stay_paused(where)
        for worker in self._workers:
            message = worker.message
            if message is not None and where((message.topic, message.queue)):
                worker.dropped = True
                if cancel and self._cancel and worker.task is not None and worker.task is not asyncio.current_task():
                    worker.task.cancel()
        for place in [place for place in self._progress if where(place)]:
            del self._progress[place]
        self._look_who_waits()

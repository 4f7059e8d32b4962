"""The consumer: reads the messages of many queues of a topic, from any offset, as often as one likes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from lsmq._fetch import Chunk, FetchOptions, OutOfRange
from lsmq._fetch_loop import FetchLoop
from lsmq._positions import QueuePositions
from lsmq._retry import Deadline
from lsmq.client import Client
from lsmq.errors import ClientClosed, InvalidRequest, LsmqError
from lsmq.record_batch import Message

Start = Literal["earliest", "latest", "committed"] | datetime | int | Mapping[int, int]
Handler = Callable[[Message], Awaitable[None] | None]

DEFAULT_MAX_MESSAGES = 5_000
DEFAULT_MAX_BYTES = 1 << 20
DEFAULT_PREFETCH_BYTES = 8 << 20
DEFAULT_WAIT_MS = 5_000

_EDGES = ("earliest", "latest")


class Consumer:
    """Reads queues of one topic: all of them, or ``queues``. Messages of a queue come in offset order.

    ``start`` says where to begin: ``"earliest"``, ``"latest"`` (only what comes from now on),
    ``"committed"`` (where ``group`` left off; ``uncommitted`` decides for queues without a committed
    offset), a datetime or milliseconds since 1970 (the first message stored at or after it), or a mapping of
    queue to offset (the queues it leaves out begin at the earliest). The default is ``"committed"`` with a
    group and ``"earliest"`` without.

    ``on_out_of_range`` says what to do where retention has removed the offset to read next, or a queue ends
    before it: go to the ``"earliest"`` or ``"latest"``, or raise ``OffsetOutOfRange`` (``"error"``).

    One request per node is under way at any time, for all queues it leads; it brings at most
    ``max_messages`` and about ``max_bytes``, and waits up to ``wait_ms`` at the node for the first message.
    Fetching pauses while ``prefetch_bytes`` wait to be handed out: the memory used is at most that and one
    answer a node. A failure that may pass is tried again for ``deadline_ms``; then the application gets the
    error, and may go on.

    A topic that is deleted and made anew under its name is another topic: reading and committing raise
    ``TopicReplaced`` from then on.

    Delivery is at least once: :meth:`commit` stores how far the application was handed messages, and a
    consumer that starts from there is handed every later one. Use it as ``async with Consumer(client,
    topic) as consumer: async for message in consumer: ...``; it belongs to one event loop and one task.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        queues: Iterable[int] | None = None,
        group: str | None = None,
        start: Start | None = None,
        uncommitted: Literal["earliest", "latest"] = "earliest",
        on_out_of_range: OutOfRange = "earliest",
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        wait_ms: int = DEFAULT_WAIT_MS,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> None:
        if start is None:
            start = "committed" if group is not None else "earliest"
        if isinstance(start, str) and start not in (*_EDGES, "committed"):
            raise InvalidRequest(f"start is {start!r}; it must be 'earliest', 'latest', 'committed', a time or offsets")
        if start == "committed" and group is None:
            raise InvalidRequest("start='committed' needs a group, whose committed offsets to start from")
        if on_out_of_range not in (*_EDGES, "error") or uncommitted not in _EDGES:
            raise InvalidRequest(
                "on_out_of_range must be 'earliest', 'latest' or 'error'; uncommitted 'earliest' or 'latest'"
            )
        if min(max_messages, max_bytes, prefetch_bytes) < 1 or wait_ms < 0:
            raise InvalidRequest("max_messages, max_bytes and prefetch_bytes must be above 0, wait_ms 0 or more")
        self._client = client
        self._name = topic
        self._wanted = None if queues is None else queues if isinstance(queues, range) else list(queues)
        self._group = group
        self._start = start
        self._uncommitted = uncommitted
        self._on_out_of_range = on_out_of_range
        self._options = FetchOptions(
            max_messages,
            max_bytes,
            wait_ms,
            prefetch_bytes,
            request_timeout_ms or client.request_timeout_ms,
            deadline_ms or client.deadline_ms,
        )
        self._chunk: Chunk | None = None
        self._messages: Iterator[Message] = iter(())
        self._maybe_loop: FetchLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._commit_turn = asyncio.Lock()
        self._closed = False

    # Life

    async def start(self) -> None:
        """Find out where to begin, and begin to fetch. Entering ``async with`` or the first read does it.

        Raises ``UnknownTopic``, ``UnknownQueue``, and ``OffsetOutOfRange`` if that is the policy.
        """
        if self._closed:
            raise ClientClosed("this consumer is closed; make a new one")
        if self._task is not None:
            return
        topic = await self._client.topic(self._name)
        queues = range(topic.queues) if self._wanted is None else self._wanted
        positions = QueuePositions(queues, track_changes=self._group is not None)
        for queue in (positions.queues[0], positions.queues[-1]):
            topic.check_queue(queue)
        loop = FetchLoop(self._client, topic, self._options, positions, self._on_out_of_range)
        await self._find_start(loop)
        await loop.check_bounds()
        self._maybe_loop = loop
        self._client._router.follow(topic.name)
        self._task = asyncio.create_task(loop.run(), name=f"lsmq consumer {topic.name}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop fetching and drop what is buffered. Commits nothing."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            self._client._router.unfollow(self._name)
            self._loop.buffer.ready.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._loop.buffer.chunks.clear()
        self._messages = iter(())

    # Reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; waits for it. The iteration ends when the consumer is closed."""
        if self._task is None and not self._closed:
            await self.start()
        while not self._closed:
            messages = self._take(1)
            if messages:
                return messages[0]
            await self._loop.ready()
        raise StopAsyncIteration

    async def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """Up to ``max_messages`` that are there; waits for the first one.

        Returns an empty list after ``timeout_ms`` (0: at once; ``None``: never).
        """
        if self._task is None:
            await self.start()
        deadline = None if timeout_ms is None else Deadline(timeout_ms)
        while True:
            if self._closed:
                raise ClientClosed("this consumer is closed; make a new one")
            messages = self._take(max_messages)
            if messages:
                return messages
            try:
                async with asyncio.timeout(None if deadline is None else deadline.remaining_s()):
                    await self._loop.ready()
            except TimeoutError:
                return []

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call ``handler(message)`` for every message, until the consumer is closed or the handler raises.

        ``concurrency`` messages are handled at a time, those of one queue always in order and one at a
        time. With a group, what was handled is committed after each round of messages and when the
        handler raises; messages that were not handled by then are handed out again by a later read.
        """
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}; it must be 1 or more")
        while not self._closed:
            try:
                messages = await self.poll(max(100, 16 * concurrency))
            except ClientClosed:
                return
            shares: list[list[Message]] = [[] for _ in range(concurrency)]
            for message in messages:
                shares[message.queue % concurrency].append(message)
            try:
                await _handle_shares(handler, [share for share in shares if share])
            except BaseException as failure:
                for share in shares:
                    for message in reversed(share):
                        self.seek(message.queue, message.offset)
                if self._group is not None and isinstance(failure, Exception):
                    await self.commit()
                raise
            if self._group is not None:
                await self.commit()

    def _take(self, max_messages: int) -> list[Message]:
        """Up to ``max_messages`` from the buffer, handed out as of now."""
        taken: list[Message] = []
        positions = self._positions
        while True:
            last: Message | None = None
            try:
                try:
                    for message in self._messages:
                        if last is not None and last.queue != message.queue:
                            positions.hand_out(last.queue, last.offset + 1)
                        last = message
                        taken.append(message)
                        if len(taken) >= max_messages:
                            return taken
                finally:
                    if last is not None:
                        positions.hand_out(last.queue, last.offset + 1)
            except LsmqError:
                self._rewind()
                if taken:
                    return taken  # The next read comes upon the same record, and raises.
                raise
            self._finish_chunk()
            if not self._loop.buffer.chunks:
                return taken
            self._chunk = self._loop.buffer.chunks.popleft()
            self._messages = self._chunk.messages()

    def _finish_chunk(self) -> None:
        """All messages of the chunk are handed out: its queues stand at its ends."""
        chunk, self._chunk = self._chunk, None
        self._messages = iter(())
        if chunk is not None:
            positions = self._positions
            for queue, (_, next_offset) in chunk.spans.items():
                if positions[queue] < next_offset:
                    positions.hand_out(queue, next_offset)
            self._loop.buffer.release(chunk)

    def _rewind(self) -> None:
        """Drop everything buffered and fetch again from what was handed out."""
        self._loop.rewind(self._chunk)
        self._chunk = None
        self._messages = iter(())

    # Positions

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to hand out of each queue: a live view."""
        return self._positions

    @property
    def _loop(self) -> FetchLoop:
        if self._maybe_loop is None:
            raise ClientClosed("this consumer is not started; use 'async with', or await start() first")
        return self._maybe_loop

    @property
    def _positions(self) -> QueuePositions:
        return self._loop.positions

    async def commit(self, offsets: Mapping[int, int] | None = None, *, reset: bool = False) -> None:
        """Commit for the group what was handed out, or ``offsets`` (the next to read of each queue).

        Durable on return. Queues that have not moved since the last commit cost nothing. ``offsets`` that
        lie before what the group has committed change nothing unless ``reset``; what was handed out after a
        :meth:`seek` back is committed as it is.
        """
        if offsets is None:
            await self._commit_changed({})
            return
        async with self._commit_turn:
            await self._client._commit_offsets(self._group_to_commit(), self._loop.topic, offsets, reset=reset)

    async def _commit_changed(self, held: Mapping[int, int]) -> None:
        """Commit what was handed out, but not beyond the offsets ``held``."""
        group, positions = self._group_to_commit(), self._positions
        async with self._commit_turn:
            changed = {queue: min(offset, held.get(queue, offset)) for queue, offset in positions.changed.items()}
            rewound = positions.rewound & changed.keys()
            positions.rewound -= rewound
            try:
                for reset in (False, True):
                    part = {queue: changed[queue] for queue in changed if (queue in rewound) is reset}
                    if part:
                        await self._client._commit_offsets(group, self._loop.topic, part, reset=reset)
            except BaseException:
                positions.rewound |= rewound
                raise
            for queue, offset in changed.items():
                if positions.changed.get(queue) == offset:
                    del positions.changed[queue]

    def _group_to_commit(self) -> str:
        if self._group is None:
            raise InvalidRequest("only a consumer with a group can commit; give it group='...'")
        return self._group

    def seek(self, queue: int, offset: int) -> None:
        """Go on from ``offset`` in ``queue``; what is buffered of it is dropped."""
        if offset < 0:
            raise InvalidRequest(f"offset is {offset}; it must be 0 or more")
        self._loop.seek(queue, offset)
        if self._chunk is not None:
            self._chunk.spans.pop(queue, None)

    async def seek_to_time(self, moment: datetime | int, queues: Iterable[int] | None = None) -> None:
        """Go on from the first message stored at or after ``moment``, in ``queues`` or in all."""
        chosen = self._positions.queues if queues is None else queues
        found = await self._client._offsets(self._loop.topic, sorted(chosen), moment)
        for queue, offset in zip(found.queues, found.at_time, strict=True):
            self.seek(queue, offset)

    async def _find_start(self, loop: FetchLoop) -> None:
        start, positions = self._start, loop.positions
        match start:
            case str() if start != "committed":
                await self._start_at_edge(loop, positions.queues, start)
            case str():
                assert self._group is not None
                committed = await self._client._committed_offsets(self._group, loop.topic)
                known = {queue: offset for queue, offset in committed.items() if queue in positions}
                rest = [queue for queue in positions.queues if queue not in known] if known else positions.queues
                await self._start_at_edge(loop, rest, self._uncommitted)
                loop.start_at(known)
            case datetime() | int():
                found = await self._client._offsets(loop.topic, positions.queues, start)
                positions.start_at(found.queues, found.at_time)
            case _:
                rest = [queue for queue in positions.queues if queue not in start]
                await self._start_at_edge(loop, rest, "earliest")
                loop.start_at(start)

    async def _start_at_edge(self, loop: FetchLoop, queues: Sequence[int], edge: str) -> None:
        if not queues or (edge == "earliest" and self._on_out_of_range == "earliest"):
            return  # Offset 0 does: reading begins at the earliest there is.
        bounds = await self._client._offsets(loop.topic, queues, None)
        loop.positions.start_at(bounds.queues, bounds.earliest if edge == "earliest" else bounds.latest)


async def _handle_shares(handler: Handler, shares: Sequence[list[Message]]) -> None:
    """Handle the shares at a time, each in order. What is left in them was not handled."""

    async def handle(share: list[Message]) -> None:
        share.reverse()
        try:
            while share:
                pending = handler(share[-1])
                if inspect.isawaitable(pending):
                    await pending
                share.pop()
        finally:
            share.reverse()

    if len(shares) == 1:
        await handle(shares[0])
        return
    try:
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(handle(share))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None

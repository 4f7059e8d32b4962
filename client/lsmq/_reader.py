"""What a consumer reads: a fetch loop for each of its topics, and one buffer between them and the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from lsmq._fetch_loop import FetchLoop
from lsmq._fetcher import FetchOptions, OutOfRange, Prefetch
from lsmq._named_fetch import NamedFetchLoop
from lsmq._named_selection import NamedSelection
from lsmq._queue_positions import QueuePositions
from lsmq._retries import NEVER_MS, Backoff
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.client import Client
from lsmq.errors import InvalidRequest, LsmqError
from lsmq.record_batch import Message
from lsmq.topics import Topic

if TYPE_CHECKING:
    from lsmq.message_columns import MessageBatch

T = TypeVar("T")


class Reader:
    """Topics are added and begun; then messages are taken. ``broken`` is raised by every read from then on."""

    def __init__(self, client: Client, options: FetchOptions, policy: OutOfRange, *, track_changes: bool) -> None:
        self.client = client
        self.loops: dict[str, FetchLoop] = {}
        self.buffer = Prefetch(options.prefetch_bytes)
        self.policy: OutOfRange = policy
        self.broken: LsmqError | None = None
        self._options = options
        self._router = client._router
        self._track_changes = track_changes
        self._begun: set[str] = set()
        self._background = BackgroundTasks(self._broke)
        self._messages: Iterator[Message] = iter(())
        self._rest: MessageBatch | None = None  # of the chunk that is being handed out, where it is as columns
        self._rest_queues = 0

    # Outages

    def is_patient_with(self, error: Exception) -> bool:
        """Whether what failed so is tried again for ever."""
        return (
            self._options.deadline_ms == NEVER_MS
            and isinstance(error, LsmqError)
            and self._router.worth_retrying(error)
        )

    async def persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, again and again where this is patient with how it fails."""
        backoff = Backoff()
        while True:
            try:
                return await work()
            except LsmqError as error:
                if not self.is_patient_with(error):
                    raise
            await backoff.pause()

    # Topics

    def add(self, topic: Topic, queues: Iterable[int] | None) -> FetchLoop:
        """A topic that is read from now on, once it is begun. ``None``: all its queues, and those it grows by."""
        whole = queues is None
        owned = range(topic.queues) if queues is None else queues
        positions = QueuePositions(owned, track_changes=self._track_changes)
        loop = FetchLoop(
            self.client,
            topic,
            self._options,
            positions,
            self.policy,
            self.buffer,
            is_patient_with=self.is_patient_with,
            whole=whole,
        )
        self.loops[topic.name] = loop
        return loop

    def add_named(self, topic: Topic, selection: NamedSelection, slots: Iterable[int]) -> NamedFetchLoop:
        """A topic of which queues with names are read from now on, as far as they lie in ``slots``."""
        if self._options.read_from == "follower":
            raise InvalidRequest(
                f"read_from is 'follower', and topic {topic.name!r} has queues with names, which are read from leaders "
                "and, where these say so, from followers: leave it out"
            )
        loop = NamedFetchLoop(
            self.client,
            topic,
            self._options,
            selection,
            slots,
            self.policy,
            self.buffer,
            is_patient_with=self.is_patient_with,
            track_changes=self._track_changes,
        )
        self.loops[topic.name] = loop
        return loop

    def begin(self, topic: str) -> None:
        if topic not in self._begun:
            self._begun.add(topic)
            self.client._router.follow(topic)
            self._background.begin(self.loops[topic].run(), f"lsmq consumer {topic}", lasting=True)

    def _broke(self, error: Exception) -> None:
        self.broken = self.broken or as_lsmq_error(error, f"the consumer of {', '.join(map(repr, self.loops))}")
        self.buffer.wake()

    async def stop(self) -> None:
        """Fetch no more, and drop what is buffered. Positions stay."""
        begun, self._begun = self._begun, set()
        for topic in begun:
            self.client._router.unfollow(topic)
        await self._background.end()
        self.buffer.chunks.clear()
        self.buffer.current = self._rest = None
        self._messages = iter(())
        self.buffer.wake()

    async def edge_offsets(
        self, topic: Topic, queues: Iterable[int], edge: str, *, besides: Container[int] = ()
    ) -> dict[int, int]:
        """Where queues begin that are to be read from their ``earliest`` or ``latest`` message on.

        Empty when 0 does as well: reading begins at the earliest there is.
        """
        if edge == "earliest" and self.policy == "earliest":
            return {}
        wanted = [queue for queue in queues if queue not in besides] if besides else queues
        bounds = await self.client._offsets(topic, wanted if isinstance(wanted, range) else list(wanted), None)
        return dict(zip(bounds.queues, bounds.earliest if edge == "earliest" else bounds.latest, strict=True))

    # Messages

    async def ready(self) -> None:
        """Wait until messages may be there. Raises the error that stopped fetching."""
        if self.broken is not None:
            raise self.broken
        await self.buffer.ready()

    def check(self) -> None:
        """Raises what the next read would raise."""
        if self.broken is not None:
            raise self.broken
        self.buffer.check()

    def take(self, max_messages: int) -> list[Message]:
        """Up to ``max_messages`` from the buffer, handed out as of now."""
        taken: list[Message] = []
        while True:
            chunk = self.buffer.current
            if chunk is not None:
                positions = self.loops[chunk.topic.name].positions
                if self._rest is not None:
                    self._rest = None
                    chunk.go_on_from(positions)
                    self._messages = chunk.messages()
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
                    self.rewind()
                    if taken:
                        return taken  # The next read comes upon the same record, and raises.
                    raise
                self._finish(positions)
            if not self.buffer.chunks:
                return taken
            self.buffer.current = self.buffer.chunks.popleft()
            self._messages = self.buffer.current.messages()

    def take_batch(self, max_messages: int) -> MessageBatch | None:
        """Up to ``max_messages`` that came in one answer, handed out as of now; None where there are none."""
        while True:
            chunk = self.buffer.current
            if chunk is None:
                if not self.buffer.chunks:
                    return None
                chunk = self.buffer.current = self.buffer.chunks.popleft()
                self._messages, self._rest = iter(()), None
            positions = self.loops[chunk.topic.name].positions
            rest = self._rest
            if rest is None or self._rest_queues != len(chunk.spans):  # Queues were dropped of it.
                try:
                    chunk.go_on_from(positions)
                    rest = chunk.columns()
                except LsmqError:
                    self.rewind()
                    raise
            part = rest[:max_messages]
            if len(part) < len(rest):
                for queue, offset in part.next_offsets():
                    positions.hand_out(queue, offset)
                self._rest, self._rest_queues = rest[max_messages:], len(chunk.spans)
                return part
            self._finish(positions)
            if len(part):
                return part

    def _finish(self, positions: QueuePositions) -> None:
        """All messages of the chunk are handed out: its queues stand at its ends."""
        chunk, self.buffer.current, self._rest = self.buffer.current, None, None
        assert chunk is not None
        slot_of, handed = positions.slot, positions.handed
        for queue, (_, next_offset) in chunk.spans.items():
            slot = slot_of(queue)
            if slot >= 0 and handed[slot] < next_offset:
                positions.hand_out(queue, next_offset)
        self.buffer.release(chunk)

    def rewind(self) -> None:
        """Drop everything buffered and fetch again from what was handed out."""
        for chunk in self.buffer.all_chunks():
            self.loops[chunk.topic.name].fetch_again(chunk)
            self.buffer.release(chunk)
        self.buffer.chunks.clear()
        self.buffer.current = self._rest = None
        self._messages = iter(())

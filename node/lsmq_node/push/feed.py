"""What the streams of one group share at one node: the queues of a topic that the node leads, and the group's commits.

The leader of a shard alone sends and commits here, so nothing need be agreed with anybody: a feed holds a part for each
shard that is led here, built from the committed offsets when leadership begins and dropped when it ends. Messages are
not kept: what a stream did not acknowledge is read again for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq.errors import LsmqError, NotLeader, StreamReplaced, Unavailable
from lsmq_node.broker import Ack, Broker, QueueRange, ShardPort
from lsmq_node.storage import Topic

from .options import Start
from .part import Part
from .sharing import share

if TYPE_CHECKING:
    from .stream import Stream

_log = structlog.get_logger("lsmq.push")

_RETRY_S = 0.2
_FLUSH_S = 2.0
_SHARING_PAUSE = 4  # times as long as it took to share out the queues, they are not shared out again


class Feed:
    """Loop thread only. ``kept``: whether offsets are committed. ``run`` starts a task that somebody looks after."""

    def __init__(
        self,
        broker: Broker,
        key: tuple[str, int],
        group: str,
        topic: Topic,
        start: Start,
        run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[Any]],
        *,
        kept: bool,
    ) -> None:
        self.key = key  # as the service knows it
        self.group = group
        self.topic = topic
        self.kept = kept
        self.closed = False
        self.streams: dict[str, Stream] = {}
        self.commits = 0
        self._broker = broker
        self._start = start
        self._run = run
        self._numbers: dict[int, Stream] = {}
        self._next_number = 0
        self._sharing: asyncio.TimerHandle | None = None
        self._shared_at = float("-inf")
        self._sharing_s = 0.0
        self._parts: dict[int, Part] = {}  # by their first queue, as the next
        self._loading: dict[int, asyncio.Task[Any]] = {}
        self._pending: dict[int, int] = {}
        self._committing: asyncio.Task[Any] | None = None
        self._round_over = asyncio.Event()

    # Streams

    def attach(self, stream: Stream) -> None:
        """One more subscriber. An earlier stream of the same one ends."""
        former = self.streams.get(stream.subscriber)
        if former is not None:
            former.end(StreamReplaced(f"subscriber {stream.subscriber!r} has come with another stream"))
            self.detach(former)
        stream.number = self._next_number
        self._next_number += 1
        self.streams[stream.subscriber] = stream
        self._numbers[stream.number] = stream
        self.refresh()
        self._share_soon()

    def detach(self, stream: Stream) -> None:
        """What the stream has not acknowledged goes to others, or waits for the next one."""
        if self._numbers.pop(stream.number, None) is None:
            return
        if self.streams.get(stream.subscriber) is stream:
            del self.streams[stream.subscriber]
        for queue, offset in stream.ledger.firsts():
            part = self._part_of(queue)
            if part is not None:
                part.rewind(queue, offset)
        for part in self._parts.values():
            part.free(stream.number)
        self._share_soon()

    def end_all(self, error: LsmqError) -> None:
        """No stream goes on, and nothing that is not committed by now is."""
        self.closed = True
        self._pending.clear()
        for stream in list(self.streams.values()):
            stream.end(error)

    def _share_soon(self) -> None:
        """Share out the queues again: at once, but where many subscribers come that may not take all the time."""
        loop = asyncio.get_running_loop()
        if self._sharing is None:
            delay_s = self._shared_at + _SHARING_PAUSE * self._sharing_s - loop.time()
            if delay_s <= 0:
                self._share()
            else:
                self._sharing = loop.call_later(delay_s, self._share)

    def _share(self) -> None:
        self._sharing = None
        began = asyncio.get_running_loop().time()
        numbers = {name: stream.number for name, stream in self.streams.items()}
        affected: set[int] = set()
        for part in self._parts.values():
            before = part.state()
            part.aim(share(part.first, part.end, numbers, part.shares), numbers)
            held = [queue for stream in self.streams.values() for queue, _ in stream.ledger.firsts() if part.has(queue)]
            part.hand_over(np.array(held, np.int64))
            affected |= part.affected(before)
        for number in affected:
            if number in self._numbers:
                self._numbers[number].changed()
        self._shared_at = asyncio.get_running_loop().time()
        self._sharing_s = self._shared_at - began

    # Leadership

    @property
    def is_whole(self) -> bool:
        """Whether this node leads all queues of the topic."""
        return all(self._broker.topology.leadership(queues.shard).here for queues in self._broker.ranges(self.topic))

    def refresh(self) -> None:
        """Begin with shards that are led here now, and drop those that are not, or not in the same epoch."""
        for queues in self._broker.ranges(self.topic):
            leads, part = self._broker.topology.leadership(queues.shard), self._parts.get(queues.first)
            if part is not None and not (leads.here and leads.epoch == part.epoch):
                self._drop(part)
                part = None
            if leads.here and part is None and queues.first not in self._loading and not self.closed:
                self._loading[queues.first] = self._run(self._load(queues, leads.epoch))
            if not leads.here:
                self._end_whole(queues.shard)

    def _drop(self, part: Part) -> None:
        _log.info("push_part_dropped", group=self.group, topic=self.topic.name, shard=part.shard, epoch=part.epoch)
        self._parts.pop(part.first, None)
        for queue in [queue for queue in self._pending if part.has(queue)]:
            del self._pending[queue]
        for stream in self.streams.values():
            stream.ledger.forget(part.first, part.end)
            stream.changed()

    def _end_whole(self, shard: int) -> None:
        """Streams that were to have all queues of the topic have them not from this node."""
        for stream in list(self.streams.values()):
            if stream.options.whole:
                leads = self._broker.topology.leadership(shard)
                stream.end(
                    NotLeader(
                        f"shard {shard} is led by another node now; come again",
                        shard=shard,
                        leader=leads.url,
                        epoch=leads.epoch,
                    )
                )

    async def _load(self, queues: QueueRange, epoch: int) -> None:
        try:
            cursor = await self._cursor(queues)
            leads = self._broker.topology.leadership(queues.shard)
            if leads.here and leads.epoch == epoch and not self.closed:
                self._parts[queues.first] = Part(queues.shard, queues.first, queues.end, epoch, cursor)
                self._share()
        except LsmqError as error:
            if not error.retriable:
                self.end_all(error)
            else:
                _log.info("push_part_not_loaded", group=self.group, shard=queues.shard, code=error.code)
                await asyncio.sleep(_RETRY_S)  # The next refresh tries again.
        finally:
            self._loading.pop(queues.first, None)

    async def _cursor(self, part: QueueRange) -> NDArray[np.int64]:
        """Where to begin in each queue: at what is committed, once all that was in line before is."""
        port = self._broker.topology.port(part.shard)
        port.check_readable()
        await port.prepare(self.topic)
        barrier = port.store.barrier()
        if barrier is not None and (future := port.wait(barrier, Ack.QUORUM)) is not None:
            await asyncio.shield(future)
        queues = np.arange(part.first, part.end, dtype=np.uint32)
        store = port.store
        latest = store.latest_offsets(self.topic.id, queues)
        cursor = np.full(len(queues), -1, np.int64)
        if self.kept:
            cursor = store.committed_offsets(self.group, self.topic.id, queues)
        port.check_readable()
        new = cursor < 0
        if new.any():
            begin = latest if self._start is Start.LATEST else store.earliest_offsets(self.topic.id, queues)
            cursor = np.where(new, begin, cursor)
            if self.kept and self._start is Start.LATEST:
                # Otherwise what comes before the first acknowledgement would be skipped by the next leader.
                await self._broker.commit_offsets(self.group, self.topic, queues[new], cursor[new], reset=False)
        return np.minimum(cursor, latest)

    def _part_of(self, queue: int) -> Part | None:
        return next((part for part in self._parts.values() if part.has(queue)), None)

    # Sending, as streams ask for it

    def wanted(self, number: int) -> NDArray[Any]:
        """The queues that a stream may be sent of, ascending."""
        return _joined([part.queues_of(number) for part in self._ordered()], np.uint32)

    def owned(self, number: int) -> NDArray[Any]:
        """The queues that are a stream's, ascending, those that it gives up once it has acknowledged all of them."""
        return _joined([part.owned_by(number) for part in self._ordered()], np.uint32)

    def _ordered(self) -> list[Part]:
        return sorted(self._parts.values(), key=lambda part: part.first)

    def cursors(self, queues: NDArray[Any]) -> NDArray[np.int64]:
        """The next offset to send of queues that are here, in any order."""
        found = np.zeros(len(queues), np.int64)
        for part in self._parts.values():
            inside = (queues >= part.first) & (queues < part.end)
            found[inside] = part.cursor[queues[inside].astype(np.int64) - part.first]
        return found

    def check_leads(self) -> None:
        """Raises ``NotLeader`` where one of the parts is not led here in the epoch it was built in."""
        for part in self._parts.values():
            self._check_leads(part)

    def _check_leads(self, part: Part) -> None:
        leads = self._broker.topology.leadership(part.shard)
        if not leads.here or leads.epoch != part.epoch:
            raise NotLeader(f"shard {part.shard} is led by another node now", shard=part.shard)

    def sent(self, queues: NDArray[Any], next_offsets: NDArray[np.int64]) -> None:
        """A stream sends what lies before these offsets."""
        for part in self._parts.values():
            inside = (queues >= part.first) & (queues < part.end)
            if inside.any():
                part.advance(queues[inside], next_offsets[inside])

    # Acknowledgements

    def acknowledge(self, stream: Stream, queue: int, offset: int) -> bool:
        """The queue's messages up to this offset are handled; whether that was news."""
        next_offset = stream.ledger.acknowledge(queue, offset)
        part = self._part_of(queue)
        if next_offset is None or part is None:
            return False
        if self.kept and not self.closed:
            self._pending[queue] = next_offset
            if self._committing is None:
                self._committing = self._run(self._commit())
        if not stream.ledger.holds(queue) and part.hand_over_one(queue):
            stream.changed()
            owner = self._numbers.get(int(part.owner[queue - part.first]))
            if owner is not None:
                owner.changed()
        return True

    async def flush(self) -> None:
        """Return when what was acknowledged is committed, or it takes too long."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                for _ in range(2):  # The round under way may have begun before the last acknowledgement.
                    if self._committing is not None:
                        await self._round_over.wait()
        except TimeoutError:
            _log.info("push_not_flushed", group=self.group, topic=self.topic.name)

    async def _commit(self) -> None:
        """Commit as long as anything is pending; what comes meanwhile goes with the next one."""
        try:
            while self._pending and not self.closed:
                for part in list(self._parts.values()):
                    taken = {queue: offset for queue, offset in self._pending.items() if part.has(queue)}
                    if taken and not await self._commit_part(part, taken):
                        await asyncio.sleep(_RETRY_S)
                        self.refresh()
                if not any(part.has(queue) for queue in self._pending for part in self._parts.values()):
                    self._pending.clear()  # Of shards that another node leads: it sends that again.
                self._end_round()
        finally:
            self._committing = None
            self._end_round()

    def _end_round(self) -> None:
        over, self._round_over = self._round_over, asyncio.Event()
        over.set()

    async def _commit_part(self, part: Part, taken: dict[int, int]) -> bool:
        queues = np.array(sorted(taken), np.uint32)
        offsets = np.array([taken[queue] for queue in queues.tolist()], np.int64)

        def allow(port: ShardPort) -> None:
            if self.closed or self._parts.get(part.first) is not part:
                raise Unavailable("this is committed by somebody else now", sent=False)
            self._check_leads(part)

        try:
            await self._broker.commit_offsets(self.group, self.topic, queues, offsets, reset=False, allow=allow)
        except LsmqError as error:
            _log.info("push_not_committed", group=self.group, shard=part.shard, code=error.code, message=error.message)
            if not error.retriable:
                self.end_all(error)
            return False
        self.commits += 1
        for queue, offset in taken.items():
            if self._pending.get(queue) == offset:
                del self._pending[queue]
        return True


def _joined(arrays: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, kind)

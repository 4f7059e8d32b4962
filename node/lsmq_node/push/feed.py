"""What the streams of one group share at one node: the queues of a topic that the node leads, and the group's commits.

The leader of a shard alone sends and commits here, so nothing need be agreed with anybody: a feed holds a part for each
shard that is led here, built from the committed offsets when leadership begins and dropped when it ends. Messages are
not kept: what a stream did not acknowledge is read again for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq.errors import LsmqError, NotLeader, StreamReplaced, Unavailable
from lsmq_node.broker.placement import numbered_ranges
from lsmq_node.groups import Mode
from lsmq_node.storage import StoredTopic

from .led_part import LedPart
from .options import PushStart
from .part import PushedPart
from .sharing import share

if TYPE_CHECKING:
    from .service import PushService
    from .stream import PushStream

_log = structlog.get_logger("lsmq.push")

#: Shard, epoch, and URL where somebody is known to lead it.
LeaderElsewhere = list[int | str | None]

_FLUSH_S = 2.0
_SHARING_PAUSE = 4  # times as long as it took to share out the queues, they are not shared out again


class Feed:
    """Loop thread only. ``kept``: whether offsets are committed."""

    def __init__(
        self,
        service: PushService,
        key: tuple[str, int],
        group: str,
        topic: StoredTopic,
        start: PushStart,
        *,
        kept: bool,
    ) -> None:
        self.key = key  # as the service knows it
        self.group = group
        self.topic = topic
        self.start = start
        self.kept = kept
        self.closed = False
        self.refreshed_at: object = None  # what it was refreshed by last
        self.streams: dict[str, PushStream] = {}
        self._service = service
        self._topology = service.broker.topology
        self._numbers: dict[int, PushStream] = {}
        self._next_number = 0
        self._sharing: asyncio.TimerHandle | None = None
        self._shared_at = float("-inf")
        self._sharing_s = 0.0
        self._led: dict[int, LedPart] = {}  # by their first queue
        #: Of the topic's shards that this node does not lead, who does, as far as it knows.
        self.leaders: list[LeaderElsewhere] = []

    @property
    def shared(self) -> tuple[str, Mode]:
        """The group, as its coordinator knows it, and how it is shared."""
        name, of_subscriber, _ = self.group.partition("/")
        return name, Mode.BROADCAST if of_subscriber else Mode.PUSH

    # Streams

    def attach(self, stream: PushStream) -> None:
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

    def detach(self, stream: PushStream) -> None:
        """What the stream has not acknowledged goes to others, or waits for the next one."""
        if self._numbers.pop(stream.number, None) is None:
            return
        stream.hears = False
        if self.streams.get(stream.subscriber) is stream:
            del self.streams[stream.subscriber]
        for queue, offset in stream.ledger.firsts():
            part = self._part_of(queue)
            if part is not None:
                part.rewind(queue, offset)
        for part in self._parts():
            part.free(stream.number)
        self._share_soon()

    def end_all(self, error: LsmqError) -> None:
        """No stream goes on, and nothing that is not committed by now is."""
        self.closed = True
        for part in self._parts():
            part.pending.clear()
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
        for part in self._parts():
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

    def refresh(self) -> None:
        """Begin with shards that are led here now, and drop those that are not, or not in the same epoch."""
        elsewhere: dict[int, LeaderElsewhere] = {}
        for queues in numbered_ranges(self.topic, self._topology.home_shards):
            leads, led = self._topology.leadership(queues.shard), self._led.get(queues.first)
            if led is not None and not (leads.here and leads.epoch == led.epoch):
                self._drop(led)
            if leads.here and not self.closed:
                port, make = self._topology.port(queues.shard), partial(LedPart, self._service, self, queues)
                self._service.begin(port, make, (self, queues.first))
            if not leads.here:
                elsewhere[queues.shard] = [queues.shard, leads.epoch, leads.url]
                self._end_whole(queues.shard)
        if (leaders := list(elsewhere.values())) != self.leaders:
            self.leaders = leaders
            for stream in self.streams.values():
                stream.changed()

    def began(self, led: LedPart) -> None:
        """The node leads a part, or goes on with it."""
        self._led[led.part.first] = led
        self._share()

    def grew(self) -> None:
        """Queues have come to a part."""
        self._share_soon()

    def _drop(self, led: LedPart) -> None:
        part = led.part
        _log.info("push_part_dropped", group=self.group, topic=self.topic.name, shard=part.shard, epoch=part.epoch)
        del self._led[part.first]
        self._service.drop(led.key)
        for stream in self.streams.values():
            stream.ledger.forget(part.first, part.end)
            stream.changed()

    def _end_whole(self, shard: int) -> None:
        """Streams that were to have all queues of the topic have them not from this node."""
        for stream in list(self.streams.values()):
            if stream.options.whole:
                leads = self._topology.leadership(shard)
                stream.end(
                    NotLeader(
                        f"shard {shard} is led by another node now; come again",
                        shard=shard,
                        leader=leads.url,
                        epoch=leads.epoch,
                    )
                )

    def _parts(self) -> Iterable[PushedPart]:
        return (led.part for led in self._led.values())

    def _part_of(self, queue: int) -> PushedPart | None:
        return next((part for part in self._parts() if part.has(queue)), None)

    # Sending, as streams ask for it

    def wanted(self, number: int) -> NDArray[Any]:
        """The queues that a stream may be sent of, ascending."""
        return _joined([part.queues_of(number) for part in self._ordered()], np.uint32)

    def owned(self, number: int) -> NDArray[Any]:
        """The queues that are a stream's, ascending, those that it gives up once it has acknowledged all of them."""
        return _joined([part.owned_by(number) for part in self._ordered()], np.uint32)

    def _ordered(self) -> list[PushedPart]:
        return sorted(self._parts(), key=lambda part: part.first)

    def cursors(self, queues: NDArray[Any]) -> NDArray[np.int64]:
        """The next offset to send of queues that are here, in any order."""
        found = np.zeros(len(queues), np.int64)
        for part in self._parts():
            inside = (queues >= part.first) & (queues < part.end)
            found[inside] = part.cursor[queues[inside].astype(np.int64) - part.first]
        return found

    def check_leads(self) -> None:
        """Raises ``NotLeader``, ``Unavailable`` where one of the parts is not served here as it was built."""
        for led in self._led.values():
            led.check()

    def sent(self, queues: NDArray[Any], next_offsets: NDArray[np.int64]) -> None:
        """A stream sends what lies before these offsets."""
        for part in self._parts():
            inside = (queues >= part.first) & (queues < part.end)
            if inside.any():
                part.advance(queues[inside], next_offsets[inside])

    def passed_over(self, stream: PushStream, spans: Mapping[int, tuple[int, int]]) -> None:
        """The queues have moved; those of which the stream holds nothing are handled up to there."""
        if not self.kept or self.closed:
            return
        for queue, (_, end) in spans.items():
            if not stream.ledger.holds(queue):
                led = next((led for led in self._led.values() if led.part.has(queue)), None)
                if led is not None:
                    led.acknowledged(queue, end)

    # Acknowledgements

    def acknowledge(self, stream: PushStream, queue: int, offset: int) -> bool:
        """The queue's messages up to this offset are handled; whether that was news."""
        if not stream.hears:
            return False
        next_offset = stream.ledger.acknowledge(queue, offset)
        led = next((led for led in self._led.values() if led.part.has(queue)), None)
        if next_offset is None or led is None:
            return False
        if self.kept and not self.closed:
            led.acknowledged(queue, next_offset)
        part = led.part
        if not stream.ledger.holds(queue) and part.hand_over_one(queue):
            stream.changed()
            owner = self._numbers.get(int(part.owner[queue - part.first]))
            if owner is not None:
                owner.changed()
        return True

    @property
    def is_pending(self) -> bool:
        """Whether anything is acknowledged and not committed."""
        return any(part.pending for part in self._parts())

    async def flush(self) -> None:
        """Return when what was acknowledged by now is committed. Raises ``Unavailable`` where that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FLUSH_S
        # Others go on acknowledging: one commit may be under way, the next has what was acknowledged meanwhile.
        enough = {part: part.commits + 2 for part in self._parts() if part.pending}

        def behind() -> list[PushedPart]:
            return [part for part, commits in enough.items() if part.pending and part.commits < commits]

        while (left := behind()) and set(left) <= set(self._parts()) and loop.time() < deadline:
            await self._service.held.wait([(led.key,) for led in self._led.values()], deadline)
        if left:
            _log.info("push_not_flushed", group=self.group, topic=self.topic.name)
            raise Unavailable("what was acknowledged last is not committed: it may come again")


def _joined(arrays: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, kind)

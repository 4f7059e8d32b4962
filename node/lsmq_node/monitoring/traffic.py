"""Messages and bytes that topics were written and read, here: counters for the busiest topics, one for the others.

A counter must never go back, and what is counted for one topic must not come to light later as a jump of another. So
what comes counts for its topic while that has a counter, and for the others while it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from lsmq_node.broker import Broker
from lsmq_node.storage import Flow

from .biggest import OTHERS, biggest

#: Messages of ten minutes ago count half when the busiest topics are chosen.
_HALF_S: Final = 600.0
#: A topic of which less than so much is left is forgotten.
_IDLE: Final = 0.1


@dataclass(slots=True)
class Traffic:
    """Of a topic, since the node started or the topic was given a counter. Written: where this node led its shard."""

    written_messages: int = 0
    written_bytes: int = 0
    read_messages: int = 0
    read_bytes: int = 0

    def add(self, written: Flow, read: Flow) -> None:
        self.written_messages += written.messages
        self.written_bytes += written.size_bytes
        self.read_messages += read.messages
        self.read_bytes += read.size_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """What a topic was written and read a second lately. Written: where this node leads its shard."""

    topic: str
    in_per_s: float
    out_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float


class TopicTraffic:
    """Loop thread only."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._by_topic: dict[str, Traffic] = {}
        self._others = Traffic()
        self._busy: dict[str, float] = {}  # messages by topic, older ones count less
        #: Written and read by topic between the last two counts, and how long that was; it is replaced, never changed.
        self._lately: tuple[Mapping[str, tuple[Flow, Flow]], float] = ({}, 1.0)

    def series(self) -> Sequence[tuple[str, Traffic]]:
        """By topic, and of all that have no counter once there were any."""
        others = [(OTHERS, self._others)] if self._others != Traffic() else []
        return [*self._by_topic.items(), *others]

    def busiest(self, limit: int, shows: Callable[[str], bool]) -> list[Rates]:
        """The topics that most messages came to or went from between the last two counts; no others than such.

        Of those that ``shows`` says yes to. In any thread: it looks at all topics that there was something of.
        """
        flows, passed_s = self._lately

        def messages(topic: str) -> int:
            return sum(flow.messages for flow in flows[topic])

        found = []
        for topic in nlargest(limit, filter(shows, flows), messages):
            written, read = flows[topic]
            counts = written.messages, read.messages, written.size_bytes, read.size_bytes
            found.append(Rates(topic, *(round(count / passed_s, 3) for count in counts)))
        return found

    async def gather(self, passed_s: float) -> None:
        """Count what was written and read since the last call, ``passed_s`` ago.

        Costs what topics had traffic; on the loop, what topics have a counter.
        """
        stores = [port.store for port in self._broker.topology.ports()]
        read = self._broker.reads.flow.take()
        busy, keep = self._busy, 0.5 ** (passed_s / _HALF_S)

        def counted() -> tuple[dict[str, tuple[Flow, Flow]], dict[str, float]]:
            touched = _touched([store.take_led() for store in stores], read)  # while records are applied
            return touched, _aged(busy, keep, touched)

        touched, self._busy = await self._broker.in_readers(counted)
        if passed_s > 0:  # Else it is the first count.
            self._lately = touched, passed_s
        await self._choose()
        own = self._by_topic
        for topic in own.keys() & touched.keys():
            own[topic].add(*touched[topic])
        self._others.add(*await self._broker.in_readers(lambda: _sum_of_others(touched, own)))

    async def _choose(self) -> None:
        topics = self._broker.topology.topics
        if topics.count() <= self._limit:
            chosen: Iterable[str] = [topic.name for topic in topics.all()]
        else:
            for topic in [name for name in self._by_topic if topics.find(name) is None]:
                del self._by_topic[topic]
                self._busy.pop(topic, None)
            before, busy, limit = list(self._by_topic), self._busy, self._limit
            chosen = await self._broker.in_readers(lambda: biggest(before, busy, limit))
        self._by_topic = {topic: self._by_topic.get(topic) or Traffic() for topic in sorted(chosen)}


def _touched(written: Iterable[Mapping[str, Flow]], read: Mapping[str, Flow]) -> dict[str, tuple[Flow, Flow]]:
    """Written, by all stores together, and read."""
    sums: dict[str, Flow] = {}
    for taken in written:
        for topic, flow in taken.items():
            found = sums.setdefault(topic, Flow())
            found.messages += flow.messages
            found.size_bytes += flow.size_bytes
    return {topic: (sums.get(topic) or Flow(), read.get(topic) or Flow()) for topic in sums.keys() | read.keys()}


def _sum_of_others(touched: Mapping[str, tuple[Flow, Flow]], own: Mapping[str, Traffic]) -> tuple[Flow, Flow]:
    """Of those that have no counter of their own."""
    written, read = Flow(), Flow()
    for topic, flows in touched.items():
        if topic not in own:
            for total, flow in zip((written, read), flows, strict=True):
                total.messages += flow.messages
                total.size_bytes += flow.size_bytes
    return written, read


def _aged(busy: Mapping[str, float], keep: float, touched: Mapping[str, tuple[Flow, Flow]]) -> dict[str, float]:
    left = {topic: count * keep for topic, count in busy.items() if count * keep > _IDLE}
    for topic, (written, read) in touched.items():
        left[topic] = left.get(topic, 0.0) + written.messages + read.messages
    return left

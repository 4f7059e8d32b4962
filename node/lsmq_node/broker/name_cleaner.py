"""What the leader of a shard does for the names of queues by itself: it forgets queues that have been empty for long,
writes the log of names anew when most of it is dead, and sees that queues of topics that are gone, and those that were
never committed, count for nobody.

How long a queue has been empty is counted here, from when it was first seen so: after a restart or a failover anew. So
a queue may stay longer than ``forget_empty_ms`` says, and never less. One that has options of its own stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.storage import Appended, NamesBehind, ShardStore, StoredTopic, TopicNames, topic_names
from lsmq_node.storage.columns import I64, U32

from .background import KeptService
from .broker import Broker
from .own_options import kept_names
from .topology import Ack, ShardPort

_log = structlog.get_logger("lsmq.names")

_LOOK_S = 1.0
#: A queue is looked at so often within ``forget_empty_ms``, at least every minute and at most once a look.
_LOOKS = 4
#: So seldom is the log of names looked at of topics that forget no queue.
_SELDOM_S = 60.0
#: Topics that are looked at before others on the loop have their turn.
_LOOKED_AT_ONCE = 100
#: Shards of topics that are looked at in ``_LOOK_S``: where there are more, each is looked at more seldom.
_LOOKED_AT_IN_A_ROW = 2_000
#: Names that are forgotten, or written anew, at once.
_AT_ONCE = 4_096
#: Queues that are read at once, to see whether all there is has expired; of a topic up to ``_AT_ONCE`` in a look.
_READ_AT_ONCE = 256


@dataclass(slots=True)
class _Seen:
    """What was seen of a topic on a shard, by number within the shard's range. 12 bytes a queue."""

    store: ShardStore
    next_at: float = 0.0
    version: int = 0  # of the names
    #: Seconds; 0: not empty. Below 0: nor was all expired when that was asked; it is asked again at so many.
    since: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, np.float64))
    ends: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


class NameCleaner(KeptService):
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "names")
        self._seen: dict[tuple[int, int], _Seen] = {}  # by shard and topic id
        self._began = runtime.monotonic()
        self._changes: object = None
        #: Names of the topics with named queues, as they were at these changes.
        self._forgetful: list[str] = []
        self._others: list[str] = []

    async def _run(self) -> None:
        others_at = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            self._sort()
            for port in self._broker.topology.ports():
                port.store.named.settle()
            await self._look_at_all(self._forgetful)
            if runtime.monotonic() >= others_at:
                others_at = runtime.monotonic() + _SELDOM_S
                await self._look_at_all(self._others)

    def _sort(self) -> None:
        """Which topics forget queues, where topics have changed."""
        topics = self._broker.topology.topics
        if (changes := topics.changes()) == self._changes:
            return
        named = {topic.id: topic for topic in topics.all() if topic.named}
        self._changes, self._forgetful, self._others = changes, [], []
        for topic in named.values():
            (self._others if _forget_after_ms(topic) is None else self._forgetful).append(topic.name)
        self._seen = {key: seen for key, seen in self._seen.items() if key[1] in named}

    async def _look_at_all(self, names: Sequence[str]) -> None:
        looked_at = 0
        for number, name in enumerate(names, 1):
            if looked_at >= _LOOKED_AT_IN_A_ROW:
                looked_at = 0
                await asyncio.sleep(_LOOK_S)
            elif number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            topic = self._broker.topology.topics.find(name)  # As it is by now.
            if topic is not None and topic.named:
                looked_at += await self._look_at(topic)

    async def _look_at(self, topic: StoredTopic) -> int:
        """At its names on each shard that is led here; how many these are."""
        led = [part.shard for part in self._broker.ranges(topic) if self._broker.topology.leadership(part.shard).here]
        for shard in led:
            try:
                await self._keep(shard, topic)
            except LsmqError as error:  # it is tried again with the next look
                _log.info("names_not_kept", shard=shard, topic=topic.name, code=error.code)
        return len(led)

    async def _keep(self, shard: int, topic: StoredTopic) -> None:
        """Look after the names of one topic on one shard. Raises what writing raises."""
        port = self._broker.topology.port(shard)
        port.check_readable()
        if not port.store.has_topic(topic.id):
            return  # nothing was ever written to it here
        if (after_ms := _forget_after_ms(topic)) is not None:
            await self._forget(port, topic, after_ms / 1000)
        earliest, latest = port.store.bounds(topic.names_id, 0)
        if latest - earliest > topic_names.LEAST_REWRITTEN:
            names = await self._broker.names.current(port, topic)
            if names.rewrite_due():
                await self._rewrite(port, topic)

    # Forgetting

    async def _forget(self, port: ShardPort, topic: StoredTopic, after_s: float) -> None:
        names = port.store.names(topic.id)
        now = runtime.monotonic() - self._began + 1.0
        seen = self._seen.get((port.number, topic.id))
        if seen is None or seen.store is not port.store:
            seen = self._seen[port.number, topic.id] = _Seen(port.store)
        _begin_anew(seen, topic, names)
        if now < seen.next_at:
            return
        seen.next_at = now + min(after_s / _LOOKS, _SELDOM_S)
        await self._broker.names.current(port, topic)
        _begin_anew(seen, topic, names)
        try:
            numbers = names.all_numbers()
        except NamesBehind:
            return
        due, quiet = _due(seen, port.store, topic, numbers, now, after_s)
        for at in range(0, len(due), _AT_ONCE):
            some = due[at : at + _AT_ONCE]
            async with self._broker.own_options.changing:
                if kept := kept_names(port.store, topic):
                    some = some[~np.isin(some, await self._broker.names.numbers(topic, kept))]
                appended = await self._put_forgotten(port, topic, seen, some)
            if appended is not None:
                await port.wait(appended, Ack.QUORUM)
        if topic.options.expired_to is None:  # Else it is moved first, and deleted with that.
            for at in range(0, min(len(quiet), _AT_ONCE), _READ_AT_ONCE):
                await self._pass_over_expired(port, topic, quiet[at : at + _READ_AT_ONCE])
                rows = quiet[at : at + _READ_AT_ONCE].astype(np.int64) - port.store.numbers(topic.id)[0]
                seen.since[rows] = -(now + after_s)

    async def _pass_over_expired(self, port: ShardPort, topic: StoredTopic, numbers: U32) -> None:
        """Where all there is has expired, the queue is empty from here on."""
        past = await self._broker.in_readers(lambda: port.store.named.past_expired(topic.id, numbers))
        moved = past > port.store.earliest_offsets(topic.id, numbers)
        if moved.any():
            self._broker.admission.write()
            port.check_writable(Ack.QUORUM)
            await port.wait(port.store.trim(topic.id, numbers[moved], past[moved]), Ack.QUORUM)

    async def _put_forgotten(self, port: ShardPort, topic: StoredTopic, seen: _Seen, due: U32) -> Appended | None:
        """In line: those go that are empty still. Nothing is awaited between that and the return."""
        names = port.store.names(topic.id)
        while True:
            self._broker.admission.write()
            port.check_writable(Ack.QUORUM)
            _begin_anew(seen, topic, names)
            some = due[seen.since[due.astype(np.int64) - port.store.numbers(topic.id)[0]] > 0]
            try:
                return names.forget(some)
            except NamesBehind:
                await self._broker.names.catch_up(port, topic)

    # The log of names

    async def _rewrite(self, port: ShardPort, topic: StoredTopic) -> None:
        """Write down anew which names there are, then let go of what was written before.

        Names that come and go meanwhile are written behind the beginning, so nothing of them is lost, whoever leads.
        """
        names = await self._broker.names.current(port, topic)
        self._broker.admission.write()
        port.check_writable(Ack.QUORUM)
        begin = names.log_end()
        await self._in_line_is_committed(port)
        cursor: int | None = 0
        while cursor is not None:
            self._broker.admission.write()
            port.check_writable(Ack.QUORUM)
            try:
                appended, cursor = names.rewrite(cursor, _AT_ONCE)
            except NamesBehind:
                await self._broker.names.catch_up(port, topic)
                continue
            if appended is not None:
                await port.wait(appended, Ack.QUORUM)
        port.check_writable(Ack.QUORUM)
        await port.wait(port.store.trim(topic.names_id, 0, begin), Ack.QUORUM)
        _log.info("names_rewritten", shard=port.number, topic=topic.name, names=names.count)

    @staticmethod
    async def _in_line_is_committed(port: ShardPort) -> None:
        barrier = port.store.barrier()
        if barrier is not None:
            await port.wait(barrier, Ack.QUORUM)


def _forget_after_ms(topic: StoredTopic) -> int | None:
    """How long a queue of it is empty before it is forgotten; None: no queue is.

    A name that comes back may have another number, and ids are remembered by number: they go first.
    """
    forget_ms, window_ms = topic.options.forget_empty_ms, topic.options.dedupe_window_ms or 0
    return None if forget_ms is None or isinstance(window_ms, str) else max(forget_ms, window_ms)  # text: for ever


def _begin_anew(seen: _Seen, topic: StoredTopic, names: TopicNames) -> None:
    """The time of queues that have got their names since this was last asked is counted anew, whatever queue had the
    number before. It is asked at each look, for what came lately is remembered within bounds."""
    changed, seen.version = names.changed_since(seen.version)
    if changed is None:
        seen.since[:] = 0
        return
    rows = changed.astype(np.int64) - seen.store.numbers(topic.id)[0]
    seen.since[rows[rows < len(seen.since)]] = 0


def _due(
    seen: _Seen, store: ShardStore, topic: StoredTopic, numbers: U32, now: float, after_s: float
) -> tuple[U32, U32]:
    """The queues that have been empty for so long, and those of which nothing is known but that nothing came since the
    last look; and remember which are empty."""
    if not len(numbers):
        return numbers, numbers
    first, end = store.numbers(topic.id)
    count = end - first
    if count > len(seen.since):
        size = max(count, 2 * len(seen.since))
        seen.since = np.concatenate((seen.since, np.zeros(size - len(seen.since), np.float64)))
        seen.ends = np.concatenate((seen.ends, np.zeros(size - len(seen.ends), np.int64)))
    rows = numbers.astype(np.int64) - first
    empty, ends = store.are_empty(topic.id, numbers)
    began, moved = seen.since[rows], seen.ends[rows] != ends
    began[empty & (moved | (began <= 0))] = now
    began[~empty & (moved | (began > 0))] = 0
    named = np.zeros(len(seen.since), np.bool_)
    named[rows] = True
    seen.since[~named] = 0  # a name that comes again begins anew
    seen.since[rows], seen.ends[rows] = began, ends
    due: U32 = numbers[(began > 0) & (now - began >= after_s)]
    quiet: U32 = numbers[~empty & ~moved & (began >= -now)]
    return due, quiet

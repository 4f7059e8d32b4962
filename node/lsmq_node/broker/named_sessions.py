"""Fetch sessions of queues by name: a selection of names, kept, which new queues join by themselves.

Where the reader is in each queue is kept by number, as in any fetch session. Beside that a session knows up to where it
has looked at the names of each shard; what was named since is held against the selection before each answer, and costs
what is new. Those that join come in a part of their own; parts of one shard are merged as they come to be many, the
small ones first, so that a queue is moved a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, Flag
from lsmq_node.storage import NamesBehind, StoredTopic, TopicNames
from lsmq_node.storage.columns import I64, U32, encode_one

from .fetched import Fetched
from .names import BrokerNames
from .placement import queue_ranges
from .read_redirects import ReadFrom
from .requests import ReadStart, Selected
from .selection import Selection
from .sessions import FEW_QUEUES, LARGE_BYTES, NEVER, QUEUE_BYTES, FetchSession, FetchSessions, SessionPart
from .topology import ShardPort, Topology
from .waiters import WaiterTable


@dataclass(slots=True)
class NamedSource:
    """A shard, and the version of its names up to which the session knows them."""

    port: ShardPort
    epoch: int
    version: int


class _NamesWatch:
    """Hears that a topic has got names."""

    def __init__(self, session: FetchSession) -> None:
        self._session = session

    def touch(self, touched: NDArray[Any]) -> None:
        self._session.news.set()

    def set(self) -> None:
        self._session.news.set()


class NamedSession(FetchSession):
    """One reader's queues of a named topic. ``parts`` have queues; there may be none yet."""

    def __init__(
        self,
        topic: StoredTopic,
        parts: Sequence[SessionPart],
        client: str | None,
        sources: Sequence[NamedSource],
        which: Selection,
    ) -> None:
        super().__init__(topic, parts, client)
        self.named_sources = list(sources)
        self.which = which
        if self.few is not None and (which.most is None or which.most > FEW_QUEUES):
            self.few = None
            self.size_bytes += LARGE_BYTES
        self._names = _NamesWatch(self)

    @property
    def sources(self) -> Sequence[NamedSource]:
        return self.named_sources

    def begin(self, waiters: WaiterTable) -> None:
        super().begin(waiters)
        waiters.watch(self.topic.names_id, self._names)

    def end(self, waiters: WaiterTable) -> None:
        super().end(waiters)
        waiters.unwatch(self.topic.names_id, self._names)


class NamedSessions:
    """Opens such sessions, and has new queues join them. Loop thread only."""

    def __init__(
        self,
        topology: Topology,
        names: BrokerNames,
        sessions: FetchSessions,
        waiters: WaiterTable,
        in_threads: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._topology = topology
        self._names = names
        self._sessions = sessions
        self._waiters = waiters
        self._in_threads = in_threads

    async def open(self, topic: StoredTopic, selected: Selected, client: str | None) -> tuple[NamedSession, Fetched]:
        """A session that was not begun yet, of the shards that are led here, and what is to be answered at once.

        Raises ``NotLeader``, ``Unavailable`` where none is, or not all that are asked for.
        """
        which = selected.which
        shards = [
            part.shard for part in queue_ranges(topic, self._topology.home_shards) if which.wants(part.first, part.end)
        ]
        led = [shard for shard in shards if shard in selected.shards or self._topology.leadership(shard).here]
        found = Fetched()
        parts, sources = [], []
        for port in await self._names.ports(topic, led or shards, ReadFrom.LEADER):
            epoch = self._topology.leadership(port.number).epoch
            names = await self._names.current(port, topic)
            version = names.version
            numbers = await self._choose(port, topic, which.all)
            positions, told = _begin(port, topic, numbers, selected)
            if len(told):
                found.queues.append(numbers[told])
                found.next_offsets.append(positions[told])
            if len(numbers):
                parts.append(SessionPart(port, epoch, numbers, positions))
            sources.append(NamedSource(port, epoch, version))
        return NamedSession(topic, parts, client, sources, which), found

    def leads_more(self, session: NamedSession) -> bool:
        """Whether a shard is led here by now that has such queues too, and was not when the session was opened."""
        known = {source.port.number for source in session.named_sources}
        return any(
            part.shard not in known and self._topology.leadership(part.shard).here
            for part in queue_ranges(session.topic, self._topology.home_shards)
            if session.which.wants(part.first, part.end)
        )

    async def _choose(self, port: ShardPort, topic: StoredTopic, choose: Callable[[TopicNames], U32]) -> U32:
        while True:
            names = await self._names.current(port, topic)
            try:
                chosen: U32 = await self._in_threads(lambda: choose(names))  # noqa: B023  # it is awaited here
            except NamesBehind:
                continue
            return chosen

    async def join(self, session: NamedSession) -> None:
        """Take in the queues that were named since the session was last looked at."""
        topic, which = session.topic, session.which
        for source in session.named_sources:
            names = await self._names.current(source.port, topic)
            changed, version = names.changed_since(source.version)
            if version == source.version:
                continue
            if changed is None:
                chosen = await self._choose(source.port, topic, which.all)
                changed = np.union1d(chosen, _queues_of(session, source.port)).astype(np.uint32)
                stay = np.isin(changed, chosen)
            elif len(changed):
                some = changed
                chosen = await self._choose(source.port, topic, lambda found: which.among(found, some))  # noqa: B023
                stay = np.isin(changed, chosen)
            else:
                source.version = version
                continue
            for part in session.parts:
                if part.port is source.port:
                    part.move(changed[~stay], np.full(int((~stay).sum()), NEVER))
                    chosen = chosen[~part.revive(chosen)]
            if len(chosen):
                self._add(session, SessionPart(source.port, source.epoch, chosen, np.zeros(len(chosen), np.int64)))
            source.version = version

    def _add(self, session: NamedSession, part: SessionPart) -> None:
        """A part joins, and those of its shard that are not much larger become one with it."""
        if session.few is not None:
            fresh = [int(queue) for queue in part.queues]
            self._waiters.watch(session.topic.id, session, fresh)
            session.few += fresh
        self._sessions.grown(session, len(part.queues) * QUEUE_BYTES)
        own = [other for other in session.parts if other.port is part.port]
        for other in sorted(own, key=lambda other: len(other.queues)):
            if len(other.queues) > 2 * len(part.queues):
                break
            session.parts.remove(other)
            part = part.merged(other)
        part.look(session.topic.id)
        session.parts.append(part)

    async def leave_out(self, session: NamedSession, found: Fetched) -> None:
        """Of what was read do without queues whose numbers have got names since the session was last looked at.

        Whether those are wanted shows with the next look, which also reads on in them where the session is now.
        """
        for source in session.named_sources:
            names = await self._names.current(source.port, session.topic)
            changed, _ = names.changed_since(source.version)
            if changed is not None and not len(changed):
                continue
            first, end = source.port.store.numbers(session.topic.id)
            for at, queues in enumerate(found.queues):
                there = (queues >= first) & (queues < end)
                stay = ~there if changed is None else ~np.isin(queues, changed)
                found.queues[at], found.next_offsets[at] = queues[stay], found.next_offsets[at][stay]
        found.queues = [queues for queues in found.queues if len(queues)]
        found.next_offsets = [offsets for offsets in found.next_offsets if len(offsets)]

    def names_of(self, session: FetchSession, found: Fetched) -> list[bytes]:
        """What says the names of the queues that an answer moves, from where to where; the session is not moved yet."""
        moved = np.concatenate(found.queues).astype(np.uint32) if found.queues else np.empty(0, np.uint32)
        batches = []
        for source in session.sources:
            first, end = source.port.store.numbers(session.topic.id)
            own = moved[(moved >= first) & (moved < end)]
            if len(own):
                batches.append(named_batch(source.port, session.topic, own, session.positions(own)))
        return [batch for batch in batches if batch]

    @staticmethod
    def set_aside(session: NamedSession, found: Fetched) -> None:
        """Queues that are read elsewhere from now on are read no more; the reader is told where he is in them."""
        for at, each in enumerate(found.elsewhere):
            found.elsewhere[at] = replace(each, offsets=session.positions(each.queues))
            for part in session.parts:
                part.move(each.queues, np.full(len(each.queues), NEVER))

    async def names_at(
        self, topic: StoredTopic, ports: Sequence[ShardPort], found: Fetched, queues: NDArray[Any], offsets: I64
    ) -> list[bytes]:
        """What says the names of queues that an answer moves; they were asked for by number, from ``offsets`` on."""
        moved = np.unique(np.concatenate(found.queues)).astype(np.uint32) if found.queues else np.empty(0, np.uint32)
        order = np.argsort(queues, kind="stable")
        batches = []
        for port in ports:
            if len(moved) and port.store.has_topic(topic.id):
                await self._names.current(port, topic)
                first, end = port.store.numbers(topic.id)
                own = moved[(moved >= first) & (moved < end)]
                begins = offsets[order[queues[order].searchsorted(own)]]
                batches.append(named_batch(port, topic, own, begins))
        return [batch for batch in batches if batch]


def named_batch(port: ShardPort, topic: StoredTopic, numbers: U32, begins: I64) -> bytes:
    """A batch that says the names of queues on one shard, and where what follows begins in each; no bytes for none.

    A queue that was deleted meanwhile is left out.
    """
    known, text, lengths = port.store.names(topic.id).text(numbers)
    if not len(known):
        return b""
    order = np.argsort(numbers, kind="stable")
    places = order[numbers[order].searchsorted(known)]
    # Asked after the names: a number that went from one queue to another has nothing of the former.
    earliest = port.store.earliest_offsets(topic.id, known)
    columns: dict[int, NDArray[Any]] = {
        Column.QUEUE: known,
        Column.OFFSET: np.maximum(begins[places], earliest),
        Column.LENGTH: lengths.astype(np.uint32),
        Column.FLAGS: np.full(len(known), Flag.NAMES, np.uint8),
    }
    return encode_one(columns, text)


def _queues_of(session: NamedSession, port: ShardPort) -> U32:
    own = [part.queues for part in session.parts if part.port is port]
    return np.concatenate(own) if own else np.empty(0, np.uint32)


def _begin(port: ShardPort, topic: StoredTopic, numbers: U32, selected: Selected) -> tuple[I64, I64]:
    """Where reading of each queue begins, and the places of those that the reader is told so."""
    store, start = port.store, selected.start
    positions = np.zeros(len(numbers), np.int64)
    if not len(numbers):
        return positions, np.empty(0, np.int64)
    if start is ReadStart.LATEST:
        positions = store.latest_offsets(topic.id, numbers)
    elif start is ReadStart.COMMITTED:
        assert selected.group is not None, "whoever parses it sees to it"
        positions = store.committed_offsets(selected.group, topic.id, numbers)
        none = positions < 0
        positions[none] = store.latest_offsets(topic.id, numbers[none]) if selected.reset is ReadStart.LATEST else 0
    if len(selected.numbers):
        places = numbers.searchsorted(selected.numbers)
        places[places == len(numbers)] = 0
        here = numbers[places] == selected.numbers
        positions[places[here]] = selected.offsets[here]
    if selected.by_name:
        names = store.names(topic.id).names(numbers)
        for place, name in enumerate(names):
            positions[place] = selected.by_name.get(name or "", positions[place])
    if start is not ReadStart.LATEST:
        return positions, np.empty(0, np.int64)
    return positions, np.arange(len(positions)) if selected.tells_names else np.flatnonzero(positions > 0)

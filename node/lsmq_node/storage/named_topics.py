"""What a store knows of its named topics: their names, made when they are first asked for, and moments of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from lsmq.errors import UnknownTopic

from .columns import I64, U32
from .group_patterns import GroupPatterns
from .known_names import NamesBehind
from .line import Line
from .moments import Moments
from .name_listing import NameListing
from .name_makers import NameMakers
from .options import StoreOptions
from .queries import Queries
from .shard_time import ShardTime
from .state import ShardState
from .topic_names import TopicNames


class NamedTopics:
    """Thread-safe."""

    def __init__(self, state: ShardState, line: Line, queries: Queries, options: StoreOptions, time: ShardTime) -> None:
        self.moments = Moments(state, line, queries, time)
        self.makers = NameMakers()
        self._state = state
        self._parts = (line, queries, options, self.makers)
        self._queries = queries
        self._time = time
        self._known: dict[int, tuple[TopicNames, NameListing]] = {}
        #: Which of them groups read.
        self.patterns = queries.patterns = GroupPatterns(state.documents, self)

    def names(self, topic_id: int) -> TopicNames:
        """Raises ``UnknownTopic``."""
        return self._of(topic_id)[0]

    def listing(self, topic_id: int) -> NameListing:
        """Raises ``UnknownTopic``."""
        return self._of(topic_id)[1]

    def numbers(self, topic_id: int, names: Sequence[str]) -> I64:
        """The numbers of committed names; -1 for those that are not there. Reads the disk. Raises ``UnknownTopic``."""
        known = self.names(topic_id)
        while True:
            known.refresh()
            try:
                return known.find(names)
            except NamesBehind:
                continue

    def past_expired(self, topic_id: int, queues: U32) -> I64:
        """Below these offsets all of the queues is deleted, or has expired whatever the clock does; of a queue whose
        first message is there still, or that is long, it may be more. Reads the disk for each queue in which messages
        expire. Raises ``UnknownTopic``, ``CorruptFile``."""
        state = self._queries.topic_state(topic_id)
        rows = self._queries.rows(state, queues)
        past = state.live_from(rows).copy()
        for at in np.flatnonzero(past < state.holes_ends(rows)).tolist():
            one = slice(at, at + 1)
            read = self._queries.read_many(
                topic_id, queues[one], past[one], max_records=1, max_bytes=1, expired=self._time.surely_expired
            )
            if len(read.queues) and not read.record_count:
                past[at] = read.next_offsets[0]
        return past

    def _of(self, topic_id: int) -> tuple[TopicNames, NameListing]:
        found = self._known.get(topic_id)
        if found is None or topic_id not in self._state.topics:
            self._queries.topic_state(topic_id)
            self.forget_gone()
            names = TopicNames(topic_id, self._state, *self._parts)
            found = self._known.setdefault(topic_id, (names, NameListing(names)))
        return found

    def count(self) -> int:
        """Queues with names, of all topics whose names were asked for: names of others take no memory."""
        there = self._state.topics
        return sum(names.count_to_come for topic, (names, _) in self._known.copy().items() if topic in there)

    def settle(self) -> None:
        """What was dropped from the line, or belongs to topics that are gone, counts for nobody and takes no memory."""
        self.forget_gone()
        for names, _ in list(self._known.values()):
            with contextlib.suppress(UnknownTopic):  # It is gone since.
                names.settle()

    def forget_gone(self) -> None:
        """Queues of topics that are gone count for nobody."""
        for gone in self._known.keys() - self._state.topics.keys():
            if (known := self._known.pop(gone, None)) is not None:
                known[0].forget_makers()

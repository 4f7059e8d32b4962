"""Moments: where each queue of a topic stood at a time, so that a reader can remember one number for all of them.

Stamps never go back within a log (:mod:`.shard_time`), whoever leads. So what was stored before a time is the beginning
of each queue, and it is the same for ever once the log has an entry with that stamp or a later one. To *note* a moment
is to put such an entry in line: all before it is stamped earlier, and all that comes at the moment or later.

Where the queues stood at a moment is kept from when it was noted, and found by reading where it is not kept: after a
restart, after a failover, or when others have taken the room. Both say the same, but where messages have gone since:
what was found by reading then counts none of those.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lsmq import runtime

from .columns import I64
from .line import Appended, Line
from .queries import Queries
from .shard_time import ShardTime
from .state import ShardState
from .time_cuts import TimeCut
from .wal import EntryKind

#: A change of documents that changes none, as :mod:`.documents` writes it.
_NOTHING = b"\x90"
#: Where queues stood is kept for so many bytes of moments, or for the two that were asked for last.
KEPT_BYTES = 64 << 20
_LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Moment:
    """What was stamped before ``time_ms``: so many ``messages`` of a topic on a shard, ever."""

    time_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class NotedMoment:
    """A moment that is in line: wait for ``appended``, and tell :meth:`Moments.landed`."""

    moment: Moment
    appended: Appended
    topic_id: int
    ends: I64


class Moments:
    """Of the topics of a store. Thread-safe."""

    def __init__(self, state: ShardState, line: Line, queries: Queries, time: ShardTime) -> None:
        self._state = state
        self._line = line
        self._queries = queries
        self._time = time
        self._lock = runtime.Lock()  # guards what follows
        self._kept: OrderedDict[tuple[int, int], I64] = OrderedDict()  # by topic id and time; asked for last comes last
        self._latest: dict[int, Moment] = {}

    def latest(self, topic_id: int) -> Moment | None:
        """The moment that was noted last, where nothing has come to the topic since. Raises ``UnknownTopic``."""
        state = self._queries.topic_state(topic_id)
        moment = self._latest.get(topic_id)
        return moment if moment is not None and moment.messages == int(state.next.sum()) else None

    def note(self, topic_id: int) -> NotedMoment:
        """Put in line that a moment is over. Raises ``UnknownTopic`` and what a write raises."""
        state = self._queries.topic_state(topic_id)
        with self._line.lock:
            self._time.saw(self._time.last_ms + 1)  # later than whatever is in line
            appended = self._line.append_entry(EntryKind.DOCUMENT, 0, 0, _NOTHING)
            ends = state.next.copy()
        return NotedMoment(Moment(appended.stored_ms, int(ends.sum())), appended, topic_id, ends)

    def landed(self, noted: NotedMoment) -> None:
        """It is committed."""
        with self._lock:
            known = self._latest.get(noted.topic_id)
            if known is None or known.time_ms < noted.moment.time_ms:
                self._latest[noted.topic_id] = noted.moment
            self._keep(noted.topic_id, noted.moment.time_ms, noted.ends)

    def ends_at(self, topic_id: int, time_ms: int) -> tuple[I64, bool]:
        """Of each row of the topic, the first offset that was stamped at a time or later, and whether that was kept.

        There may be fewer rows than the topic has, or more: what is not there was empty. What was read never lies below
        the first message of a queue that is left. Blocking. Raises ``UnknownTopic``, ``CorruptFile``.
        """
        state = self._queries.topic_state(topic_id)
        with self._lock:
            kept = self._kept.get((topic_id, time_ms))
            if kept is not None:
                self._kept.move_to_end((topic_id, time_ms))
                return kept, True
        lasting = time_ms <= self._state.time_ms  # nothing that comes is stamped before
        rows = np.arange(state.end - state.first)
        ends = state.committed[rows]
        begins = np.minimum(state.live_from(rows), ends)
        # Of most queues all was stored before: one look at the last message of each tells.
        lasts = np.maximum(ends - 1, begins)
        cut = TimeCut(self._queries, state, lasts, ends, np.zeros(len(rows), np.int64))
        cut.pass_over(rows, time_ms)
        later = np.flatnonzero(cut.found < ends)
        found = cut.found
        found[later] = begins[later]
        rest = TimeCut(self._queries, state, found, ends, np.zeros(len(rows), np.int64))
        rest.pass_over(later, time_ms)
        for row in (*cut.unsure, *rest.unsure):
            self._queries.offset_for_time(topic_id, row + state.first, time_ms)  # raises what is wrong with it
        if lasting:
            with self._lock:
                self._keep(topic_id, time_ms, found)
        return found, False

    def is_whole(self, topic_id: int) -> bool:
        """Whether messages have only ever gone from the beginning of the topic's queues, none from between others."""
        return self._queries.topic_state(topic_id).deletions is None

    def _keep(self, topic_id: int, time_ms: int, ends: I64) -> None:
        for gone in [key for key in self._kept if key[0] not in self._state.topics]:
            del self._kept[gone]
        for topic in self._latest.keys() - self._state.topics.keys():
            del self._latest[topic]
        self._kept[topic_id, time_ms] = ends
        self._kept.move_to_end((topic_id, time_ms))
        while len(self._kept) > _LEAST_KEPT and sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

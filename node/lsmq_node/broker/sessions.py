"""Fetch sessions: what a reader of many queues asked for, kept, so that asking again costs what is new.

A reader names its queues and offsets once. From then on the session holds where it is in each queue, and hears what
every commit touches. So a request that goes on costs the queues that have something, whether the reader follows ten or
a million; and so does waiting.

A session belongs to the one answer that was given last: its *token* changes with each, and is good once. A reader that
did not get an answer, or reads from other places than it ended at, begins anew. Sessions are dropped, too, when they
take too much memory together or are not used for a while, and when a shard is not led here any more. That costs a
request and loses nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import UnknownFetchSession
from lsmq_node.storage import Topic

from .topology import ShardPort
from .waiters import WaiterTable

#: A session that nobody uses for so long is dropped.
IDLE_S = 60.0
#: So many queues that have something are looked at for one answer.
AT_ONCE = 65_536
_QUEUE_BYTES = 4 + 8 + 1  # number, position, whether it is ready
_SESSION_BYTES = 2_048


class SessionPart:
    """The queues of a session in one shard, in the epoch in which it was opened. ``queues`` are sorted.

    A queue is *ready* when it may have messages beyond its position; ready queues wait in a line.
    """

    __slots__ = ("_ready", "_waiting", "epoch", "port", "positions", "queues")

    def __init__(self, port: ShardPort, epoch: int, queues: NDArray[np.uint32], positions: NDArray[np.int64]) -> None:
        self.port = port
        self.epoch = epoch
        self.queues = queues
        self.positions = positions
        self._ready = np.zeros(len(queues), np.bool_)
        self._waiting: deque[NDArray[np.int64]] = deque()

    def look(self, topic_id: int) -> None:
        """Find all ready queues, as is done once."""
        self._add(np.flatnonzero(self._have_more(topic_id, slice(None))))

    def _have_more(self, topic_id: int, places: NDArray[np.int64] | slice) -> NDArray[np.bool_]:
        """Which of these have messages beyond their position that retention has left."""
        store, queues = self.port.store, self.queues[places]
        starts = np.maximum(self.positions[places], store.earliest_offsets(topic_id, queues))
        more: NDArray[np.bool_] = store.latest_offsets(topic_id, queues) > starts
        return more

    def touch(self, touched: NDArray[Any]) -> bool:
        """Queues, sorted, got messages; whether any of these did."""
        low, high = np.searchsorted(touched, (self.queues[0], self.queues[-1] + 1))
        if low == high:
            return False
        places, found = self._places(touched[low:high])
        self._add(places[found])
        return bool(found.any())

    def _places(self, queues: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where queues are, and which of them are here at all."""
        places = self.queues.searchsorted(queues)
        places[places == len(self.queues)] = 0
        return places, self.queues[places] == queues

    def _add(self, places: NDArray[np.int64]) -> None:
        fresh = places[~self._ready[places]]
        if len(fresh):
            self._ready[fresh] = True
            self._waiting.append(fresh)

    def take(self) -> NDArray[np.int64]:
        """Those that have waited longest, in order of queues; :meth:`put_back` is to follow."""
        taken: list[NDArray[np.int64]] = []
        left = AT_ONCE
        while left and self._waiting:
            places = self._waiting.popleft()
            if len(places) > left:
                self._waiting.appendleft(places[left:])
                places = places[:left]
            taken.append(places)
            left -= len(places)
        return np.sort(np.concatenate(taken)) if taken else np.empty(0, np.int64)

    def move(self, queues: NDArray[Any], next_offsets: NDArray[np.int64]) -> None:
        """An answer brings what lies before these offsets. Queues of other shards may be among them."""
        places, found = self._places(queues)
        self.positions[places[found]] = next_offsets[found]

    def put_back(self, topic_id: int, places: NDArray[np.int64]) -> None:
        """Those of ``places``, which were taken, that have something left go to the end of the line."""
        more = self._have_more(topic_id, places)
        self._ready[places[~more]] = False
        if more.any():
            self._waiting.append(places[more])


class Session:
    """One reader's queues of one topic. Loop thread only."""

    def __init__(self, topic: Topic, parts: Sequence[SessionPart]) -> None:
        self.topic = topic
        self.parts = list(parts)
        self.token = ""
        self.size_bytes = _SESSION_BYTES + sum(len(part.queues) for part in parts) * _QUEUE_BYTES
        self.used_at = 0.0
        self.news = asyncio.Event()

    def touch(self, touched: NDArray[Any]) -> None:
        """A commit touched these queues of the topic, sorted and without repeats."""
        for part in self.parts:
            if part.touch(touched):
                self.news.set()

    def set(self) -> None:
        """Something else has changed: look again."""
        self.news.set()


class FetchSessions:
    """The sessions of a node that wait for their next request. Loop thread only."""

    def __init__(self, limit_bytes: int, waiters: WaiterTable) -> None:
        self._limit_bytes = limit_bytes
        self._waiters = waiters
        self._known: OrderedDict[str, Session] = OrderedDict()  # by the random part of the token, oldest use first
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def open(self, topic: Topic, parts: Sequence[SessionPart]) -> Session | None:
        """A session that hears of commits from now on; None where it would be larger than all may be."""
        session = Session(topic, parts)
        if session.size_bytes > self._limit_bytes:
            return None
        self._waiters.watch(topic.id, session)
        for part in parts:
            part.look(topic.id)
        return session

    def take(self, token: str, topic: Topic) -> Session:
        """The session of a token; it is the caller's, to :meth:`keep` or :meth:`drop`. Raises ``UnknownFetchSession``.

        With a token that was used before, the session is dropped: its positions are not the reader's.
        """
        self._expire()
        session = self._known.pop(token.partition(".")[0], None)
        if session is not None:
            self.size_bytes -= session.size_bytes
            if session.token == token and session.topic.id == topic.id:
                return session
            self.drop(session)
        raise UnknownFetchSession("there is no such fetch session, or not any more: name the queues and offsets again")

    def keep(self, session: Session) -> str:
        """The token with which the reader goes on. Others are dropped when there are too many."""
        name, _, number = session.token.partition(".")
        session.token = f"{name or secrets.token_hex(8)}.{int(number or 0) + 1}"
        session.used_at = asyncio.get_running_loop().time()
        self._known[session.token.partition(".")[0]] = session
        self.size_bytes += session.size_bytes
        while self.size_bytes > self._limit_bytes:
            self._drop_oldest()
        return session.token

    def drop(self, session: Session) -> None:
        """It is over."""
        self._waiters.unwatch(session.topic.id, session)

    def _drop_oldest(self) -> None:
        _, session = self._known.popitem(last=False)
        self.size_bytes -= session.size_bytes
        self.drop(session)

    def _expire(self) -> None:
        expired = asyncio.get_running_loop().time() - IDLE_S
        while self._known and next(iter(self._known.values())).used_at < expired:
            self._drop_oldest()

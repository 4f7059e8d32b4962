"""Fetch sessions: what a reader of many queues asked for, kept, so that asking again costs what is new.

A reader names its queues and offsets once. From then on the session holds where it is in each queue, and hears what
every commit touches. So a request that goes on costs the queues that have something, whether the reader follows ten or
a million; and so does waiting.

A session belongs to the one answer that was given last: its *token* changes with each, and is good once. A reader that
did not get an answer, or reads from other places than it ended at, begins anew. Sessions are dropped, too, when they
take too much memory together or more than one client's share, when they are not used for a while (a timer sees to it,
which runs only while there are any), and when a shard is not led here any more. That costs a request and loses nothing.

A commit finds a session of a few queues by its queues, and must look into each larger one of the topic: so those count
as a good deal more than they take, and there cannot be many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import UnknownFetchSession
from lsmq_node.storage import StoredTopic

from .topology import ShardPort
from .waiters import WaiterTable

#: A session that nobody uses for so long is dropped.
IDLE_S = 60.0
#: So many queues that have something are looked at for one answer.
AT_ONCE = 65_536
QUEUE_BYTES = 4 + 8 + 1  # number, position, whether it is ready
_SESSION_BYTES = 2_048
#: Where a reader is in a queue that it reads no more.
NEVER = 1 << 62
#: A session of so many queues at most is found by them, at this cost each.
FEW_QUEUES = 32
_FOUND_BYTES = 256
#: What a larger one counts as, besides: each commit to its topic looks into it.
LARGE_BYTES = 32_768


class SessionSource(Protocol):
    """A shard that a session reads, and the epoch in which it was opened."""

    @property
    def port(self) -> ShardPort: ...

    @property
    def epoch(self) -> int: ...


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
        """Which of these have been written to beyond their position, whatever is left of that."""
        more: NDArray[np.bool_] = self.port.store.latest_offsets(topic_id, self.queues[places]) > self.positions[places]
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

    @property
    def is_ready(self) -> bool:
        """Whether a queue waits to be looked at."""
        return bool(self._waiting)

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

    def copy_positions(self, queues: NDArray[Any], found: NDArray[np.int64]) -> None:
        """Put the positions of those of some queues that are here into ``found``."""
        places, here = self._places(queues)
        found[here] = self.positions[places[here]]

    def revive(self, queues: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some queues are here. One that was not to be read any more is read from its beginning."""
        if not len(queues):
            return np.empty(0, np.bool_)
        places, here = self._places(queues)
        again = places[here]
        over = again[self.positions[again] >= NEVER]
        self.positions[over] = 0
        self._add(over)
        return here

    def merged(self, other: SessionPart) -> SessionPart:
        """Both as one, which was not looked at yet. They have no queue in common, nor is anything taken of them."""
        queues = np.concatenate((self.queues, other.queues))
        positions = np.concatenate((self.positions, other.positions))
        order = np.argsort(queues)
        return SessionPart(self.port, self.epoch, queues[order], positions[order])

    def put_back(self, topic_id: int, places: NDArray[np.int64]) -> None:
        """Those of ``places``, which were taken, that have something left go to the end of the line."""
        more = self._have_more(topic_id, places)
        self._ready[places[~more]] = False
        if more.any():
            self._waiting.append(places[more])


class FetchSession:
    """One reader's queues of one topic. Loop thread only."""

    def __init__(self, topic: StoredTopic, parts: Sequence[SessionPart], client: str | None) -> None:
        self.topic = topic
        self.parts = list(parts)
        self.client = client
        self.token = ""
        count = sum(len(part.queues) for part in parts)
        #: Where it is found by its queues: these.
        self.few = [int(queue) for part in parts for queue in part.queues] if count <= FEW_QUEUES else None
        extra = LARGE_BYTES if self.few is None else count * _FOUND_BYTES
        self.size_bytes = _SESSION_BYTES + count * QUEUE_BYTES + extra
        self.used_at = 0.0
        self.news = asyncio.Event()

    def begin(self, waiters: WaiterTable) -> None:
        """Hear of commits from now on, and find what is ready."""
        waiters.watch(self.topic.id, self, self.few)
        for part in self.parts:
            part.look(self.topic.id)

    def end(self, waiters: WaiterTable) -> None:
        """Hear of no more."""
        waiters.unwatch(self.topic.id, self, self.few)

    @property
    def sources(self) -> Sequence[SessionSource]:
        """The shards it reads, each as it was led when the session began."""
        return self.parts

    def positions(self, queues: NDArray[Any]) -> NDArray[np.int64]:
        """Where the reader is in each of some queues."""
        found = np.zeros(len(queues), np.int64)
        for part in self.parts:
            part.copy_positions(queues, found)
        return found

    @property
    def name(self) -> str:
        """The random part of its token, which stays."""
        return self.token.partition(".")[0]

    def touch(self, touched: NDArray[Any]) -> None:
        """A commit touched these queues of the topic, sorted and without repeats."""
        for part in self.parts:
            if part.touch(touched):
                self.news.set()

    def set(self) -> None:
        """Something else has changed: look again."""
        self.news.set()


class FetchSessions:
    """The sessions of a node. Loop thread only; :meth:`close` it.

    Those that wait for their next request are *kept*, and may be dropped; with a request, they are its. Both count.
    """

    def __init__(self, limit_bytes: int, share_bytes: int, waiters: WaiterTable) -> None:
        """``share_bytes``: what those of one client may take, but for one that alone takes more."""
        self._limit_bytes = limit_bytes
        self._share_bytes = share_bytes
        self._waiters = waiters
        self._kept: OrderedDict[str, FetchSession] = OrderedDict()  # by name, oldest use first
        self._kept_by: dict[str, OrderedDict[str, FetchSession]] = {}  # the same by client, of those who have any
        self._bytes_of: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, topic: StoredTopic, parts: Sequence[SessionPart], client: str | None) -> FetchSession | None:
        """A session that hears of commits from now on; None where there is no room for it.

        Without ``client`` it is the node's own, which counts elsewhere: it must only not be larger than all may be.
        """
        session = FetchSession(topic, parts, client)
        return session if self.admit(session) else None

    def admit(self, session: FetchSession) -> bool:
        """Begin a session, if there is room for it."""
        client = session.client
        if session.size_bytes > self._limit_bytes or (client is not None and not self._make_room(session, client)):
            return False
        session.begin(self._waiters)
        return True

    def grown(self, session: FetchSession, by_bytes: int) -> None:
        """A session that is a request's has become larger. Others that are kept make room for it."""
        session.size_bytes += by_bytes
        if session.client is None:
            return
        self.size_bytes += by_bytes
        self._bytes_of[session.client] += by_bytes
        while self._kept and self.size_bytes > self._limit_bytes:
            self._drop_kept(next(iter(self._kept.values())))

    def _make_room(self, session: FetchSession, client: str) -> bool:
        size = session.size_bytes
        while (own := self._bytes_of.get(client, 0)) and own + size > self._share_bytes:
            kept = self._kept_by.get(client)
            if kept is None:
                return False
            self._drop_kept(next(iter(kept.values())))
        while self._kept and self.size_bytes + size > self._limit_bytes:
            self._drop_kept(next(iter(self._kept.values())))
        if self.size_bytes + size > self._limit_bytes:
            return False
        self.size_bytes += size
        self._bytes_of[client] = own + size
        return True

    def take(self, token: str, topic: StoredTopic) -> FetchSession:
        """The session of a token; it is the caller's, to :meth:`keep` or :meth:`drop`. Raises ``UnknownFetchSession``.

        With a token that was used before, the session is dropped: its positions are not the reader's.
        """
        session = self._kept.get(token.partition(".")[0])
        if session is not None:
            self._lend(session)
            if session.token == token and session.topic.id == topic.id:
                return session
            self.drop(session)
        raise UnknownFetchSession("there is no such fetch session, or not any more: name the queues and offsets again")

    def keep(self, session: FetchSession) -> str:
        """The token with which the reader goes on."""
        assert session.client is not None, "the node's own sessions have no tokens"
        name, _, number = session.token.partition(".")
        session.token = f"{name or runtime.token_hex(8)}.{int(number or 0) + 1}"
        loop = asyncio.get_running_loop()
        session.used_at = loop.time()
        self._kept[session.name] = session
        self._kept_by.setdefault(session.client, OrderedDict())[session.name] = session
        if self._timer is None:
            self._timer = loop.call_later(IDLE_S, self._expire)
        return session.token

    def drop(self, session: FetchSession) -> None:
        """It is over; it must not be one that is kept."""
        session.end(self._waiters)
        client = session.client
        if client is None:
            return
        self.size_bytes -= session.size_bytes
        self._bytes_of[client] -= session.size_bytes
        if not self._bytes_of[client]:
            del self._bytes_of[client]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _lend(self, session: FetchSession) -> None:
        assert session.client is not None
        del self._kept[session.name]
        own = self._kept_by[session.client]
        del own[session.name]
        if not own:
            del self._kept_by[session.client]

    def _drop_kept(self, session: FetchSession) -> None:
        self._lend(session)
        self.drop(session)

    def _expire(self) -> None:
        """Drop what was not used for so long, and come again when the next may be due."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.used_at + IDLE_S > loop.time():
                self._timer = loop.call_at(oldest.used_at + IDLE_S, self._expire)
                return
            self._drop_kept(oldest)

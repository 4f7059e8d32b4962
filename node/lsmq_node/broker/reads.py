"""Reading for consumers: from the shards of this node, waiting for what is not there yet.

What may touch the disk, or take long, runs in a pool of threads; everything else on the loop thread: so does who reads
messages as they come, for whom a thread's turn would take longer than the reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import ClientClosed, ReadElsewhere, RequestTooLarge, Unavailable, UnknownFetchSession
from lsmq.filters import MessageFilter
from lsmq_node.config import NodeConfig
from lsmq_node.storage import StoredTopic, TopicFlow
from lsmq_node.storage.sieve import Picked

from .budget import Hold
from .fetched import Fetched
from .named_sessions import NamedSession, NamedSessions
from .names import BrokerNames
from .placement import shard_of, split_by_shard
from .read_redirects import FollowerTurns, ReadFrom, ReadRedirect, find_caught_up, find_far
from .requests import FetchRequest, ReadRequest, Selected
from .sessions import FetchSession, FetchSessions, SessionPart
from .stages import WAIT, count_messages, stage
from .topology import ShardPort, Topology
from .waiters import Waiter, WaiterTable

Result = TypeVar("Result")

#: Of so many queues it is looked whether what came is at hand.
_AT_HAND_QUEUES = 256


class _Read(Protocol):
    """Reads; what is ``at_hand`` on the loop thread, else in one of the pool."""

    def __call__(self, *, at_hand: bool) -> Fetched: ...


class _Piece:
    """The part of a read that lies in one shard. ``queues`` are sorted, ``starts`` their offsets."""

    __slots__ = ("followers", "leads", "port", "queues", "starts")

    def __init__(
        self, port: ShardPort, queues: NDArray[Any], starts: NDArray[np.int64], *, leads: bool, followers: Sequence[str]
    ) -> None:
        self.port = port
        self.queues = queues
        self.starts = starts
        self.leads = leads
        self.followers = followers


class Reads:
    """Loop thread only. :meth:`close` it after the last call."""

    def __init__(self, config: NodeConfig, topology: Topology, waiters: WaiterTable) -> None:
        self.queues_sent_elsewhere = 0
        self.as_follower = 0  # reads answered by a replica that does not lead
        self.flow = TopicFlow()  # what consumers were given, by whatever way
        self._config = config
        self._topology = topology
        self._waiters = waiters
        self._threads = runtime.ThreadPoolExecutor(config.read_threads, "lsmq-read")
        self._slots = asyncio.Semaphore(config.read_threads)
        self._fetches = 0
        self._turns = FollowerTurns()
        self.names = BrokerNames(topology, waiters, self.ports, self.in_threads)
        self.sessions = FetchSessions(config.max_fetch_session_bytes, config.fetch_session_share_bytes, waiters)
        self.named = NamedSessions(topology, self.names, self.sessions, waiters, self.in_threads)

    async def close(self) -> None:
        self.sessions.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def in_threads(self, blocking: Callable[[], Result]) -> Result:
        """Run something that may read from disk in the read pool.

        Raises ``Unavailable`` where the store that is read of is closed meanwhile.
        """
        with _while_open():
            return await asyncio.get_running_loop().run_in_executor(self._threads, blocking)

    # One queue

    async def read(self, request: ReadRequest, hold: Hold) -> Fetched:
        """See :meth:`Broker.read`."""
        topic, queue, offset, source = request.topic, request.queue, request.offset, request.source
        asked = np.array((queue,), np.uint32)
        shard = shard_of(queue, topic, self._topology.home_shards)
        (port,) = await self.ports(topic, [shard], source)
        (piece,) = pieces = [self._piece(port, asked, np.array((offset,), np.int64), source)]
        if source is ReadFrom.FOLLOWER and piece.followers:
            raise self._elsewhere(piece)

        picked = None if request.filter is None else Picked(request.filter, exact=True)

        def read(*, at_hand: bool) -> Fetched:
            found = Fetched()
            store, offset = port.store, int(piece.starts[0])
            if not piece.leads:
                latest = store.bounds(topic.id, queue)[1] if store.has_topic(topic.id, queue) else 0
                if latest < offset:
                    raise Unavailable(f"this follower has queue {queue} up to offset {latest} so far", latest=latest)
                if latest == offset:
                    return found
            elif not at_hand and self._is_far(piece, topic):
                found.elsewhere.append(ReadRedirect(None, asked))
                return found
            limits = {"max_records": request.max_records, "max_bytes": request.max_bytes}
            found.add(store.read(topic.id, queue, offset, **limits, picked=picked))
            found.take_in(None)
            if found.record_count == 0 and found.next_offsets and int(found.next_offsets[0][0]) <= offset:
                return Fetched()
            return found

        found = await self._poll(request, asked, pieces, read, hold)
        if found.elsewhere:
            raise self._elsewhere(piece)
        return found

    # Many queues

    async def fetch(self, request: FetchRequest, hold: Hold) -> Fetched:
        """See :meth:`Broker.fetch`."""
        if request.session is not None:
            return await self._go_on(request, request.session, hold)
        if request.selected is not None:
            return await self._open_named(request, request.selected, hold)
        found = await self._fetch(request, hold)
        if request.keep:  # No await stands between: the session begins where the answer ends.
            found.session = self._open_session(request, found, hold.client)
        return found

    async def _fetch(self, request: FetchRequest, hold: Hold) -> Fetched:
        topic, queues, offsets, source = request.topic, request.queues, request.offsets, request.source
        parts = split_by_shard(queues, topic, self._topology.home_shards)
        ports = await self.ports(topic, [shard for shard, _ in parts], source)
        pieces = [
            self._piece(port, queues[places], offsets[places], source)
            for port, (_, places) in zip(ports, parts, strict=True)
        ]
        if source is ReadFrom.FOLLOWER:
            for piece in pieces:
                if piece.followers:
                    raise self._elsewhere(piece)

        def read(*, at_hand: bool) -> Fetched:
            found = self._read_pieces(request, pieces, at_hand=at_hand)
            pieces.append(pieces.pop(0))  # The next read, if this one found nothing, begins elsewhere.
            return found

        answer = await self._poll(request, queues, pieces, read, hold)
        if topic.named:
            answer.names += await self.named.names_at(topic, ports, answer, queues, offsets)
        return answer

    # Many queues again and again

    def _open_session(self, request: FetchRequest, found: Fetched, client: str | None) -> str | None:
        """A token for ``client`` to go on with after an answer; None where it is to name all again."""
        topic, queues, offsets = request.topic, request.queues, request.offsets
        parts = None if found.elsewhere else self._session_parts(topic, queues, offsets)
        if parts is None:
            return None
        for part in parts:
            for moved, next_offsets in zip(found.queues, found.next_offsets, strict=True):
                part.move(moved, next_offsets)
        session = self.sessions.open(topic, parts, client or "")
        return None if session is None else self.sessions.keep(session)

    def _session_parts(
        self, topic: StoredTopic, queues: NDArray[np.uint32], offsets: NDArray[np.int64]
    ) -> list[SessionPart] | None:
        """None where this node does not lead all of it."""
        parts: list[SessionPart] = []
        for shard, places in split_by_shard(queues, topic, self._topology.home_shards):
            leads = self._topology.leadership(shard)
            if not leads.here:
                return None
            port = self._topology.port(shard)
            parts.append(SessionPart(port, leads.epoch, queues[places], offsets[places].copy()))
        return parts

    def follow(self, topic: StoredTopic, queues: NDArray[np.uint32], offsets: NDArray[np.int64]) -> FetchSession | None:
        """A session of the caller's own, who ends it with ``sessions.drop``; None unless this node leads all of it.

        Raises ``RequestTooLarge`` for more queues than there may be memory for.
        """
        parts = self._session_parts(topic, queues, offsets)
        if parts is None:
            return None
        session = FetchSession(topic, parts, None)
        if not self.sessions.admit(session):
            raise self._too_many(session)
        return session

    def _too_many(self, session: FetchSession) -> RequestTooLarge:
        """Of a session that would not fit if it were the only one."""
        size, limit = session.size_bytes, self._config.max_fetch_session_bytes
        return RequestTooLarge(
            f"to follow so many queues takes {size} bytes of memory, the limit is {limit} (max_fetch_session_bytes). "
            "Read fewer at a time (by a narrower pattern, or as members of a group, who share them), or raise it",
            size=size,
            limit=limit,
        )

    async def read_on(
        self, session: FetchSession, max_records: int, max_bytes: int, hold: Hold, filter: MessageFilter | None = None
    ) -> Fetched:
        """What has come to the queues of :meth:`follow` by now, all of it in memory. Raises as :meth:`fetch` does."""
        request = FetchRequest(
            topic=session.topic, max_records=max_records, max_bytes=max_bytes, files=False, filter=filter, exact=True
        )
        return await self._read_ready(request, session, hold)

    async def _go_on(self, request: FetchRequest, token: str, hold: Hold) -> Fetched:
        """What has come to the queues of a session since its last answer, and the token to go on with."""
        session = self.sessions.take(token, request.topic)
        try:
            found = await self._poll_session(request, session, hold)
        except BaseException:
            self.sessions.drop(session)
            raise
        if found.elsewhere and not isinstance(session, NamedSession):
            self.sessions.drop(session)
        else:
            found.session = self.sessions.keep(session)
        return found

    # Queues by their names

    async def _open_named(self, request: FetchRequest, selected: Selected, hold: Hold) -> Fetched:
        """A session of the queues that are selected, and its first answer."""
        session, found = await self.named.open(request.topic, selected, (hold.client or "") if request.keep else None)
        keeps = self.sessions.admit(session)
        if not keeps:
            session.client = None
            if not self.sessions.admit(session):
                raise self._too_many(session)
        try:
            if not found:
                found = await self._poll_session(request, session, hold)
            else:
                await self._check_parts(session)
                if selected.tells_names:
                    self._check_told(sum(map(len, found.queues)))
                    found.names += self.named.names_of(session, found)
        except BaseException:
            self.sessions.drop(session)
            raise
        if session.client is None:
            self.sessions.drop(session)
        else:
            found.session = self.sessions.keep(session)
        return found

    def _check_told(self, count: int) -> None:
        limit = self._config.max_queues_per_request
        if count > limit:
            raise RequestTooLarge(
                f"with_names would tell the names of {count} queues, the limit is {limit} a request "
                "(max_queues_per_request); ask for fewer slots",
                field="with_names",
                limit=limit,
            )

    async def _poll_session(self, request: FetchRequest, session: FetchSession, hold: Hold) -> Fetched:
        deadline = asyncio.get_running_loop().time() + request.wait_ms / 1000
        passed: Fetched | None = None
        while True:
            session.news.clear()
            found = await self._read_ready(request, session, hold)
            if passed is not None:
                found = passed.followed_by(found)
            if _settles(request, found) or self._waiters.closed or request.wait_ms == 0:
                return found
            passed = found
            if any(part.is_ready for part in session.parts):
                continue
            try:
                with self._waiters.held(), stage(WAIT):
                    async with asyncio.timeout_at(deadline):
                        await session.news.wait()
            except TimeoutError:
                await self._check_parts(session)
                return found

    async def _check_parts(self, session: FetchSession) -> None:
        """Raises ``NotLeader``, ``UnknownTopic``, or ``UnknownFetchSession`` where a shard is led in another epoch, or
        one more is led that has queues that are selected."""
        parts = session.sources
        await self.ports(session.topic, [part.port.number for part in parts], ReadFrom.LEADER)
        for part in parts:
            leads = self._topology.leadership(part.port.number)
            if leads.epoch != part.epoch or self._topology.port(part.port.number) is not part.port:
                raise UnknownFetchSession(
                    f"shard {part.port.number} is led in epoch {leads.epoch} by now; name the queues and offsets again"
                )
            part.port.store.topic_by_id(session.topic.id)
        if isinstance(session, NamedSession) and self.named.leads_more(session):
            raise UnknownFetchSession("this node leads more of the topic by now; select the queues again")

    async def _read_ready(self, request: FetchRequest, session: FetchSession, hold: Hold) -> Fetched:
        """Read what is ready, and move the session past what was found."""
        await self._check_parts(session)
        if isinstance(session, NamedSession):
            await self.named.join(session)
        taken = [(part, places) for part in session.parts if len(places := part.take())]
        if not taken:
            return Fetched()
        pieces = [
            self._piece(part.port, part.queues[places], part.positions[places], request.source)
            for part, places in taken
        ]
        found = await self._read_held(request, pieces, partial(self._read_pieces, request, pieces), hold)
        session.parts.append(session.parts.pop(0))  # The next answer begins elsewhere.
        if isinstance(session, NamedSession):
            await self.named.leave_out(session, found)
            found.names += self.named.names_of(session, found)
            self.named.set_aside(session, found)
        elif session.topic.named and session.client is not None:  # The node's own readers ask for names themselves.
            for part in session.parts:
                await self.names.current(part.port, session.topic)
            found.names += self.named.names_of(session, found)
        for part, places in taken:
            for moved, next_offsets in zip(found.queues, found.next_offsets, strict=True):
                part.move(moved, next_offsets)
            part.put_back(session.topic.id, places)
        return found

    def _read_pieces(self, request: FetchRequest, pieces: Sequence[_Piece], *, at_hand: bool) -> Fetched:
        found = Fetched()
        self._fetches += 1
        picked = None if request.filter is None else Picked(request.filter, exact=request.exact)
        for piece in pieces:
            self._read_piece(request, piece, picked, found, at_hand=at_hand)
        found.take_in(self._config.sendfile_min_bytes if request.files else None)
        return found

    def _read_piece(
        self, request: FetchRequest, piece: _Piece, picked: Picked | None, found: Fetched, *, at_hand: bool
    ) -> None:
        """Add what there is of a shard, and what of it is to be read elsewhere: nothing that is at hand."""
        topic = request.topic
        store, some, starts = piece.port.store, piece.queues, piece.starts
        redirects = request.source is ReadFrom.AUTO
        if not piece.leads and not store.has_topic(topic.id, int(some[-1])):  # It has not come here yet.
            if redirects:
                self._send(found, None, some)
            return
        if redirects and piece.followers and not at_hand:
            away = find_far(store, topic.id, some, starts, self._limit_bytes)
            if away.any():
                self._send(found, self._turns.next(piece.followers), some[away])
                some, starts = some[~away], starts[~away]
        records_left, bytes_left = request.max_records - found.record_count, request.max_bytes - found.size_bytes
        if len(some) == 0 or records_left <= 0 or bytes_left <= 0:
            return
        # Begin one queue further each time: busy queues that fill an answer must not starve the others.
        first = self._fetches % len(some)
        queues, offsets = (np.concatenate((each[first:], each[:first])) for each in (some, starts))
        part = store.read_many(topic.id, queues, offsets, max_records=records_left, max_bytes=bytes_left, picked=picked)
        found.add(part)
        if redirects and not piece.leads:
            after = starts.copy()
            after[some.searchsorted(part.positions[0])] = part.positions[1]
            home = find_caught_up(store, topic.id, some, after, self._limit_bytes)
            if home.any():
                self._send(found, None, some[home])

    def _is_far(self, piece: _Piece, topic: StoredTopic) -> bool:
        """Whether the only queue of a piece is to be read elsewhere."""
        if not piece.followers:
            return False
        return bool(find_far(piece.port.store, topic.id, piece.queues, piece.starts, self._limit_bytes)[0])

    def _send(self, found: Fetched, url: str | None, queues: NDArray[Any]) -> None:
        found.elsewhere.append(ReadRedirect(url, queues))
        self.queues_sent_elsewhere += len(queues)

    def _elsewhere(self, piece: _Piece) -> ReadElsewhere:
        url, shard = self._turns.next(piece.followers), piece.port.number
        self.queues_sent_elsewhere += len(piece.queues)
        return ReadElsewhere(
            f"read this at {url}, which follows shard {shard}; or ask with from=leader",
            url=url,
            shard=shard,
            epoch=self._topology.leadership(shard).epoch,
        )

    @property
    def _limit_bytes(self) -> int:
        return self._config.backlog_redirect_bytes

    def _piece(self, port: ShardPort, queues: NDArray[Any], starts: NDArray[np.int64], source: ReadFrom) -> _Piece:
        leads = source is ReadFrom.LEADER or self._topology.leadership(port.number).here
        sends = source is ReadFrom.FOLLOWER or (source is ReadFrom.AUTO and self._limit_bytes > 0)
        followers = self._topology.followers(port.number) if leads and sends else ()
        return _Piece(port, queues, starts, leads=leads, followers=followers)

    # What both share

    async def ports(
        self, topic: StoredTopic, shards: Sequence[int], source: ReadFrom = ReadFrom.LEADER
    ) -> list[ShardPort]:
        """The shards, if they may be read here. On a follower the store may not know the topic yet.

        Raises ``NotLeader``, ``Unavailable``.
        """
        ports = [self._topology.port(shard) for shard in shards]
        for port in ports:
            if source is ReadFrom.LEADER or self._topology.leadership(port.number).here:
                port.check_readable()
                await port.prepare(topic)
            else:
                port.check_readable(follower=True, found=True)
        return ports

    async def _poll(
        self,
        request: ReadRequest | FetchRequest,
        queues: NDArray[Any],
        pieces: Sequence[_Piece],
        read: _Read,
        hold: Hold,
    ) -> Fetched:
        """Read; if there is nothing, wait until something arrives and read again, until time is up.

        What was read is answered only if it could be read to the last: a leader may have been deposed meanwhile.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        found = await self._read_held(request, pieces, read, hold)
        if _settles(request, found) or request.wait_ms == 0 or self._waiters.closed:
            return found
        _move_on(pieces, found)
        with self._waiters.waiting(request.topic.id, queues) as waiter:
            # Between the read and the registration; no await stands between these two.
            if any(_arrived(request.topic, piece) for piece in pieces):
                waiter.set()
            while not _settles(request, found) and await _woken(waiter, deadline):
                waiter.clear()
                later = await self._read_held(request, pieces, read, hold)
                _move_on(pieces, later)
                found = found.followed_by(later)
                if self._waiters.closed:
                    break
                if found.moved and any(_arrived(request.topic, piece) for piece in pieces):
                    waiter.set()
        return found

    async def _read_held(
        self, request: ReadRequest | FetchRequest, pieces: Sequence[_Piece], read: _Read, hold: Hold
    ) -> Fetched:
        """Read with memory reserved: what was asked for while reading, what was found afterwards."""
        with stage("read"):
            return await self._read_reserved(request, pieces, read, hold)

    async def _read_reserved(
        self, request: ReadRequest | FetchRequest, pieces: Sequence[_Piece], read: _Read, hold: Hold
    ) -> Fetched:
        if self._are_at_hand(request, pieces):  # Those who read from disks keep nobody waiting who reads this.
            with _while_open():
                return self._found(request, pieces, read(at_hand=True), hold)
        async with self._slots:  # So that no more reserve the most they may than can read.
            hold.resize(request.max_bytes)
            found = await self.in_threads(partial(read, at_hand=False))
            return self._found(request, pieces, found, hold)

    def _found(
        self, request: ReadRequest | FetchRequest, pieces: Sequence[_Piece], found: Fetched, hold: Hold
    ) -> Fetched:
        """What was found, counted and held; if it could be read to the last."""
        for piece in pieces:
            piece.port.check_readable(follower=request.source is not ReadFrom.LEADER, found=found.moved)
        if found.moved and not all(piece.leads for piece in pieces):
            self.as_follower += 1
        hold.resize(found.size_bytes - found.file_bytes)
        if found.record_count:
            count_messages(found.record_count)
            self.flow.add(request.topic.name, found.record_count, found.size_bytes)
        return found

    def _are_at_hand(self, request: ReadRequest | FetchRequest, pieces: Sequence[_Piece]) -> bool:
        """Whether all there is to read is read sooner than a thread begins."""
        return (
            request.filter is None
            and sum(len(piece.queues) for piece in pieces) <= _AT_HAND_QUEUES
            and all(
                piece.leads and piece.port.store.are_at_hand(request.topic.id, piece.queues, piece.starts)
                for piece in pieces
            )
        )


@contextmanager
def _while_open() -> Iterator[None]:
    """Raises ``Unavailable`` where the store that is read of is closed meanwhile."""
    try:
        yield
    except ClientClosed as error:
        raise Unavailable("a replica that was being read was closed here; try again in a moment") from error


async def _woken(waiter: Waiter, deadline: float) -> bool:
    with stage(WAIT):
        return await waiter.wait(deadline)


def _settles(request: ReadRequest | FetchRequest, found: Fetched) -> bool:
    """Whether this is the answer. Who picks messages is not told each time that others were passed over."""
    return bool(found) if request.filter is None else found.is_worth_an_answer


def _move_on(pieces: Sequence[_Piece], found: Fetched) -> None:
    """Read next from where this read ended."""
    for queues, next_offsets in zip(found.queues, found.next_offsets, strict=True):
        for piece in pieces:
            places = np.minimum(piece.queues.searchsorted(queues), len(piece.queues) - 1)
            here = piece.queues[places] == queues
            piece.starts[places[here]] = np.maximum(piece.starts[places[here]], next_offsets[here])


def _arrived(topic: StoredTopic, piece: _Piece) -> bool:
    store = piece.port.store
    if not piece.leads and not store.has_topic(topic.id, int(piece.queues[-1])):
        return False
    return bool((store.latest_offsets(topic.id, piece.queues) > piece.starts).any())

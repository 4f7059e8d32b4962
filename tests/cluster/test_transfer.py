"""Snapshots over real HTTP between real stores: cut, damaged, restarted on either side, while the source goes on."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgpack
import pytest
from aiohttp import web

from lsmq.errors import ConnectionFailed, CorruptFile, DiskFull, LogTrimmed, LsmqError, Unavailable
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker import throttle as throttles
from lsmq_node.broker.throttle import BURST_S, Throttle
from lsmq_node.cluster import transfer_client
from lsmq_node.cluster.transfer import Snapshots
from lsmq_node.storage import ShardStore
from lsmq_node.storage.snapshot import NAME as SNAPSHOT
from storage.harness import small
from storage.leading import TOPIC, Leader, catch_up, log_bytes, open_replica, shown
from support.waiting import eventually

SECRET = ClusterSecret(b"a secret of sufficient length")
SHARD = 7
FAST = 1 << 40
PIECE_BYTES = 16 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_client, "MAX_PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(transfer_client, "MAX_COMPARE_BYTES", 3 * PIECE_BYTES)


class Source:
    """A node that gives snapshots; ``fault`` is asked before each request and may do anything to it."""

    def __init__(self, store: ShardStore | None, secret: ClusterSecret = SECRET) -> None:
        self.store = store
        self.secret = secret
        self.port = 0
        self.requests: Counter[str] = Counter()
        self.given_bytes = 0
        self.fault: Callable[[web.Request, Handler], Awaitable[web.StreamResponse]] = lambda request, go: go(request)
        self.snapshots: Snapshots | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.snapshots = Snapshots(
            self.secret, lambda shard: self.store if shard == SHARD else None, lambda _: None, FAST
        )
        await self.snapshots.__aenter__()
        app = web.Application(middlewares=[self._faulty(), auth_middleware(Verifier(self.secret))])
        app.add_routes(self.snapshots.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()
        if self.snapshots is not None:
            await self.snapshots.__aexit__(None, None, None)
            self.snapshots = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _faulty(self) -> Any:
        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            kind = "checksum" if request.path.endswith("checksum") else request.method
            self.requests[kind] += 1
            answer = await self.fault(request, handler)
            if kind == "GET" and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                self.given_bytes += len(answer.body)
            return answer

        return middleware


def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def fetch(
    source: Source,
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    store: ShardStore | None = None,
    secret: ClusterSecret = SECRET,
    patience_s: float = 20.0,
    min_free_bytes: int = 0,
) -> Callable[[], None]:
    """Of a node that was just started."""
    node = Snapshots(
        secret, lambda _: store, lambda _: source.url, FAST, patience_s=patience_s, min_free_bytes=min_free_bytes
    )
    async with node:
        return await node.fetch(SHARD, "source", path, progress)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with ShardStore.open(tmp_path / "source", small(), replicated=True) as store:
        leader = Leader(store)
        for _ in range(40):
            leader.put(60_000)
        leader.write_much(20)
        store.compact()
        leader.write_much(20)
        store.compact()  # from here on merges change nothing while files are fetched
        yield leader


def held_bytes(path: Path) -> int:
    """Of the files that the source gives in pieces; what a snapshot says of itself comes with the first answer."""
    return sum(file.stat().st_size for file in (path / "incoming").iterdir() if file.name != SNAPSHOT)


def assert_equal_after(install: Callable[[], None], path: Path, leader: Leader) -> None:
    install()
    with open_replica(path) as store:
        assert shown(store) == shown(leader.store)


# -- the whole way ---------------------------------------------------------------------------------------


def test_a_snapshot_is_fetched_verified_and_installed(leader: Leader, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            install = await fetch(source, tmp_path / "target", lambda done, total: seen.append((done, total)))
            assert source.given_bytes == seen[-1][1] > 1_000_000
            assert source.requests["checksum"] == 0
            assert source.requests["DELETE"] == 1
            return install

    install = asyncio.run(main())
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert_equal_after(install, tmp_path / "target", leader)


def test_connections_that_break_all_the_time_cost_one_piece_each(leader: Leader, tmp_path: Path) -> None:
    chance = random.Random(4)

    async def faulty(request: web.Request, go: Handler) -> web.StreamResponse:
        match chance.randrange(12):
            case 0:
                return cut(request)
            case 1:
                await go(request)
                return cut(request)
            case _:
                return await go(request)

    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            source.fault = faulty
            install = await fetch(source, tmp_path / "target")
            total = held_bytes(tmp_path / "target")
            assert total <= source.given_bytes < 1.4 * total
            return install

    assert_equal_after(asyncio.run(main()), tmp_path / "target", leader)


def test_bytes_that_change_on_the_way_are_not_written(leader: Leader, tmp_path: Path) -> None:
    chance = random.Random(5)
    flipped = 0

    async def faulty(request: web.Request, go: Handler) -> web.StreamResponse:
        nonlocal flipped
        answer = await go(request)
        if chance.randrange(6) == 0 and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            body = bytearray(answer.body)
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            answer.body = bytes(body)
            flipped += 1
        return answer

    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            source.fault = faulty
            return await fetch(source, tmp_path / "target")

    install = asyncio.run(main())
    assert flipped > 10
    assert_equal_after(install, tmp_path / "target", leader)


def test_a_fetch_goes_on_after_a_restart_of_the_target(leader: Leader, tmp_path: Path) -> None:
    """Killed in the middle, with a torn end of what it had."""
    path = tmp_path / "target"

    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            await killed(source, path, 0.6)
            newest = max((path / "incoming").iterdir(), key=lambda file: file.stat().st_mtime_ns)
            with newest.open("r+b") as file:
                file.seek(max(0, newest.stat().st_size - 1_000))
                file.write(b"torn" * 100)
            held, source.given_bytes = held_bytes(path), 0
            install = await fetch(source, path)
            assert source.requests["checksum"] > 0
            slack = transfer_client.MAX_COMPARE_BYTES + 200_000  # the torn range, and a new checkpoint
            assert source.given_bytes <= held_bytes(path) - held + slack
            return install

    assert_equal_after(asyncio.run(main()), path, leader)


def test_a_fetch_goes_on_after_a_restart_of_the_source_with_what_is_the_same(leader: Leader, tmp_path: Path) -> None:
    path = tmp_path / "target"
    again: list[ShardStore] = []

    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            reached, total_bytes = asyncio.Event(), 0

            def progress(done: int, total: int) -> None:
                nonlocal total_bytes
                total_bytes = max(total_bytes, total)
                if done > total // 2:
                    reached.set()

            task = asyncio.create_task(fetch(source, path, progress))
            await reached.wait()
            await source.stop()
            leader.store.close()
            leader.store = await asyncio.to_thread(ShardStore.open, tmp_path / "source", small(), replicated=True)
            again.append(leader.store)
            leader.store.replica.advance(leader.store.replica.end_lsn)
            leader.begin_epoch()
            leader.write_much(20)
            source.store = leader.store
            await source.start()
            install = await task
            assert source.requests["POST"] >= 2
            assert source.given_bytes < total_bytes * 1.5
            return install

    try:
        assert_equal_after(asyncio.run(main()), path, leader)
    finally:
        again[0].close()


def test_a_store_that_is_replaced_while_it_is_read_is_begun_with_anew(leader: Leader, tmp_path: Path) -> None:
    async def main() -> Callable[[], None]:
        async with Source(leader.store) as source:
            reached = asyncio.Event()
            task = asyncio.create_task(
                fetch(source, tmp_path / "target", lambda done, total: reached.set() if done > total // 2 else None)
            )
            await reached.wait()
            leader.store._exports.close()
            leader.store._exports._closed = False
            return await task

    assert_equal_after(asyncio.run(main()), tmp_path / "target", leader)


async def killed(source: Source, path: Path, share: float) -> None:
    """A fetch that is cancelled when it has more than this share of the bytes."""
    reached = asyncio.Event()

    def progress(done: int, total: int) -> None:
        if done > share * total:
            reached.set()

    task = asyncio.create_task(fetch(source, path, progress))
    await reached.wait()
    task.cancel()
    await asyncio.wait([task])


# -- giving up -------------------------------------------------------------------------------------------


def test_a_source_that_is_away_for_too_long_is_given_up_and_what_came_is_kept(leader: Leader, tmp_path: Path) -> None:
    path = tmp_path / "target"

    async def main() -> None:
        async with Source(leader.store) as source:
            reached = asyncio.Event()
            task = asyncio.create_task(fetch(source, path, lambda done, total: reached.set(), patience_s=0.3))
            await reached.wait()
            await source.stop()
            with pytest.raises(ConnectionFailed):
                await task
            assert held_bytes(path) > 0
            assert not (path / "incoming" / "SNAPSHOT").exists()
            await source.start()
            await fetch(source, path)

    asyncio.run(main())


def expect_failure(kind: type[LsmqError], match: str, source: Source, path: Path, **changes: Any) -> None:
    async def main() -> None:
        async with source:
            with pytest.raises(kind, match=match):
                await fetch(source, path, patience_s=0.2, **changes)

    asyncio.run(main())


def test_another_secret_gets_nothing(leader: Leader, tmp_path: Path) -> None:
    source = Source(leader.store)
    other = ClusterSecret(b"another one, as long as that")
    expect_failure(NotAuthenticated, "refuses this node", source, tmp_path / "target", secret=other)
    assert source.requests["GET"] == 0


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    expect_failure(Unavailable, "no replica of shard 7", Source(None), tmp_path / "target")


def test_a_source_that_has_less_than_was_applied_here_is_refused(leader: Leader, tmp_path: Path) -> None:
    with open_replica(tmp_path / "behind") as behind:
        Leader(behind).write_much(3)
        expect_failure(Unavailable, "is wanted", Source(behind), tmp_path / "target", store=leader.store)
    with open_replica(tmp_path / "target") as target:
        expect_failure(DiskFull, "MiB more", Source(leader.store), target.path, store=target, min_free_bytes=1 << 60)


def test_a_table_that_is_damaged_at_its_source_is_named_and_never_installed(leader: Leader, tmp_path: Path) -> None:
    table = max((tmp_path / "source" / "tables").glob("*.tbl"), key=lambda file: file.stat().st_size)
    with table.open("r+b") as file:
        file.seek(3_000)
        byte = file.read(1)
        file.seek(3_000)
        file.write(bytes((byte[0] ^ 1,)))
    path = tmp_path / "target"
    expect_failure(CorruptFile, f"{table.name} is damaged at its source", Source(leader.store), path)
    assert not (path / "incoming" / "SNAPSHOT").exists()
    with table.open("r+b") as file:
        file.seek(3_000)
        file.write(byte)


# -- sessions --------------------------------------------------------------------------------------------


async def begin(source: Source, holder: str) -> str:
    async with aiohttp.ClientSession() as session:
        requests = transfer_client.SignedRequests(session, source.secret, source.url)
        body = msgpack.packb({"holder": holder, "at_least_lsn": 0})
        return str(msgpack.unpackb(await requests.call("POST", f"/internal/snapshots/{SHARD}", body))["id"])


def held_names(store: ShardStore) -> int:
    return len(store._tables._files._holders)


def test_a_snapshot_that_nobody_asks_for_is_let_go(leader: Leader, tmp_path: Path) -> None:
    async def main() -> None:
        async with Source(leader.store) as source:
            assert source.snapshots is not None
            await begin(source, "a")
            assert held_names(leader.store) > 0
            assert leader.store._exports.log_from() is not None
            source.snapshots._server._sessions._session_timeout_s = 0.05
            await begin(source, "a")
            await asyncio.to_thread(eventually, lambda: held_names(leader.store) == 0, "its time is up")
            await asyncio.to_thread(eventually, lambda: leader.store._exports.log_from() is None, "the log goes too")

    asyncio.run(main())


def test_a_new_snapshot_of_a_holder_ends_its_old_one_and_all_end_with_the_server(leader: Leader) -> None:
    async def main() -> None:
        async with Source(leader.store) as source:
            assert source.snapshots is not None
            sessions = source.snapshots._server._sessions._sessions
            first, other = await begin(source, "a"), await begin(source, "b")
            second = await begin(source, "a")
            assert set(sessions) == {other, second}
            assert first != second
        assert held_names(leader.store) == 0
        assert leader.store._exports.log_from() is None

    asyncio.run(main())


def test_the_number_of_snapshots_is_limited(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Source(leader.store) as source:
            await begin(source, "a")
            assert source.snapshots is not None
            monkeypatch.setattr(source.snapshots._server._sessions, "_most", 1)
            with pytest.raises(Unavailable, match="the limit"):
                await begin(source, "b")

    asyncio.run(main())


def test_the_log_is_held_for_a_while_after_the_files_were_read(leader: Leader, tmp_path: Path) -> None:
    async def main() -> None:
        async with Source(leader.store) as source:
            assert source.snapshots is not None
            await fetch(source, tmp_path / "target")
            await asyncio.to_thread(eventually, lambda: held_names(leader.store) == 0, "the files are let go")
            [session] = source.snapshots._server._sessions._sessions.values()
            assert leader.store._exports.log_from() == session.source.snapshot.applied_lsn
            source.snapshots._server._sessions._drop(session)
            await asyncio.to_thread(eventually, lambda: leader.store._exports.log_from() is None, "and then the log")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/internal/snapshots/8/x/y?offset=0&length=1", 410),
        ("/internal/snapshots/7/ID/000000000001.tbl?offset=0&length=99999999", 400),
        ("/internal/snapshots/7/ID/000000000001.tbl?offset=-1&length=1", 400),
        ("/internal/snapshots/7/ID/000000000001.tbl?offset=0&length=x", 400),
        ("/internal/snapshots/7/ID/000000000001.tbl", 400),
        ("/internal/snapshots/7/ID/MANIFEST?offset=0&length=1", 400),
        ("/internal/snapshots/7/ID/..%2fMANIFEST?offset=0&length=1", 400),
        ("/internal/snapshots/8/ID/MANIFEST?offset=0&length=1", 410),
    ],
)
def test_requests_for_anything_else_are_refused(leader: Leader, path: str, status: int) -> None:
    async def main() -> None:
        async with Source(leader.store) as source, aiohttp.ClientSession() as session:
            id = await begin(source, "a")
            requests = transfer_client.SignedRequests(session, SECRET, source.url)
            with pytest.raises(LsmqError) as raised:
                await requests.call("GET", path.replace("ID", id))
            assert status_of(raised.value) == status

    asyncio.run(main())


def test_bytes_are_moved_no_faster_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: 100.0)
        monkeypatch.setattr(throttles.asyncio, "sleep", sleep)
        throttle = Throttle(1_000)
        for count in (50, 50, 100, 1_000):
            await throttle.take(count)
        monkeypatch.undo()

    asyncio.run(main())
    assert slept == pytest.approx([0.1, 1.1]), f"beyond the burst of {BURST_S} s each byte takes its time"


# -- everything at once ----------------------------------------------------------------------------------


class Busy:
    """A leader that goes on writing, deleting, trimming, flushing and merging in a thread of its own."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.writes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.001):
            self._leader.something()
            self.writes += 1
            if self.writes % 40 == 0:
                self._leader.store.compact()
                self._leader.store._maintenance._retain()


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_made_while_the_source_goes_on_equals_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "target"

    async def faulty(request: web.Request, go: Handler) -> web.StreamResponse:
        if chance.randrange(15) == 0:
            return cut(request)
        return await go(request)

    async def download(leader: Leader) -> Callable[[], None]:
        async with Source(leader.store) as source:
            source.fault = faulty
            for _ in range(2):  # the target is killed twice
                await killed(source, path, chance.random())
            with Busy(leader) as busy:
                install = await fetch(source, path)
                assert busy.writes > 0
            return install

    with ShardStore.open(tmp_path / "source", small(wal_keep_bytes=1 << 30), replicated=True) as store:
        leader = Leader(store, seed)
        for _ in range(60):
            leader.put(20_000)
        leader.write_much(100)
        store.flush()
        with open_replica(path) as old:  # it was a replica once, long ago
            Leader(old, seed + 100).write_much(20)
        asyncio.run(download(leader))()
        lsn = 0
        with Busy(leader):
            for _ in range(3):
                with open_replica(path) as target:
                    if not lsn:
                        lsn = target.replica.end_lsn
                        assert target.replica.first_lsn() == lsn
                    assert target.replica.first_lsn() >= lsn  # what is flushed meanwhile may be dropped
                    store.replica.keep_from(target.replica.end_lsn)
                    catch_up(store, target, iter(lambda: chance.choice((100, 5_000, 70_000)), 0))
                    target.replica.save_high_watermark()
        with open_replica(path) as target:
            catch_up(store, target)
            first = max(store.replica.first_lsn(), target.replica.first_lsn())
            assert log_bytes(store, first) == log_bytes(target, first)
            assert shown(target) == shown(store)
            assert TOPIC in target._state.topics
            with pytest.raises(LogTrimmed):
                target.replica.read(lsn - 1, 1)

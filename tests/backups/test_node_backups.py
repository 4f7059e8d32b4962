"""Backups that a node makes itself, where its setting says: from the command line, in both faces, in a cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.calls import Api
from api.in_process import Session, node_of, with_node
from api.test_rights import Realm
from lsmq import BackupAdmin, Client, InvalidRequest, sync
from lsmq_lab.local_cluster import LocalCluster
from lsmq_node.backups.manifest import BackupManifest
from lsmq_node.backups.places import DirectoryPlace
from lsmq_node.backups.repository import Pruned, Repository
from lsmq_node.broker import Broker
from lsmq_node.config import InvalidConfig, NodeConfig
from support.clusters import running_cluster
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .commands import QUEUES, held, lsmq, send


def restored(make_node: Callable[..., NodeProcess], place: Path, data: Path, shards: int = 1) -> Api:
    assert f": {shards} shard{'s' * (shards != 1)}, 1 topic" in lsmq("", "verify", place)
    lsmq("", "backup", "restore", place, "--data", data)
    return Api(make_node(data, shards=shards).start().url)


def test_a_node_makes_backups_where_its_setting_says_and_keeps_so_many(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    node = make_node(tmp_path / "data", backup_to=place, backup_keep=2).start()
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(50))
    state = lsmq(node.url, "backup", "status", "--json")
    assert (state["place"], state["keep"], state["running"], state["last"]) == (str(place), 2, None, None)
    assert state["backups"] == []

    first = lsmq(node.url, "backup", "start", "--json")["last"]
    assert first["error"] is None and first["size_bytes"] == first["fetched_bytes"] > 0
    send(api, "t", range(50, 60))
    second = lsmq(node.url, "backup", "start", "--json")["last"]
    assert 0 < second["fetched_bytes"] < second["size_bytes"], "what is there is not fetched again"
    with sync.Client(node.url) as client:
        admin = sync.BackupAdmin(client)
        admin.start()
        eventually(lambda: admin.state().running is None, "the third is made")
        found = admin.state()
    assert found.last is not None and found.last.id is not None
    assert found.last.removed == (first["id"],)
    assert found.backups == (found.last.id, second["id"])
    expected = held(api, "t")
    node.stop()
    node.start()  # What a place has is known after a restart; what was under way is not.
    state = lsmq(node.url, "backup", "status", "--json")
    assert state["last"] is None and state["backups"] == [found.last.id, second["id"]]
    assert f"in {place}, of which 2 are kept" in lsmq(node.url, "backup", "status")
    assert held(restored(make_node, place, tmp_path / "new"), "t") == expected


async def test_one_that_is_stopped_or_fails_says_so_and_the_next_one_goes_on(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    node = make_node(tmp_path / "data", backup_to=place, backup_bytes_per_s=65_536).start()
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(100), 3_000)  # at 64 KiB a second it takes as long as it is looked at
    async with Client(node.url) as client:
        admin = BackupAdmin(client)
        begun = await admin.start()
        assert begun.running is not None and begun.last is None
        again = await admin.start()
        assert again.running is not None and again.running.began_ms == begun.running.began_ms
        await comes_true(lambda: bool(list(place.glob("incoming/PART-*"))), "it has begun at its place")
        printed = await asyncio.to_thread(lsmq, node.url, "backup", "create", "--to", place, code=1)
        assert "data_directory_locked" in printed, "one at a time changes a place"
        stopped = await admin.stop()
        assert stopped.running is None and stopped.last is not None and stopped.last.id is None
        assert "it was stopped" in (stopped.last.error or "")
        assert (await admin.stop()).last == stopped.last, "nothing is under way"
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (place / "somebody's").write_text("else")
    printed = await asyncio.to_thread(lsmq, node.url, "backup", "start", code=1)
    assert "is not empty, and holds no backups" in printed
    inside = node.data / "backups" / "new"
    printed = await asyncio.to_thread(lsmq, node.url, "backup", "create", "--to", inside, code=1)
    assert f"{inside} lies in {node.data}, where a node has its data" in printed and not inside.exists()
    assert "is not empty" in await asyncio.to_thread(lsmq, node.url, "backup", "status")
    assert Api(node.url).get("/readyz").json()["status"] == "ok"


def test_one_that_is_stopped_lets_go_of_its_place_when_nothing_is_removed_there_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the next one has just brought would go: no backup names it yet."""
    prune, happened = Repository.prune, list[str]()
    begun, let_go = threading.Event(), threading.Event()

    def slow(self: Repository, keep: int | None, like: BackupManifest | None) -> Pruned:
        begun.set()
        let_go.wait(2)
        pruned = prune(self, keep, like)
        happened.append("removed")
        return pruned

    async def check(session: Session, broker: Broker) -> None:
        backups = node_of(session).backups
        assert backups.begin()
        await comes_true(begun.is_set, "it removes what no backup has")
        await backups.cancel()
        happened.append("let go")
        let_go.set()
        await comes_true(lambda: "removed" in happened, "it has removed it")

    monkeypatch.setattr(Repository, "prune", slow)
    with_node(tmp_path / "data", check, backup_to=str(tmp_path / "backups"))
    assert happened == ["removed", "let go"]


def test_one_that_is_stopped_again_and_again_lets_go_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place does not answer, and who waits for the end of the backup hangs up, or asks once more."""
    place, changing = tmp_path / "backups", DirectoryPlace.changing
    asked, answers = threading.Event(), threading.Event()

    async def turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @contextmanager
    def hanging(self: DirectoryPlace) -> Iterator[None]:
        asked.set()
        answers.wait()
        with changing(self):
            yield

    async def check(session: Session, broker: Broker) -> None:
        backups = node_of(session).backups
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryPlace, "changing", hanging)
            assert backups.begin()
            await comes_true(asked.is_set, "its place is asked")
            stopping = []
            for _ in range(2):
                stopping.append(asyncio.create_task(backups.cancel()))
                await turns()
            stopping[1].cancel()
            await turns()
            answers.set()
            await asyncio.wait(stopping)
            await comes_true(lambda: backups.running is None, "it is stopped")
        assert backups.begin()
        await comes_true(lambda: backups.running is None, "the next one is over")
        assert backups.last is not None and backups.last.error is None

    with_node(tmp_path / "data", check, backup_to=str(place))


def test_a_node_without_a_place_says_what_to_set(shared_node: NodeProcess) -> None:
    printed = lsmq(shared_node.url, "backup", "start", code=1)
    assert "backup_to" in printed and "lsmq backup create --to" in printed
    assert "backup_to is not set" in lsmq(shared_node.url, "backup", "status")
    with sync.Client(shared_node.url) as client, pytest.raises(InvalidRequest, match="backup_to"):
        sync.BackupAdmin(client).stop()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("backups", "its whole path"),
        ("ftp://x/y", "its whole path"),
        ("{data}", "in the other"),
        ("{data}/backups", "in the other"),
        ("{data}/..", "in the other"),
    ],
)
def test_a_place_that_cannot_be_one_is_refused_at_the_start(tmp_path: Path, place: str, why: str) -> None:
    data = tmp_path / "data"
    with pytest.raises(InvalidConfig, match=why):
        NodeConfig.load(data=data, backup_to=place.format(data=data))


def test_who_may_read_everything_has_one_made_and_who_looks_after_the_cluster_looks(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(tmp_path / "data", backup_to=tmp_path / "backups", auth="token").start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    realm = Realm(node)
    _, monitor = realm.somebody(("monitor", ""))
    _, tenant = realm.somebody(("backup", "mine"))
    _, nightly = realm.somebody(("backup", ""))
    for asking in (monitor, tenant, realm.nobody[1]):
        assert asking.call("POST", "/v1/backups", status=403).code == "forbidden"
        assert asking.call("DELETE", "/v1/backups/running", status=403).code == "forbidden"
    nightly.call("POST", "/v1/backups", status=202)

    def made() -> bool:
        last = monitor.call("GET", "/v1/backups", status=200).json()["last"]
        return last is not None and last["id"] is not None

    eventually(made, "it is made, and who may look sees it")
    assert [entry.stat().st_mode & 0o077 for entry in (tmp_path / "backups").rglob("*")].count(0) > 3


@pytest.fixture
def storing_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    small = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20, "backup_to": str(tmp_path / "backups")}
    with running_cluster(__name__, tmp_path / "c", settings=small) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_node_of_a_cluster_has_what_the_others_lead_and_goes_on_when_one_of_them_fails(
    storing_cluster: LocalCluster, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    cluster, place = storing_cluster, tmp_path / "backups"
    with sync.Client(cluster.plan.nodes[0].url) as client:
        client.create_topic("t", queues=QUEUES)
        with sync.Producer(client, "t") as producer:
            for number in range(60):
                producer.send(f"m{number}", queue=number % QUEUES)
        maker = next(node for node in cluster.plan.nodes if node.url == client.urls[0])
        made = lsmq(maker.url, "backup", "start", "--json")["last"]
        assert made["error"] is None
        victim = next(
            shard.leader
            for shard in sync.ClusterAdmin(client).overview().shards
            if shard.leader not in (None, maker.id)
        )
        cluster.kill(victim)
        again = lsmq(maker.url, "backup", "start", "--json")["last"]
        assert again["error"] is None, "the shards that were led there are taken from those that lead them now"
    shards = len(lsmq("", "backup", "list", place, "--json")[0]["shards"])
    api = restored(make_node, place, tmp_path / "new", shards)
    bodies = sorted(message["body"] for queue in range(QUEUES) for message in api.all_messages("t", queue))
    assert bodies == sorted(f"m{number}" for number in range(60))

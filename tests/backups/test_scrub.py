"""Damage is found though nobody reads the messages, told, and in a cluster mended from the other replicas."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.calls import Api
from api.in_process import Session, with_node
from lsmq_lab.local_cluster import LocalCluster
from lsmq_node.broker import Broker, scrubber
from lsmq_node.storage.scrub import Scrub
from storage.harness import body, flush, open_stepped, put, tiny
from support.clusters import running_cluster
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .commands import QUEUES, held, lsmq, send

CYCLE_MS = 1_000


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def tables(shard: Path) -> list[Path]:
    return sorted((shard / "tables").glob("*.tbl"))


def test_a_node_reads_its_files_again_and_again_and_tells_of_damage(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(scrub_cycle_ms=CYCLE_MS, cache_bytes=0).start()
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(50))
    held = api.call("POST", "/v1/shards/0/snapshots", {"holder": "flush"}, status=201).json()
    api.call("DELETE", f"/v1/shards/0/snapshots/{held['id']}", status=204)
    eventually(lambda: api.metric("lsmq_scrub_files_total") >= 4, "files are read more than once")
    assert api.metric("lsmq_scrub_damaged_files_total") == 0
    [table] = tables(node.data / "shard-0")
    flip(table, 1_000)
    eventually(lambda: api.metric("lsmq_scrub_damaged_files_total") >= 1, "damage is found")
    assert any(table.name in warning for warning in api.get("/readyz").json()["warnings"])
    assert api.metric("lsmq_store_damaged_tables") == 1
    send(api, "t", range(3))


def test_a_file_that_cannot_be_read_for_want_of_descriptors_is_read_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    read = Scrub.read

    def wanting(self: Scrub, name: str) -> Iterator[int]:
        tries.append(name)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "no descriptors are left")
        yield from read(self, name)

    async def test(session: Session, broker: Broker) -> None:
        assert (await session.post("/v1/topics/t/messages", json={"messages": [{"body": "x"}]})).status == 200
        assert (await session.post("/v1/shards/0/snapshots", json={"holder": "flush"})).status == 201
        await comes_true(lambda: len(tries) > len(set(tries)), "it is read again")

    monkeypatch.setattr(Scrub, "read", wanting)
    for name in ("_IDLE_S", "_LONGEST_PAUSE_S", "_AGAIN_S"):
        monkeypatch.setattr(scrubber, name, 0.01)
    with_node(tmp_path, test, scrub_cycle_ms=3_600_000)


def test_a_node_is_asked_to_read_all_it_has(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(cache_bytes=0).start()
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(50))
    assert "nothing is damaged" in lsmq(node.url, "verify")
    [table] = tables(node.data / "shard-0")
    flip(table, 1_000)
    assert table.name in lsmq(node.url, "verify", code=1)
    assert table.name in lsmq(node.url, "backup", "create", "--to", node.data.with_name("b"), code=1)


def test_each_kind_of_file_is_read_and_a_damaged_one_is_out_of_merges(tmp_path: Path) -> None:
    with open_stepped(tmp_path / "shard-0", tiny()) as store:
        topic = store.create_topic("t", 4)
        for number in range(200):
            put(store, topic.id, (number % 4, body(number, 500)))
        flush(store)
        files = dict(store.scrub.files())
        assert {name.rpartition(".")[2] for name in files} >= {"tbl", "ckp"}
        for name, size in files.items():
            assert 0 < sum(store.scrub.read(name)) <= size
        assert list(store.scrub.read("000000099999.tbl")) == []
        assert not store.damage()
        for name in files:
            flip(tmp_path / "shard-0" / "tables" / name, 100)
            with pytest.raises(Exception, match=name):
                list(store.scrub.read(name))
        assert len(store.damage()) == len(files)


@pytest.fixture
def scrubbed(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"segment_bytes": 1 << 20, "memtable_bytes": 1 << 20, "wal_keep_bytes": 1 << 20}
    settings |= {"max_message_bytes": 256 << 10, "scrub_cycle_ms": CYCLE_MS, "cache_bytes": 0}
    with running_cluster(__name__, tmp_path / "c", shards=1, settings=settings) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_follower_whose_file_is_damaged_is_filled_again_though_nobody_reads(scrubbed: LocalCluster) -> None:
    cluster = scrubbed
    urls = {node.id: node.url for node in cluster.plan.nodes}
    [shard] = cluster.status().shards
    assert shard.leader is not None
    api = Api(urls[shard.leader])
    api.create("t", QUEUES)
    for round in range(4):
        send(api, "t", range(100 * round, 100 * round + 100), 2_000)
    expected = held(api, "t")
    follower = next(id for id in urls if id != shard.leader)
    directory = cluster.directory / follower / "data" / "shard-0"
    eventually(lambda: bool(tables(directory)), "the follower has a table")
    flip(tables(directory)[0], 2_000)
    eventually(lambda: bool(list(directory.parent.glob("shard-0.damaged-*"))), "it is set aside")
    eventually(lambda: len(cluster.status().shards[0].in_sync) == 3, "it is in sync again")
    assert held(api, "t") == expected
    eventually(lambda: Api(urls[follower]).get("/readyz", None).status == 200, "it is ready")

"""A node's data directory is repaired as a whole: its shards, and the topics that they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lsmq.cli import main
from lsmq.errors import DataDirectoryLocked
from lsmq.queue_names import SLOTS, queue_slot
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.broker.layout import NodeFile, shard_directory
from lsmq_node.broker.placement import slots_of
from lsmq_node.broker.repair import repair_directory
from lsmq_node.storage import ShardStore, Slots, TopicOptions
from lsmq_node.storage.repair import Damage, Finding, Loss, Remark, Renamed, Unknown

from .harness import body, flush, open_stepped, put
from .repairing import options, snapshot

SHARDS = 3
QUEUES = 9


@contextmanager
def opened(data: Path) -> Iterator[tuple[NodeCatalog, list[ShardStore]]]:
    """The shards and the catalog, as a node of its own opens them."""
    with ExitStack() as stores:
        found = [
            stores.enter_context(open_stepped(shard_directory(data, number), options())) for number in range(SHARDS)
        ]
        catalog = NodeCatalog(found, len(found))
        catalog.complete()
        yield catalog, found


def shown(data: Path) -> dict[tuple[str, int], list[bytes]]:
    with opened(data) as (catalog, stores):
        return {
            (topic.name, queue): stores[0 if topic.queues < SHARDS else queue * SHARDS // topic.queues].read_bytes(
                topic.id, queue, 0, 100
            )
            for topic in catalog.topics()
            for queue in range(topic.queues)
            if topic.queues >= SHARDS and not topic.named
        }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    NodeFile(SHARDS).store(data)
    (data / "log.txt").write_text("of somebody else")
    with opened(data) as (catalog, stores):
        for name in ("orders", "flights"):
            topic = catalog.create(name, QUEUES, TopicOptions())
            for queue in range(QUEUES):
                store = stores[queue * SHARDS // QUEUES]
                for number in range(4):
                    put(store, topic.id, (queue, body(100 * topic.id + 10 * queue + number, 120)))
        catalog.create("small", 1, TopicOptions())
        for store in stores:
            flush(store)
    return data


def repaired(data: Path, out: Path) -> list[Finding]:
    before, findings = snapshot(data), list[Finding]()
    repair_directory(data, out, tell=findings.append)
    assert snapshot(data) == before
    return findings


def test_a_whole_node_is_saved(data: Path, tmp_path: Path) -> None:
    findings = repaired(data, tmp_path / "out")
    assert shown(tmp_path / "out") == shown(data)
    assert findings == [Remark("log.txt is left out: no store")]
    assert NodeFile.load(tmp_path / "out") == NodeFile(SHARDS)


def test_a_topic_whose_name_the_first_shard_lost_is_taken_from_the_others(data: Path, tmp_path: Path) -> None:
    before = shown(data)
    first = shard_directory(data, 0)
    for path in first.glob("tables/*.ckp"):
        raw = path.read_bytes()
        path.write_bytes(raw[:40] + bytes(30) + raw[70:])
    for path in first.glob("wal/*.wal"):  # the log that would tell it again
        path.write_bytes(bytes(len(path.read_bytes())))
    findings = repaired(data, tmp_path / "out")
    assert shown(tmp_path / "out") == before
    assert not [found for found in findings if isinstance(found, Renamed)]
    with opened(tmp_path / "out") as (catalog, _):
        assert sorted(topic.name for topic in catalog.topics()) == ["flights", "orders", "small"]
    assert [found for found in findings if isinstance(found, Damage)]


def test_a_shard_that_is_gone_is_named_and_the_others_are_saved(data: Path, tmp_path: Path) -> None:
    before = shown(data)
    shard_directory(data, 0).rename(tmp_path / "elsewhere")
    findings = repaired(data, tmp_path / "out")
    after = shown(tmp_path / "out")
    assert after == {place: [] if place[1] < QUEUES // SHARDS else rows for place, rows in before.items()}
    assert any(isinstance(found, Damage) and found.file == "shard-0" for found in findings)
    assert any(isinstance(found, Unknown) and "offset 0" in found.what for found in findings)


def test_node_json_is_made_again(data: Path, tmp_path: Path) -> None:
    (data / "node.json").write_text("{")
    findings = repaired(data, tmp_path / "out")
    assert [found.file for found in findings if isinstance(found, Damage)] == ["node.json"]
    assert NodeFile.load(tmp_path / "out") == NodeFile(SHARDS)


def test_a_member_of_a_cluster_is_told_to_be_filled_again(data: Path, tmp_path: Path) -> None:
    NodeFile(SHARDS, "lsmq", "n1").store(data)
    (data / "raft").mkdir()
    findings = repaired(data, tmp_path / "out")
    remarks = [found.what for found in findings if isinstance(found, Remark)]
    assert "filling it again from the others" in remarks[0]
    assert any(remark.startswith("raft is left out: the control plane's promises") for remark in remarks)
    assert not (tmp_path / "out" / "node.json").exists()
    assert shard_directory(tmp_path / "out", 2).exists()


def test_a_node_that_runs_is_refused(data: Path, tmp_path: Path) -> None:
    with opened(data), pytest.raises(DataDirectoryLocked):
        repair_directory(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the command -----------------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["repair", *arguments])
    return int(ended.value.code or 0)


def damage_a_block(data: Path) -> Path:
    path = min(shard_directory(data, 1).glob("tables/*.tbl"))
    raw = bytearray(path.read_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)
    return path


def test_the_command_says_what_is_whole(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(data)) == 0
    assert "72 messages are whole; nothing is damaged" in capsys.readouterr().out


def test_the_command_names_what_is_damaged_and_lost(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damage_a_block(data)
    assert run(str(data)) == 1
    shown_text = capsys.readouterr().out
    assert f"shard-1/tables/{path.name}" in shown_text
    assert "--out DIR2 saves them" in shown_text and "lost at least" in shown_text
    out = tmp_path / "out"
    assert run(str(data), "--out", str(out), "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    summary = lines.pop()
    assert summary["finding"] == "summary" and summary["damaged"]
    losses = [line for line in lines if line["finding"] == "loss"]
    assert sum(loss["end"] - loss["first"] for loss in losses) == summary["lost"] == 72 - summary["messages"]
    assert {loss["topic"] for loss in losses} == {"orders"}
    assert run(str(out)) == 0


def test_findings_carry_what_is_lost(data: Path) -> None:
    damage_a_block(data)
    findings: list[Finding] = []
    summary = repair_directory(data, tell=findings.append)
    assert summary.lost == sum(found.end - found.first for found in findings if isinstance(found, Loss))


# -- queues by name --------------------------------------------------------------------------------------


NAMED = [f"agents.{at}.inbox" for at in range(40)]


def put_named(data: Path) -> None:
    with opened(data) as (catalog, stores):
        topic = catalog.create("named", SLOTS, TopicOptions(named=True))
        for number, store in enumerate(stores):
            first, end = slots_of(topic, number, SHARDS)
            own = [name for name in NAMED if first <= queue_slot(name) < end]
            names = store.names(topic.id)
            while not names.is_current():
                names.refresh()
            for turn in range(3):
                builder = BatchBuilder()
                for at, name in enumerate(own):
                    builder.add(at, f"{name} {turn}".encode())
                names.append("\0".join(own).encode(), RecordBatch(builder.build()), Slots(first, end))
            store.commit()
            gone = [name for name in own if name in NAMED[:10]]
            if gone:
                names.delete(gone)
            store.commit()
            flush(store)


def shown_by_name(data: Path) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    with opened(data) as (catalog, stores):
        topic = catalog.topic("named")
        assert topic.named and topic.queues == SLOTS
        for store in stores:
            names = store.names(topic.id)
            names.refresh()
            numbers = names.all_numbers()
            for number, name in zip(numbers.tolist(), names.names(numbers), strict=True):
                assert name is not None
                found[name] = store.read_bytes(topic.id, number, 0, 100)
    return found


def test_names_are_saved_with_their_queues(data: Path, tmp_path: Path) -> None:
    put_named(data)
    expected = {name: [f"{name} {turn}".encode() for turn in range(3)] for name in NAMED[10:]}
    assert shown_by_name(data) == expected
    assert repaired(data, tmp_path / "out") == [Remark("log.txt is left out: no store")]
    assert shown_by_name(tmp_path / "out") == expected
    assert shown(tmp_path / "out").keys() >= {("orders", 0)}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_names_of_a_topic_that_a_shard_forgot_are_saved(data: Path, tmp_path: Path, shard: int) -> None:
    put_named(data)
    expected = shown_by_name(data)
    for path in shard_directory(data, shard).glob("tables/*.ckp"):
        raw = path.read_bytes()
        path.write_bytes(raw[:40] + bytes(30) + raw[70:])
    for path in shard_directory(data, shard).glob("wal/*.wal"):
        path.write_bytes(bytes(len(path.read_bytes())))
    repaired(data, tmp_path / "out")
    found = shown_by_name(tmp_path / "out")
    assert found.items() >= expected.items(), "what was deleted may come back, and nothing else changes"

"""Replicas with asynchronous flush, and replicas whose old messages expire, leading and following."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import OffsetOutOfRange
from lsmq.sync import Client, Consumer, Producer
from lsmq_lab.world.drive import Drive
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.replica import Replica
from lsmq_node.storage import FlushMode, TopicOptions
from lsmq_node.storage.state import StoredTopic
from storage.harness import KIB, bodies, body, tiny
from support.clusters import running_cluster

from .replica_group import QUEUES, Group, batch, group, run, until

pytestmark = pytest.mark.usefixtures("drives_there")

HOUR_MS = 3_600_000
NEVER: dict[str, Any] = {"flush_interval_ms": HOUR_MS, "flush_bytes": 1 << 30}


async def fill(nodes: Group, leader: Replica, first: int, count: int) -> None:
    for number in range(first, first + count):
        await nodes.put(leader, body(number, 2_000), queue=number % QUEUES)


def test_with_asynchronous_flush_no_replica_syncs_for_a_write_and_a_failover_keeps_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, options=tiny(flush_mode=FlushMode.ASYNC, **NEVER)) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            before = {name: nodes[name].store.stats().fsyncs_total for name in nodes.sites}
            for number in range(20):
                await nodes.put(leader, b"%d" % number)
            assert {name: nodes[name].store.stats().fsyncs_total for name in nodes.sites} == before
            nodes.cut_off = {"a"}
            nodes.sites["a"].leased = False
            leader = await nodes.lead("b", without=("a",))
            assert list(bodies(leader.store, 1, 0).values()) == [b"%d" % number for number in range(20)]
            await nodes.put(leader, b"more")
            nodes.cut_off = set()
            nodes.sites["a"].leased = True
            await nodes.all_in_sync()
            await nodes.equal()

    run(test)


def test_with_asynchronous_flush_a_replica_syncs_its_log_before_it_promises(tmp_path: Path) -> None:
    """What it tells of its log with a promise must be true after a loss of power."""

    async def test() -> None:
        options = tiny(flush_mode=FlushMode.ASYNC, **NEVER)
        async with group(tmp_path, options=options, start=False) as nodes:
            disk = nodes.sites["b"].disk = Drive(tmp_path)
            for name in nodes.sites:
                await nodes.start(name)
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            for number in range(20):
                await nodes.put(leader, b"%d" % number)
            end_lsn = nodes["b"].end_lsn
            leader = await nodes.lead("c", without=("a",))
            await nodes.stop("a")
            await until(lambda: nodes["b"].epoch == leader.epoch, "b has promised")
            survives = disk.power_cut(7)
            with suppress(OSError):  # nothing can be closed properly
                await nodes.stop("b")
            nodes.sites["b"].disk = survives
            await nodes.start("b")
            assert nodes["b"].end_lsn >= end_lsn
            await nodes.start("a")
            # The EPOCH entry was lost with the power, though it was reported: b is another one now.
            await until(lambda: nodes.view.listed("b") == nodes["b"].incarnation, "b joins as what it is")
            await nodes.all_in_sync()
            await nodes.equal()

    run(test)


async def put_loosely(
    nodes: Group, leader: Replica, content: bytes, ack: Ack, mode: FlushMode = FlushMode.ASYNC
) -> None:
    leader.check_writable(ack)
    await leader.wait(leader.store.append(1, batch(content), flush=mode), ack)


def test_a_write_says_on_all_replicas_whether_it_is_synced(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, options=tiny(**NEVER)) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)

            def syncs() -> dict[str, int]:
                return {name: nodes[name].store.stats().fsyncs_total for name in nodes.sites}

            before = syncs()
            for number in range(10):
                await put_loosely(nodes, leader, b"%d" % number, Ack.QUORUM if number % 2 else Ack.LEADER)
            assert syncs() == before
            await put_loosely(nodes, leader, b"10", Ack.QUORUM, FlushMode.SYNC)
            after = syncs()
            assert all(after[name] > before[name] for name in nodes.sites)
            assert all(nodes[name].store.stats().durable_lsn == leader.end_lsn for name in nodes.sites)
            leader = await nodes.lead("b", without=("a",))
            assert list(bodies(leader.store, 1, 0).values()) == [b"%d" % number for number in range(11)]
            await nodes.all_in_sync()
            await nodes.equal()

    run(test)


def test_when_all_lose_power_what_was_synced_is_kept_and_what_was_only_written_may_go(tmp_path: Path) -> None:
    async def test(seed: int, directory: Path) -> None:
        async with group(directory, options=tiny(**NEVER), start=False) as nodes:
            drives = {name: Drive(directory) for name in nodes.sites}
            for name, site in nodes.sites.items():
                site.disk = drives[name]
                await nodes.start(name)
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            sent = [body(number, 3_000) for number in range(12)]
            for number, content in enumerate(sent):
                mode = FlushMode.SYNC if number == 6 else FlushMode.ASYNC
                await put_loosely(nodes, leader, content, Ack.QUORUM, mode)
            survivors = {name: drive.power_cut(seed + at) for at, (name, drive) in enumerate(drives.items())}
            for name, site in nodes.sites.items():
                with suppress(OSError):  # nothing can be closed properly
                    await nodes.stop(name)
                site.disk = survivors[name]
            for name in nodes.sites:
                await nodes.start(name)
            leader = await nodes.lead("b")
            await nodes.all_in_sync()
            found = list(bodies(leader.store, 1, 0).values())
            assert len(found) >= 7 and found == sent[: len(found)]
            await nodes.put(leader, b"more")
            await nodes.equal()

    for seed in range(3):
        run(lambda seed=seed: test(seed, tmp_path / str(seed)))  # type: ignore[misc]


def test_with_asynchronous_flush_killed_processes_lose_nothing(tmp_path: Path) -> None:
    settings = {"flush_mode": "async", "flush_interval_ms": 60_000, "segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    flushing_late = running_cluster(__name__, tmp_path / "c", shards=1, settings=settings)
    with flushing_late as cluster, Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        client.create_topic("t", queues=1)
        with Producer(client, "t", ack="quorum") as producer:
            for number in range(200):
                producer.send(f"{number}", queue=0)
        for node in cluster.plan.nodes:
            cluster.kill(node.id)
        cluster.up()
        with Consumer(client, "t", start="earliest") as consumer:
            found: list[bytes] = []
            while len(found) < 200:
                found += [message.body for message in consumer.poll(200, timeout_ms=20_000)]
        assert found == [b"%d" % number for number in range(200)]


def earliest(replica: Replica) -> list[int]:
    return [replica.store.bounds(1, queue)[0] for queue in range(QUEUES)]


def files(nodes: Group, name: str, pattern: str) -> int:
    return len(list(nodes.sites[name].path.glob(pattern)))


@pytest.mark.part(3)
def test_what_expires_goes_on_followers_too_and_after_a_failover(tmp_path: Path) -> None:
    async def test() -> None:
        options = tiny(retention_interval_ms=50, wal_keep_bytes=64 * KIB, cache_bytes=0)
        async with group(tmp_path, options=options) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            kept = TopicOptions(retention_bytes=200 * KIB)
            await leader.wait(leader.store.put_topic(StoredTopic(1, "t", QUEUES, kept, 1), 0, QUEUES), Ack.QUORUM)
            await fill(nodes, leader, 0, 400)
            # Nobody but the leader decides where queues begin; what follows does as it is told, and drops its files.
            for name in nodes.sites:
                await until(lambda name=name: min(earliest(nodes[name])) > 0, f"{name} knows what has expired")
                await until(
                    lambda name=name: nodes[name].store.stats().dropped_tables_total > 0, f"{name} has dropped files"
                )
            await until(lambda: len({tuple(earliest(nodes[name])) for name in nodes.sites}) == 1, "they agree")
            before = earliest(nodes["a"])
            tables = {name: files(nodes, name, "tables/*.tbl") for name in nodes.sites}
            segments = {name: nodes[name].store.replica.first_lsn() for name in nodes.sites}
            assert min(segments.values()) > 0, "the log was recycled, on followers as well"
            await nodes.stop("a")
            leader = await nodes.lead("b", without=("a",))
            # What a decided holds; that it, or b, has decided more since `before` is no fault.
            assert all(now >= was for now, was in zip(earliest(leader), before, strict=True))
            with pytest.raises(OffsetOutOfRange):
                leader.store.read(1, 0, before[0] - 1)
            await fill(nodes, leader, 400, 400)
            for name in ("b", "c"):
                await until(lambda name=name: min(earliest(nodes[name])) > max(before), f"{name} goes on")
                assert nodes[name].store.replica.first_lsn() > segments[name]
                await until(
                    lambda name=name: files(nodes, name, "tables/*.tbl") <= 2 * tables[name], f"{name} drops files"
                )
            await nodes.start("a")
            await nodes.all_in_sync()
            await until(lambda: len({tuple(earliest(nodes[name])) for name in nodes.sites}) == 1, "a has caught up")

    run(test)

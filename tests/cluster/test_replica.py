"""Replicas with real stores and real links: writing, following, failing over."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from lsmq.errors import NotEnoughReplicas, NotLeader, ShuttingDown, Unavailable
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.replica import Replica
from lsmq_node.replication import ReplicaRole
from storage.harness import bodies

from .replica_group import NAMES, batch, group, run, until


def readable(replica: Replica) -> bool:
    try:
        replica.check_readable(follower=True)
    except (NotLeader, Unavailable):
        return False
    return True


def test_a_quorum_write_is_on_all_replicas_and_readable_everywhere(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            lsn = await nodes.put(leader, b"one", b"two")
            assert bodies(leader.store, 1, 0) == {0: b"one", 1: b"two"}
            for name in ("b", "c"):
                assert nodes[name].durable_lsn >= lsn, "acknowledged is durable on the in-sync set"
                with pytest.raises(NotLeader) as refused:
                    nodes[name].check_writable(Ack.QUORUM)
                assert (refused.value.details["leader"], refused.value.details["epoch"]) == ("a", 1)
            await nodes.equal()
            with pytest.raises(NotLeader):
                nodes["b"].check_readable()
            for name in NAMES:
                await until(partial(readable, nodes[name]), f"{name} may be read")

    run(test)


def test_writes_survive_the_leader_and_go_on_with_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            await nodes.put(leader, b"one")
            await nodes.stop("a")
            leader = await nodes.lead("b", without=("a",))
            await nodes.put(leader, b"two")
            await nodes.start("a")
            await nodes.all_in_sync()
            await nodes.put(leader, b"three")
            await nodes.equal()
            assert bodies(nodes["a"].store, 1, 0) == {0: b"one", 1: b"two", 2: b"three"}
            assert nodes["a"].role is ReplicaRole.FOLLOWING

    run(test)


def test_of_leaderships_that_came_and_went_nothing_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            for _ in range(8):
                for name in ("b", "a"):
                    await nodes.put(await nodes.lead(name), b"one")
            await nodes.equal()
            for name in ("a", "b"):
                life = nodes[name]._shell._life
                assert life is not None
                assert life.leaves >= 8 and len(life._left_at) <= 1

    run(test)


def test_what_was_fetched_goes_once_a_replica_is_in_sync_without_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            await nodes.stop("b")
            incoming = nodes.sites["b"].path / "incoming"
            incoming.mkdir(exist_ok=True)
            for name in ("SNAPSHOT", "00000000000000000007.sst"):
                (incoming / name).write_bytes(b"of a snapshot that was given up" * 1000)
            await until(lambda: "b" not in {member.node for member in nodes.view.in_sync}, "it is missed")
            await nodes.put(leader, b"one")
            assert any(incoming.iterdir())
            await nodes.start("b")
            await nodes.all_in_sync()
            await until(lambda: not any(incoming.iterdir()), "it is gone")
            await nodes.equal()

    run(test)


def test_a_deposed_leader_drops_what_nobody_has_and_says_that_it_is_unknown(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            await nodes.put(leader, b"kept")
            nodes.frozen = True
            await nodes.stop("b")
            await nodes.stop("c")
            lost = leader.wait(leader.store.append(1, batch(b"lost")), Ack.QUORUM)
            await until(lambda: leader.durable_lsn == leader.end_lsn > leader.high_watermark, "it is written at a")
            nodes.sites["a"].leased = False
            nodes.cut_off = {"a"}
            await nodes.start("b")
            await nodes.start("c")
            nodes.frozen = False
            await nodes.lead("b", without=("a",))
            await nodes.put(nodes["b"], b"instead")
            assert not lost.done()
            nodes.cut_off, nodes.sites["a"].leased = set(), True
            with pytest.raises(NotLeader) as unknown:
                await lost
            assert unknown.value.details["sent"] is True
            await nodes.all_in_sync()
            await nodes.put(nodes["b"], b"more")
            await nodes.equal()
            assert bodies(leader.store, 1, 0) == {0: b"kept", 1: b"instead", 2: b"more"}

    run(test)


def test_a_leader_without_lease_acknowledges_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            await nodes.put(leader, b"one")
            nodes.sites["a"].leased = False
            await asyncio.sleep(0)

            await until(lambda: not readable(leader), "the lease runs out")
            for ack in Ack:
                with pytest.raises(Unavailable):
                    leader.check_writable(ack)
                with pytest.raises(NotLeader) as unknown:
                    await leader.wait(leader.store.append(1, batch(b"two")), ack)
                assert unknown.value.details["sent"] is True
            nodes.sites["a"].leased = True
            nodes.tell()
            leader.check_writable(Ack.QUORUM)
            await nodes.put(leader, b"three")

    run(test)


def test_quorum_writes_need_min_in_sync_and_leader_writes_do_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, names=("a", "b")) as nodes:
            nodes.ack_timeout_s = 0.3
            await nodes.stop("a")
            leader = await nodes.start("a")
            await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            await nodes.stop("b")
            with pytest.raises(NotEnoughReplicas) as late:
                await nodes.put(leader, b"waits")
            assert late.value.details["sent"] is True
            await nodes.put(leader, b"at the leader", ack=Ack.LEADER)
            assert bodies(leader.store, 1, 0) == {}, "nothing is shown that a failover may take back"
            await nodes.start("b")
            await nodes.all_in_sync()
            await nodes.put(leader, b"more")
            assert bodies(leader.store, 1, 0) == {0: b"waits", 1: b"at the leader", 2: b"more"}
            await nodes.equal()
            nodes.change(in_sync=frozenset(member for member in nodes.view.in_sync if member.node == "a"))
            with pytest.raises(NotEnoughReplicas):
                leader.check_writable(Ack.QUORUM)
            leader.check_writable(Ack.LEADER)

    run(test)


def test_a_repeated_batch_gets_its_first_answer_also_from_the_next_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            first = leader.store.append(1, batch(b"one", producer=(77, 0)))
            await leader.wait(first, Ack.QUORUM)
            again = leader.store.append(1, batch(b"one", producer=(77, 0)))
            assert again.duplicate
            await leader.wait(again, Ack.QUORUM)
            await nodes.stop("a")
            leader = await nodes.lead("c", without=("a",))
            again = leader.store.append(1, batch(b"one", producer=(77, 0)))
            await leader.wait(again, Ack.QUORUM)
            assert again.duplicate and list(again.offsets) == [0]
            assert bodies(leader.store, 1, 0) == {0: b"one"}

    run(test)


def test_closing_finishes_what_was_sent_and_takes_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            waits = [leader.wait(leader.store.append(1, batch(b"x" * 100)), Ack.QUORUM) for _ in range(50)]
            closing = asyncio.ensure_future(leader.close())
            await asyncio.sleep(0)
            with pytest.raises(ShuttingDown):
                leader.check_writable(Ack.QUORUM)
            await asyncio.gather(*waits)
            await closing
            with pytest.raises(Unavailable):
                _ = leader.store
            await leader.close()
            assert await nodes.lead("b", without=("a",))
            assert len(bodies(nodes["b"].store, 1, 0)) == 50

    run(test)


def test_a_shard_with_one_replica_needs_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, names=("a",), min_in_sync=1) as nodes:
            leader = await nodes.lead("a")
            await nodes.make_topic(leader)
            await nodes.put(leader, b"one")
            await nodes.stop("a")
            await nodes.start("a")
            await until(lambda: bool(nodes.asked), "it asks for a new epoch")
            leader = await nodes.lead("a")
            await nodes.put(leader, b"two")
            assert bodies(leader.store, 1, 0) == {0: b"one", 1: b"two"}

    run(test)

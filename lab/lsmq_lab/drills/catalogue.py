"""The drills. Each is what happens in one round; the harness sees to everything around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lsmq import Client
from lsmq.errors import LsmqError
from lsmq_lab.local_cluster import ClusterStatus

from . import doubts
from .flood import nobody_takes
from .group_work import GroupWork
from .harness import Drill, DrillRun, led_by
from .keyed_work import KeyedTaskWork
from .task_work import TaskWork
from .transaction_work import TransactionWork

#: By name, in the order of the help.
DRILLS: dict[str, Drill] = {}

_MOVE_TIMEOUT_S = 120.0
_MEMBERS = 4
_STORM_MEMBERS = 20
_STORM_STEPS = 40
_STORM_PAUSE_S = 0.1
_PRODUCERS = 3
_WORKERS = 4
_EACH_ACKNOWLEDGES = 50
_MAX_HANDLER_MS = 1_500
_PATIENT_SESSION_MS = 4_000  # Only who is stopped is to lose its place, however busy the machine is.
_CRAWL_S = 0.2
_BLOCK_S = 3.0
_OTHERS_HANDLE = 500
_CONTROL_LEADER_S = 5.0
_ONE_SHARD = "shard-0"
#: What is set back, as patterns: all but ``raft``, and so on.
_SET_BACK = ("shard-*", _ONE_SHARD, "[!r]*", "*")
_LED_BY_NOBODY_S = 2.0
_SPREAD_S = 5.0  # Longer than it is quiet before leaders are given back.


def _drill(name: str, summary: str, **shape: Any) -> Callable[[Callable[[DrillRun], Awaitable[None]]], None]:
    def register(round: Callable[[DrillRun], Awaitable[None]]) -> None:
        DRILLS[name] = Drill(name=name, summary=summary, round=round, **shape)

    return register


def _all_shards(status: ClusterStatus) -> list[int]:
    return [shard.id for shard in status.shards]


@_drill("kill-leader", "SIGKILL to a node that leads shards, and its return")
async def _kill_leader(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    run.tell(f"killing {node}, which leads shards {shards}")
    async with run.outage(shards, of=node):
        await run.faults.kill([node])
    await run.steady()
    async with run.mending():
        await run.faults.start([node])


@_drill("kill-follower", "SIGKILL to a follower, and its return", shards=2, settings={"cluster.first_leaders": "n1,n2"})
async def _kill_follower(run: DrillRun) -> None:
    node, shards = await run.any_follower()
    run.tell(f"killing {node}, which follows in shards {shards}")
    async with run.outage(_all_shards(await run.status())):
        await run.faults.kill([node])
    await run.steady()
    async with run.mending():
        await run.faults.start([node])


@_drill("pause-leader", "SIGSTOP to a node that leads; when it wakes it must acknowledge nothing")
async def _pause_leader(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    run.tell(f"pausing {node}, which leads shards {shards}")
    async with run.outage(shards, of=node):
        await run.faults.pause(node)
    await run.steady()
    async with run.mending():
        await run.faults.resume(node)


@_drill("partition-leader", "a node that leads is cut off from the others; clients still reach it", proxied=True)
async def _partition_leader(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    run.tell(f"cutting off {node}, which leads shards {shards}")
    async with run.outage(shards, of=node):
        await run.faults.isolate([node])
    await run.refuses(node, shards[0])
    async with run.mending():
        await run.faults.heal()


@_drill("deafen-leader", "a node that leads can call the others, and none of them can call it", proxied=True)
async def _deafen_leader(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    run.tell(f"deafening {node}, which leads shards {shards}")
    async with run.outage(shards, of=node):
        await run.faults.deafen(node)
    await run.refuses(node, shards[0])
    run.tell(f"waiting whether {node} is given shards back while it is deaf")
    await run.steady(_SPREAD_S)
    led = led_by(await run.status(), node)
    assert not led, f"{node} is deaf and leads shards {led} again"
    async with run.mending():
        await run.faults.heal()


@_drill("isolate-minority", "the leader of the control plane is cut off; the majority goes on", proxied=True)
async def _isolate_minority(run: DrillRun) -> None:
    status = await run.status()
    node = status.control_leader or run.random.choice(list(run.faults.nodes))
    shards = led_by(status, node)
    run.tell(f"cutting off {node}, which leads the control plane and shards {shards}")
    async with run.outage(shards, of=node), run.outage(set(_all_shards(status)) - set(shards)):
        await run.faults.isolate([node])
    if shards:
        await run.refuses(node, shards[0])
    async with run.mending():
        await run.faults.heal()


@_drill("rolling-restart", "each node is stopped and started in turn, as for an upgrade")
async def _rolling_restart(run: DrillRun) -> None:
    for node in run.faults.nodes:
        run.tell(f"restarting {node}")
        async with run.outage(_all_shards(await run.status())):
            await run.faults.stop(node)
        async with run.mending():
            await run.faults.start([node])


@_drill("kill-all-power", "SIGKILL to all processes at once, then all start; the page cache survives")
async def _kill_all_power(run: DrillRun) -> None:
    if run.round == 0:
        run.notes.append(
            "what was written and not synced stays in the page cache of this machine; simulations and the tests of "
            "the storage drop it"
        )
    nodes = list(run.faults.nodes)
    async with run.outage(_all_shards(await run.status())):
        await run.faults.kill(nodes)
        await run.faults.start(nodes)
    async with run.mending():
        pass


@_drill("zookeeper-outage", "ZooKeeper is killed; a leader dies meanwhile; all catches up", zookeeper=True)
async def _zookeeper_outage(run: DrillRun) -> None:
    run.tell("killing ZooKeeper")
    async with run.outage(_all_shards(await run.status())):
        await run.faults.zookeeper_down()
    node, shards = await run.any_leader()
    run.tell(f"killing {node}, which leads shards {shards}, without ZooKeeper")
    async with run.outage(shards, of=node):
        await run.faults.kill([node])
    name = f"made-without-zookeeper-{run.round}"
    async with Client(list(run.faults.urls)) as client:
        await client.create_topic(name, queues=4)
    async with run.mending():
        await run.faults.start([node])
    await run.faults.zookeeper_up()
    if run.faults.zookeeper:
        await _published(run, name)
    elif run.round == 0:
        run.notes.append("ZooKeeper cannot be reached from here: whether it caught up was not looked at")


async def _published(run: DrillRun, topic: str) -> None:
    """Wait until clients find the topic and the leaders of today in ZooKeeper."""
    run.tell("waiting until ZooKeeper has caught up")
    async with asyncio.timeout(_MOVE_TIMEOUT_S):
        while True:
            status = await run.status()
            leaders = {shard.id: shard.leader for shard in status.shards}
            urls = dict(zip(run.faults.nodes, run.faults.urls, strict=True))
            try:
                async with Client(zookeeper=run.faults.zookeeper, deadline_ms=1_000) as client:
                    routes = (await client.topic(topic)).routes
            except LsmqError:
                routes = ()
            if routes and all(route.leader == urls.get(str(leaders[route.shard])) for route in routes):
                return
            await asyncio.sleep(0.1)


@_drill(
    "disk-full-follower",
    "a follower's disk fills up; writes go on without it, and it returns when there is space",
    shards=2,
    small_disk="n3",
    settings={"cluster.first_leaders": "n1,n2", "min_free_bytes": 32 * 1024 * 1024},
)
async def _disk_full_follower(run: DrillRun) -> None:
    status = await run.status()
    node = next((node.id for node in status.nodes if not led_by(status, node.id)), None)
    assert node is not None, "every node leads: there is none whose disk may fill without refusing writes"
    run.tell(f"filling the disk of {node}")
    async with run.outage(_all_shards(status)):
        await run.faults.fill_disk(node)
    await run.until(
        lambda status: not any(node in shard.in_sync for shard in status.shards), f"{node} has left the in-sync sets"
    )
    await run.steady()
    async with run.mending():
        await run.faults.free_disk(node)


@_drill("lost-disk", "a node dies and comes back with an empty disk; it is filled again from the others")
async def _lost_disk(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    run.tell(f"killing {node}, which leads shards {shards}, and removing its files")
    async with run.outage(shards, of=node):
        await run.faults.kill([node])
    await run.faults.lose_disk(node)
    async with run.mending():
        await run.faults.start([node])


@_drill(
    "slow-disk",
    "the control plane's disks take 200 ms a sync on all voters, and its leader is killed",
    settings={"cluster.raft_sync_delay_ms": 200},
)
async def _slow_disk(run: DrillRun) -> None:
    status = await run.until(lambda status: status.control_leader is not None, "the control plane has a leader")
    node = status.control_leader
    assert node is not None
    shards = led_by(status, node)
    run.tell(f"killing {node}, which leads the control plane and shards {shards}")
    async with run.outage(shards, of=node):
        began = time.monotonic()
        await run.faults.kill([node])
        later = await run.until(lambda status: status.control_leader not in (None, node), "another node leads it")
        took_s = time.monotonic() - began
    run.notes.append(f"{later.control_leader} led the control plane {took_s:.2f} s after {node} was killed")
    assert took_s < _CONTROL_LEADER_S, f"the control plane was without a leader for {took_s:.1f} s"
    async with run.mending():
        await run.faults.start([node])


@_drill(
    "set-back-disk",
    "a node comes back with an older copy of its disk, when only a dead one has all that was acknowledged",
)
async def _set_back_disk(run: DrillRun) -> None:
    """Shards alone, one shard, all but the control plane's log, and all, in turn."""
    names = _SET_BACK[run.round % len(_SET_BACK)]
    whole, older, stale = run.random.sample(sorted(node.id for node in (await run.status()).nodes), 3)
    run.tell(f"copying the disk of {older}, and starting it again")
    await run.faults.stop(older)
    await run.faults.copy_disk(older)
    async with run.mending():
        await run.faults.start([older])
    run.tell(f"killing {stale}; {whole} and {older} alone have what is acknowledged now")
    await run.faults.kill([stale])
    status = await run.until(
        lambda status: all(set(shard.in_sync) == {whole, older} for shard in status.shards),
        f"{stale} has left the in-sync sets",
    )
    await run.steady()
    run.tell(f"killing {whole} and {older}, and putting the copy of {names} in the place of what {older} had")
    await run.faults.kill([whole, older])
    await run.faults.set_back(older, names)
    await run.faults.start([older, stale])
    shards = _all_shards(status) if names != _ONE_SHARD else [0]
    await run.until_named(shards)
    began = time.monotonic()
    await run.steady(_LED_BY_NOBODY_S)
    acknowledged = [shard for shard in shards if run.work.has_acknowledged(shard, began)]
    assert not acknowledged, f"shards {acknowledged} were led without what {whole} alone has"
    run.tell(f"{whole} comes back")
    async with run.mending():
        await run.faults.start([whole])


@_drill("add-node", "a node joins, takes a replica and a leadership, gives both back, and leaves")
async def _add_node(run: DrillRun) -> None:
    status = await run.status()
    shard = run.random.choice(status.shards)
    node = await run.faults.add_node()
    await _joined(run, node)
    moved = [node, *[other for other in shard.replicas if other != shard.leader]]
    run.tell(f"moving shard {shard.id} from {list(shard.replicas)} to {moved}")
    async with run.mending():
        await _move(run, shard.id, moved)
    run.tell(f"moving shard {shard.id} back to {list(shard.replicas)}")
    async with run.mending():
        await run.administer("POST", f"/v1/cluster/nodes/{node}/drain")
        await _move(run, shard.id, list(shard.replicas))
        await run.until(lambda status: not _replicas_on(status, node), f"{node} is drained", _MOVE_TIMEOUT_S)
    await run.administer("DELETE", f"/v1/cluster/nodes/{node}")
    await run.faults.remove_node(node)


async def _joined(run: DrillRun, node: str) -> None:
    """Wait until the cluster knows a new node."""
    async with asyncio.timeout(_MOVE_TIMEOUT_S):
        while True:
            overview = await run.administer("GET", "/v1/cluster")
            if any(known["id"] == node for known in overview["nodes"]):
                return
            await asyncio.sleep(0.1)


async def _move(run: DrillRun, shard: int, replicas: list[str]) -> None:
    await run.administer("PUT", f"/v1/cluster/shards/{shard}/replicas", {"replicas": replicas})

    def moved(status: ClusterStatus) -> bool:
        return sorted(status.shards[shard].replicas) == sorted(replicas)

    await run.until(moved, f"shard {shard} has moved to {replicas}", _MOVE_TIMEOUT_S)


def _replicas_on(status: ClusterStatus, node: str) -> list[int]:
    return [shard.id for shard in status.shards if node in shard.replicas]


@_drill("drain-node", "all replicas move away from a node, which then is ready to leave", nodes=4)
async def _drain_node(run: DrillRun) -> None:
    status = await run.status()
    node = run.random.choice(sorted({replica for shard in status.shards for replica in shard.replicas}))
    run.tell(f"draining {node}, which has replicas of shards {_replicas_on(status, node)}")
    async with run.mending():
        await run.administer("POST", f"/v1/cluster/nodes/{node}/drain")
        await run.until(lambda status: not _replicas_on(status, node), f"{node} is drained", _MOVE_TIMEOUT_S)
    await run.administer("DELETE", f"/v1/cluster/nodes/{node}/drain")


@_drill(
    "self-heal",
    "a node is lost for good: its replicas are made again elsewhere; a new node gets its share; nobody tells them to",
    nodes=4,
    settings={"cluster.rebuild_after_ms": 3_000},
)
async def _self_heal(run: DrillRun) -> None:
    lost = run.faults.nodes[-1]  # Not a voter: those are not replaced by another one.
    status = await run.until(lambda status: bool(_replicas_on(status, lost)), f"{lost} holds replicas", _MOVE_TIMEOUT_S)
    held = _replicas_on(status, lost)
    run.tell(f"killing {lost} for good, which has replicas of shards {held} and leads {led_by(status, lost)}")
    async with run.outage(led_by(status, lost), of=lost):
        await run.faults.kill([lost])
    began = time.monotonic()
    await run.until(lambda status: _is_whole_without(status, lost), "all replicas are elsewhere", _MOVE_TIMEOUT_S)
    run.notes.append(f"all is whole without {lost} {time.monotonic() - began:.1f} s after others took over")
    await run.administer("DELETE", f"/v1/cluster/nodes/{lost}")
    await run.faults.remove_node(lost)
    node = await run.faults.add_node()
    run.tell(f"waiting until {node} has its share")
    async with run.mending():
        await run.until(
            lambda status: _has_its_share(status, node), f"{node} has as many replicas as others", _MOVE_TIMEOUT_S
        )


def _is_whole_without(status: ClusterStatus, node: str) -> bool:
    return all(
        node not in shard.replicas and len(shard.replicas) == 3 and set(shard.in_sync) == set(shard.replicas)
        for shard in status.shards
    )


def _has_its_share(status: ClusterStatus, node: str) -> bool:
    holders = [other.id for other in status.nodes]
    return len(_replicas_on(status, node)) >= sum(len(shard.replicas) for shard in status.shards) // len(holders) > 0


@_drill("kill-consumer", "SIGKILL to a member of a consumer group at work; the others take over its queues")
async def _kill_consumer(run: DrillRun) -> None:
    group = run.work.beside(GroupWork)
    while len(group.members) < _MEMBERS:
        await group.start(own_process=True)
    await group.until_shared()
    await run.steady()
    victim = run.random.choice(list(group.members))
    run.tell(f"killing member {victim} of {len(group.members)}")
    await group.kill(victim)
    group.shared_s.append(await group.until_shared())
    await run.steady()


@_drill(
    "slow-consumer",
    "members that crawl, hang or are stopped, during traffic; the others go on, and nodes hold nothing for the slow",
    settings={"cache_bytes": 8 * 1024 * 1024},
)
async def _slow_consumer(run: DrillRun) -> None:
    group = run.work.beside(GroupWork)
    while len(group.members) < _MEMBERS:
        await group.start(own_process=True, session_ms=_PATIENT_SESSION_MS, max_handler_ms=_MAX_HANDLER_MS)
    await group.until_shared()
    run.tell("filling a topic that nobody takes from")
    grown = await nobody_takes(run.faults.urls, run.round)
    run.notes.append(str(grown))
    assert grown.is_bounded, str(grown)
    crawling, hanging, stopped = run.random.sample(list(group.members), 3)
    run.tell(f"of {len(group.members)} members {crawling} crawls, {hanging} hangs")
    group.slow_down(crawling, _CRAWL_S, block=False)
    group.slow_down(hanging, _BLOCK_S, block=True)
    await group.until_stalled([hanging])
    await group.until_handled(_OTHERS_HANDLE)
    run.tell(f"stopping {stopped}")
    group.pause(stopped)
    await group.until_shared()
    await group.until_handled(_OTHERS_HANDLE)
    group.resume(stopped)
    group.shared_s.append(await group.until_shared())
    group.speed_up(crawling)
    group.speed_up(hanging)
    await group.until_stalled([])
    await run.steady()


@_drill("rebalance-storm", "20 members join a consumer group, come and go at random, and leave, during traffic")
async def _rebalance_storm(run: DrillRun) -> None:
    group = run.work.beside(GroupWork)
    run.tell(f"{_STORM_MEMBERS} members join")
    while len(group.members) < _STORM_MEMBERS:
        await group.start()
    group.shared_s.append(await group.until_shared())
    leaving: list[asyncio.Task[None]] = []
    for _ in range(_STORM_STEPS):
        run.tell(f"members come and go: {len(group.members)}")
        if len(group.members) > 1 and (run.random.random() < 0.5 or len(group.members) == _STORM_MEMBERS):
            leaving.append(asyncio.create_task(group.stop(run.random.choice(list(group.members)))))
            await asyncio.sleep(0)
        else:
            await group.start()
        await asyncio.sleep(run.random.uniform(0, _STORM_PAUSE_S))
    await asyncio.gather(*leaving)
    group.shared_s.append(await group.until_shared())
    run.tell("all but one leave at once")
    await asyncio.gather(*(group.stop(name) for name in list(group.members)[1:]))
    group.shared_s.append(await group.until_shared())
    await run.steady()


@_drill(
    "kill-producer-in-transaction",
    "SIGKILL to producers in the middle of transactions, and to the node that coordinates them",
)
async def _kill_producer_in_transaction(run: DrillRun) -> None:
    work = run.work.beside(TransactionWork)
    while len(work.processes) < _PRODUCERS:
        await work.start()
    await work.until_working()
    for _ in range(_PRODUCERS - 1):
        victim = run.random.choice(list(work.processes))
        run.tell(f"killing producer {victim} of {len(work.processes)}")
        await work.kill(victim)
        await run.steady(run.random.uniform(0, 0.5))
    run.tell("waiting until others have finished what was begun")
    await work.until_decided()
    while len(work.processes) < _PRODUCERS:
        await work.start()
    await work.until_working()
    shard = await work.coordinator()
    status = await run.status()
    node = status.shards[shard].leader
    assert node is not None, "every shard has a leader while nothing is broken"
    shards = led_by(status, node)
    victim = run.random.choice(list(work.processes))
    run.tell(f"killing {node}, which coordinates and leads shards {shards}, and producer {victim}")
    async with run.outage(shards, of=node):
        await asyncio.gather(run.faults.kill([node]), work.kill(victim))
    await work.until_working()
    async with run.mending():
        await run.faults.start([node])


@_drill("kill-worker", "SIGKILL to consumers of a work queue at work, and to the leader of a shard it works on")
async def _kill_worker(run: DrillRun) -> None:
    await _kill_workers(run, TaskWork)


@_drill("kill-keyed-worker", "the same, of a work queue in order by key: not one message before its turn")
async def _kill_keyed_worker(run: DrillRun) -> None:
    work = run.work.beside(KeyedTaskWork)
    while len(work.processes) < _WORKERS:
        await work.start()
    await work.until_dead_letters()
    await _kill_workers(run, KeyedTaskWork)


async def _kill_workers(run: DrillRun, kind: type[TaskWork]) -> None:
    work = run.work.beside(kind)
    while len(work.processes) < _WORKERS:
        await work.start()
    await work.until_acknowledged(_EACH_ACKNOWLEDGES)
    for _ in range(_WORKERS - 2):
        victim = run.random.choice(list(work.processes))
        run.tell(f"killing consumer {victim} of {len(work.processes)}")
        await work.kill(victim)
        await work.until_acknowledged(_EACH_ACKNOWLEDGES)
    while len(work.processes) < _WORKERS:
        await work.start()
    await work.until_acknowledged(_EACH_ACKNOWLEDGES)
    node, shards = await run.any_leader()
    victim = run.random.choice(list(work.processes))
    run.tell(f"killing {node}, which leads shards {shards}, and consumer {victim}")
    async with run.outage(shards, of=node):
        await asyncio.gather(run.faults.kill([node]), work.kill(victim))
    await work.until_acknowledged(_EACH_ACKNOWLEDGES)
    async with run.mending():
        await run.faults.start([node])
    await work.until_acknowledged(_EACH_ACKNOWLEDGES)


DRILLS |= {drill.name: drill for drill in doubts.DRILLS}

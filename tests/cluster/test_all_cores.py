"""A node in several real processes: what one that dies costs, and that together they are one node."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client, Producer
from lsmq._health import examine
from lsmq.admin import ClusterAdmin, ClusterInfo, ShardInfo
from lsmq.errors import InvalidRequest, LsmqError
from lsmq_coordinator.auth import ClusterSecret
from lsmq_node.processes.plan import PORTS_PER_PROCESS
from lsmq_node.processes.ports import free_block
from support.node_process import NodeProcess, StartFailed
from support.python_process import run_python
from support.waiting import comes_true, eventually

from .two_processes import two_processes

__all__ = ["two_processes"]

TOPIC = "orders"
QUEUES = 8


def ask(url: str, path: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            found = json.load(refused)
    return found


def overview(node: NodeProcess) -> ClusterInfo:
    return ClusterInfo.from_dict(ask(node.url, "/v1/cluster"))


def urls(node: NodeProcess) -> dict[str, str]:
    return {each.id: each.url for each in overview(node).nodes}


def pid_at(url: str) -> int:
    return int(ask(url, "/v1/status")["pid"])


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def shard_of(node: NodeProcess, leader: str) -> ShardInfo:
    return next(shard for shard in overview(node).shards if shard.leader == leader)


def stored(url: str, queue: int) -> list[str]:
    """The bodies of all messages of a queue, in their order, whoever leads its shard."""
    bodies: list[str] = []
    while True:
        answer = ask(url, f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={len(bodies)}&max=1000")
        if not answer["messages"]:
            return bodies
        bodies += [message["body"] for message in answer["messages"]]


async def queue_on(client: Client, shard: int) -> int:
    """A queue that lies on the shard."""
    routes = (await client.ask("GET", f"/v1/topics/{TOPIC}"))["routes"]
    return int(next(route["first"] for route in routes if route["shard"] == shard))


class Writer:
    """Sends numbers to a queue, one after the other, and knows which were acknowledged."""

    def __init__(self, client: Client, queue: int) -> None:
        self._client, self._queue = client, queue
        self.acknowledged: list[str] = []
        self._sent = 0

    async def run(self) -> None:
        async with Producer(self._client, TOPIC) as producer:
            while True:
                body = f"{self._queue}-{self._sent}"
                self._sent += 1
                await producer.send_and_wait(body, queue=self._queue)
                self.acknowledged.append(body)

    async def goes_on(self) -> None:
        seen = len(self.acknowledged)
        await comes_true(lambda: len(self.acknowledged) > seen + 5, f"queue {self._queue} is written to")


@pytest.mark.part(2)
async def test_shards_come_to_the_processes_that_hold_fewest_and_are_there_after_a_restart(node: NodeProcess) -> None:
    async with Client(node.url, deadline_ms=60_000) as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        await ClusterAdmin(client).grow_shards(4)
        assert [shard.replicas for shard in overview(node).shards] == [("p0",), ("p1",)] * 2
        spread = await client.spread_topic(TOPIC)
        assert [(route.first, route.end, route.shard) for route in spread.routes[-2:]] == [(8, 12, 2), (12, 16, 3)]
        async with Producer(client, TOPIC) as producer:
            for queue in range(spread.queues):
                await producer.send_and_wait(f"{queue}", queue=queue)
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.restart)
    assert [stored(node.url, queue) for queue in range(16)] == [[f"{queue}"] for queue in range(16)]


def test_any_process_answers_for_the_queues_of_all(node: NodeProcess) -> None:
    nodes = urls(node)
    assert sorted(nodes) == ["control", "p0", "p1"]
    assert nodes["p0"] == node.url
    assert {shard.leader for shard in overview(node).shards} == {"p0", "p1"}
    for number, url in enumerate(nodes.values()):
        send(f"{url}/v1/topics/t{number}", {"queues": QUEUES}, "PUT")
        for queue in range(QUEUES):
            send(f"{url}/v1/topics/t{number}/messages", {"messages": [{"queue": queue, "body": "b"}]}, "POST")
            assert len(ask(url, f"/v1/topics/t{number}/queues/{queue}/messages?offset=0")["messages"]) == 1


def send(url: str, document: dict[str, Any], method: str) -> None:
    request = urllib.request.Request(url, json.dumps(document).encode(), method=method)
    urllib.request.urlopen(request, timeout=30).close()


async def test_one_status_tells_of_all_processes(node: NodeProcess) -> None:
    async with Client(node.url) as client:

        async def well() -> bool:
            return not (await examine(client))[1]

        await comes_true(well, "the control plane has heard of all that serves")
        cluster, _ = await examine(client)
        assert [each.id for each in cluster.nodes] == ["control", "p0", "p1"]
        assert [each.condition for each in cluster.nodes] == ["only votes", "active", "active"]
        os.kill(pid_at(urls(node)["p1"]), signal.SIGSTOP)

        async def told() -> bool:
            _, found = await examine(client)
            return any(problem.where == "node p1" and "does not answer" in problem.what for problem in found)

        await comes_true(told, "a process that hangs is told of")


def status(node: NodeProcess, *options: str, code: int = 0) -> str:
    result = run_python("-m", "lsmq", "status", *options, env={**os.environ, "LSMQ_URL": node.url}, text=True)
    assert result.returncode == code, (result.stdout, result.stderr)
    return str(result.stdout)


def test_a_process_that_hangs_is_told_by_the_others_with_what_helps_until_it_goes_on(node: NodeProcess) -> None:
    pid = pid_at(urls(node)["p1"])
    os.kill(pid, signal.SIGSTOP)
    warnings: list[str] = []

    def told() -> bool:
        warnings[:] = ask(node.url, "/readyz").get("warnings", [])
        return any(warning.startswith("process p1: ") for warning in warnings)

    eventually(told, "the hanging process is told of")
    assert f"kill -9 {pid}" in warnings[0]
    found = json.loads(status(node, "--json", code=1))
    assert [(each["name"], each["status"] is None) for each in found["processes"]] == [
        ("p0", False),
        ("p1", True),
        ("control", False),
    ]
    assert f"kill -9 {pid}" in found["processes"][1]["problem"]
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: "warnings" not in ask(node.url, "/readyz"), "it answers again, and nothing is told any more")
    assert pid_at(urls(node)["p1"]) == pid


def test_a_supervisor_that_was_held_up_takes_nobody_for_hanging(node: NodeProcess) -> None:
    before = node.log()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(node.pid, number)
        ask(node.url, "/readyz")
    os.kill(pid_at(urls(node)["p1"]), signal.SIGKILL)
    eventually(lambda: "process_ended" in node.log()[len(before) :], "it goes on")
    assert "process_hangs" not in node.log()


@pytest.mark.parametrize("victim", ["p0", "p1", "control"])
async def test_a_process_that_is_killed_comes_back_and_the_others_go_on(node: NodeProcess, victim: str) -> None:
    nodes, before = urls(node), {shard.id: shard.epoch for shard in overview(node).shards}
    led = {shard.id: shard.leader for shard in overview(node).shards}
    pids = {name: pid_at(url) for name, url in nodes.items()}
    async with Client(list(nodes.values())) as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        writers = [Writer(client, await queue_on(client, shard)) for shard in led]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        try:
            for writer in writers:
                await writer.goes_on()
            os.kill(pids[victim], signal.SIGKILL)
            for writer in writers:
                await writer.goes_on()
            await comes_true(lambda: answers_anew(nodes[victim], pids[victim]), f"{victim} is there again")
            for writer in writers:
                await writer.goes_on()
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
        for shard, writer in zip(led, writers, strict=True):
            found = stored(node.url, await queue_on(client, shard))
            assert set(writer.acknowledged) <= set(found), "something acknowledged is lost"
            assert len(set(found)) == len(found), "something is stored twice"
    for shard in overview(node).shards:
        elections = int(led[shard.id] == victim)
        assert shard.epoch == before[shard.id] + elections, f"shard {shard.id}, led by {led[shard.id]}"
    for name, url in nodes.items():
        assert (pid_at(url) == pids[name]) == (name != victim), f"{name} had no reason to end"


def answers_anew(url: str, former_pid: int) -> bool:
    try:
        return pid_at(url) != former_pid and ask(url, "/readyz")["status"] == "ok"
    except OSError:
        return False


async def test_told_to_stop_all_end_and_who_only_votes_is_last(node: NodeProcess) -> None:
    pids = [pid_at(url) for url in urls(node).values()]
    async with Client(node.url) as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        async with Producer(client, TOPIC) as producer:
            for number in range(100):
                await producer.send(f"m{number}", queue=number % QUEUES)
    assert node.stop() == 0
    assert not any(map(runs, pids))
    ends = [line.split("name=")[1].split()[0] for line in node.log().splitlines() if "process_ended" in line]
    assert sorted(ends[:2]) == ["p0", "p1"]
    assert ends[2] == "control"
    node.start()
    assert sum(len(stored(node.url, queue)) for queue in range(QUEUES)) == 100


async def test_processes_end_with_their_supervisor_and_are_started_by_the_next(node: NodeProcess) -> None:
    pids = [pid_at(url) for url in urls(node).values()]
    async with Client(node.url) as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        async with Producer(client, TOPIC) as producer:
            await producer.send_and_wait("kept", queue=QUEUES - 1)
    os.kill(node.pid, signal.SIGKILL)
    eventually(lambda: not any(map(runs, pids)), "no process outlives its supervisor")
    node.wait()
    node.start()
    assert stored(node.url, QUEUES - 1) == ["kept"]


def test_a_process_that_cannot_come_back_is_told_by_the_others_until_it_does(node: NodeProcess) -> None:
    nodes = urls(node)
    file = node.data / "p1" / "node.json"
    intact = file.read_text()
    file.write_text("{")
    os.kill(pid_at(nodes["p1"]), signal.SIGKILL)

    def warned(url: str) -> bool:
        return any("process p1: ended with code 1" in warning for warning in ask(url, "/readyz").get("warnings", ()))

    for name in ("p0", "control"):
        eventually(lambda name=name: warned(nodes[name]), f"{name} tells")  # type: ignore[misc]
        assert ask(nodes[name], "/readyz")["status"] == "ok", "its own shards are served"
    file.write_text(intact)
    eventually(lambda: "warnings" not in ask(nodes["p0"], "/readyz"), "p1 serves again")
    assert ask(nodes["p1"], "/readyz")["status"] == "ok"


def test_where_the_system_has_no_room_for_a_process_the_others_go_on_until_it_has(node: NodeProcess) -> None:
    nodes = urls(node)
    ends, files = pid_at(nodes["p1"]), resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, files[1]))

    def warnings() -> str:
        return str(ask(node.url, "/readyz").get("warnings"))

    os.kill(ends, signal.SIGSTOP)
    eventually(
        lambda: f"process {ends} has not answered" in warnings(), "all are heard with more than it may have open"
    )
    os.kill(ends, signal.SIGKILL)
    eventually(lambda: "process p1: cannot be started (Too many open files)" in warnings(), "p0 tells of it")
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, files)
    eventually(lambda: "process p1" not in warnings(), "p1 is back")
    assert pid_at(nodes["p1"]) != ends
    assert node.stop() == 0


@pytest.mark.part(3)
async def test_more_processes_get_shards_and_fewer_must_have_given_them_away(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", processes=2, shards=3)
    try:
        node.start()
        async with Client(node.url) as client:
            await client.create_topic(TOPIC, queues=QUEUES)
            async with Producer(client, TOPIC) as producer:
                for queue in range(QUEUES):
                    await producer.send_and_wait("kept", queue=queue)
        node.settings.pop("shards")
        node.restart(processes=3)
        async with Client(node.url) as client:
            admin = ClusterAdmin(client)
            await admin.move(2, ["p2"])
            await comes_true(lambda: shard_at(admin, 2, "p2"), "shard 2 is led by p2, and by nobody else held")
        node.stop()
        with pytest.raises(StartFailed, match="p2 holds shards: start with 3"):
            node.restart(processes=2)
        node.restart(processes=3)
        async with Client(node.url) as client:
            admin = ClusterAdmin(client)
            await admin.drain("p2")
            await comes_true(lambda: holds_nothing(admin, "p2"), "p2 is drained")
            eventually(lambda: not list((node.data / "p2").glob("shard-*")), "its files are gone")
        node.restart(processes=2)
        assert [stored(node.url, queue) for queue in range(QUEUES)] == [["kept"]] * QUEUES
    finally:
        if node.alive:
            node.kill9()


async def shard_at(admin: ClusterAdmin, shard: int, name: str) -> bool:
    try:
        found = (await admin.overview()).shards[shard]
    except LsmqError:
        return False
    return (found.leader, found.replicas, found.target) == (name, (name,), ())


async def holds_nothing(admin: ClusterAdmin, name: str) -> bool:
    return not (await admin.overview()).replicas_on(name)


def test_what_one_process_made_is_not_served_by_several_nor_the_other_way_round(tmp_path: Path) -> None:
    one, several = NodeProcess(tmp_path / "one"), NodeProcess(tmp_path / "several", processes=2)
    for node, other, remedy in ((one, 2, "start it with processes = 1"), (several, 1, "start it with --processes 2")):
        node.start()
        node.stop()
        with pytest.raises(StartFailed, match=remedy):
            node.restart(processes=other)


def test_a_process_that_cannot_start_at_first_ends_all_with_its_error(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", processes=2, tls_cert=tmp_path / "none", tls_key=tmp_path / "none")
    with pytest.raises(StartFailed, match="none") as failed:
        node.start()
    assert failed.value.code == 1


# Members of a cluster


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Three of them, of two processes each."""
    first = free_block("127.0.0.1", 3 * 2 * PORTS_PER_PROCESS)
    ports = [first + 2 * PORTS_PER_PROCESS * number for number in range(3)]
    ClusterSecret.create(tmp_path / "secret")
    voters = {
        f"n{number + 1}": f'{{ url = "http://127.0.0.1:{port}", internal_url = "http://127.0.0.1:{port + 1}", '
        f'raft = "127.0.0.1:{port + 2}" }}'
        for number, port in enumerate(ports)
    }
    found = []
    for number, port in enumerate(ports):
        node = NodeProcess(
            tmp_path / f"n{number + 1}",
            processes=2,
            cluster_node=f"n{number + 1}",
            cluster_shards=4,
            cluster_internal_port=port + 1,
            cluster_raft_port=port + 2,
            cluster_secret_file=tmp_path / "secret",
            cluster_voters=f"{{ {', '.join(f'{id} = {table}' for id, table in voters.items())} }}",
        )
        node.port = port
        found.append(node)
    yield found
    for node in found:
        if node.alive:
            node.kill9()


@pytest.mark.slow
async def test_replicas_are_never_two_processes_of_one_machine(machines: list[NodeProcess]) -> None:
    for machine in machines:
        machine.start()
    names = ["n1", "n1.1", "n2", "n2.1", "n3", "n3.1"]

    def served() -> bool:
        found = ask(machines[0].url, "/v1/cluster")
        shards = found.get("shards", ())
        return bool(shards) and all(len(shard["in_sync"]) == 3 and shard["leader"] for shard in shards)

    eventually(served, "all shards have three replicas in sync")
    cluster = overview(machines[0])
    assert [node.id for node in cluster.nodes] == names
    host = {node.id: node.host or node.id for node in cluster.nodes}
    for shard in cluster.shards:
        assert sorted(host[node] for node in shard.replicas) == ["n1", "n2", "n3"]
    assert {node for shard in cluster.shards for node in shard.replicas} == set(names)
    assert [node.id for node in cluster.nodes if node.voter] == ["n1", "n2", "n3"]
    urls = [node.url for node in cluster.nodes]
    async with Client(urls) as client:
        with pytest.raises(InvalidRequest, match=r"n1 and n1\.1 are on one host \(n1\)"):
            await ClusterAdmin(client).move(0, ["n1", "n1.1", "n2"])
        await client.create_topic(TOPIC, queues=QUEUES)
        async with Producer(client, TOPIC) as producer:
            for queue in range(QUEUES):
                await producer.send_and_wait("before", queue=queue)
            machines[2].kill9()
            for queue in range(QUEUES):
                await producer.send_and_wait("after", queue=queue)
    assert [stored(machines[0].url, queue) for queue in range(QUEUES)] == [["before", "after"]] * QUEUES


def test_status_shows_the_disks_and_shards_of_all_processes_whichever_is_asked(tmp_path: Path) -> None:
    first, second = tmp_path / "d1", tmp_path / "d2"
    node = NodeProcess(Path(f"{first},{second}"), processes=2, shards=4)
    node.start()
    try:
        shown = status(node)
        for name in ("p0", "p1"):
            assert str(first / name) in shown and str(second / name) in shown
        found = json.loads(status(node, "--url", urls(node)["p1"], "--json"))
        assert [each["name"] for each in found["processes"]] == ["p0", "p1", "control"]
        assert found["pid"] == found["processes"][1]["pid"] == found["processes"][1]["status"]["pid"]
        shards = [shard["shard"] for each in found["processes"] for shard in each["status"]["shards"]]
        assert sorted(shards) == [0, 1, 2, 3]
    finally:
        node.stop()


def test_a_port_that_is_taken_is_told_with_the_setting_that_moves_it(tmp_path: Path) -> None:
    port = free_block("127.0.0.1", 3 * PORTS_PER_PROCESS)
    node = NodeProcess(tmp_path / "data", processes=2)
    node.port = port
    with socket.create_server(("127.0.0.1", port + PORTS_PER_PROCESS + 1)), pytest.raises(StartFailed) as failed:
        node.start()
    assert f"port {port + PORTS_PER_PROCESS + 1}" in str(failed.value) and "all follow --port" in str(failed.value)


def test_a_disk_that_is_away_takes_its_shards_of_each_process_and_no_others(tmp_path: Path) -> None:
    first, second = tmp_path / "d1", tmp_path / "d2"
    node = NodeProcess(Path(f"{first},{second}"), processes=2, shards=4)
    node.start()
    try:
        on_second = {int(path.name.removeprefix("shard-")) for path in second.glob("p*/shard-*")}
        assert len(on_second) == 2
        node.stop()
        away = second.rename(tmp_path / "away")
        node.start()  # Which waits until it says that it serves.
        eventually(
            lambda: {shard.id for shard in overview(node).shards if shard.problem is not None} == on_second,
            "what is not served is named",
        )
        assert any(str(second) in warning for warning in ask(node.url, "/readyz")["warnings"])
        node.stop()
        away.rename(second)
        node.start()
        eventually(
            lambda: all(shard.problem is None and shard.leader for shard in overview(node).shards),
            "all shards are led again",
        )
        node.stop()
        first.rename(tmp_path / "kept")
        with pytest.raises(StartFailed, match="bring the node's own first directory back"):
            node.start()
        assert not first.exists()
    finally:
        if node.alive:
            node.kill9()

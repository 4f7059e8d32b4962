"""``lsmq top`` and the health that ``lsmq status`` begins with: real processes against real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console

from api.calls import Api
from lsmq import Client
from lsmq._health import Readiness, problems, readiness
from lsmq.admin import ClusterInfo
from lsmq.cli._top_screen import ORDERS, screen
from lsmq.cli._top_watch import GroupLook, Look, NodeLook, TopicLook
from lsmq.cli.top import top
from lsmq_lab.local_cluster import LocalCluster
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.python_process import PythonProcess, run_python
from support.waiting import PATIENCE_S, eventually

FIGURES = {
    "in_per_s": 1234.0,
    "out_per_s": 5.25,
    "in_bytes_per_s": 2048.0,
    "out_bytes_per_s": 0.0,
    "send_p50_ms": 1.0,
    "send_p99_ms": 2.5,
    "table_bytes": 1 << 30,
    "disk_free_bytes": 1 << 40,
    "memory_bytes": 50 << 20,
    "parts_stopped": 0.0,
}


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "LSMQ_URL": url, "PYTHONWARNINGS": "error", "TERM": "xterm"}


def ran(url: str, *arguments: str, code: int = 0) -> Any:
    result = run_python("-m", "lsmq", *arguments, env=environment(url))
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    return result


@contextmanager
def watching(url: str) -> Iterator[tuple[PythonProcess, Callable[[Callable[[Any], bool], str], Any]]]:
    """``lsmq top --json``, and what reads its lines until one meets a condition."""
    process = PythonProcess(["-m", "lsmq", "top", "--json", "--interval", "1s"], env=environment(url))
    assert process.stdout is not None and process.stderr is not None

    def until(condition: Callable[[Any], bool], what: str, meanwhile: Callable[[], Any] = lambda: None) -> Any:
        found: list[Any] = []

        def seen() -> bool:
            meanwhile()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            found[:] = [json.loads(line)]
            return condition(found[0])

        eventually(seen, what)
        return found[0]

    try:
        yield process, until
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def node_of(look: Any, node: str = "local") -> Any:
    return next(each for each in look["nodes"] if each["node"] == node)


class Terminal:
    """``lsmq top`` on a terminal of its own."""

    def __init__(self, url: str, rows: int = 40, columns: int = 160) -> None:
        self.own, self.its = pty.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.its)
        self.process = PythonProcess(
            ["-m", "lsmq", "top", "--interval", "1s"],
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env=environment(url),
        )
        self.shown = b""
        os.set_blocking(self.own, False)

    def shows(self, text: bytes) -> None:
        """Wait until it is shown from now on."""
        start = len(self.shown)
        eventually(lambda: text in self._read()[start:], f"{text!r} is shown")

    def _read(self) -> bytes:
        with contextlib.suppress(BlockingIOError, OSError):
            self.shown += os.read(self.own, 65536)
        return self.shown

    def press(self, keys: bytes) -> None:
        os.write(self.own, keys)

    def ends(self) -> int:
        """Its exit code; the terminal is as it was."""
        eventually(lambda: bool(self._read()) and self.process.poll() is not None, "it ends")
        eventually(lambda: b"\x1b[?1049l" in self._read(), "it leaves its screen")
        assert termios.tcgetattr(self.its) == self.before
        assert b"Traceback" not in self.shown and b"interrupted" not in self.shown
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.own)
        os.close(self.its)


@pytest.fixture
def open_terminal() -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def make(url: str) -> Terminal:
        opened.append(Terminal(url))
        return opened[-1]

    yield make
    for terminal in opened:
        terminal.close()


def test_one_look_is_printed_where_the_output_is_no_terminal(shared_node: NodeProcess) -> None:
    for arguments in ((), ("--once",)):
        shown = ran(shared_node.url, "top", *arguments).stdout.decode()
        assert "a node of its own" in shown and "local" in shown and "disk free" in shown
        assert "\x1b" not in shown


def test_json_has_what_a_node_does_now(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    api.create(topic_name, 1)
    path = f"/v1/topics/{topic_name}/queues/0/messages"

    def work() -> None:
        api.send(topic_name, *[{"body": "x" * 1000}] * 50)
        api.get(path)

    with watching(shared_node.url) as (process, until):

        def busy(look: Any) -> bool:  # with this alone: a look goes back to what was done before
            node = node_of(look)
            ways = ("in", "out")
            return all(node.get(f"{way}_bytes_per_s", 0) > 900 * node.get(f"{way}_per_s", 0) > 0 for way in ways)

        node = node_of(until(busy, "it sees what is sent and read", work))
        assert node["send_p99_ms"] >= node["send_p50_ms"] > 0
        assert node["disk_free_bytes"] > 0 and node["memory_bytes"] > 0 and node["state"] == "ok"
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, complaints) == (0, b"")


@pytest.mark.part(3)
def test_busy_topics_and_groups_that_are_behind_are_shown(
    make_node: Callable[..., NodeProcess], open_terminal: Callable[[str], Terminal]
) -> None:
    node = make_node().start()
    api = Api(node.url)
    for name in ("pizzas", "drinks"):
        api.create(name, 1)
    api.send("pizzas", *[{"body": "x"}] * 40)
    document = {"topic": "pizzas", "queues": [0], "offsets": [5], "reset": True}
    api.call("POST", "/v1/groups/kitchen/offsets", document, status=200)

    def work() -> None:
        api.send("drinks", *[{"body": "x"}] * 2)
        api.send("pizzas", *[{"body": "x"}])

    with watching(node.url) as (_, until):

        def shown(look: Any) -> bool:
            lags = {(group["group"], group["topic"]) for group in look["groups"] if group["lag"] >= 35}
            topics = [topic["topic"] for topic in look["topics"] if topic["in_per_s"] > 0]
            return topics == ["drinks", "pizzas"] and lags == {("kitchen", "pizzas")}

        until(shown, "it shows both", work)
    terminal = open_terminal(node.url)
    terminal.shows(b"kitchen")

    def draws(order: bytes) -> None:
        terminal.press(b"s")
        work()
        terminal.shows(b"Topics, by " + order)

    for order in (b"out", b"bytes-in", b"bytes-out", b"name", b"in"):
        draws(order)
    terminal.press(b"q")
    assert terminal.ends() == 0


def test_topics_are_sorted_as_asked() -> None:
    look = look_of(1)

    def first(order: str) -> str:
        console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(screen(look, width=100, height=40, order=order))
        console.file.close()
        return re.findall(r"^t\d\d\b", console.export_text(), re.MULTILINE)[0]

    assert {order: first(order) for order in ORDERS} == {
        "in": "t00",
        "out": "t29",
        "bytes-in": "t29",
        "bytes-out": "t00",
        "name": "t00",
    }
    (choices,) = (option.type for option in top.params if option.name == "order")
    assert list(choices.choices) == list(ORDERS)  # type: ignore[attr-defined]


@pytest.mark.part(2)
def test_a_node_that_goes_away_is_silent_until_it_comes_back(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    with watching(node.url) as (process, until):
        until(lambda look: look["well"], "all is well")
        node.kill9()
        gone = until(lambda look: node_of(look)["state"] == "silent", "it is silent")
        assert not gone["well"] and "does not answer" in gone["problems"][0]["what"]
        later = until(lambda look: look["time_ms"] > gone["time_ms"], "another look")
        assert node_of(later)["silent_since_ms"] == node_of(gone)["silent_since_ms"]
        node.start()
        back = until(lambda look: look["well"] and node_of(look)["state"] == "ok", "it is back, with figures")
        assert node_of(back)["silent_since_ms"] is None
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, complaints) == (0, b"")


def test_what_it_asks_of_a_node_is_bounded(shared_node: NodeProcess) -> None:
    async def look() -> None:
        async with FaultProxy(shared_node.url) as proxy:
            for _ in range(2):
                await asyncio.to_thread(ran, proxy.url, "top", "--once")
            assert sum(proxy.requests.values()) <= 2 * 4, proxy.requests

    asyncio.run(look())


def test_a_terminal_gets_a_live_screen_until_q(
    shared_node: NodeProcess, open_terminal: Callable[[str], Terminal]
) -> None:
    terminal = open_terminal(shared_node.url)
    terminal.shows(b"\x1b[?1049h")
    for _ in range(2):
        terminal.shows(b"a node of its own")  # Drawn anew at each look.
    terminal.press(b"xq")
    assert terminal.ends() == 0
    assert b"local" in terminal.shown and b"q quits" in terminal.shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(
    shared_node: NodeProcess, open_terminal: Callable[[str], Terminal], number: signal.Signals
) -> None:
    terminal = open_terminal(shared_node.url)
    terminal.shows(b"q quits")
    terminal.process.send_signal(number)
    assert terminal.ends() == 0


def test_the_live_screen_tells_of_a_node_that_is_gone(
    make_node: Callable[..., NodeProcess], open_terminal: Callable[[str], Terminal]
) -> None:
    node = make_node().start()
    terminal = open_terminal(node.url)
    terminal.shows(b"well: 1 node")
    node.kill9()
    terminal.shows(b"silent since")
    node.start()
    terminal.shows(b"well: 1 node")
    terminal.press(b"q")
    assert terminal.ends() == 0


def test_without_any_node_it_fails_as_other_commands_do() -> None:
    failed = ran("http://127.0.0.1:9", "top", "--timeout", "200ms", code=1)
    assert failed.stderr.startswith(b"error: connection_failed: ")
    assert b"1000 ms" in ran("http://127.0.0.1:9", "top", "--interval", "10ms", code=2).stderr


def look_of(count: int) -> Look:
    nodes = [NodeLook(f"n{number}", "http://h:1", "ok", None, 1, 0, FIGURES) for number in range(count)]
    topics = [TopicLook(f"t{number:02}", 99.0 - number, number, 2.0 * number, 0.0) for number in range(30)]
    groups = [GroupLook(f"g{number:02}", "t00", 1000 - number) for number in range(30)]
    return Look(1_700_000_000_000, "c", 3, (), nodes, topics, groups)


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_a_screen_fits_its_terminal(width: int) -> None:
    console = Console(width=width, height=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(screen(look_of(3), width=width, height=40))
    console.file.close()
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width and 30 < len(lines) <= 40
    text = "\n".join(lines)
    assert all(f"n{number}" in text for number in range(3))
    assert "1,234" in text or width < 40
    assert ("50.0 MiB" in text) == (width >= 120), "what matters less goes first"


@pytest.mark.part(2)
def test_a_cluster_says_which_node_is_gone_and_what_is_behind(cluster: LocalCluster) -> None:
    urls = ",".join(node.url for node in cluster.plan.nodes)

    def well() -> bool:
        result = run_python("-m", "lsmq", "status", env=environment(urls))
        first = result.stdout.decode().partition("\n")[0]
        assert result.returncode == (0 if first.startswith("well: 3 nodes") else 1), result
        return bool(result.returncode == 0)

    eventually(well, "all is well")
    victim = cluster.plan.nodes[2].id
    with watching(urls) as (_, until):
        until(lambda look: look["well"] and len(look["nodes"]) == 3, "all is well")
        cluster.kill(victim)
        behind = until(lambda look: node_of(look, victim)["replicas_out_of_sync"] > 0, "its replicas are not in sync")
        assert node_of(behind, victim)["state"] == "silent" and node_of(behind, victim)["silent_since_ms"]
        first = node_of(json.loads(ran(urls, "top", "--once", "--json").stdout), victim)
        assert (first["state"], first["silent_since_ms"]) == ("silent", None), "who looks now does not know since when"
        assert all(node["state"] != "silent" for node in behind["nodes"] if node["node"] != victim)
        said = ran(urls, "status", code=1).stdout.decode().splitlines()
        assert said[0].startswith(f"not well: node {victim}: does not answer (") and "Start it" in said[0]
        assert any(f"node {victim}: " in line and "not in sync (shard " in line for line in said)
        told = json.loads(ran(urls, "status", "--json", code=1).stdout)
        assert not told["well"] and f"node {victim}" in [problem["where"] for problem in told["problems"]]
        assert told["version"] and told["shards"]
        other = cluster.plan.nodes[1].id
        cluster.kill(other)
        alone = until(lambda look: node_of(look, "n1")["state"] == "not ready", "a minority is not ready")
        assert any(problem["where"] == "node n1" and "lease" in problem["what"] for problem in alone["problems"])
        cluster.start(other)
        cluster.start(victim)
        until(lambda look: look["well"], "it has caught up")
    eventually(well, "all is well again")


def cluster_of(
    *shards: dict[str, Any],
    control_leader: str | None = "a",
    told: Mapping[str, list[str]] = MappingProxyType({}),
    **states: Any,
) -> ClusterInfo:
    still = {"epoch": 1, "adding": [], "target": [], "problem": None}
    nodes = [
        {
            "id": id,
            "url": f"http://{id}:1",
            "voter": True,
            "state": "active",
            "alive": states.get(id, True),
            "problems": told.get(id, []),
            "shards_led": 0,
            "replicas": 1,
        }
        for id in "abc"
    ]
    listed = [{"id": number, **still, **shard} for number, shard in enumerate(shards)]
    fields = {"cluster": "c", "version": 1, "control_leader": control_leader, "nodes": nodes, "shards": listed}
    return ClusterInfo.from_dict(fields)


GOOD = {"leader": "a", "in_sync": ["a", "b"], "replicas": ["a", "b"]}
READY = dict.fromkeys("abc", Readiness())


def test_what_is_not_well_comes_with_the_worst_first() -> None:
    assert problems(cluster_of(GOOD, GOOD), READY) == []
    said = {**READY, "b": Readiness(silent="refused"), "c": Readiness(warnings=("clock: it is ahead",))}
    behind, leaderless = {**GOOD, "in_sync": ["a"]}, {**GOOD, "leader": None, "problem": "n9 has all of it"}
    found = problems(cluster_of(behind, leaderless, control_leader=None), said)
    assert [problem.where for problem in found] == ["cluster", "shard 1", "node b", "node b", "node c"]
    assert all(problem.remedy for problem in found)


def test_a_node_that_does_not_answer_here_has_told_the_others() -> None:
    said = {**READY, "b": Readiness(silent="refused")}
    found = problems(cluster_of(GOOD, told={"b": ["disk: it is full"], "c": ["clock: it is ahead"]}), said)
    assert [(problem.where, problem.what) for problem in found] == [
        ("node b", "does not answer (refused)"),
        ("node b", "disk: it is full"),
    ]


def test_a_replica_that_is_being_filled_is_no_problem() -> None:
    filling = {**GOOD, "replicas": ["a", "b", "c"], "adding": ["c"], "target": ["a", "b", "c"]}
    assert problems(cluster_of(filling), READY) == []


def test_a_node_that_only_we_can_reach_is_told() -> None:
    (found,) = problems(cluster_of(GOOD, c=False), READY)
    assert found.where == "node c" and "control plane" in found.what
    not_ready = {**READY, "c": Readiness(reasons=("lease: none",))}
    assert [problem.what for problem in problems(cluster_of(GOOD, c=False), not_ready)] == ["lease: none"]


async def test_what_is_no_node_is_told(make_node: Callable[..., NodeProcess], shared_node: NodeProcess) -> None:
    node = make_node().start()
    async with Client(node.url) as client:
        assert await readiness(client, node.url) == Readiness()
    async with Client(node.url) as client:
        node.kill9()
        assert "Connection refused" in str((await readiness(client, node.url)).silent)
    async with Client(node.url) as client, FaultProxy(shared_node.url) as proxy:
        assert "no LSMQ node" in str((await readiness(client, f"{proxy.url}/v1/status?")).silent)

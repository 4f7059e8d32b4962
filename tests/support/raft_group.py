"""Real voters in processes of their own, and nodes that do not vote: start, kill, pause, cut and ask them.

Run as a program it *is* such a node: Raft, overseer and the internal HTTP server, as the daemon puts them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from aiohttp import web

from lsmq.errors import LsmqError
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.control_http import ControlHttp
from lsmq_coordinator.control_routes import control_routes
from lsmq_coordinator.death import DeathNotice, Sentinel
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.founding import founding_command
from lsmq_coordinator.joining import join
from lsmq_coordinator.overseer import Overseer, OverseerTiming
from lsmq_coordinator.parts import UNSEEN
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.state import ClusterState
from support.ports import free_ports
from support.python_process import PythonProcess
from support.waiting import PATIENCE_S, comes_true

START_TIMEOUT_S = PATIENCE_S


class GroupNode:
    """One process."""

    def __init__(self, group: RaftGroup, name: str, voter: bool) -> None:
        self.group, self.name, self.voter = group, name, voter
        self.directory = group.directory / name
        self.log = group.directory / f"{name}.log"
        self._process: PythonProcess | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, **overrides: Any) -> None:
        """Start the process without waiting for it."""
        assert not self.alive
        arguments = {
            "node": self.name,
            "voter": self.voter,
            "raft": self.group.raft_addresses,
            "urls": self.group.urls,
            "directory": str(self.directory),
            "secret": str(self.group.secret_file),
            "settle_s": self.group.settle_s,
            "founding": self.group.founding if self.voter else None,
            "url": public_url(self.name),
            **overrides,
        }
        with open(self.log, "ab") as log:
            self._process = PythonProcess([__file__, json.dumps(arguments)], stderr=log.fileno(), text=True)

    def wait_ready(self) -> GroupNode:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"{self.name} did not start:\n{self.log.read_text()[-3000:]}"
        return self

    def start(self, **overrides: Any) -> GroupNode:
        self.launch(**overrides)
        return self.wait_ready()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def reap(self) -> int:
        assert self._process is not None
        code = self._process.wait(START_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill9(self) -> None:
        self.send(signal.SIGKILL)
        self.reap()

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)


class RaftGroup:
    """``async with`` gives started voters and, in ``client``, a control client of this process.

    With ``founding`` (what :func:`founding_command` takes besides name and nodes) the nodes found the cluster and join
    it by themselves.
    """

    def __init__(
        self,
        directory: Path,
        voters: int = 3,
        others: int = 0,
        *,
        settle_s: float = 3600.0,
        founding: dict[str, Any] | None = None,
    ) -> None:
        self.directory, self.settle_s, self.founding = directory, settle_s, founding
        directory.mkdir(parents=True, exist_ok=True)
        self.secret_file = directory / "secret"
        self.secret = ClusterSecret.create(self.secret_file)
        names = [f"n{number + 1}" for number in range(voters + others)]
        ports = free_ports(voters + len(names))
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)}
        raft_ports = ports[len(names) :]
        self.raft_addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names[:voters], raft_ports, strict=True)}
        self.nodes = {name: GroupNode(self, name, name in self.raft_addresses) for name in names}
        self.http = ControlHttp(self.secret)
        self.client = ControlClient("tester", self.voter_urls, self.secret)

    @property
    def voter_urls(self) -> dict[str, str]:
        return {name: self.urls[name] for name in self.raft_addresses}

    async def __aenter__(self) -> RaftGroup:
        self.start_all()
        await self.http.start()
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.client.__aexit__()
        await self.http.close()
        for node in self.nodes.values():
            if node.alive:
                node.kill9()

    def start_all(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()

    def bootstrap_command(self, shards: int = 3, replicas: int = 3, min_in_sync: int = 2) -> dict[str, Any]:
        nodes = {
            name: {"url": public_url(name), "internal_url": self.urls[name], "voter": node.voter}
            for name, node in self.nodes.items()
        }
        settings = {
            "cluster": "test",
            "shards": shards,
            "replicas": replicas,
            "min_in_sync": min_in_sync,
            "segment_bytes": 1 << 20,
        }
        return {"op": "bootstrap", "settings": settings, "nodes": nodes}

    async def ask(self, name: str) -> dict[str, Any] | None:
        """What the node says of itself; None when it does not answer."""
        try:
            return await self.http.call(self.urls[name], "GET", "/internal/test/status", None, 1.0)
        except LsmqError:
            return None

    async def leader(self, *, besides: str | None = None, timeout: float = PATIENCE_S) -> str:
        """The voter that leads, once one of those that answer says so."""

        async def found() -> str | None:
            for name in self.raft_addresses:
                if name != besides and self.nodes[name].alive:
                    status = await self.ask(name)
                    if status is not None and status["ready"]:
                        return name
            return None

        leader = await until(found, timeout)
        assert isinstance(leader, str)
        return leader


def public_url(name: str) -> str:
    return f"http://{name}.example:7600"


async def until(condition: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    """The first true value of ``condition``, plain or awaitable."""
    return await comes_true(condition, "it is as the test wants it", timeout)


async def register_starts(client: ControlClient) -> None:
    """What the replicas of a node do: each registers its start, and says then that its disk remembers that."""
    while True:
        for shard in client.state.replicas_on(client.node):
            known = shard.start_of(client.node)
            if known is not None and known.confirmed:
                continue
            disk = {"incarnation": 1, "starts": [[1, 1]], "registered": int(known is not None), "durable_lsn": 0}
            who = {"node": client.node, "life": client.life}
            command = {"op": "register_start", "shard": shard.id, **who, "went_back": False, **disk}
            with contextlib.suppress(LsmqError):
                await client.submit(command, 5)
        await asyncio.sleep(0.02)


def all_started(state: ClusterState) -> bool:
    """Whether all replicas have registered their starts, so that they may be elected."""
    shards = state.shards.values()
    starts = [shard.start_of(node) for shard in shards for node in shard.replicas]
    return bool(starts) and all(start is not None and start.confirmed for start in starts)


async def serve(arguments: dict[str, Any]) -> None:
    secret = ClusterSecret.load(Path(arguments["secret"]))
    voters = arguments["raft"]
    node = arguments["node"]
    voter_urls = {name: arguments["urls"][name] for name in voters}
    application = web.Application(middlewares=[auth_middleware(Verifier(secret))])
    raft = overseer = None
    if arguments["voter"]:
        raft = RaftControl(RaftConfig(node, voters, Path(arguments["directory"]), secret))
        overseer = Overseer(raft, timing=OverseerTiming(settle_s=arguments["settle_s"]))
        application.add_routes(control_routes(raft, overseer, secret))
        await raft.start()

    def progress() -> dict[int, ReplicaProgress]:
        """All replicas here work, and have whatever their leaders have."""
        shards = client.state.replicas_on(node)
        return {shard.id: ReplicaProgress(shard.epoch, 0, 1, 1) for shard in shards}

    client = ControlClient(node, voter_urls, secret, raft=raft, overseer=overseer, progress=progress)

    async def status(request: web.Request) -> web.Response:
        content: dict[str, Any] = {
            "version": client.state.version,
            "state": client.state.without_results().encode(),
            "lease_age_s": time.monotonic() - client.lease,
            "holds_lease": client.holds_lease(),
            "leader": client.leader,
            "overview": client.overview(),
            "ready": False,
            "failure": None,
        }
        if raft is not None:
            seen = raft.status
            content |= {
                "ready": raft.is_leader,
                "role": seen.role.value,
                "term": seen.term,
                "commit_index": seen.commit_index,
                "last_index": seen.last_index,
                "whole": seen.whole,
                "failure": None if raft.failure is None else repr(raft.failure),
            }
        return web.Response(body=msgpack.packb(content), content_type="application/msgpack")

    async def catch_up(request: web.Request) -> web.Response:
        state = await client.catch_up(PATIENCE_S)
        content = {"version": state.version, "topics": sorted(state.topics)}
        return web.Response(body=msgpack.packb(content), content_type="application/msgpack")

    async def ask_election(request: web.Request) -> web.Response:
        await client.ask_election(int(request.query["shard"]), int(request.query["above_epoch"]))
        return web.Response(body=msgpack.packb({}), content_type="application/msgpack")

    application.add_routes(
        [
            web.get("/internal/test/status", status),
            web.get("/internal/test/catch_up", catch_up),
            web.get("/internal/test/ask_election", ask_election),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port = int(arguments["urls"][node].rsplit(":", 1)[1])
    await web.TCPSite(runner, "127.0.0.1", port).start()
    async with client, asyncio.TaskGroup() as tasks:
        if overseer is not None and raft is not None:
            tasks.create_task(overseer.run())
            tasks.create_task(raft.keep(UNSEEN))
        founding = None
        if arguments["founding"] is not None:
            nodes = {name: {"url": public_url(name), "internal_url": url} for name, url in voter_urls.items()}
            founding = founding_command("test", nodes=nodes, **arguments["founding"])
        tasks.create_task(join(client, arguments["url"], arguments["urls"][node], founding))
        sentinel = Sentinel(DeathNotice(node, client.life), secret, voter_urls, patience_s=1.0)
        tasks.create_task(sentinel.run())
        tasks.create_task(register_starts(client))
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))

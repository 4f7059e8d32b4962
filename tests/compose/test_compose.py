"""The cluster of containers does what its README promises: its settings are whole, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from lsmq import Client, Consumer, Producer
from lsmq_node.cluster_config import ENVIRONMENT_PREFIX
from lsmq_node.config import NodeConfig

from .stack import COMPOSE_DIRECTORY, NODES, ZOOKEEPERS, Stack, until

TOPIC = "orders"
QUEUES = 6
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):-([^}]*)\}")


def env_file() -> dict[str, str]:
    """The settings of .env, which must all stand behind a comment."""
    settings: dict[str, str] = {}
    commented = False
    for line in (COMPOSE_DIRECTORY / ".env").read_text().splitlines():
        name, assigned, value = line.partition("=")
        if assigned and not line.startswith("#"):
            assert commented, f"{name} has no comment"
            assert not value.startswith(("'", '"')) and "#" not in value, f"{name}: {value!r}"
            settings[name] = value
        else:
            commented = line.startswith("# ") and not line.startswith("# ---")
    return settings


def test_each_variable_of_the_compose_file_is_in_the_env_file_with_the_same_value() -> None:
    text = (COMPOSE_DIRECTORY / "docker-compose.yml").read_text()
    used = dict(_VARIABLE.findall(text))
    assert used
    assert text.count("${") == len(_VARIABLE.findall(text)), "a variable without a default"
    settings = env_file()
    assert used == {name: value for name, value in settings.items() if not name.startswith("LSMQ_")}


def test_the_settings_of_nodes_in_the_env_file_are_taken_by_a_node() -> None:
    environment = {name: value for name, value in env_file().items() if name.startswith("LSMQ_")}
    assert any(name.startswith(ENVIRONMENT_PREFIX) for name in environment)
    voters = ", ".join(
        f'{node} = {{url = "http://{node}:1", internal_url = "http://{node}:2", raft = "{node}:3"}}' for node in NODES
    )
    own = {"NODE": "n1", "SECRET_FILE": "/etc/lsmq/secret", "VOTERS": f"{{{voters}}}"}
    environment |= {f"{ENVIRONMENT_PREFIX}{name}": value for name, value in own.items()}
    config = NodeConfig.load(None, environment, data="/var/lib/lsmq")
    assert config.cluster is not None
    assert config.cluster.replicas == len(NODES)


def services() -> dict[str, dict[str, Any]]:
    file = yaml.safe_load((COMPOSE_DIRECTORY / "docker-compose.yml").read_text())
    found: dict[str, dict[str, Any]] = file["services"]
    assert {*NODES, "n4", *ZOOKEEPERS, "cli"} == found.keys()
    return found


@pytest.mark.parametrize("name", [*NODES, "n4", *ZOOKEEPERS, "cli"])
def test_a_container_has_no_rights_that_it_needs_not(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True and service["tmpfs"] == "/tmp"
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"]["nofile"].keys() == {"soft", "hard"}
    # The image of nodes says its own user; that of ZooKeeper would begin as root.
    assert service.get("user") == ("1000:1000" if name in ZOOKEEPERS else None)


def test_one_node_may_write_the_secret_and_the_others_read_it() -> None:
    mounts = {
        name: [mount for mount in service.get("volumes", []) if "secret" in mount]
        for name, service in services().items()
    }
    (maker,) = [name for name, mounted in mounts.items() if mounted == ["secret:/etc/lsmq"]]
    readers = {name for name, mounted in mounts.items() if mounted == ["secret:/etc/lsmq:ro"]}
    assert {maker} | readers == {*NODES, "n4"}
    assert maker != "n4", "it is not started by itself"


@pytest.mark.parametrize("may_write", [True, False])
def test_who_may_write_the_secret_makes_it_and_who_may_not_waits_for_it(tmp_path: Path, may_write: bool) -> None:
    programs, secret = tmp_path / "programs", tmp_path / "later" / "secret"
    programs.mkdir()
    if may_write:
        secret.parent.mkdir()
    for name, line in (
        ("lsmq", f'cat "{secret}"'),
        ("sleep", f'mkdir "{secret.parent}" && echo made elsewhere >"{secret}"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [COMPOSE_DIRECTORY / "image" / "entrypoint.sh", "lsmq", "serve"],
        env={"PATH": f"{programs}:{os.environ['PATH']}", "LSMQ_CLUSTER_SECRET_FILE": str(secret)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if may_write:
        assert re.fullmatch("[0-9a-f]{64}", done.stdout)
        assert secret.stat().st_mode & 0o777 == 0o600
    else:
        assert done.stdout == "made elsewhere\n"


class Writers:
    """One writer a queue, each sending one numbered message after the other: what was acknowledged, and when."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = False
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)  # queue: (number, offset)
        self.moments: dict[int, list[float]] = defaultdict(list)

    async def run(self) -> None:
        async with Producer(self._client, TOPIC, linger_ms=1) as producer, asyncio.TaskGroup() as group:
            for queue in range(QUEUES):
                group.create_task(self._write(producer, queue))

    async def _write(self, producer: Producer, queue: int) -> None:
        number = 0
        while not self._stopping:
            sent = await producer.send_and_wait(f"{queue}:{number}", queue=queue)
            self.acknowledged[queue].append((number, sent.offset))
            self.moments[queue].append(time.monotonic())
            number += 1
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stopping = True

    async def more(self, count: int = 20) -> None:
        """Until ``count`` more messages of every queue are acknowledged."""
        targets = [len(self.acknowledged[queue]) + count for queue in range(QUEUES)]
        await eventually(
            lambda: all(len(self.acknowledged[queue]) >= target for queue, target in enumerate(targets)),
            f"writes of all queues go on, from {targets}",
        )

    def longest_pause_s(self, queues: range, since: float) -> float:
        """The longest time that none of these queues got an acknowledgement, after ``since``."""
        return max(
            later - earlier for queue in queues for earlier, later in pairwise(self.moments[queue]) if later > since
        )


async def eventually(condition: Callable[[], bool], what: str) -> float:
    return await asyncio.to_thread(until, condition, what)


async def received(client: Client) -> dict[int, list[tuple[int, int]]]:
    """Number and offset of all messages there are, by queue, as one consumer gets them."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    left = sum(latest - earliest for _, earliest, latest in (await client.offsets(TOPIC)).rows())
    async with Consumer(client, TOPIC, start="earliest") as consumer:
        while left > 0:
            for message in await consumer.poll(1000, 5000):
                queue, number = map(int, message.text().split(":"))
                assert message.queue == queue
                found[queue].append((number, message.offset))
                left -= 1
    return found


async def break_and_mend(stack: Stack) -> None:
    """The story of README.md, with writers at work from its first to its last line."""
    async with Client(list(stack.urls.values())[:3]) as client:
        topic = await client.create_topic(TOPIC, queues=QUEUES)
        writers = Writers(client)
        writing = asyncio.create_task(writers.run())
        await writers.more()

        route = topic.routes[0]
        victim = next(node for node in NODES if stack.urls[node] == route.leader)
        survivor = next(node for node in NODES if node != victim)
        killed_at = time.monotonic()
        await asyncio.to_thread(stack.kill, victim)
        await eventually(
            lambda: stack.shards(survivor).get(route.shard, {}).get("leader") not in (None, victim),
            f"shard {route.shard} has another leader than {victim}",
        )
        await writers.more()
        pause_s = writers.longest_pause_s(range(route.first, route.end), killed_at)
        print(f"writes to a killed leader's queues paused for {pause_s:.2f} s")
        await eventually(
            lambda: stack.published(survivor)["shards"][str(route.shard)]["leader"] != victim,
            "ZooKeeper tells clients the new leader",
        )

        await asyncio.to_thread(stack.start, victim)
        back_s = await eventually(
            lambda: {len(shard["in_sync"]) for shard in stack.shards(survivor).values()} == {len(NODES)},
            f"{victim} is in sync again",
        )
        print(f"{victim} was in sync again {back_s:.1f} s after its start")

        await asyncio.to_thread(stack.kill, ZOOKEEPERS[0])
        await client.create_topic("made-with-two-zookeepers", queues=3)
        await writers.more()
        await asyncio.to_thread(stack.start, ZOOKEEPERS[0])
        await eventually(lambda: stack.health(ZOOKEEPERS[0]) == "healthy", f"{ZOOKEEPERS[0]} belongs to its quorum")

        await asyncio.to_thread(stack.compose, "up", "--detach", "n4")
        await eventually(
            lambda: {node["id"] for node in stack.overview(survivor)["nodes"]} == {*NODES, "n4"}, "n4 has joined"
        )

        writers.stop()
        await writing
        assert await received(client) == writers.acknowledged


@pytest.mark.slow
@pytest.mark.xdist_group("containers")
@pytest.mark.timeout(900)
@pytest.mark.soak
def test_containers_are_killed_and_come_back_and_nothing_is_lost(stack: Stack) -> None:
    began = time.monotonic()
    with stack.up():
        until(lambda: all(map(stack.ready, NODES)), "all nodes are ready", 120)
        print(f"all nodes were ready {time.monotonic() - began:.1f} s after `up` was called")
        until(lambda: {stack.health(service) for service in (*NODES, *ZOOKEEPERS)} == {"healthy"}, "all are healthy")
        assert {node for node in NODES if stack.may_write(node, "/etc/lsmq")} == {"n1"}
        assert not [service for service in (*NODES, *ZOOKEEPERS) if stack.may_write(service, "/var/tmp")]
        asyncio.run(break_and_mend(stack))
        shown = stack.compose("run", "--rm", "-T", "cli", "topic", "list")
        assert TOPIC in shown
    assert stack.leftovers() == ""


@pytest.mark.slow
@pytest.mark.xdist_group("containers")
@pytest.mark.timeout(900)
@pytest.mark.soak
def test_drills_on_containers_lose_nothing(stack: Stack) -> None:
    with stack.up():
        until(lambda: all(map(stack.ready, NODES)), "all nodes are ready", 120)
        address = stack.address("n2")
        assert stack.dial("n1", address) == "reached"
        with stack.cut_off("n1"):
            assert stack.dial("n1", address) != "reached", "the host carries packets from one network to the other"
        for name in ("kill-leader", "partition-leader"):
            report = stack.drill(name)
            assert report["ok"], report
            assert report["acknowledged"] > 0 and report["replicas_compared"] == 9
            print(f"{name} on containers: {report}")
    assert stack.leftovers() == ""

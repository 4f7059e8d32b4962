"""NATS JetStream: a subject a queue of one stream in files, ``sync_interval: always``."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...report import BenchFailed
from ...server_processes import cache_directory, free_port, listens
from .system import TOPIC, ClientLoad, LoadOutcome, Running, Stopwatch, System, loop_tasks, server_process

RELEASE = "2.15.2"
_MODULE = f"github.com/nats-io/nats-server/v2@v{RELEASE}"
#: From here on a stream can have every message synced before its acknowledgement.
_LEAST = (2, 12)
_SETTINGS = """listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}", sync_interval: always, max_file_store: 64GB }}
"""
_BUILD_TIMEOUT_S = 900
_ACK_TIMEOUT_S = 60.0
#: A stream refuses more than 10,000 that wait to be stored, and the client never ends the futures of those.
_MOST_IN_FLIGHT = 2_000
#: A writer that is slower is taken for one that waits for ever.
_LEAST_PER_S = 100


def write(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        client, stream = await _connect(load)
        bodies, waiting = load.bodies(), deque[Any]()
        in_flight = min(load.in_flight, _MOST_IN_FLIGHT)
        clock = Stopwatch()
        for number in range(load.messages):
            if len(waiting) == in_flight:
                await waiting.popleft()
            subject = f"{TOPIC}.{(load.first + number) % load.queues}"
            waiting.append(await stream.publish_async(subject, bodies[number % len(bodies)]))
        while waiting:
            await waiting.popleft()
        outcome = clock.outcome(load.messages)
        await client.close()
        return outcome

    return asyncio.run(asyncio.wait_for(work(), _ACK_TIMEOUT_S + load.messages / _LEAST_PER_S))


def loop(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        client, stream = await _connect(load)
        subjects = [f"{load.topic_of(task)}.{load.queue_of(task)}" for task in range(load.in_flight)]
        outcome = await loop_tasks(
            load, lambda task, body: stream.publish(subjects[task], body, timeout=_ACK_TIMEOUT_S)
        )
        await client.close()
        return outcome

    return asyncio.run(work())


async def _connect(load: ClientLoad) -> tuple[Any, Any]:
    client = await importlib.import_module("nats").connect(load.address)
    return client, client.jetstream(timeout=_ACK_TIMEOUT_S, publish_async_max_pending=max(1, load.in_flight))


def lacks() -> str | None:
    """What keeps it from being measured."""
    if importlib.util.find_spec("nats") is None:
        return 'the NATS client is not installed: pip install "lsmq[peers]"'
    if _installed() is None and not _built().exists() and shutil.which("go") is None:
        return f"no nats-server of {_LEAST[0]}.{_LEAST[1]} or later is on PATH, and no go to build {RELEASE}"
    return None


def _installed() -> str | None:
    """One on the PATH, if it is new enough."""
    found = shutil.which("nats-server")
    if found is None:
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30).stdout
    release = re.search(r"(\d+)\.(\d+)", said)
    return found if release and (int(release[1]), int(release[2])) >= _LEAST else None


def _built() -> Path:
    return cache_directory(f"nats-server-{RELEASE}") / "nats-server"


def _binary() -> str:
    """Go's proxy brings the sources, and Go compares them with its public list of checksums."""
    if installed := _installed():
        return installed
    built = _built()
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(built.parent)}
        command = ["go", "install", _MODULE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
        if done.returncode != 0:
            raise BenchFailed(f"go could not build nats-server {RELEASE}: {done.stderr[-400:]}")
    return str(built)


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    """A server over fresh files."""
    port = free_port()
    directory.mkdir(parents=True)
    settings = directory / "nats.conf"
    settings.write_text(_SETTINGS.format(port=port, store=directory / "store"))
    command = [_binary(), "-c", str(settings)]
    with server_process(command, directory, f"nats://127.0.0.1:{port}", lambda: listens(port)) as server:
        yield server


def _prepare(address: str, queues: int, topics: int) -> None:
    async def make() -> None:
        client = await importlib.import_module("nats").connect(address)
        stream = client.jetstream()
        for name in [f"{TOPIC}-{number}" for number in range(topics)] or [TOPIC]:
            await stream.add_stream(name=name, subjects=[f"{name}.*"], storage="file")
        await client.close()

    asyncio.run(make())


SYSTEM = System(
    "nats",
    __name__,
    "after fsync (sync_interval: always)",
    lacks,
    running,
    _prepare,
    most_queues=100_000,
    stops="the subjects of a stream are in memory, and a stream is synced message by message",
    kinds=("write", "loop"),
)

"""Fixtures for all tests: real nodes in processes of their own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lsmq_lab.world.drive import drives
from support.extent import leave_out as pytest_collection_modifyitems
from support.extent import part_in_number
from support.grouped_tests import pytest_xdist_make_scheduler
from support.node_process import NodeProcess
from support.python_process import forked_clusters

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# How long an example takes says something about the machine's other work, not about the code.
settings.register_profile(
    "any speed", deadline=None, max_examples=part_in_number(100, 3), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any speed")

# Every Java that a test starts (Spark, ZooKeeper) ends before the optimising compiler could pay for itself, and has the
# classes that it had in the test before: without the one and a look at the others it takes half the processor time.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("JDK_JAVA_OPTIONS", _JAVA)

# A test starts hundreds of interpreters. Where bytecode is kept none of them compiles what the one before has compiled,
# which is up to half of what their start costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where the tests run in the background of a script, interrupts are ignored, and so they would be in every process that
# a test starts and means to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: no search for garbage looks through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def clusters_start_at_once() -> Iterator[None]:
    with forked_clusters():
        yield


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Makes nodes with settings, not yet started. Each has its own data directory unless given one."""
    nodes: list[NodeProcess] = []

    def make(data: Path | None = None, **settings: Any) -> NodeProcess:
        nodes.append(NodeProcess(data or tmp_path / f"node-{len(nodes)}", **settings))
        return nodes[-1]

    yield make
    for node in nodes:
        if node.alive:
            node.kill9()
        shutil.rmtree(node.data, ignore_errors=True)


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A node of the test's own, started, with default settings."""
    return make_node().start()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests that only need a node: do not kill it, and use topic names of your own."""
    # Each test leaves a topic, and the numbers of each are looked for.
    shared = NodeProcess(tmp_path_factory.mktemp("shared") / "data", metrics_series=10_000).start()
    yield shared
    if shared.alive:
        shared.stop()
    shutil.rmtree(shared.data, ignore_errors=True)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A legal topic name that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{name[:150]}-{abs(hash(request.node.nodeid)) % 10**8}"


@pytest.fixture(scope="module")
def drives_there() -> Iterator[None]:
    """There can be disks that fail as they are told."""
    with drives():
        yield

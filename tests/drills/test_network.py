"""The network between nodes: who dials is found out, what is cut is silent, and what is healed goes on."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq_lab.drills.connections import holder
from lsmq_lab.drills.network import FaultNetwork
from lsmq_lab.local_cluster import LocalCluster, found_plan
from lsmq_lab.local_cluster.process import OwnProcess
from support.waiting import eventually

# Dials the address it is given and counts, a line every few milliseconds.
COUNTER = """
import socket, sys, time
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(1_000_000):
    line.sendall(b"%d\\n" % number)
    time.sleep(0.005)
"""


class Listener:
    """The inner port of a node, here in the test. Remembers the lines that come."""

    def __init__(self, port: int) -> None:
        self.lines: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as file:
            for line in file:
                self.lines.append(line)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Its plan and its pid files alone; n1 is a process that counts."""
    cluster = LocalCluster.found(tmp_path / "c", found_plan(proxied=True))
    yield cluster
    assert cluster.process("n1").wait_end(10)


@pytest.fixture
def network(cluster: LocalCluster) -> Iterator[FaultNetwork]:
    network = FaultNetwork(cluster.directory)
    network.start()
    yield network
    network.close()


@pytest.fixture
def listener(cluster: LocalCluster) -> Iterator[Listener]:
    """Node n2."""
    listener = Listener(cluster.plan.node("n2").internal_port)
    yield listener
    listener.close()


@pytest.fixture
def counter(cluster: LocalCluster, network: FaultNetwork, listener: Listener) -> Iterator[OwnProcess]:
    """Node n1, which dials n2."""
    process = cluster.process("n1")
    process.start([sys.executable, "-c", COUNTER, str(cluster.plan.node("n2").internal_proxy_port)], os.environ)
    yield process
    process.send(signal.SIGKILL)


def steadily(lines: list[bytes]) -> None:
    count = len(lines)
    eventually(lambda: len(lines) > count + 20, "lines arrive")


def test_a_cut_is_silent_and_healing_brings_everything_in_order(
    network: FaultNetwork, counter: OwnProcess, listener: Listener
) -> None:
    steadily(listener.lines)
    network.isolate(["n1"])
    settled = threading.Event()
    settled.wait(0.1)  # What was under way in this machine's buffers.
    count = len(listener.lines)
    settled.wait(0.2)
    assert len(listener.lines) == count
    assert counter.pid is not None, "the connection must stay open"
    network.heal()
    steadily(listener.lines)
    assert listener.lines == [b"%d\n" % number for number in range(len(listener.lines))]


def test_nodes_on_the_same_side_reach_each_other(
    network: FaultNetwork, counter: OwnProcess, listener: Listener
) -> None:
    network.isolate(["n1", "n2"])
    steadily(listener.lines)
    network.isolate(["n3"])
    steadily(listener.lines)


def test_nobody_dials_a_deaf_node_and_what_it_dialled_works(
    network: FaultNetwork, counter: OwnProcess, listener: Listener
) -> None:
    network.deafen("n1")
    steadily(listener.lines)
    network.deafen("n2")
    settled = threading.Event()
    settled.wait(0.1)
    count = len(listener.lines)
    settled.wait(0.2)
    assert len(listener.lines) == count
    network.heal()
    steadily(listener.lines)
    assert listener.lines == [b"%d\n" % number for number in range(len(listener.lines))]


def test_a_port_that_rejects_resets_who_had_dialled_it_and_who_dials_it(
    network: FaultNetwork, cluster: LocalCluster, counter: OwnProcess, listener: Listener
) -> None:
    network.reject("n1")
    steadily(listener.lines)
    network.reject("n2")
    eventually(lambda: counter.pid is None, "the process whose connection was reset has ended")
    assert "ConnectionResetError" in counter.log_tail()
    counter.start([sys.executable, "-c", COUNTER, str(cluster.plan.node("n2").internal_proxy_port)], os.environ)
    eventually(lambda: counter.pid is None, "a new connection is reset as well")


def test_who_is_no_node_is_not_let_through(network: FaultNetwork, cluster: LocalCluster, listener: Listener) -> None:
    port = cluster.plan.node("n2").internal_proxy_port
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(10)
        stranger.sendall(b"let me in\n")
        with pytest.raises(ConnectionResetError):
            while stranger.recv(100):
                pass
            raise ConnectionResetError  # An orderly end does as well.
    assert listener.lines == []


def test_the_kernel_tells_who_holds_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection, server.accept()[0]:
            source = connection.getsockname()[1]
            assert holder("127.0.0.1", source, port, [os.getppid(), os.getpid()]) == os.getpid()
            assert holder("127.0.0.1", source, port, [os.getppid()]) is None
            assert holder("127.0.0.1", source, port + 1, [os.getpid()]) is None
        assert holder("127.0.0.1", source, port, [os.getpid()]) is None, "it is closed"

"""Real ZooKeeper servers for tests: found and started by the product's own code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from lsmq.kazoo_handler import TLS_SCHEME, KazooHandler
from lsmq_coordinator.authority import Authority
from lsmq_coordinator.tls import dialling_context
from lsmq_lab.local_cluster.zookeeper_server import EnsembleMember, ZooKeeperServer, ZooKeeperTls

from .ports import free_ports
from .waiting import PATIENCE_S


class SecureZooKeeper(ZooKeeperServer):
    """A server that speaks TLS alone, and takes who has a certificate of its authority. Its own is for `localhost`."""

    def __init__(self, directory: Path, authority: Authority, tick_ms: int = 200) -> None:
        tls = ZooKeeperTls(*authority.issue("zookeeper", ["localhost"]), authority.cert)
        super().__init__(directory, EnsembleMember(1, *free_ports(3)), tick_ms=tick_ms, tls=tls)

    @property
    def secure_hosts(self) -> str:
        return f"{TLS_SCHEME}localhost:{self.peer.client_port}"


@contextmanager
def asked(server: ZooKeeperServer) -> Iterator[Any]:
    """A connected client of kazoo's, which shows what the server itself shows."""
    tls = server.tls
    handler = KazooHandler(None if tls is None else partial(dialling_context, tls.ca, tls.cert, tls.key))
    client = KazooClient(server.hosts.removeprefix(TLS_SCHEME), handler=handler)
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class ZooKeeperEnsemble:
    """One server or three. Ticks are short, so that sessions expire quickly: 0.4 s at least."""

    def __init__(self, directory: Path, count: int = 1, tick_ms: int = 200) -> None:
        ports = iter(free_ports(3 * count))
        peers = [EnsembleMember(id, *taken) for id, taken in enumerate(zip(ports, ports, ports, strict=True), 1)]
        self.servers = [
            ZooKeeperServer(directory / f"zookeeper-{peer.id}", peer, peers, tick_ms=tick_ms) for peer in peers
        ]

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> ZooKeeperEnsemble:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.stop(signal.SIGKILL)

    def pause(self) -> None:
        """As if nobody could reach it: connections stay open and nothing is answered."""
        for server in self.servers:
            server.send(signal.SIGSTOP)

    def resume(self) -> None:
        for server in self.servers:
            server.send(signal.SIGCONT)

    def client(self) -> Any:
        """A connected client; stop and close it."""
        client = KazooClient(self.hosts, timeout=4.0)
        client.start(timeout=15)
        return client

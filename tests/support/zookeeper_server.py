"""Real ZooKeeper servers for tests: found and started by the product's own code."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from lsmq_coordinator.authority import Authority
from lsmq_lab.local_cluster.zookeeper_server import EnsembleMember, ZooKeeperServer

from .ports import free_ports


class SecureZooKeeper(ZooKeeperServer):
    """A server that also has a port for TLS, and believes certificates of its authority. As ZooKeeper does by itself,
    it wants to see one."""

    def __init__(self, directory: Path, authority: Authority, tick_ms: int = 200) -> None:
        *ports, self.secure_port = free_ports(4)
        super().__init__(directory, EnsembleMember(1, *ports), tick_ms=tick_ms)
        self._authority = authority
        authority.issue("zookeeper", ["localhost"])
        self._pem = authority.directory / "zookeeper.pem"
        self._pem.touch(mode=0o600)
        self._pem.write_text(
            "".join((authority.directory / f"zookeeper.{kind}").read_text() for kind in ("key", "crt"))
        )

    @property
    def secure_hosts(self) -> str:
        return f"tls://localhost:{self.secure_port}"

    def _configuration(self) -> str:
        lines = [
            f"secureClientPort={self.secure_port}",
            "secureClientPortAddress=127.0.0.1",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={self._pem}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={self._authority.cert}",
            "ssl.trustStore.type=PEM",
        ]
        return super()._configuration() + "\n".join(lines) + "\n"


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

"""The registry and a real ZooKeeper that speaks TLS and wants certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lsmq.kazoo_handler import KazooHandler
from lsmq_coordinator.authority import Authority
from lsmq_coordinator.errors import TlsUnusable
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.tls import dialling_context
from lsmq_coordinator.zookeeper import ZooKeeperConfig, ZooKeeperRegistry
from lsmq_lab.local_cluster.zookeeper_server import HOST, EnsembleMember, ZooKeeperServer
from support.ports import free_ports
from support.waiting import PATIENCE_S, eventually
from support.zookeeper_server import SecureZooKeeper

from .test_routes import with_topic
from .test_state import founded

Context = Callable[[], ssl.SSLContext]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("authority"))
    made.issue("n1", ["localhost"])
    return made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("stranger"))
    made.issue("n1", ["localhost"])
    return made


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecureZooKeeper]:
    server = SecureZooKeeper(tmp_path_factory.mktemp("zookeeper"), authority)
    server.start()
    server.wait_ready()
    yield server
    server.stop()


def context(believed: Authority, shown: Authority | None) -> Context:
    files = (None, None) if shown is None else (shown.directory / "n1.crt", shown.directory / "n1.key")
    return partial(dialling_context, believed.cert, *files)


class Working:
    """A registry, and what its part says."""

    def __init__(self, hosts: str, tls: Context | None) -> None:
        self.parts = Parts()
        config = ZooKeeperConfig(
            hosts, "test", "n1", "http://n1", ("pw",), tls, session_timeout_s=1.0, refresh_s=0.5, retry_s=0.1
        )
        self.registry = ZooKeeperRegistry(config, part=self.parts.part("zookeeper", essential=False))
        self.registry.start()

    def says(self, text: str) -> None:
        eventually(lambda: any(text in each for each in self.parts.problems(essential=False)), f"it says {text!r}")


@pytest.fixture
def working(zookeeper: SecureZooKeeper) -> Iterator[Callable[..., Working]]:
    made: list[Working] = []

    def make(tls: Context | None, hosts: str = zookeeper.secure_hosts) -> Working:
        made.append(Working(hosts, tls))
        return made[-1]

    yield make
    for one in made:
        one.registry.stop()


def test_a_node_registers_and_publishes_by_tls(
    authority: Authority, zookeeper: SecureZooKeeper, working: Callable[..., Working]
) -> None:
    node, state = working(context(authority, authority)), with_topic(founded())
    node.registry.publish(state)
    eventually(lambda: node.registry.status.published_version == state.version, "it is published")
    connection = node.registry._client._connection._socket
    assert isinstance(connection, ssl.SSLSocket) and connection.version() == "TLSv1.3"
    # Answers of which many share a piece of TLS come all of them.
    answers = [node.registry._client.get_children_async("/lsmq/test/topics") for _ in range(2_000)]
    assert {tuple(answer.get(timeout=60)) for answer in answers} == {("t",)}


def test_what_is_read_from_a_socket_already_is_waited_for_no_more(authority: Authority) -> None:
    """Two answers come in one piece of TLS: the socket has nothing for who has read the first."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0
    server.load_cert_chain(authority.directory / "n1.crt", authority.directory / "n1.key")

    def answer(listener: socket.socket) -> None:
        with listener, server.wrap_socket(listener.accept()[0], server_side=True) as connection:
            connection.sendall(b"one two ")
            connection.recv(1)

    listener = socket.create_server(("127.0.0.1", 0))
    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer, listener)
        handler = KazooHandler(context(authority, None))
        address = listener.getsockname()
        with handler.create_connection(address=address, hostname="localhost", timeout=PATIENCE_S) as connection:
            assert handler.select([connection], [], [], PATIENCE_S)[0] == [connection]
            assert connection.recv(4) == b"one "
            assert handler.select([connection], [], [], 0)[0] == [connection]
            assert connection.recv(4) == b"two "
            assert handler.select([connection], [], [], 0)[0] == []
        answering.result(PATIENCE_S)


def test_a_server_that_is_not_believed_is_told_nothing_and_named(
    stranger: Authority, authority: Authority, working: Callable[..., Working]
) -> None:
    for believed in (context(stranger, authority), partial(dialling_context, None, None, None)):
        node = working(believed)
        node.says("its certificate is not believed")
        assert not node.registry.status.registered


def test_a_server_by_another_name_is_not_believed(
    authority: Authority, zookeeper: SecureZooKeeper, working: Callable[..., Working]
) -> None:
    node = working(context(authority, authority), zookeeper.hosts)
    node.says("certificate is not valid for")
    assert not node.registry.status.registered


def test_a_server_that_wants_a_certificate_takes_none_but_of_its_authority(
    authority: Authority, stranger: Authority, working: Callable[..., Working]
) -> None:
    for shown in (None, stranger):
        node = working(context(authority, shown))
        node.says("it may want to see a certificate that it believes (cluster.zookeeper_tls_cert)")
        assert not node.registry.status.registered


def test_a_port_that_does_not_speak_tls_is_named(
    tmp_path: Path, authority: Authority, working: Callable[..., Working]
) -> None:
    plain = ZooKeeperServer(tmp_path, EnsembleMember(1, *free_ports(3)))
    plain.start()
    try:
        plain.wait_ready()
        working(context(authority, authority), f"tls://{plain.hosts}").says("no connection to tls://")
    finally:
        plain.stop()


def test_a_node_that_is_to_speak_without_tls_is_refused_and_told_of_it(
    zookeeper: SecureZooKeeper, working: Callable[..., Working]
) -> None:
    node = working(None, zookeeper.hosts.removeprefix("tls://"))
    node.says("if it speaks TLS alone, write tls:// before cluster.zookeeper")
    assert not node.registry.status.registered


def test_nothing_older_than_tls_1_3_is_spoken(zookeeper: SecureZooKeeper, authority: Authority) -> None:
    older = ssl.create_default_context(cafile=authority.cert)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((HOST, zookeeper.peer.client_port), timeout=PATIENCE_S) as plain,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        older.wrap_socket(plain, server_hostname="localhost")


def test_files_are_read_again_for_each_connection(
    tmp_path: Path, authority: Authority, stranger: Authority, working: Callable[..., Working]
) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(stranger.cert.read_bytes())
    own = authority.directory
    node = working(partial(dialling_context, ca, own / "n1.crt", own / "n1.key"))
    node.says("its certificate is not believed")
    ca.unlink()
    node.says("ca.crt: cannot be read")
    ca.write_bytes(authority.cert.read_bytes())
    eventually(lambda: node.registry.status.registered, "the right one is there")


def test_files_that_are_of_no_use_are_refused_by_name(tmp_path: Path, authority: Authority) -> None:
    own, nothing = authority.directory, tmp_path / "nothing"
    with pytest.raises(TlsUnusable, match="nothing: cannot be read"):
        dialling_context(nothing, None, None)
    nothing.touch()
    with pytest.raises(TlsUnusable, match="nothing: holds no certificate"):
        dialling_context(nothing, None, None)
    with pytest.raises(TlsUnusable, match="hold no certificate and key"):
        dialling_context(authority.cert, nothing, own / "n1.key")
    nothing.chmod(0o644)
    with pytest.raises(TlsUnusable, match="chmod 600"):
        dialling_context(authority.cert, own / "n1.crt", nothing)

"""Finding a ZooKeeper and a Java, and running servers that outlive who started them."""

from __future__ import annotations

import os
import re
import signal
import ssl
from pathlib import Path

import pytest

from lsmq.errors import LsmqError
from lsmq_coordinator.authority import Authority
from lsmq_lab.local_cluster import zookeeper_server
from lsmq_lab.local_cluster.zookeeper_server import (
    EnsembleMember,
    ZooKeeperInstall,
    ZooKeeperNotFound,
    ZooKeeperServer,
    ZooKeeperTls,
    find_zookeeper,
)
from support.ports import free_ports
from support.waiting import eventually


def test_what_is_installed_here_is_found_and_named() -> None:
    install = find_zookeeper()
    assert os.access(install.java, os.X_OK)
    assert install.source


def test_a_given_home_wins_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    variables = {"ZOOKEEPER_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path / "java"), "PATH": ""}
    with pytest.raises(ZooKeeperNotFound, match="ZOOKEEPER_HOME is"):
        find_zookeeper(variables)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "zookeeper-3.9.5.jar").touch()
    install = find_zookeeper(variables)
    assert install.java == str(java)
    assert str(tmp_path / "lib") in install.classpath


def test_without_anything_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(zookeeper_server, "_DEBIAN_JARS", tmp_path)
    with pytest.raises(ZooKeeperNotFound, match="pip install pyspark"):
        find_zookeeper({"PATH": ""})
    (tmp_path / "zookeeper.jar").touch()
    with pytest.raises(ZooKeeperNotFound, match="no Java"):
        find_zookeeper({"PATH": ""})


@pytest.mark.part(2)
def test_a_server_is_found_again_by_its_directory_and_keeps_its_data(tmp_path: Path) -> None:
    peer = EnsembleMember(1, *free_ports(3))
    server = ZooKeeperServer(tmp_path, peer)
    server.start()
    assert server.wait_ready() == "standalone"
    later = ZooKeeperServer(tmp_path, peer)
    assert later.pid == server.pid
    later.start()
    assert later.pid == server.pid, "started twice"
    later.send(signal.SIGKILL)
    assert server._process is not None
    server._process.wait(10)
    assert (later.pid, later.mode()) == (None, None)
    later.start()
    assert later.wait_ready() == "standalone"
    later.stop()
    assert later.pid is None and not (tmp_path / "pid").exists()


@pytest.fixture
def in_tls(tmp_path: Path) -> ZooKeeperTls:
    authority = Authority.create(tmp_path / "tls")
    return ZooKeeperTls(*authority.issue("zookeeper", ["localhost"]), authority.cert)


def certificate(server: ZooKeeperServer) -> bytes:
    """What it shows."""
    with server._connection() as connection:
        assert isinstance(connection, ssl.SSLSocket) and connection.version() == "TLSv1.3"
        return connection.getpeercert(binary_form=True) or b""


@pytest.mark.part(2)
def test_a_server_in_tls_shows_another_certificate_as_it_runs(tmp_path: Path, in_tls: ZooKeeperTls) -> None:
    server = ZooKeeperServer(tmp_path / "server", EnsembleMember(1, *free_ports(3)), tls=in_tls)
    server.start()
    try:
        server.wait_ready()
        assert server._pem.stat().st_mode & 0o777 == 0o600
        before = certificate(server)
        Authority(in_tls.ca.parent).issue("zookeeper")
        server.renew()
        eventually(lambda: certificate(server) != before, "the new one is shown")
    finally:
        server.stop()


def test_the_oldest_zookeeper_that_is_promised_speaks_tls(tmp_path: Path, in_tls: ZooKeeperTls) -> None:
    """Debian's is 3.8.0, which has no cipher of TLS 1.3 unless it is named."""
    debian = zookeeper_server.debian_classpath()
    if debian is None:
        pytest.skip("this machine has no ZooKeeper of Debian's packages")
    install = ZooKeeperInstall(find_zookeeper().java, debian, "Debian")
    server = ZooKeeperServer(tmp_path / "server", EnsembleMember(1, *free_ports(3)), install=install, tls=in_tls)
    server.start()
    try:
        assert server.wait_ready() == "standalone"
        assert certificate(server) == ssl.PEM_cert_to_DER_cert(in_tls.cert.read_text())
    finally:
        server.stop()


def test_what_the_page_on_security_says_of_zookeeper_is_what_one_is_told_here(
    tmp_path: Path, in_tls: ZooKeeperTls
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (block,) = re.findall(r"```properties\n(secureClientPort=.*?)```", page, re.DOTALL)
    server = ZooKeeperServer(tmp_path, EnsembleMember(1, 1, 2, 3), tls=in_tls)
    said, told = (dict(line.split("=", 1) for line in lines) for lines in (block.splitlines(), server._client_port()))
    assert said.keys() == told.keys() - {"secureClientPortAddress"}
    own = {"secureClientPort", "ssl.keyStore.location", "ssl.trustStore.location"}
    assert {name: said[name] for name in said.keys() - own} == {name: told[name] for name in said.keys() - own}


def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    install = ZooKeeperInstall(find_zookeeper().java, str(tmp_path), "nowhere")
    server = ZooKeeperServer(tmp_path, EnsembleMember(1, *free_ports(3)), install=install)
    server.start()
    with pytest.raises(LsmqError, match="QuorumPeerMain"):
        server.wait_ready()

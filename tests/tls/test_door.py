"""Handshakes at a port: who does not finish one holds a place for a while; those that fail are counted and told of."""

from __future__ import annotations

import asyncio
import datetime
import errno
import http.client
import ipaddress
import os
import re
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lsmq import ConnectionFailed, InvalidRequest, sync
from lsmq.client import Client
from lsmq_coordinator import private_files
from lsmq_coordinator.authority import Authority
from lsmq_coordinator.errors import TlsUnusable
from lsmq_coordinator.tls import Certificates, TlsFiles
from lsmq_node import connections
from lsmq_node.connections import Doorkeeper, Limits
from lsmq_node.listening import listening_socket
from support.extent import part_of
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true, eventually

HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


async def test_who_does_not_finish_a_handshake_holds_a_place_until_his_time_is_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections.HANDSHAKE_TIMEOUT_S == 10.0
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT_S", 0.5)
    with listening_socket("127.0.0.1", 0, "--port") as listener:
        certificates = Certificates(TlsFiles(*authority.issue("door", HOSTS)))
        keeper = Doorkeeper(listener, asyncio.Protocol, Limits(2, 2), certificates)
        keeper.start()
        silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
        await comes_true(lambda: keeper.count == 2, "both have their places")
        refused, writer = await asyncio.open_connection(*listener.getsockname())
        assert await refused.read() == b"" and keeper.refused == 1
        await comes_true(lambda: keeper.count == 0, "their places are free")
        await comes_true(lambda: keeper.handshake_failures == 2, "both are counted")
        for _, each in (*silent, (refused, writer)):
            each.close()
        keeper.close()


def test_handshakes_that_fail_are_counted_and_each_reason_is_told_once(
    make_node: Callable[..., NodeProcess], authority: Authority
) -> None:
    cert, key = authority.issue("counting", HOSTS)
    node = make_node(tls_cert=cert, tls_key=key).start()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while plain.recv(4_096):
                pass

    def failures() -> bytes:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", node.port, timeout=PATIENCE_S, context=ssl.create_default_context(cafile=authority.cert)
        )
        connection.request("GET", "/metrics")
        found = re.search(rb"^lsmq_handshake_failures_total (\S+)$", connection.getresponse().read(), re.MULTILINE)
        connection.close()
        assert found is not None
        return found[1]

    eventually(lambda: failures() == b"3.0", "all three are counted")
    assert node.log().count("it speaks plain HTTP") == 1


async def test_where_certificates_are_optional_a_wrong_one_is_refused(
    make_node: Callable[..., NodeProcess], authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("optional", HOSTS)
    node = make_node(tls_cert=cert, tls_key=key, tls_client_ca=authority.cert, tls_client_auth="optional").start()
    stranger, own = Authority.create(tmp_path / "stranger").issue("alice"), authority.issue("alice")
    for shown, is_taken in (((None, None), True), (own, True), (stranger, False)):
        async with Client(node.url, ca=authority.cert, cert=shown[0], cert_key=shown[1], deadline_ms=100) as client:
            if is_taken:
                assert await client.topics() == []
            else:
                with pytest.raises(ConnectionFailed, match="does not know the authority of this client's certificate"):
                    await client.topics()


def test_a_client_takes_all_of_it_from_the_environment(
    make_node: Callable[..., NodeProcess], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = authority.issue("environment", HOSTS)
    mine = authority.issue("alice")
    node = make_node(tls_cert=cert, tls_key=key, tls_client_ca=authority.cert).start()
    monkeypatch.setenv("LSMQ_CA", str(authority.cert))
    monkeypatch.setenv("LSMQ_CERT_KEY", str(mine[1]))
    with pytest.raises(InvalidRequest, match="no certificate: give cert"):
        sync.Client(node.url)
    monkeypatch.setenv("LSMQ_CERT", str(mine[0]))
    with sync.Client(node.url) as client:
        assert client.topics() == []


async def test_a_certificate_that_leads_to_its_authority_by_another_one_is_believed(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    """As authorities give them: the file has the certificate, and what leads to whom clients believe behind it."""
    root_key, between_key, own_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    root = certified("root", root_key, "root", root_key, authority=True)
    between = certified("between", between_key, "root", root_key, authority=True)
    own = certified("node", own_key, "between", between_key, authority=False)
    ca, cert, key = tmp_path / "ca.crt", tmp_path / "node.crt", tmp_path / "node.key"
    ca.write_bytes(root)
    cert.write_bytes(own + between)
    key.touch(mode=0o600)
    key.write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    node = make_node(tls_cert=cert, tls_key=key).start()
    async with Client(node.url, ca=ca) as client:
        assert await client.topics() == []


def certified(
    name: str, key: ec.EllipticCurvePrivateKey, by: str, with_key: ec.EllipticCurvePrivateKey, *, authority: bool
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, by))
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    day = datetime.timedelta(days=1)
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if not authority:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(with_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_files_that_come_as_a_link_to_others_are_seen_to_change(authority: Authority, tmp_path: Path) -> None:
    """As Kubernetes changes a secret: the files are links by way of a directory that is a link, which is replaced."""
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        for file, name in zip(authority.issue("linked", HOSTS), ("tls.crt", "tls.key"), strict=True):
            shutil.copy(file, tmp_path / version / name)
    (tmp_path / "now").symlink_to("first")
    files = [tmp_path / name for name in ("tls.crt", "tls.key")]
    for file in files:
        file.symlink_to(Path("now") / file.name)
    used = Certificates(TlsFiles(*files))
    assert not used.look()
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").rename(tmp_path / "now")
    assert used.look() and used.problem() is None and not used.look()


@pytest.mark.part(3)
def test_a_certificate_with_any_byte_changed_is_used_or_named_and_stops_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("damaged", HOSTS)
    content = x509.load_pem_x509_certificate(cert.read_bytes()).public_bytes(serialization.Encoding.DER)
    damaged, reasons = tmp_path / "damaged.crt", set()
    for at in part_of(range(len(content))):
        changed = content[:at] + bytes((content[at] ^ 0x55,)) + content[at + 1 :]
        damaged.write_text(ssl.DER_cert_to_PEM_cert(changed))
        try:
            Certificates(TlsFiles(damaged, key))
        except TlsUnusable as error:
            assert str(damaged) in error.message
            reasons.add(error.message)
    late = [at for at in reasons if "a damaged one: error parsing asn1" in at]
    assert late and len(late) < len(reasons), "some of it is found when extensions are read"


def test_a_changed_key_that_others_may_read_is_used_once_they_may_not(authority: Authority, tmp_path: Path) -> None:
    """What it says to do helps: the mode of a file is not what the file has."""
    cert, key = authority.issue("copied", HOSTS)
    used = Certificates(TlsFiles(cert, key))
    authority.issue("copied", HOSTS)
    key.chmod(0o644)
    assert not used.look() and not used.look()
    assert "chmod 600 it" in (used.problem() or "")
    key.chmod(0o600)
    assert used.look() and used.problem() is None and used.reloads == 1


def test_a_changed_certificate_that_cannot_be_opened_for_want_of_descriptors_is_used_later(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = authority.issue("wanting", HOSTS)
    used = Certificates(TlsFiles(cert, key))
    authority.issue("wanting", HOSTS)

    def no_descriptor(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_descriptor)
        assert not used.look()
    assert "Too many open files" in (used.problem() or "")
    assert used.look() and used.problem() is None


def test_a_pipe_where_a_certificate_was_holds_nobody_up(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("piped", HOSTS)
    used = Certificates(TlsFiles(cert, key))
    kept = cert.rename(tmp_path / "kept.crt")
    os.mkfifo(cert, 0o600)
    assert not used.look()
    problem = used.problem()
    assert problem is not None and f"{cert}: cannot be read: it is not a regular file" in problem
    with pytest.raises(InvalidRequest, match="not a regular file"):
        Client("https://127.0.0.1:1", ca=cert)
    cert.unlink()
    kept.rename(cert)
    used.look()
    assert used.problem() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root")
def test_of_roots_keys_a_group_may_read_one_where_the_node_is_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is mounted into containers."""
    key = tmp_path / "key"
    key.touch()
    for mode, is_root, found in (
        (0o640, False, None),
        (0o640, True, "640"),
        (0o644, False, "644"),
        (0o660, False, "660"),
    ):
        key.chmod(mode)
        with monkeypatch.context() as patch:
            patch.setattr(private_files.os, "geteuid", lambda is_root=is_root: 0 if is_root else 10_001)
            assert private_files.too_open(key) == found

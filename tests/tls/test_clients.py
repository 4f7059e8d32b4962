"""The port for clients under TLS: who is believed, who is let in, and certificates that change while it serves."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from lsmq import ConnectionFailed, Consumer, InvalidRequest, Producer, PushConsumer, TimedOut, sync
from lsmq._tls import ClientTls
from lsmq._transport import Transport
from lsmq.cli._root import root
from lsmq.client import Client
from lsmq_coordinator import authority as authority_module
from lsmq_coordinator.authority import Authority
from lsmq_coordinator.errors import TlsUnusable
from lsmq_coordinator.tls import Certificates, ClientAuth, TlsFiles
from lsmq_node.config import NodeConfig
from lsmq_node.settings import InvalidConfig
from support.node_process import NodeProcess, StartFailed
from support.waiting import PATIENCE_S, comes_true, eventually

HOSTS = ("127.0.0.1", "localhost")
#: Large enough that files of tables are read.
MESSAGES, BODY = 2_000, b"x" * 1_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that lets in who has a certificate, and who shows none: two nodes would show the same of most things."""
    cert, key = authority.issue("node", HOSTS)
    node = NodeProcess(
        tmp_path_factory.mktemp("secure") / "data",
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=authority.cert,
        tls_client_auth="optional",
        memtable_bytes=2 * 1024 * 1024,
        max_message_bytes=64 * 1024,
    )
    yield node.start()
    node.stop()


def ask(url: str, authority: Authority, *, name: str | None = None) -> Any:
    with urllib.request.urlopen(url, timeout=10, context=believing(authority, name)) as answer:
        return answer.read()


def believing(authority: Authority, name: str | None) -> ssl.SSLContext:
    """Whoever shows a certificate of the authority; ``name`` has one to show."""
    context = ssl.create_default_context(cafile=authority.cert)
    if name is not None:
        context.load_cert_chain(authority.directory / f"{name}.crt", authority.directory / f"{name}.key")
    return context


async def test_what_is_sent_is_read_again_from_memory_and_from_files(
    secure: NodeProcess, authority: Authority, topic_name: str
) -> None:
    assert secure.url.startswith("https://")
    async with Client(secure.url, ca=authority.cert) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name) as producer:
            for number in range(MESSAGES):
                await producer.send(BODY + str(number).encode(), queue=number % 4)
        routes = (await client.topic(topic_name)).routes
        assert all(route.leader is not None and route.leader.startswith("https://") for route in routes)
        found = 0
        async with Consumer(client, topic_name, start="earliest") as consumer:
            while found < MESSAGES:
                for message in await consumer.poll():
                    assert message.body.startswith(BODY)
                    found += 1
    text = ask(f"{secure.url}/metrics", authority).decode()
    assert 'lsmq_certificate_expiry_timestamp_seconds{port="clients"}' in text
    assert "lsmq_sendfile_bytes_total 0.0" in text, "what is encrypted cannot be sent from files"


@pytest.mark.parametrize("kind", [Consumer, PushConsumer])
async def test_a_client_that_is_closed_has_closed_its_connections(
    secure: NodeProcess, authority: Authority, topic_name: str, kind: type[Consumer] | type[PushConsumer]
) -> None:
    watched = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]
    before = len(watched)
    async with Client(secure.url, ca=authority.cert) as client:
        await client.create_topic(topic_name)
        for number in range(5):
            async with kind(client, topic_name, group=f"{topic_name}-{number}") as consumer:
                waiting = asyncio.create_task(consumer.poll())
                await comes_true(lambda: bool(consumer.assignment), "it reads")
                waiting.cancel()
    assert len(watched) == before, "the loop may end now: nothing is left for it to close"


@pytest.mark.part(2)
def test_the_blocking_client_and_the_command_line_speak_it(
    secure: NodeProcess, authority: Authority, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSMQ_CA", str(authority.cert))
    with sync.Client(secure.url) as client:
        client.create_topic(topic_name)
    command = [sys.executable, "-m", "lsmq", "topic", "list", "--json", "--url", secure.url]
    environment = {**os.environ, "LSMQ_CA": ""}
    run = subprocess.run(
        [*command, "--ca", str(authority.cert)], capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert run.returncode == 0 and topic_name in run.stdout, run.stderr
    refused = subprocess.run(
        [*command, "--timeout", "200ms"], capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert refused.returncode == 1 and "its certificate is not believed" in refused.stderr, refused.stderr


async def test_a_node_of_another_name_or_authority_is_not_believed(
    secure: NodeProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other")
    for url, ca in (
        (secure.url, other.cert),
        (secure.url.replace("127.0.0.1", "0.0.0.0"), authority.cert),
    ):
        async with Client(url, ca=ca, deadline_ms=100) as client:
            with pytest.raises(ConnectionFailed, match="not believed") as caught:
                await client.topics()
            assert caught.value.details["sent"] is False


async def test_http_to_the_port_and_https_to_a_plain_one_are_refused_in_words(
    secure: NodeProcess, shared_node: NodeProcess, authority: Authority
) -> None:
    async with Client(secure.url.replace("https", "http"), deadline_ms=100) as client:
        with pytest.raises(ConnectionFailed, match="does it speak TLS, at https"):
            await client.topics()
    eventually(lambda: "it speaks plain HTTP" in secure.log(), "the node says what came")
    async with Client(shared_node.url.replace("http", "https"), ca=authority.cert, deadline_ms=100) as client:
        with pytest.raises(ConnectionFailed, match="does not speak TLS"):
            await client.topics()


def test_a_container_finds_its_node_ready_under_tls(secure: NodeProcess) -> None:
    script = Path(__file__).parents[2] / "compose" / "image" / "ready.sh"
    files = {f"LSMQ_{name.upper()}": str(secure.settings[name]) for name in ("tls_cert", "tls_key")}
    environment = {**os.environ, **files, "LSMQ_PORT": str(secure.port)}
    asked = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (asked.returncode, asked.stdout) == (0, "/readyz: 200\n"), asked.stderr


def test_tls_before_1_3_is_refused(secure: NodeProcess, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", secure.port), timeout=10) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)version"),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_who_begins_no_handshake_holds_up_nobody_and_a_stop_least(
    make_node: Callable[..., NodeProcess], authority: Authority
) -> None:
    cert, key = authority.issue("slow", HOSTS)
    node = make_node(tls_cert=cert, tls_key=key).start()
    silent = [socket.create_connection(("127.0.0.1", node.port), timeout=10) for _ in range(8)]
    silent[0].sendall(b"\x16\x03\x01")  # The beginning of one, and no more.
    assert json.loads(ask(f"{node.url}/v1/topics", authority))["topics"] == []
    assert node.stop() == 0
    for connection in silent:
        connection.close()


async def test_where_a_certificate_is_asked_for_nobody_else_is_let_in(
    make_node: Callable[..., NodeProcess], authority: Authority
) -> None:
    cert, key = authority.issue("strict", HOSTS)
    mine = authority.issue("alice")
    node = make_node(tls_cert=cert, tls_key=key, tls_client_ca=authority.cert).start()
    async with Client(node.url, ca=authority.cert, deadline_ms=100) as client:
        with pytest.raises(ConnectionFailed, match="wants to see a certificate") as caught:
            await client.topics()
        assert caught.value.details["sent"] is False
    async with Client(node.url, ca=authority.cert, cert=mine[0], cert_key=mine[1]) as client:
        assert await client.topics() == []
    # Certificates change while it serves: first an unusable pair, which changes nothing, then another one.
    before = serial(cert)
    kept = key.read_bytes()
    held = http.client.HTTPSConnection(
        "127.0.0.1", node.port, timeout=PATIENCE_S, context=believing(authority, "alice")
    )
    assert warnings(held) == []
    authority.issue("strict", HOSTS)
    shown, written = cert.read_bytes(), key.read_bytes()
    key.write_bytes(kept)
    eventually(lambda: "is not the key of the certificate" in node.log(), "what is wrong is told")
    assert peer_of(node, authority, "alice") == before
    eventually(lambda: any("is not the key of the certificate" in each for each in warnings(held)), "/readyz says so")
    key.write_bytes(written)
    assert shown == cert.read_bytes()
    eventually(lambda: peer_of(node, authority, "alice") == serial(cert) != before, "the new one is shown")
    assert b'lsmq_certificate_reloads_total{port="clients"} 1.0' in ask(f"{node.url}/metrics", authority, name="alice")
    eventually(lambda: warnings(held) == [], "on the connection of before it is well again")
    held.close()


def warnings(held: http.client.HTTPSConnection) -> list[str]:
    """Of a node that is ready."""
    held.request("GET", "/readyz")
    answer = held.getresponse()
    found: list[str] = json.loads(answer.read()).get("warnings", [])
    assert answer.status == 200
    return found


async def test_a_client_that_is_closed_leaves_no_connection_to_a_node_that_says_no_goodbye(
    make_node: Callable[..., NodeProcess], authority: Authority
) -> None:
    cert, key = authority.issue("silent", HOSTS)
    node = make_node(tls_cert=cert, tls_key=key).start()
    transport = Transport(connect_timeout_ms=10_000, tls=ClientTls(authority.cert, None, None))
    address = f"{node.url}/v1/topics"
    assert (await transport.request("GET", address, timeout_s=PATIENCE_S)).status == 200
    os.kill(node.pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # one on the connection that there is, one on a new one, whose handshake is not answered
            with pytest.raises((TimedOut, ConnectionFailed)):
                await transport.request("GET", address, timeout_s=0.2)
        await transport.close()
        assert connections_to(node.port) == []
    finally:
        os.kill(node.pid, signal.SIGCONT)


def connections_to(port: int) -> list[str]:
    """The sockets of this process that are connected to a port."""
    own = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the directory
            own.add(str(each.readlink()))
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [line[2] for line in lines if line[2].endswith(f":{port:04X}") and f"socket:[{line[9]}]" in own]


def serial(cert: Path) -> int:
    return x509.load_pem_x509_certificate(cert.read_bytes()).serial_number


def peer_of(node: NodeProcess, authority: Authority, name: str) -> int:
    with (
        socket.create_connection(("127.0.0.1", node.port), timeout=10) as plain,
        believing(authority, name).wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        found = connection.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def test_a_certificate_that_expires_soon_is_a_warning_and_the_node_stays_ready(
    make_node: Callable[..., NodeProcess], authority: Authority
) -> None:
    cert, key = authority.issue("short", HOSTS, days=1)
    assert Certificates(TlsFiles(cert, key)).problem() is None, "a short life alone is nothing to warn of"
    late = Certificates(TlsFiles(cert, key))
    assert "expires soon" in (late.problem(late.expires_s - 3_600) or "")
    assert "has expired" in (late.problem(late.expires_s + 1) or "")


def test_an_authority_that_expires_soon_is_a_warning_until_another_one_is_there(tmp_path: Path) -> None:
    """Everything that it issued is refused with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority_module, "AUTHORITY_DAYS", 1)
        old = Authority.create(tmp_path / "old")
    files = TlsFiles(*old.issue("n1", HOSTS, days=100), old.cert)
    used, soon_s = Certificates(files), time.time() + 86_400 - 600
    assert used.problem() is None
    assert f"the authority in {old.cert} expires soon" in (used.problem(soon_s) or "")
    assert f"the authority in {old.cert} has expired" in (used.problem(soon_s + 3_600) or "")
    new = Authority.create(tmp_path / "new")
    with old.cert.open("ab") as bundle:
        bundle.write(new.cert.read_bytes())
    assert used.look() and "expires soon" in (used.problem(soon_s) or ""), "the certificate is still of the old one"
    for file, own in zip(new.issue("n1", HOSTS, days=100), (files.cert, files.key), strict=True):
        shutil.copy(file, own)
    assert used.look() and used.problem(soon_s) is None


def test_files_that_cannot_be_used_are_refused_by_name(
    make_node: Callable[..., NodeProcess], authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("wrong", HOSTS)
    _, foreign = authority.issue("foreign", HOSTS)
    open_key = tmp_path / "open.key"
    shutil.copy(key, open_key)
    open_key.chmod(0o640)
    empty = tmp_path / "empty.pem"
    empty.touch(mode=0o600)
    for files, words in (
        (TlsFiles(cert, open_key), "chmod 600"),
        (TlsFiles(cert, foreign), "is not the key of"),
        (TlsFiles(cert, tmp_path / "none"), "cannot be read"),
        (TlsFiles(empty, key), "no certificate in PEM"),
        (TlsFiles(cert, empty), "no certificate and key in PEM"),
        (TlsFiles(cert, key, empty, ClientAuth.REQUIRED), "no certificate of an authority"),
        (TlsFiles(cert, key, tmp_path / "none"), "cannot be read"),
    ):
        with pytest.raises(TlsUnusable, match=words):
            Certificates(files)
    with pytest.raises(StartFailed) as caught:
        make_node(tls_cert=cert, tls_key=open_key).start()
    assert "error: tls_unusable" in str(caught.value)
    for client in ({"ca": empty}, {"ca": tmp_path / "none"}, {"cert_key": key}, {"ca": authority.cert, "cert": empty}):
        with pytest.raises(InvalidRequest):
            Client("https://127.0.0.1:1", **client)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("locked", HOSTS)
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(TlsUnusable, match="encrypted"):
        Certificates(TlsFiles(cert, key))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_cert": "a"}, "tls_key is not"),
        ({"tls_key": "a"}, "tls_cert is not"),
        ({"tls_client_ca": "a"}, "set tls_cert"),
        ({"tls_cert": "a", "tls_key": "b", "tls_client_auth": "required"}, "set tls_client_ca"),
        ({"tls_cert": "a", "tls_key": "b", "advertised_url": "http://n1:7600"}, "begin with https://"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        NodeConfig.load(data="/nowhere", **settings)


def test_the_command_makes_an_authority_once_and_certificates_again_and_again(tmp_path: Path) -> None:
    def lsmq(*arguments: str, fails: str = "") -> None:
        run = CliRunner().invoke(root, ["tls", *arguments])
        assert (fails in str(run.exception)) if fails else run.exit_code == 0, (run.output, run.exception)

    directory = str(tmp_path / "tls")
    lsmq("issue", directory, "n1", fails="lsmq tls init")
    lsmq("init", directory)
    lsmq("init", directory, fails="already")
    lsmq("issue", directory, "n1", "--host", "localhost", "--host", "::1")
    assert (tmp_path / "tls" / "n1.key").stat().st_mode & 0o777 == 0o600
    before = serial(tmp_path / "tls" / "n1.crt")
    lsmq("issue", directory, "n1", "--host", "localhost")
    assert serial(tmp_path / "tls" / "n1.crt") != before
    lsmq("issue", directory, "ca", fails="is no name for a certificate")
    # Renewed without its names it keeps them: else a node that runs would show what nobody believes.
    lsmq("issue", directory, "n1", "--host", "n1.example", "--host", "10.0.0.1")
    named = names(tmp_path / "tls" / "n1.crt")
    lsmq("issue", directory, "n1")
    assert names(tmp_path / "tls" / "n1.crt") == named == ["n1.example", "10.0.0.1"]
    for host in ("", "n 1", "http://n1", "n1:7600", "münchen.example", "a" * 64, "n1..example", "-n1"):
        lsmq("issue", directory, "n2", "--host", host, fails="is no name of a host")
    lsmq("issue", directory, "n2", "--host", "*.example", "--host", "[::1]")


def names(cert: Path) -> list[str]:
    found = x509.load_pem_x509_certificate(cert.read_bytes()).extensions
    return [str(name.value) for name in found.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_a_certificate_that_nobody_would_believe_does_not_take_the_place_of_one_in_use(authority: Authority) -> None:
    cert, key = authority.issue("used", HOSTS)
    used = Certificates(TlsFiles(cert, key))
    for name, words, days in (
        ("client", "is good for clients alone", 0),
        ("over", "has expired already", 2),
        ("early", "is not good before", -2),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if days < 0:  # The clock of the authority's machine is ahead.
                patch.setattr(authority_module, "_EARLIER", datetime.timedelta(days=days))
            other, other_key = authority.issue(name, HOSTS if days else (), days=4 if days < 0 else 1)
        shutil.copy(other_key, key)
        shutil.copy(other, cert)
        with pytest.MonkeyPatch.context() as patch:
            if days > 0:
                patch.setattr("lsmq.runtime.wall_time", lambda: time.time() + 2 * 86_400)
            assert not used.look()
            assert words in (used.problem() or "")
    assert "is not good before" in (Certificates(TlsFiles(cert, key)).problem() or ""), "nor where there is no other"
    assert used.reloads == 0
    authority.issue("used", HOSTS)
    assert used.look() and used.problem() is None

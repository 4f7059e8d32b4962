"""Behind proxies: which address a request is from, and that nobody else can say so."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.trusted_proxies import TrustedProxies
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Answer, Api

PROXY, INNER, STRANGER = "127.0.4.1", "127.0.4.9", "127.0.5.1"


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("10.0.9.7", [], "10.0.9.7"),
        ("10.0.9.7", ["8.8.8.8"], "8.8.8.8"),
        ("10.0.9.7", ["1.1.1.1, 8.8.8.8"], "8.8.8.8"),  # 1.1.1.1 is what the client wrote
        ("10.0.9.7", ["1.1.1.1", "8.8.8.8"], "8.8.8.8"),
        ("10.0.9.7", ["8.8.8.8, 10.0.9.200"], "8.8.8.8"),  # by two proxies
        ("10.0.9.7", ["8.8.8.8, 10.1.0.1"], "10.1.0.1"),  # the second is not one of ours
        ("10.0.9.7", ["10.0.9.3"], "10.0.9.3"),  # asked by a proxy for itself
        ("9.9.9.9", ["8.8.8.8"], "9.9.9.9"),
        ("10.0.9.7", ["8.8.8.8:1234"], "8.8.8.8"),
        ("10.0.9.7", ["2001:db8::7"], "2001:db8::7"),
        ("10.0.9.7", ["[2001:db8::7]:1234"], "2001:db8::7"),
        ("10.0.9.7", ["::ffff:8.8.8.8"], "8.8.8.8"),
        ("::ffff:10.0.9.7", ["8.8.8.8"], "8.8.8.8"),
        ("fd00::1", ["8.8.8.8"], "8.8.8.8"),
        ("10.0.9.7", ["unknown"], "10.0.9.7"),
        ("10.0.9.7", ["8.8.8.8, secret"], "10.0.9.7"),
        ("10.0.9.7", ["8.8.8.8, "], "10.0.9.7"),
        ("10.0.9.7", ["8.8.8.8, x, 10.0.9.8"], "10.0.9.8"),
    ],
)
def test_the_client_is_the_last_that_is_no_proxy(peer: str, said: list[str], client: str) -> None:
    assert TrustedProxies("10.0.9.0/24, fd00::1").client(peer, said) == client


def test_nobody_is_believed_unless_it_is_said() -> None:
    assert not TrustedProxies("") and TrustedProxies("").client("127.0.0.1", ["8.8.8.8"]) == "127.0.0.1"
    for wrong, says in (
        ("proxy.example", "no address and no network"),
        ("10.0.9.7/24", "no address and no network"),
        ("*", "no address"),
        ("10.0.0.1,0.0.0.0/0", "which is everybody"),
        ("::/0", "which is everybody"),
    ):
        with pytest.raises(InvalidConfig, match=says) as caught:
            NodeConfig(data=Path("unused"), trusted_proxies=wrong).validate()
        assert caught.value.details["setting"] == "trusted_proxies"


def test_behind_a_proxy_on_its_own_machine_an_address_has_its_share() -> None:
    assert NodeConfig(data=Path("unused")).share_of(100) == 100
    assert NodeConfig(data=Path("unused"), trusted_proxies="127.0.0.1").share_of(100) == 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(
        tmp_path_factory.mktemp("proxies") / "data",
        address_share_percent=1,
        max_topics=200,
        max_connections=1_000,
        trusted_proxies=f"{PROXY}, {INNER}/32",
        auth="token",
    )
    node.start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    yield node
    node.stop()


def make(node: NodeProcess, source: str, topic: str, *said: str) -> Answer:
    token = (node.data / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    if said:
        headers["X-Forwarded-For"] = ", ".join(said)
    return Api(node.url, source).call("PUT", f"/v1/topics/{topic}", {"queues": 1}, headers=headers)


def test_what_comes_by_a_proxy_counts_for_whom_it_comes_from_and_is_noted_so(node: NodeProcess) -> None:
    for client in ("8.8.8.8", "8.8.4.4"):
        for number in range(2):
            assert make(node, PROXY, f"{client}-{number}", client).status == 201
        assert make(node, PROXY, f"{client}-2", client).code == "too_many_topics"
    assert make(node, PROXY, "forged", "1.1.1.1", "8.8.8.8").code == "too_many_topics", "its last word counts"
    assert make(node, PROXY, "by-two", "8.8.8.8", INNER).code == "too_many_topics"
    for number in range(2):
        assert make(node, STRANGER, f"own-{number}", f"9.9.9.{number}").status == 201
    assert make(node, STRANGER, "own-2", "9.9.9.9").code == "too_many_topics", "a stranger is not believed"

    def noted() -> set[str]:
        if not (node.data / "audit.jsonl").exists():
            return set()
        lines = [json.loads(line) for line in (node.data / "audit.jsonl").read_text().splitlines()]
        return {line["remote"] for line in lines if line["operation"] == "createTopic"}

    eventually(lambda: noted() == {"8.8.8.8", "8.8.4.4", STRANGER}, "the audit log has the clients")


def test_a_proxy_may_have_more_connections_than_the_share_of_an_address(node: NodeProcess) -> None:
    def answered(source: str) -> bytes:
        connection = opened.enter_context(
            socket.create_connection((Api(node.url).host, Api(node.url).port), source_address=(source, 0))
        )
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(64).split(b"\r\n")[0]

    with ExitStack() as opened:
        assert {answered(PROXY) for _ in range(40)} == {b"HTTP/1.1 200 OK"}
        assert {answered(STRANGER) for _ in range(40)} == {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable"}


def test_whatever_is_asked_by_a_proxy_is_answered_as_to_others(node: NodeProcess) -> None:
    token = (node.data / "admin.token").read_text().strip()
    own = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "8.8.1.1"}
    proxy = Api(node.url, PROXY)
    proxy.call("PUT", "/v1/topics/asked", {"queues": 1}, headers=own, status=201)
    body = json.dumps({"messages": [{"body": "x" * 100_000, "queue": 0}]}).encode()
    parts = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
    path = "/v1/topics/asked/messages"
    proxy.call("POST", path, body=iter(parts), headers=own, chunked=True, status=200)
    proxy.call("POST", path, body=gzip.compress(body), headers={**own, "Content-Encoding": "gzip"}, status=200)
    read = "/v1/topics/asked/queues/0/messages"
    assert len(proxy.get(f"{read}?offset=0&wait_ms=1000", headers=own).json()["messages"]) == 2
    assert proxy.call("HEAD", "/v1/topics/asked", headers=own, status=200).body == b""
    assert proxy.get("/v1/nowhere", 404, headers=own).code == "unknown_path"
    assert proxy.call("PATCH", "/healthz", headers=own).status == 405
    refused = proxy.get("/v1/topics", 403, headers={**own, "Origin": "https://evil.example"})
    assert refused.code == "origin_not_allowed"
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=PATIENCE_S, source_address=(PROXY, 0))
    try:
        path = "/v1/groups/g/push?topic=asked&mode=broadcast"
        connection.request("GET", path, headers={**own, "Accept": "text/event-stream"})
        answer = connection.getresponse()
        assert answer.status == 200
        while b"x" * 100 not in answer.readline():
            pass  # Until the message comes.
        (stream,) = proxy.get("/v1/groups/g/streams", headers=own).json()["streams"]
        assert stream
    finally:
        connection.close()
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=PATIENCE_S, source_address=(PROXY, 0))
    try:
        headers = {**own, "Expect": "100-continue", "Content-Length": str(len(body))}
        connection.request("POST", "/v1/topics/asked/messages", headers=headers)
        connection.sock.sendall(body)
        assert connection.getresponse().status == 200
    finally:
        connection.close()

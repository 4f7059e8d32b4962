"""Limits of sizes and numbers: what is just inside passes, what is outside is refused by name."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api, pack, text

MIB = 1024 * 1024


def test_90_kb_pass_and_come_back(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    body = "0123456789" * 9_000
    api.send(topic_name, {"body": body})
    assert api.bodies(topic_name, 0) == [body]


def test_a_message_at_the_limit_passes_and_one_byte_more_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, {"body": "x" * MIB})
    refused = api.send(topic_name, {"body": "y"}, {"body": "x" * (MIB + 1)}, status=413)
    assert refused.code == "message_too_large"
    assert "messages[1] has a body of 1048577 bytes, the limit is 1048576" in refused.error["message"]
    assert refused.error["limit"] == MIB
    assert api.send_batch(topic_name, pack((0, b"x" * (MIB + 1))), 413).code == "message_too_large"
    assert len(api.bodies(topic_name, 0)) == 1


def test_key_and_properties_count_as_part_of_the_message(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    assert api.send(topic_name, {"body": "x" * MIB, "key": "k"}, status=413).code == "message_too_large"


def test_a_topic_may_have_a_lower_limit(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1, max_message_bytes=10)
    api.send(topic_name, {"body": "x" * 10})
    assert api.send(topic_name, {"body_b64": text(b"x" * 11)}, status=413).error["limit"] == 10


def test_10000_messages_pass_and_one_more_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    messages = [{"body": "x"}] * 10_000
    assert len(api.send(topic_name, *messages).json()["results"]) == 10_000
    refused = api.send(topic_name, *messages, {"body": "x"}, status=413)
    assert refused.code == "too_many_messages"
    assert refused.error["limit"] == 10_000 and refused.error["count"] == 10_001
    assert len(api.all_bodies(topic_name, 0)) == 10_000


def test_an_oversized_request_is_refused_unread(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    path = f"/v1/topics/{topic_name}/messages"
    with socket.create_connection((api.host, api.port), timeout=20) as connection:
        # The body never comes: the answer does all the same.
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {8 * MIB + 1}\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer and b"max_request_bytes" in answer


def test_an_oversized_request_without_a_length_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)

    def pieces() -> Iterator[bytes]:
        for _ in range(9):
            yield b" " * MIB

    headers = {"Transfer-Encoding": "chunked"}
    path = f"/v1/topics/{topic_name}/messages"
    answer = api.call("POST", path, body=pieces(), headers=headers, status=413, chunked=True)
    assert answer.code == "request_too_large"


def test_a_request_of_many_bytes_in_chunks_is_taken(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    pieces = iter([b'{"messages":', b'[{"body":"', b"x" * 500_000, b'"}]}'])
    headers = {"Transfer-Encoding": "chunked"}
    path = f"/v1/topics/{topic_name}/messages"
    api.call("POST", path, body=pieces, headers=headers, status=200, chunked=True)
    assert len(api.bodies(topic_name, 0)[0]) == 500_000


def test_a_body_that_does_not_come_is_given_up(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(body_timeout_ms=200).start().url)
    api.create("t", 1)
    with socket.create_connection((api.host, api.port), timeout=20) as connection:
        head = "POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408") and b"request_timeout" in answer and b"body_timeout_ms" in answer
    assert api.metric("lsmq_inflight_bytes") == 0


def sender(api: Api, announced: int, sent: bytes) -> socket.socket:
    """A connection with a request that announces so many bytes and sends these."""
    connection = socket.create_connection((api.host, api.port), timeout=20)
    head = f"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {announced}\r\n\r\n"
    connection.sendall(head.encode() + sent)
    return connection


def test_requests_beyond_the_memory_limit_are_refused_for_now(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(max_inflight_bytes=8 * MIB, address_share_percent=100).start().url)
    api.create("t", 1)
    with sender(api, 8_000_000, bytes(7_900_000)):
        eventually(lambda: api.metric("lsmq_inflight_bytes") == 7_900_000, "the slow request holds what has come")
        refused = api.send("t", {"body": "x" * 500_000}, status=503)
        assert refused.code == "unavailable" and refused.error["retriable"]
        assert "max_inflight_bytes" in refused.error["message"]
        assert refused.headers["Retry-After"] == "1"
        api.send("t", {"body": "small ones still fit"})
    eventually(lambda: api.metric("lsmq_inflight_bytes") == 0, "the memory is given back")
    api.send("t", {"body": "x" * 500_000})


def test_what_is_announced_and_not_sent_takes_no_memory_from_others(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(max_inflight_bytes=8 * MIB).start().url)
    api.create("t", 1)
    idle = [sender(api, 8_000_000, b"{") for _ in range(32)]
    try:
        eventually(lambda: api.metric("lsmq_inflight_bytes") == 32, "each holds the byte that came")
        api.send("t", {"body": "x" * 500_000})
    finally:
        for connection in idle:
            connection.close()


def test_one_address_may_hold_its_share_and_leaves_the_rest_to_others(make_node: Callable[..., NodeProcess]) -> None:
    limits = {"max_request_bytes": 2 * MIB, "max_response_bytes": 2 * MIB, "max_inflight_bytes": 8 * MIB}
    api = Api(make_node(**limits, address_share_percent=25).start().url)
    api.create("t", 1)
    with sender(api, 2_000_000, bytes(1_900_000)):
        eventually(lambda: api.metric("lsmq_inflight_bytes") == 1_900_000, "the slow request holds what has come")
        refused = api.send("t", {"body": "x" * 500_000}, status=503)
        assert "address_share_percent" in refused.error["message"]
        other = http.client.HTTPConnection(api.host, api.port, source_address=("127.0.0.2", 0), timeout=20)
        other.request("POST", "/v1/topics/t/messages", json.dumps({"messages": [{"body": "x" * 500_000}]}))
        assert other.getresponse().status == 200
        other.close()


def test_memory_in_flight_is_given_back_after_every_kind_of_answer(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            pool.submit(api.send, topic_name, {"body": "x" * 100_000, "queue": 0})
            pool.submit(api.send, topic_name, {"body": ""}, status=400)
            pool.submit(api.read, topic_name, 0, None)
            pool.submit(api.read, topic_name, 1, wait_ms=50)
            pool.submit(api.fetch, topic_name, {0: 0, 1: 0})
    assert api.metric("lsmq_inflight_bytes") == 0


def test_limits_follow_the_configuration(make_node: Callable[..., NodeProcess]) -> None:
    limits = {
        "max_messages_per_request": 2,
        "max_message_bytes": 5,
        "max_queues_per_topic": 3,
        "max_wait_ms": 10,
    }
    api = Api(make_node(**limits).start().url)
    api.create("t", 3)
    assert api.call("PUT", "/v1/topics/u", {"queues": 4}, status=400).code == "invalid_request"
    assert api.send("t", *[{"body": "x"}] * 3, status=413).code == "too_many_messages"
    assert api.send("t", {"body": "123456"}, status=413).code == "message_too_large"
    assert "limit is 10" in api.read("t", 0, 400, wait_ms=11).error["message"]
    assert "limit is 2" in api.read("t", 0, 400, max=3).error["message"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/v1/topics/a/b/c"])
def test_a_path_that_is_not_there_is_404(api: Api, path: str) -> None:
    assert "openapi.json" in api.get(path, 404).error["message"]


def test_a_wrong_method_is_405_and_names_the_right_ones(api: Api) -> None:
    answer = api.call("POST", "/v1/topics/t", {}, status=405)
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, PATCH, PUT"
    assert "possible: DELETE, GET, HEAD, PATCH, PUT" in answer.error["message"]

"""Stopping on a signal: held polls are answered, writes in flight finish, exit code 0, nothing is lost."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api, pack


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.part(2)
def test_a_signal_ends_an_idle_node_with_0(make_node: Callable[..., NodeProcess], number: signal.Signals) -> None:
    # Whoever runs the suite may have it outlive a terminal: then its children ignore SIGHUP.
    node = make_node().start(prefix=("env", "--default-signal=HUP"))
    node.signal(number)
    assert node.wait() == 0
    assert "Traceback" not in node.log()


@pytest.mark.part(2)
def test_a_node_that_is_to_outlive_its_terminal_does(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start(prefix=("nohup",))
    node.signal(signal.SIGHUP)
    assert Api(node.url).get("/readyz").status == 200
    assert node.stop() == 0


def test_held_polls_are_answered_at_once(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(shutdown_grace_ms=600_000).start()  # longer than anybody waits for its end
    api = Api(node.url)
    api.create("t", 10)
    with ThreadPoolExecutor(4) as pool:
        one = [pool.submit(api.read, "t", queue, wait_ms=60_000) for queue in range(2)]
        many = [pool.submit(api.fetch, "t", {1: 0, 5: 0}, wait_ms=60_000) for _ in range(2)]
        eventually(lambda: api.status()["waiters"] == 4, "all polls are held")
        assert node.stop() == 0
        assert all(poll.result().json()["messages"] == [] for poll in one)
        assert all(poll.result().body == b"" for poll in many)


def test_writes_in_flight_finish_and_are_there_afterwards(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 8)
    acknowledged: list[list[str]] = [[] for _ in range(8)]
    under_way = threading.Barrier(9)

    def write(queue: int) -> str:
        for number in range(100_000):
            try:
                answer = api.send("t", {"queue": queue, "body": str(number)}, status=None)
            except (OSError, http.client.HTTPException):
                return "connection"
            if answer.status == 503:
                assert answer.code == "shutting_down" and answer.error["retriable"]
                return "refused"
            assert answer.status == 200
            acknowledged[queue].append(str(number))
            if number == 10:
                under_way.wait()
        return "never"

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, queue) for queue in range(8)]
        under_way.wait()
        assert node.stop() == 0
        assert all(writer.result() in ("connection", "refused") for writer in writers)
    assert "Traceback" not in node.log()
    node.start()
    for queue in range(8):
        stored = api.all_bodies("t", queue)
        assert stored[: len(acknowledged[queue])] == acknowledged[queue]


def test_callers_who_stall_do_not_hold_up_the_end(make_node: Callable[..., NodeProcess]) -> None:
    patience = {"body_timeout_ms": 3_600_000, "answer_timeout_ms": 3_600_000}
    node = make_node(shutdown_grace_ms=2000, memtable_bytes=4 * 1024 * 1024, **patience).start()
    api = Api(node.url)
    api.create("t", 1)
    body = b"x" * 10_000
    for _ in range(20):
        api.send_batch("t", pack(*[(0, body)] * 100))
    eventually(lambda: api.metric("lsmq_store_flushes_total") >= 2, "memtables were flushed")
    query = b'{"queues": [0], "offsets": [0]}'
    with ExitStack() as stalled:
        requests = [
            # One never reads its answer of 8 MiB, one never sends the rest of its body.
            b"POST /v1/topics/t/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(query) + query,
            b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        ]
        for request in requests:
            connection = stalled.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((api.host, api.port))
            connection.sendall(request)
        eventually(lambda: api.metric("lsmq_inflight_bytes") >= 100, "both requests are under way")
        assert node.stop() == 0
    assert "Traceback" not in node.log()


def test_a_second_start_on_the_same_data_goes_on_where_it_was(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    for number in range(3):
        assert api.send("t", {"body": str(number)}).json()["results"][0]["offset"] == number
        node.restart()
    assert api.all_bodies("t", 0) == ["0", "1", "2"]

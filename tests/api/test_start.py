"""Starting: what keeps a node from it is said in one line, with the remedy, and exit code 1."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.mounts import tmpfs
from support.node_process import NodeProcess, StartFailed
from support.waiting import eventually

from .calls import Api

NodeMaker = Callable[..., NodeProcess]


def failure(node: NodeProcess, code: int = 1) -> str:
    """The one line a node that cannot start ends with."""
    with pytest.raises(StartFailed) as raised:
        node.start()
    assert raised.value.code == code
    lines = [line for line in node.log().splitlines() if line.startswith("error:")]
    assert len(lines) == 1, node.log()
    assert "Traceback" not in node.log()
    return lines[0]


def test_a_data_directory_in_use_names_the_process(node: NodeProcess, make_node: NodeMaker) -> None:
    line = failure(make_node(node.data))
    assert line.startswith("error: data_directory_locked:")
    assert f"process {node.pid}" in line
    assert Api(node.url).get("/healthz").status == 200


def test_a_directory_is_free_again_after_a_kill(node: NodeProcess, make_node: NodeMaker) -> None:
    node.kill9()
    other = make_node(node.data).start()
    assert Api(other.url).get("/readyz").status == 200


def test_a_read_only_file_system_is_refused(tmp_path: Path, make_node: NodeMaker) -> None:
    with tmpfs(tmp_path / "mount", "ro,size=1m"):
        line = failure(make_node(tmp_path / "mount" / "data"))
    assert line.startswith("error: data_directory_unusable:")
    assert str(tmp_path / "mount" / "data") in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path, make_node: NodeMaker) -> None:
    tmp_path.chmod(0o555)
    try:
        line = failure(make_node(tmp_path / "data"))
    finally:
        tmp_path.chmod(0o755)
    assert line.startswith("error: data_directory_unusable:")


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path, make_node: NodeMaker) -> None:
    (tmp_path / "file").write_text("not a directory")
    line = failure(make_node(tmp_path / "file" / "data"))
    assert line.startswith("error: data_directory_unusable:")


def test_a_port_in_use_names_it_and_the_remedy(node: NodeProcess, make_node: NodeMaker) -> None:
    other = make_node()
    other.port = node.port
    line = failure(other)
    assert line.startswith("error: address_in_use:")
    assert str(node.port) in line and "--port" in line
    assert not other.data.exists()


def test_a_node_that_others_reach_asks_who_they_are_or_is_told_not_to(make_node: NodeMaker) -> None:
    for host in ("0.0.0.0", "::"):
        node = make_node(host=host)
        line = failure(node)
        assert line.startswith("error: invalid_config:") and "auth" in line and "--insecure" in line
        assert not node.data.exists()
    node = make_node(host="0.0.0.0", auth="token").start()
    assert "insecure" not in node.log().replace("insecure=False", "")
    node.stop()
    node = make_node(host="0.0.0.0").start(options=("--auth",))
    assert "auth='token'" in node.log() or "auth=token" in node.log()
    node.stop()
    node = make_node(host="0.0.0.0", insecure=True).start()
    assert "insecure" in node.log() and "whoever reaches this address" in node.log()


def test_a_host_that_is_not_ours_is_refused(make_node: NodeMaker) -> None:
    line = failure(make_node(host="192.0.2.1", insecure=True))
    assert line.startswith("error: address_in_use:") and "192.0.2.1" in line


def test_a_newer_format_is_refused_with_what_to_do(node: NodeProcess) -> None:
    node.stop()
    (node.data / "node.json").write_text('{"format": 5, "shards": 1}')
    line = failure(node)
    assert line.startswith("error: unsupported_format:")
    assert "upgrade" in line


def test_a_damaged_node_file_is_named(node: NodeProcess) -> None:
    node.stop()
    (node.data / "node.json").write_text("{")
    line = failure(node)
    assert line.startswith("error: corrupt_file:") and "node.json" in line


def test_another_number_of_shards_is_refused(node: NodeProcess) -> None:
    node.stop()
    node.settings["shards"] = 2
    line = failure(node)
    assert "shards is 2" in line and "made with 1" in line


def test_a_wrong_setting_is_wrong_usage(make_node: NodeMaker) -> None:
    node = make_node(memtable_bytes="many")
    with pytest.raises(StartFailed) as raised:
        node.start()
    assert raised.value.code == 2
    assert "environment LSMQ_MEMTABLE_BYTES: memtable_bytes: 'many' is not a size; write a number" in node.log()


#: A header that is longer than any may be.
LONG = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 10_000 + b"\r\n\r\n"


def test_who_does_not_speak_http_is_a_line_in_the_log_and_no_traceback(make_node: NodeMaker) -> None:
    node = make_node(log_format="json").start()
    for garbage in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", LONG):
        with socket.create_connection(("127.0.0.1", node.port), 10) as connection:
            connection.sendall(garbage)
            head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
            assert b" 400 " in head and b"application/json" in head
            assert json.loads(body)["error"]["code"] == "invalid_request"
    assert node.stop() == 0
    assert node.log().count('"event": "request_is_not_http"') >= 1
    assert "Traceback" not in node.log()


def test_a_client_that_does_not_take_its_answer_is_no_error_of_the_node(make_node: NodeMaker) -> None:
    node = make_node(log_format="json", answer_timeout_ms=100).start()
    api = Api(node.url)
    api.create("t", 1)
    for _ in range(7):
        api.send("t", {"queue": 0, "body": "x" * 1_000_000})
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", node.port))
        connection.sendall(b"GET /v1/topics/t/queues/0/messages?offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        metric = 'lsmq_http_requests_total{operation="readMessages",status="499"}'
        eventually(lambda: metric in api.get("/metrics").body.decode(), "it is given up")
    assert node.stop() == 0
    assert "Traceback" not in node.log() and '"level": "error"' not in node.log()


def test_settings_that_are_not_the_default_are_logged_and_all_can_be_asked_for(make_node: NodeMaker) -> None:
    node = make_node(log_format="json", max_waiters=123).start()
    assert '"max_waiters": 123' in node.log() and '"flush_mode"' not in node.log()
    told = Api(node.url).get("/v1/status").json()["config"]
    assert (told["max_waiters"], told["flush_mode"]) == (123, "sync")


def test_what_a_node_writes_is_readable_by_its_own_user_alone(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("private")
    api.send("private", {"body": "for no other eyes"})
    written = [node.data, *node.data.rglob("*")]
    assert any(path.suffix == ".wal" for path in written)
    assert [str(path) for path in written if path.stat().st_mode & 0o077 and path != node.data] == []

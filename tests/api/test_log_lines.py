"""The log of a node whose standard error takes nothing any more: lines are lost, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lsmq_node.api.logs import LogStream
from lsmq_node.processes.ports import free_block
from support.node_process import READY, STOP_TIMEOUT_S, TEST_SETTINGS
from support.waiting import eventually

from .calls import Api


@contextmanager
def _node(data: Path, stderr: int, stdout: int = subprocess.PIPE, *options: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("LSMQ_")}
    environment |= {f"LSMQ_{name.upper()}": str(value) for name, value in TEST_SETTINGS.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "lsmq", "serve", "--data", str(data), *options],
        env=environment,
        stdout=stdout,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str]) -> Api:
    assert process.stdout is not None
    match = READY.search(process.stdout.readline())
    assert match is not None
    return Api(match[1])


def _answers(api: Api) -> bool:
    try:
        return api.call("GET", "/readyz").status == 200
    except ConnectionError:
        return False


def _lost(api: Api) -> float:
    found = text_string_to_metric_families(api.call("GET", "/metrics", status=200).body.decode())
    return next(s.value for family in found for s in family.samples if s.name == "lsmq_log_lines_lost_total")


def _use(api: Api) -> None:
    """Much of it is worth a line."""
    api.call("PUT", "/v1/topics/orders", {"queues": 4}, status=201)
    messages = [{"queue": number % 4, "body": "order"} for number in range(8)]
    api.call("POST", "/v1/topics/orders/messages", {"messages": messages}, status=200)
    popped = api.call("POST", "/v1/groups/workers/pop", {"topic": "orders", "max": 8}, status=200).json()
    assert popped["messages"]
    api.call("POST", "/v1/groups/readers/heartbeat", {"member": "one", "topics": ["orders"]}, status=200)
    api.call("DELETE", "/v1/topics/orders", status=204)
    assert _answers(api)


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two"])
@pytest.mark.part(2)
def test_a_node_goes_on_when_nobody_reads_its_log(tmp_path: Path, options: tuple[str, ...]) -> None:
    """As with ``lsmq serve 2>&1 | tee node.log``, and tee is gone."""
    reads, writes = os.pipe()
    port = free_block("127.0.0.1", 30)
    with _node(tmp_path / "data", writes, subprocess.PIPE, "--port", str(port), *options) as process:
        os.close(writes)
        api = _ready(process)
        os.close(reads)
        _use(api)
        process.terminate()
        assert process.wait(STOP_TIMEOUT_S) == 0


def test_a_node_starts_and_serves_where_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    """Its ready line goes there as well."""
    port = free_block("127.0.0.1", 1)
    api = Api(f"http://127.0.0.1:{port}")
    with (
        open("/dev/full", "w") as full,
        _node(tmp_path / "data", full.fileno(), full.fileno(), "--port", str(port)) as process,
    ):
        eventually(lambda: _answers(api) or process.poll() is not None, "the node serves")
        _use(api)
        assert _lost(api) > 0


def _stream(writes: int) -> LogStream:
    return LogStream(writes, lambda lines: f"{lines} lines were lost")


def _fill(writes: int) -> int:
    """As if somebody wrote much that is not read; how many bytes."""
    os.set_blocking(writes, False)
    count = 0
    try:
        while True:
            count += os.write(writes, b"." * 4096)
    except BlockingIOError:
        return count
    finally:
        os.set_blocking(writes, True)


@pytest.fixture
def pipe() -> Iterator[tuple[Any, int]]:
    reads, writes = os.pipe()
    with open(reads, "rb", buffering=0) as reader:
        yield reader, writes
        os.close(writes)


def test_a_reader_that_reads_no_more_holds_nobody_up_and_hears_how_much_it_missed(pipe: tuple[Any, int]) -> None:
    reader, writes = pipe
    stream, filled = _stream(writes), _fill(writes)
    for number in range(3):
        stream.write(f"lost {number}\n")
    assert stream.lost == 3
    while filled:
        filled -= len(reader.read(filled))
    stream.write("heard\n")
    stream.write("too\n")
    assert reader.read(4096) == b"3 lines were lost\nheard\ntoo\n"
    assert stream.lost == 3


def test_a_line_that_was_torn_does_not_run_into_the_next(pipe: tuple[Any, int]) -> None:
    reader, writes = pipe
    stream = _stream(writes)
    long = "x" * (_fill(writes) + 10_000) + "\n"
    reader.read(8192)  # Room for two pieces of it.
    stream.write(long)
    assert stream.lost == 1
    os.set_blocking(reader.fileno(), False)
    while reader.read(65_536):
        pass
    stream.write("next\n")
    assert reader.read(4096) == b"\n1 lines were lost\nnext\n"


def test_what_is_no_text_is_written_all_the_same(pipe: tuple[Any, int]) -> None:
    reader, writes = pipe
    stream = _stream(writes)
    stream.write("half a pair: \ud800\n")
    assert reader.read(100) == b"half a pair: \\ud800\n"
    assert stream.lost == 0

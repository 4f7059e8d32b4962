"""The command: real processes against a real node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lsmq import Client, sync
from lsmq.cli import main
from lsmq.errors import CorruptFile
from lsmq.producer_groups import ProducerGroup
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import PATIENCE_S, clock_passes

Run = Callable[..., subprocess.CompletedProcess[bytes]]
LSMQ = [sys.executable, "-m", "lsmq"]


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "LSMQ_URL": url, "NO_COLOR": "1", "PYTHONWARNINGS": "error"}


@pytest.fixture
def lsmq(shared_node: NodeProcess) -> Run:
    """Run ``lsmq`` with arguments; checks its exit code, 0 unless told otherwise."""

    def run(*arguments: str | Path, stdin: bytes = b"", code: int = 0, **env: str) -> Any:
        ran = run_python("-m", "lsmq", *arguments, input=stdin, env={**environment(shared_node.url), **env})
        assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
        return ran

    return run


@pytest.fixture
def topic(lsmq: Run, topic_name: str) -> str:
    lsmq("topic", "create", topic_name, "--queues", "4")
    return topic_name


def json_lines(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_topics_are_created_listed_described_and_deleted(lsmq: Run, topic_name: str) -> None:
    made = json.loads(lsmq("topic", "create", topic_name, "--queues", "7", "--retention", "7d", "--json").stdout)
    assert (made["queues"], made["options"]["retention_ms"]) == (7, 7 * 86_400_000)
    lsmq("topic", "create", topic_name, "--queues", "7", "--retention", "7d")
    assert b"error: topic_exists: " in lsmq("topic", "create", topic_name, code=1).stderr
    again = lsmq("topic", "create", topic_name, "--queues", "7", "--retention", "7d", "--new", code=1)
    assert b"error: topic_exists: " in again.stderr
    assert topic_name in [found["name"] for found in json.loads(lsmq("topic", "list", "--json").stdout)]
    assert topic_name.encode() in lsmq("topic", "list").stdout
    lsmq("produce", topic_name, "--queue", "3", stdin=b"x\ny\n")
    described = json.loads(lsmq("topic", "describe", topic_name, "--offsets", "--json").stdout)
    assert (described["messages"], described["offsets"]) == (2, [{"queue": 3, "earliest": 0, "latest": 2}])
    assert b"messages     2" in lsmq("topic", "describe", topic_name, "--offsets").stdout
    for answer in (b"n\n", b""):
        assert (
            b"not confirmed, nothing was done; --yes"
            in lsmq("topic", "delete", topic_name, stdin=answer, code=1).stderr
        )
    lsmq("topic", "delete", topic_name, "--yes")
    assert b"error: unknown_topic: " in lsmq("topic", "delete", topic_name, "--yes", code=1).stderr
    lsmq("topic", "delete", topic_name, "--yes", "--missing-ok")


def test_lines_go_in_and_come_out(lsmq: Run, topic: str) -> None:
    sent = lsmq("produce", topic, "--key", "k", "--tag", "t", stdin=b"one\n\ntwo\r\n\xff last")
    assert b"3 messages" in sent.stderr and b"1 empty lines skipped" in sent.stderr
    assert lsmq("consume", topic).stdout == b"one\ntwo\r\n\xff last\n"
    first, *_ = json_lines(lsmq("consume", topic, "--format", "json").stdout)
    assert (first["key"], first["tag"], first["body"], first["offset"]) == ("k", "t", "one", 0)
    assert lsmq("consume", topic, "--format", "raw", "--max", "2").stdout == b"onetwo\r"
    shown = lsmq("consume", topic, "--format", r"%t/%o/%k/%g/%b%%\n", "--max", "1").stdout
    assert shown == f"{topic}/0/k/t/one%\n".encode()


def test_files_go_in_as_lines_or_whole(lsmq: Run, topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\nb\n")
    second.write_bytes(b"\x00\n\xff" * 100)
    lsmq("produce", topic, first, first, "--queue", "0")
    lsmq("produce", topic, "--file", first, second, "--queue", "1", "--compress")
    assert lsmq("consume", topic, "--queue", "0").stdout == b"a\nb\n" * 2
    found = json_lines(lsmq("consume", topic, "--queue", "1", "--format", "json").stdout)
    assert found[0]["body"] == "a\nb\n" and "body_b64" in found[1]
    got = lsmq("message", "get", found[1]["id"], "--format", "raw").stdout
    assert got == second.read_bytes()


def test_json_lines_carry_every_field(lsmq: Run, topic: str) -> None:
    lines = [
        {"body": "plain"},
        {"body": {"pizzas": [1, 2]}, "key": "table 7", "tag": "order", "properties": {"a": "b"}},
        {"body_b64": "/wA=", "queue": 2, "priority": 3, "subpriority": 200, "expires_at_ms": 1_900_000_000_000},
    ]
    stdin = "\n".join(json.dumps(line) for line in lines).encode()
    sent = json_lines(lsmq("produce", topic, "--json-lines", "--receipts", stdin=stdin).stdout)
    found = [json.loads(lsmq("message", "get", place["id"], "--json").stdout) for place in sent]
    assert found[0]["body"] == "plain"
    assert json.loads(found[1]["body"]) == {"pizzas": [1, 2]}
    assert (found[1]["key"], found[1]["tag"], found[1]["properties"]) == ("table 7", "order", {"a": "b"})
    assert (found[2]["body_b64"], found[2]["queue"], found[2]["priority"]) == ("/wA=", 2, 3)
    assert (found[2]["subpriority"], found[2]["expires_ms"]) == (200, 1_900_000_000_000)
    again = lsmq("consume", topic, "--format", "json").stdout
    assert {message["id"] for message in json_lines(again)} == {place["id"] for place in sent}
    lsmq("produce", topic, "--expires-at", "2030-01-01T00:00", "--key", "until", stdin=b"x")
    (until,) = json_lines(lsmq("message", "find", topic, "--key", "until", "--json").stdout)
    assert until["expires_ms"] == int(datetime(2030, 1, 1).timestamp() * 1000)


def test_messages_are_found_by_key_newest_first(lsmq: Run, topic: str) -> None:
    lines = [{"body": f"{number}", "key": "table 7", "queue": number % 4} for number in range(8)]
    for line in lines:
        lsmq("produce", topic, "--json-lines", stdin=json.dumps(line).encode())
    found = lsmq("message", "find", topic, "--key", "table 7", "--format", "%b\\n").stdout
    assert found.split() == [b"%d" % number for number in reversed(range(8))]
    explained = lsmq("message", "find", topic, "--key", "table 7", "--limit", "3", "--json", "--explain")
    assert [message["body"] for message in json_lines(explained.stdout)] == ["7", "6", "5"]
    assert b"blocks" in explained.stderr
    assert lsmq("message", "find", topic, "--key", "table 7", "--to", "-1h").stdout == b""
    one = lsmq("message", "find", topic, "--key", "table 7", "--from", "-1h", "--queue", "2").stdout
    assert len(one.splitlines()) == 2
    assert b"--filter" in lsmq("message", "find", topic, code=2).stderr
    assert len(lsmq("message", "find", topic, "--from", "-1h", "--limit", "5", "--format", "%b\\n").stdout.split()) == 5
    assert lsmq("message", "find", topic, "--to", "-1h").stdout == b""
    condition = ("--filter", "key = 'table 7'", "--format", "%b\\n")
    assert lsmq("message", "find", topic, *condition).stdout.split() == b"0 4 1 5 2 6 3 7".split()
    assert lsmq("message", "find", topic, *condition, "--limit", "3", "--queue", "2").stdout.split() == b"2 6".split()
    assert b"looked_at 8" in lsmq("message", "find", topic, *condition, "--explain").stderr
    assert lsmq("message", "latest", topic, "table 7").stdout == b"7\n"
    assert lsmq("message", "latest", topic, "table 8", code=1).stderr.startswith(b"error: unknown_message: ")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", b"standard input, line 2: not JSON"),
        (b"[]", b"must be an object"),
        (b"{}", b"either body or body_b64"),
        (b'{"body": "x", "colour": 1}', b"unknown field 'colour'"),
        (b'{"delete": true}', b"line 2: a message with delete says that its key is gone, and it has no key"),
        (b'{"body_b64": "?"}', b"not base64"),
        (b"[" * 100_000, b"standard input, line 2: not JSON"),
        (rb'{"body": "\ud800"}', b"line 2: body holds half of a surrogate pair"),
        (rb'{"body": ["\ud800"]}', b"line 2: body holds half of a surrogate pair"),
        (rb'{"body": "x", "properties": {"a": "\ud800"}}', b"line 2: key, tag, a property"),
        (rb'{"body": "x", "headers": [{"name": "\ud800", "value": "x"}]}', b"line 2: key, tag, a property"),
        (rb'{"body": "x", "headers": [{"name": "x", "value": "\ud800"}]}', b"line 2: value holds half"),
        (b'{"body": "x", "headers": 7}', b"line 2: headers must be"),
        (b'{"body": "x", "queue": 99}', b"line 2: topic"),
        (b'{"body": "x", "queue": true}', b"queue a number"),
        (b'{"body": "x", "priority": 256}', b"priority must be a number from 0 to 255"),
        (b'{"body": "x", "subpriority": 256}', b"subpriority must be a number from 0 to 255"),
        (b'{"body": "x", "expires_at_ms": 1700000000000}', b"line 2: expires_at_ms is 1700000000000"),
        (b'{"body": "x", "key": 7}', b"key and tag must be text"),
        (b'{"body": "x", "properties": {"a": 1}}', b"properties must be"),
    ],
)
def test_a_bad_json_line_is_named_and_what_came_before_is_stored(
    lsmq: Run, topic: str, line: bytes, complaint: bytes
) -> None:
    failed = lsmq("produce", topic, "--json-lines", stdin=b'{"body": "good"}\n' + line + b"\n", code=1)
    assert complaint in failed.stderr and b"Traceback" not in failed.stderr
    assert lsmq("consume", topic).stdout == b"good\n"


def test_keys_are_split_from_lines(lsmq: Run, topic: str) -> None:
    lsmq("produce", topic, "--key-separator", ":", stdin=b"a:1:x\nb:2\nnone\na:3\n")
    found = json_lines(lsmq("consume", topic, "--format", "json").stdout)
    assert {(m["key"], m["body"]) for m in found} == {("a", "1:x"), ("b", "2"), (None, "none"), ("a", "3")}
    assert len({m["queue"] for m in found if m["key"] == "a"}) == 1


def test_consume_starts_where_it_is_told(lsmq: Run, topic: str) -> None:
    lsmq("produce", topic, "--queue", "1", stdin=b"old 0\nold 1\n")
    stored_ms = json_lines(lsmq("consume", topic, "--format", "json").stdout)[-1]["stored_ms"]
    moment = datetime.fromtimestamp((stored_ms + 1) / 1000).isoformat(timespec="milliseconds")
    clock_passes(stored_ms)
    lsmq("produce", topic, "--queue", "1", stdin=b"new 2\nnew 3\n")
    assert lsmq("consume", topic, "--queue", "1", "--offset", "3").stdout == b"new 3\n"
    assert lsmq("consume", topic, "--offset", "latest").stdout == b""
    assert lsmq("consume", topic, "--from-time", moment).stdout == b"new 2\nnew 3\n"
    assert lsmq("consume", topic, "--from-time", "-1h").stdout.count(b"\n") == 4
    assert lsmq("consume", topic, "--queue", "0,2-3").stdout == b""
    beyond = lsmq("consume", topic, "--queue", "1", "--offset", "9", code=1)
    assert b"error: offset_out_of_range: " in beyond.stderr and b"offsets 0 to 4" in beyond.stderr
    assert b"error: unknown_queue: " in lsmq("consume", topic, "--queue", "4", code=1).stderr


def test_a_group_is_told_each_message_once(lsmq: Run, topic: str) -> None:
    group = f"{topic}-group"
    lsmq("produce", topic, stdin=b"1\n2\n3\n4\n5\n")
    assert lsmq("consume", topic, "--group", group, "--max", "2").stdout == b"1\n2\n"
    assert lsmq("consume", topic, "--group", group).stdout == b"3\n4\n5\n"
    assert lsmq("consume", topic, "--group", group).stdout == b""
    lsmq("produce", topic, "--queue", "3", stdin=b"6\n")
    assert b"error: unknown_queue: " in lsmq("produce", topic, "--queue", "4", stdin=b"", code=1).stderr
    assert group in [row["group"] for row in json.loads(lsmq("group", "list", "--json").stdout)]
    rows = json.loads(lsmq("group", "offsets", group, "--json").stdout)
    assert sum(row["committed"] for row in rows) == 5
    assert b"lag" in lsmq("group", "offsets", group, "--topic", topic).stdout


def test_following_prints_what_comes_and_ends_well_on_ctrl_c(shared_node: NodeProcess, lsmq: Run, topic: str) -> None:
    follower = subprocess.Popen(
        [*LSMQ, "consume", topic, "--follow", "--group", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(shared_node.url),
    )
    assert follower.stdout is not None
    for line in (b"one\n", b"two\n"):
        lsmq("produce", topic, stdin=line)
        assert follower.stdout.readline() == line
    follower.send_signal(signal.SIGINT)
    _, complaints = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, complaints) == (0, b"")
    assert lsmq("consume", topic, "--group", topic).stdout == b""


def test_produce_ends_well_on_ctrl_c_while_it_waits_for_input(shared_node: NodeProcess, topic: str) -> None:
    producer = subprocess.Popen(
        [*LSMQ, "produce", topic, "--receipts"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(shared_node.url),
    )
    assert producer.stdin is not None and producer.stdout is not None
    producer.stdin.write(b"one\n")
    producer.stdin.flush()
    assert b'"offset": 0' in producer.stdout.readline()  # A line is sent when it comes, not at the end.
    producer.send_signal(signal.SIGINT)
    _, complaints = producer.communicate(timeout=PATIENCE_S)
    assert (producer.returncode, complaints.strip()) == (1, b"interrupted")


def test_a_reader_that_has_had_enough_is_no_error(shared_node: NodeProcess, lsmq: Run, topic: str) -> None:
    lsmq("produce", topic, stdin=b"a line of some length\n" * 50_000)
    reader = subprocess.Popen(
        [*LSMQ, "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(shared_node.url),
    )
    assert reader.stdout is not None and reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert (reader.stderr.read(), reader.wait(PATIENCE_S)) == (b"", 0)
    reader.stderr.close()


def test_status_describes_the_node(lsmq: Run) -> None:
    found = json.loads(lsmq("status", "--json").stdout)
    assert found["uptime_s"] > 0 and len(found["shards"]) == 1
    assert b"shard 0" in lsmq("status", "--verbose").stdout
    assert b"records written" in lsmq("status").stdout


async def test_a_lost_answer_is_not_a_doubled_line(shared_node: NodeProcess, lsmq: Run, topic: str) -> None:
    async with FaultProxy(shared_node.url) as proxy:
        proxy.lose_answers("batches", times=2)
        await asyncio.to_thread(lsmq, "produce", topic, "--url", proxy.url, stdin=b"once\n")
        assert proxy.requests["batches"] == 3
    assert lsmq("consume", topic).stdout == b"once\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["frobnicate"], b"No such command"),
        (["consume"], b"Missing argument"),
        (["consume", "t", "--offset", "soon"], b"not an offset"),
        (["consume", "t", "--offset", "1", "--from-time", "-1m"], b"give one"),
        (["consume", "t", "--from-time", "yesterday"], b"not a time"),
        (["consume", "t", "--format", "yaml"], b"json, raw or a template"),
        (["consume", "t", "--format", "%z"], b"%z"),
        (["produce", "t", "--file"], b"names of files"),
        (["produce", "t", "--json-lines", "--key-separator", ":"], b"leave out"),
        (["produce", "t", "--key-separator", ""], b"is empty"),
        (["produce", "t", "--ttl", "1h", "--expires-at", "2030-01-01"], b"give one of the two"),
        (["produce", "t", "/no/such/file"], b"does not exist"),
        (["topic", "create", "t", "--queues", "0"], b"--queues"),
        (["topic", "create", "t", "--retention", "7"], b"not a length of time"),
        (["topic", "create", "t", "--retention-bytes", "many"], b"not a size"),
        (["topic", "list", "--url", "ftp://x"], b"not the URL of a node"),
        (["serve", "--port", "99999", "--data", "/tmp/never"], b"port"),
        (["serve"], b"no data directory"),
        (["dump", "wal", "/no/such/file"], b"does not exist"),
        (["bench", "no-such-bench"], b"no-such-bench"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_what_to_do(lsmq: Run, arguments: list[str], complaint: bytes) -> None:
    ran = lsmq(*arguments, code=2)
    assert complaint in ran.stderr and ran.stdout == b"" and b"Traceback" not in ran.stderr


def test_failures_are_exit_code_1_with_code_and_message(lsmq: Run) -> None:
    unreachable = lsmq("topic", "list", "--url", "http://127.0.0.1:9", "--timeout", "200ms", code=1)
    assert unreachable.stderr.startswith(b"error: connection_failed: ") and b"127.0.0.1:9" in unreachable.stderr
    assert b"--url or LSMQ_URL says where; lsmq serve starts one" in unreachable.stderr
    for command in (["consume", "no-such-topic"], ["topic", "describe", "no-such-topic"]):
        assert lsmq(*command, code=1).stderr.startswith(b"error: unknown_topic: ")
    assert lsmq("message", "get", "nonsense", code=1).stderr.startswith(b"error: unknown_message: ")


@pytest.mark.part(2)
def test_a_terminal_gets_a_progress_bar_and_a_pipe_does_not(
    shared_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"a line\n" * 100_000)
    shown, _ = at_a_terminal(shared_node.url, "produce", topic, tmp_path / "lines")
    assert b"sending" in shown and b"100000 messages" in shown


@pytest.mark.part(3)
def test_consuming_shows_how_far_it_is_on_a_terminal_and_prints_messages_elsewhere(
    shared_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(30_000))
    (tmp_path / "lines").write_bytes(lines)
    at_a_terminal(shared_node.url, "produce", topic, tmp_path / "lines", "--queue", "0")
    shown, printed = at_a_terminal(shared_node.url, "consume", topic)
    assert b"reading" in shown and b"/30000" in shown and b"line 7" not in shown
    assert printed == lines
    shown, printed = at_a_terminal(shared_node.url, "consume", topic, "--max", "20000")
    assert b"/20000" in shown and printed.count(b"\n") == 20_000


def test_who_looks_through_dead_letters_sees_how_far_it_is(shared_node: NodeProcess, topic: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(f"{topic}.dlq", queues=2)
        with sync.Producer(client, f"{topic}.dlq") as producer:
            producer.send_many(f"letter {number}" for number in range(700)).wait()
    shown, printed = at_a_terminal(shared_node.url, "dlq", "list", topic, "--group", "nobody")
    assert b"dead letters read" in shown and b"700/?" in shown
    assert f"no dead letters in {topic}.dlq".encode() in shown and not printed


@pytest.mark.part(3)
def test_who_looks_for_messages_sees_how_far_that_is(shared_node: NodeProcess, topic: str) -> None:
    with sync.Client(shared_node.url) as client, sync.Producer(client, topic) as producer:
        producer.send_many((f"message {number}" for number in range(140_000)), queue=0).wait()
    shown, printed = at_a_terminal(shared_node.url, "message", "find", topic, "--filter", "priority = 7")
    assert b"messages looked at" in shown and b"131072/?" in shown and b"shard" not in shown and not printed


def at_a_terminal(url: str, *arguments: str | Path) -> tuple[bytes, bytes]:
    """What ``lsmq`` shows on a terminal, which is its standard error alone, and what it prints."""
    terminal, end = pty.openpty()
    with tempfile.TemporaryFile() as printed:
        command = subprocess.Popen(
            [*LSMQ, *map(str, arguments)], stderr=end, stdout=printed, env={**environment(url), "TERM": "xterm"}
        )
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # A terminal ends with EIO.
            while block := os.read(terminal, 4096):
                shown += block
        os.close(terminal)
        assert command.wait(60) == 0, shown
        printed.seek(0)
        return shown, printed.read()


DUMPED: dict[str, list[dict[str, Any]]] = {
    "wal": [{"lsn": 0, "kind": "records", "bytes": 90}, {"lsn": 90, "kind": "offsets", "bytes": 12}],
    "sstable": [{"format": 1, "entries": 2}, {"block": 0, "position": 0}, {"block": 1, "position": 4096}],
    "manifest": [{"edit": 0, "added": [1, 2], "removed": []}],
}


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A dumper of the node that is played, so that what is tested is how its entries are shown."""
    calls: list[tuple[Any, ...]] = []

    def dumper(name: str) -> Callable[..., Iterator[dict[str, Any]]]:
        def dump(path: Path, *options: Any) -> Iterator[dict[str, Any]]:
            calls.append((name, path, *options))
            yield from DUMPED[name]
            if path.name == "damaged":
                raise CorruptFile("damaged: block 7 does not match its checksum", file="damaged", position=7)

        return dump

    played = ModuleType("lsmq_node.storage.dump")
    for name in DUMPED:
        setattr(played, f"dump_{name}", dumper(name))
    monkeypatch.setitem(sys.modules, "lsmq_node.storage.dump", played)
    return calls


@pytest.mark.parametrize("kind", DUMPED)
def test_dumps_are_tables_or_json_lines(
    kind: str, dumps: list[tuple[Any, ...]], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["dump", kind, str(file), *arguments])
        assert ended.value.code == 0
    table, _, lines = capfdbinary.readouterr().out.partition(b"{")
    assert json_lines(b"{" + lines) == DUMPED[kind]
    for entry in DUMPED[kind]:
        assert all(name.encode() in table and str(value).encode() in table for name, value in entry.items())
    assert dumps[0] == ((kind, file, False) if kind == "sstable" else (kind, file))


def test_damage_in_a_dumped_file_is_told_after_what_could_be_read(
    dumps: list[tuple[Any, ...]], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "damaged").write_bytes(b"")
    with pytest.raises(SystemExit) as ended:
        main(["dump", "sstable", "--records", "--json", str(tmp_path / "damaged")])
    captured = capfdbinary.readouterr()
    assert ended.value.code == 1
    assert json_lines(captured.out) == DUMPED["sstable"]
    assert captured.err == b"error: corrupt_file: damaged: block 7 does not match its checksum\n"
    assert dumps[0][2] is True


def test_benches_are_listed_and_each_has_options_of_its_own(lsmq: Run) -> None:
    listed = lsmq("bench").stdout.decode().splitlines()
    names = [line.split()[0] for line in listed]
    assert "store" in names and all(len(line.split()) > 3 for line in listed)
    assert b"--quick" in lsmq("bench", "store", "--help").stdout
    assert b"No such option" in lsmq("bench", "store", "--nonsense", code=2).stderr


def test_every_command_has_help_worth_reading(lsmq: Run) -> None:
    top = lsmq("--help").stdout
    for command in (
        "serve",
        "topic",
        "produce",
        "consume",
        "message",
        "group",
        "status",
        "dump",
        "repair",
        "bench",
        "completion",
    ):
        assert f"  {command} ".encode() in top
        assert len(lsmq(command, "--help").stdout) > 200, command
    assert lsmq("--version").stdout.startswith(b"lsmq")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(lsmq: Run, shell: str) -> None:
    script = lsmq("completion", shell).stdout
    assert b"To have this always" in script.splitlines()[0] and b"_LSMQ_COMPLETE" in script


def test_topic_names_are_completed_from_the_node(lsmq: Run, topic: str) -> None:
    words = {"_LSMQ_COMPLETE": "bash_complete", "COMP_WORDS": f"lsmq consume {topic[:20]}", "COMP_CWORD": "2"}
    assert f"plain,{topic}".encode() in lsmq(**words).stdout.splitlines()
    nowhere = {**words, "LSMQ_URL": "http://127.0.0.1:9"}
    assert lsmq(**nowhere).stdout.strip() == b""


@pytest.mark.parametrize("command", ["serve", "bench"])
def test_without_the_node_installed_a_command_of_it_says_what_to_install(command: str, tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ModuleNotFoundError('No numpy', name='numpy')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    arguments = ["--data", str(tmp_path / "data")] if command == "serve" else []
    environ = {**os.environ, "PYTHONPATH": path}
    failed = subprocess.run([*LSMQ, command, *arguments], capture_output=True, env=environ, timeout=PATIENCE_S)
    assert failed.returncode == 1
    assert failed.stderr.startswith(b"error: node_not_installed: ") and b'pip install "lsmq[node]"' in failed.stderr


def test_transactions_are_listed_described_and_decided(lsmq: Run, topic: str, shared_node: NodeProcess) -> None:
    async def begin() -> list[str]:
        async with Client(shared_node.url) as client:
            group = ProducerGroup(client, topic)
            await group.heartbeat("m", join=True, session_ms=300_000)
            message = {"topic": topic, "body": "x"}
            return [(await group.begin("m", number, [message], reference="r")).id for number in (1, 2)]

    first, second = asyncio.run(begin())
    listed = json.loads(lsmq("transaction", "list", "--group", topic, "--json").stdout)
    assert [found["transaction"] for found in listed] == [first, second]
    assert first.encode() in lsmq("transaction", "list").stdout
    (group,) = (
        found for found in json.loads(lsmq("transaction", "groups", "--json").stdout) if found["group"] == topic
    )
    assert (group["members"], group["unfinished"]) == (1, 2)
    assert topic.encode() in lsmq("transaction", "groups").stdout
    shown = lsmq("transaction", "describe", topic, first).stdout
    assert b"state        open" in shown and b"reference    r" in shown
    lsmq("transaction", "commit", topic, first, stdin=b"n\n", code=1)
    lsmq("transaction", "commit", topic, first, "--yes")
    assert lsmq("consume", topic).stdout == b"x\n"
    done = json.loads(lsmq("transaction", "rollback", topic, second, "--yes", "--json").stdout)
    assert (done["state"], done["decided_by"]) == ("rolled_back", "operator")
    refused = lsmq("transaction", "commit", topic, second, "--yes", code=1)
    assert b"error: transaction_decided: " in refused.stderr
    lsmq("transaction", "end", topic, "m", "--yes")
    unknown = lsmq("transaction", "end", topic, "m", "--yes", code=1)  # Or somebody who was misspelt.
    assert b"error: unknown_producer_member: " in unknown.stderr
    assert b"error: unknown_transaction: " in lsmq("transaction", "describe", topic, "none-1", code=1).stderr

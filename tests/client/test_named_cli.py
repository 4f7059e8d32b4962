"""The command line and queues with names: real processes against a real node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import lsmq.sync as lsmq_sync
from lsmq import GroupHasMembers, LsmqError
from lsmq.cli import root
from support.node_process import NodeProcess
from support.python_process import run_python


class Ran(NamedTuple):
    stdout: bytes
    stderr: bytes


Run = Callable[..., Ran]


@pytest.fixture
def lsmq(shared_node: NodeProcess) -> Run:
    """Run ``lsmq``: in a process of its own where it reads the real standard input."""

    def run(*arguments: str, stdin: str = "", code: int = 0) -> Ran:
        if stdin:
            env = {**os.environ, "NO_COLOR": "1", "PYTHONWARNINGS": "error"}
            command = ("-m", "lsmq", *arguments, "--url", shared_node.url)
            ran = run_python(*command, input=stdin.encode(), env=env)
            assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
            return Ran(ran.stdout, ran.stderr)
        result = CliRunner().invoke(root, [*arguments, "--url", shared_node.url])
        failure = f"{result.exception.code}: {result.exception}" if isinstance(result.exception, LsmqError) else ""
        assert (1 if failure else result.exit_code) == code, (result.output, result.exception)
        return Ran(result.stdout_bytes, result.stderr_bytes + failure.encode())

    return run


@pytest.fixture
def topic(lsmq: Run, topic_name: str) -> str:
    made = lsmq("topic", "create", topic_name, "--queues", "named").stdout
    assert made == f"topic {topic_name}: queues with names\n".encode()
    return topic_name


def rows(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_what_is_sent_by_name_is_read_by_name_and_by_pattern(lsmq: Run, topic: str) -> None:
    receipts = rows(lsmq("produce", topic, "--queue", "agents.7.inbox", "--receipts", stdin="a\nb\n").stdout)
    assert [(one["queue"], one["offset"]) for one in receipts] == [("agents.7.inbox", 0), ("agents.7.inbox", 1)]
    mixed = '{"queue": "42", "body": "c"}\n{"queue": "agents.8.inbox", "body": "d"}\n'
    lsmq("produce", topic, "--json-lines", stdin=mixed)
    assert lsmq("consume", topic, "--queue", "42").stdout == b"c\n"
    assert lsmq("consume", topic, "--queue", "agents.7.inbox", "--offset", "1").stdout == b"b\n"
    assert lsmq("consume", topic, "--queue", "42", "--queue", "no.such").stdout == b"c\n"
    assert lsmq("consume", topic, "--pattern", "42", "--from-time", "-1h").stdout == b"c\n"
    assert lsmq("consume", topic, "--pattern", "**", "--from-time", "2100-01-01").stdout == b""
    found = rows(lsmq("consume", topic, "--pattern", "agents.*.inbox", "--json").stdout)
    assert sorted((one["queue"], one["body"]) for one in found) == [
        ("agents.7.inbox", "a"),
        ("agents.7.inbox", "b"),
        ("agents.8.inbox", "d"),
    ]
    assert sorted(lsmq("consume", topic, "--format", "%q %o\\n").stdout.splitlines()) == [
        b"42 0",
        b"agents.7.inbox 0",
        b"agents.7.inbox 1",
        b"agents.8.inbox 0",
    ]
    assert b"names none" in lsmq("produce", topic, stdin="x\n", code=1).stderr
    assert b"say which of them" in lsmq("consume", topic, "--offset", "1", code=2).stderr


def test_queues_are_listed_by_a_pattern(lsmq: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq.cli.queue._PAGE", 7)
    names = sorted(f"{kind}.{number}.{end}" for kind in "ab" for number in range(20) for end in ("inbox", "log"))
    lsmq("queue", "declare", topic, *names)
    wanted = [name for name in names if name.startswith("b.") and name.endswith(".inbox")]

    def listed(*arguments: str) -> list[str]:
        return [one["name"] for one in json.loads(lsmq("queue", "list", topic, "--json", *arguments).stdout)]

    assert listed("--pattern", "b.*.inbox") == wanted
    assert listed("--pattern", "b.*.inbox", "--limit", "3", "--after", wanted[4]) == wanted[5:8]
    assert listed("--pattern", "*.3.**") == ["a.3.inbox", "a.3.log", "b.3.inbox", "b.3.log"]
    assert "give one" in lsmq("queue", "list", topic, "--prefix", "a", "--pattern", "a.*", code=2).stderr.decode()


def test_a_queue_that_is_not_there_is_said(lsmq: Run, topic: str) -> None:
    said = lsmq("consume", topic, "--queue", "agents.*.inbox")
    assert said.stdout == b""
    assert f"topic {topic} has no queue 'agents.*.inbox' now; --pattern 'agents.*.inbox' reads" in said.stderr.decode()


def test_a_group_prints_what_it_has_not_printed_and_is_set_back(lsmq: Run, topic: str) -> None:
    for name in ("a", "b"):
        lsmq("produce", topic, "--queue", name, stdin=f"{name}0\n{name}1\n")
    assert sorted(lsmq("consume", topic, "--group", topic).stdout.split()) == [b"a0", b"a1", b"b0", b"b1"]
    assert lsmq("consume", topic, "--group", topic).stdout == b""
    lsmq("produce", topic, "--queue", "c", stdin="c0\n")
    assert lsmq("consume", topic, "--group", topic).stdout == b"c0\n"
    (lag,) = json.loads(lsmq("group", "describe", topic, "--json").stdout)["lag"]
    assert (lag["queues"], lag["lag"], lag["uncommitted"]) == (3, 0, 0)
    offsets = json.loads(lsmq("group", "offsets", topic, "--topic", topic, "--json").stdout)
    assert sorted((row["queue"], row["committed"]) for row in offsets) == [("a", 2), ("b", 2), ("c", 1)]
    lsmq("group", "reset", topic, "--topic", topic, "--queue", "b", "--to-offset", "1", "--yes")
    assert lsmq("consume", topic, "--group", topic).stdout == b"b1\n"
    moves = json.loads(lsmq("group", "reset", topic, "--topic", topic, "--to-earliest", "--dry-run", "--json").stdout)
    assert sorted((move["queue"], move["to"]) for move in moves) == [("a", 0), ("b", 0), ("c", 0)]
    wrong = lsmq("group", "reset", topic, "--topic", topic, "--queues", "0-3", "--to-earliest", code=2)
    assert b"have names" in wrong.stderr


def test_members_print_their_share_of_a_pattern(lsmq: Run, topic: str) -> None:
    member = ("consume", topic, "--group", topic, "--pattern", "*.in")
    for name in ("a.in", "b.in", "a.log"):
        lsmq("produce", topic, "--queue", name, stdin=f"{name}0\n{name}1\n")
    assert sorted(lsmq(*member, "--static-id", "one").stdout.split()) == [b"a.in0", b"a.in1", b"b.in0", b"b.in1"]
    lsmq("produce", topic, "--queue", "c.in", stdin="c\n")
    lsmq("produce", topic, "--queue", "c.log", stdin="c\n")
    assert f"reads           *.in of {topic}" in lsmq("group", "describe", topic).stdout.decode()
    described = json.loads(lsmq("group", "describe", topic, "--json").stdout)
    assert described["patterns"] == {topic: "*.in"}
    assert [(lag["queues"], lag["lag"], lag["uncommitted"]) for lag in described["lag"]] == [(3, 1, 1)]
    refused = lsmq("consume", topic, "--group", topic, code=1).stderr
    assert b"group_pattern_mismatch" in refused and b"end these first, or use another group" in refused
    assert lsmq(*member, "--static-id", "one").stdout == b"c\n"
    offsets = json.loads(lsmq("group", "offsets", topic, "--topic", topic, "--json").stdout)
    assert sorted((row["queue"], row["committed"]) for row in offsets) == [("a.in", 2), ("b.in", 2), ("c.in", 1)]
    moves = lsmq("group", "reset", topic, "--topic", topic, "--to-earliest", "--dry-run", "--json").stdout
    assert sorted(move["queue"] for move in json.loads(moves)) == ["a.in", "b.in", "c.in"]
    assert b"begins where it left off" in lsmq(*member, "--from-time", "-1h", code=2).stderr


def test_queues_are_listed_described_declared_trimmed_and_deleted(lsmq: Run, topic: str) -> None:
    lsmq("queue", "declare", topic, "empty", "b.2")
    lsmq("produce", topic, "--queue", "b.1", stdin="x\ny\n")
    listed = json.loads(lsmq("queue", "list", topic, "--json").stdout)
    assert [(one["name"], one["latest"], one["count"]) for one in listed] == [
        ("b.1", 2, 2),
        ("b.2", 0, 0),
        ("empty", 0, 0),
    ]
    some = lsmq("queue", "list", topic, "--prefix", "b.", "--limit", "1")
    assert b"b.1" in some.stdout and b"b.2" not in some.stdout and b"--after 'b.1'" in some.stderr
    rest = json.loads(lsmq("queue", "list", topic, "--after", "b.1", "--all", "--json").stdout)
    assert [one["name"] for one in rest] == ["b.2", "empty"]
    assert json.loads(lsmq("queue", "trim", topic, "b.1", "--before", "1", "--json", "--yes").stdout)["earliest"] == 1
    assert json.loads(lsmq("queue", "describe", topic, "b.1", "--json").stdout)["count"] == 1
    lsmq("queue", "delete", topic, "b.1", "--yes")
    assert b"unknown_queue" in lsmq("queue", "describe", topic, "b.1", code=1).stderr
    assert b"unknown_queue" in lsmq("queue", "delete", topic, "b.1", "--yes", code=1).stderr
    lsmq("queue", "delete", topic, "b.1", "--yes", "--missing-ok")
    described = lsmq("topic", "describe", topic, "--offsets").stdout
    assert b"lsmq queue list" in described and b"slots" in described and b"b.2" in described
    assert json.loads(lsmq("topic", "describe", topic, "--json").stdout)["queues"] == "named"
    assert b"named" in lsmq("topic", "list").stdout
    assert b"have numbers" in _of_numbers(lsmq, topic).stderr


def _of_numbers(lsmq: Run, topic: str) -> Ran:
    lsmq("topic", "create", f"{topic}-n")
    return lsmq("queue", "describe", f"{topic}-n", "a", code=1)


def test_the_offsets_of_a_member_of_a_broadcast_group_are_shown_by_its_name(
    lsmq: Run, topic: str, shared_node: NodeProcess
) -> None:
    lsmq("produce", topic, "--queue", "a", stdin="0\n1\n")
    with (
        lsmq_sync.Client(shared_node.url) as client,
        lsmq_sync.Consumer(client, topic, group=topic, mode="broadcast", static_id="one") as consumer,
    ):
        got = 0
        while got < 2:
            got += len(consumer.poll(1))
        consumer.commit()
        member = f"{topic}/one"
        back = ("group", "reset", member, "--topic", topic, "--to-earliest", "--yes")
        assert b"has 1 live members" in lsmq(*back, code=1).stderr
        with pytest.raises(GroupHasMembers):
            lsmq_sync.Group(client, member).reset(topic, "earliest")
        assert lsmq_sync.Group(client, f"{topic}/two").reset(topic, "latest"), "that one does not live"
        consumer.close(leave=True)
    assert member in [each["group"] for each in json.loads(lsmq("group", "list", "--json").stdout)]
    (row,) = json.loads(lsmq("group", "offsets", member, "--json").stdout)
    assert (row["topic"], row["queue"], row["committed"]) == (topic, "a", 2)
    described = json.loads(lsmq("group", "describe", member, "--json").stdout)
    assert [(lag["topic"], lag["lag"]) for lag in described["lag"]] == [(topic, 0)]
    assert b"1 offset of group" in lsmq(*back).stderr

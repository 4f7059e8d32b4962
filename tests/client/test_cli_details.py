"""What people stumble over in the command: combinations of options, missing things, pipes, sizes, words."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from api.calls import Api
from lsmq import LsmqError, sync
from lsmq.cli import main, root
from lsmq.cli.consume import _Job
from lsmq.cli.options import SIZE
from lsmq.cli.render import counted, print_fields, print_table
from lsmq_node.storage.wal import Appender, EntryKind, encode_entry_header, segment_name
from support.node_process import NodeProcess
from support.python_process import PythonProcess, run_python
from support.waiting import PATIENCE_S


def run(node: NodeProcess, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(root, [*arguments, "--url", node.url], input=stdin)


def ok(node: NodeProcess, *arguments: str, stdin: str = "") -> str:
    result = run(node, *arguments, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def send(node: NodeProcess, *arguments: str, stdin: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A process of its own, since it reads the real standard input."""
    ran = run_python("-m", "lsmq", "produce", *arguments, "--url", node.url, input=stdin, text=True)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65536), ("64K", 65536), ("2g", 2 << 30), ("10GB", 10**10), ("1 kB", 1000), ("7B", 7)],
)
def test_sizes_mean_what_they_say(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("consume", "TOPIC", "--queue", "0-99999999999"), "has queues 0 to 1, not 99999999999"),
        (("consume", "TOPIC", "--queue", "0-99999999999", "--offset", "5"), "has queues 0 to 1, not 99999999999"),
        (("consume", "TOPIC", "--offset", str(2**63)), f"{2**63 - 1}"),
        (("consume", "TOPIC", "--offset", "9" * 5_000), "is not an offset"),
        (("consume", "TOPIC", "--offset", "٣"), "is not an offset"),
        (("consume", "TOPIC", "--from-time", "-99999999999d"), "is not a time"),
        (("consume", "TOPIC", "--from-time", "0001-01-01T00:00+14:00"), "is not a time"),
        (("produce", "TOPIC", "--queue", "9" * 5_000), "is not a number"),
        (("topic", "create", "TOPIC", "--queues", "9" * 5_000), "is not a number of queues"),
        (("topic", "alter", "TOPIC", "--retention", "999999999999999999w"), "retention_ms cannot be sent"),
        (("topic", "alter", "TOPIC", "--ttl", "0s"), "ttl_ms is 0; the least it may be is 1"),
        (("topic", "alter", "TOPIC", "--ttl", "0.5ms"), "no whole number of milliseconds"),
        (("topic", "alter", "TOPIC", "--ttl", f"{'9' * 400}d"), "is not a length of time"),
        (("consume", "TOPIC", "--timeout", "0s"), "deadline_ms is 0"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_values_at_their_ends_are_refused_in_words(
    shared_node: NodeProcess, topic_name: str, arguments: tuple[str, ...], said: str
) -> None:
    ok(shared_node, "topic", "create", topic_name, "--queues", "2")
    result = run(shared_node, *(topic_name if each == "TOPIC" else each for each in arguments))
    assert isinstance(result.exception, SystemExit | LsmqError), result.exception
    assert said in (result.exception.message if isinstance(result.exception, LsmqError) else result.output)


@pytest.mark.parametrize("text", ["10iB", "GB", "1.5G", "10GBps", "-1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="64KiB"):
        SIZE.convert(text, None, None)


def test_one_is_not_in_the_plural() -> None:
    assert [counted(count, "queue") for count in (0, 1, 2)] == ["0 queues", "1 queue", "2 queues"]


def test_no_bar_is_drawn_into_what_is_typed_or_printed(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    shown = at_a_terminal("produce", topic_name, "--url", shared_node.url, typed=b"one\ntwo\n\x04")
    assert b"2 messages" in shown and b"sending" not in shown
    assert at_a_terminal("consume", topic_name, "--url", shared_node.url).split() == [b"one", b"two"]


def at_a_terminal(*arguments: str, typed: bytes = b"") -> bytes:
    """All that is seen on a terminal where ``lsmq`` is run: what is typed (Ctrl-D ends it), shown and printed."""
    own, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}  # On a dumb one there would be no bar in any case.
    seen = b""
    with PythonProcess(["-m", "lsmq", *arguments], env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        os.write(own, typed)
        with suppress(OSError):  # A terminal that nobody has any more ends with EIO.
            while block := os.read(own, 4096):
                seen += block
        os.close(own)
        assert process.wait(PATIENCE_S) == 0, seen
    return seen


def test_ids_stay_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    identity = "0123456789abcdef" * 2
    print_table(["id", "reason"], [[identity, "a reason that is much longer than what is left of the line"]])
    assert identity in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False], ids=["at a terminal", "in a pipe"])
def test_what_messages_hold_does_not_command_the_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    evil = "a\x1b]0;title\x07\x1b[31m\r\x7f\x9b1mb"
    print_table(["body", "key"], [[evil.encode(), evil]])
    print_fields([("body", evil.encode()), ("properties", {"key": evil})])
    shown = capsys.readouterr().out
    assert shown.count("a\\x1b]0;title\\x07\\x1b[31m\\x0d\\x7f\\x9b1mb") == 3
    assert not any(command in shown for command in ("\x1b]", "\x1b[31m", "\x07", "\r", "\x7f", "\x9b"))


def test_a_terminal_too_narrow_for_a_table_gets_a_field_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    print_table(
        ["id", "reason", "body"], [["0123456789abcdef" * 2, "because the oven is cold", "one pizza"], ["1", "-", "-"]]
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [
        ["id", "0123456789abcdef" * 2],
        ["reason", *["because", "the", "oven", "is", "cold"]],
        ["body", "one", "pizza"],
        [],
    ]
    monkeypatch.setenv("COLUMNS", "90")
    print_table(["id", "reason", "body"], [["0123456789abcdef" * 2, "because the oven is cold", "one pizza"]])
    assert "because the oven is cold   one pizza" in capsys.readouterr().out


def test_what_consume_prints_as_json_can_be_sent(shared_node: NodeProcess, topic_name: str) -> None:
    copy = f"{topic_name}-copy"
    for name in (topic_name, copy):
        ok(shared_node, "topic", "create", name, "--queues", "4")
    send(shared_node, topic_name, "--tag", "t", "--key", "k", stdin="one\ntwo\n")
    printed = ok(shared_node, "consume", topic_name, "--json")
    assert printed == ok(shared_node, "consume", topic_name, "--format", "json")
    send(shared_node, copy, "--json-lines", stdin=printed)
    copied = [json.loads(line) for line in ok(shared_node, "consume", copy, "--json").splitlines()]
    assert [(each["body"], each["key"], each["tag"]) for each in copied] == [("one", "k", "t"), ("two", "k", "t")]


def test_consume_picks_by_key_and_tag(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name, "--queues", "2")
    for number in range(6):
        line = json.dumps({"body": f"m{number}", "key": f"k{number % 2}", "tag": f"t{number % 3}", "queue": 0})
        send(shared_node, topic_name, "--json-lines", stdin=line)
    assert ok(shared_node, "consume", topic_name, "--key", "k1") == "m1\nm3\nm5\n"
    assert ok(shared_node, "consume", topic_name, "--tag", "t0", "--max", "1") == "m0\n"
    assert ok(shared_node, "consume", topic_name, "--key", "k1", "--tag", "t0") == "m3\n"
    group = f"{topic_name}-g"
    ok(shared_node, "consume", topic_name, "--queue", "0", "--group", group, "--key", "k1", "--max", "2")
    (row,) = json.loads(ok(shared_node, "group", "offsets", group, "--json"))
    assert row["committed"] == 5, "behind m4, which was passed over; before m5, which was too many"


def test_a_wrong_line_does_not_hide_where_those_before_it_are(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    lines = '{"body": "a"}\n{"body": "b"}\n{"wrong": 1}\n'
    result = send(shared_node, topic_name, "--json-lines", "--receipts", stdin=lines, code=1)
    assert "line 3" in result.stderr
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("produce", "t", "--key", "a", "--key-separator", ":"), "give one of the two"),
        (("group", "reset", "g", "--topic", "t", "--to-earliest", "--to-latest"), "say one of the two"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    shared_node: NodeProcess, arguments: tuple[str, ...], message: str
) -> None:
    result = run(shared_node, *arguments)
    assert result.exit_code == 2 and message in result.output


def test_a_group_that_is_not_there_is_the_same_error_everywhere(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    send(shared_node, topic_name, stdin="x\n")
    for arguments in (
        ("group", "describe", "nobody"),
        ("group", "offsets", "nobody"),
        ("group", "lag", "nobody", "--topic", topic_name),
        ("group", "delete", "nobody", "--yes"),
        ("group", "reset", "nobody", "--topic", topic_name, "--to-latest", "--yes"),
    ):
        result = run(shared_node, *arguments)
        assert result.exit_code == 1 and "there is no group 'nobody'" in str(result.exception), arguments
    ok(shared_node, "group", "delete", "nobody", "--yes", "--missing-ok")
    name = f"{topic_name}-new"
    ok(shared_node, "group", "reset", name, "--topic", topic_name, "--to-latest", "--yes", "--new")
    assert json.loads(ok(shared_node, "group", "offsets", name, "--json"))[0]["committed"] == 1


def test_a_work_queue_is_not_shown_what_a_reset_would_change(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    send(shared_node, topic_name, stdin="x\n")
    assert ok(shared_node, "work", topic_name, "--group", topic_name) == "x\n"
    for more in ("--dry-run", "--yes"):
        refused = run(shared_node, "group", "reset", topic_name, "--topic", topic_name, "--to-earliest", more)
        assert refused.exit_code == 1 and "is a work queue" in str(refused.exception), more
        assert refused.output == "", more


def test_no_dead_letters_is_no_error(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    assert ok(shared_node, "dlq", "list", topic_name) == ""
    ok(shared_node, "dlq", "purge", topic_name, "--yes")
    ok(shared_node, "dlq", "replay", topic_name, "--yes")
    assert run(shared_node, "dlq", "list", f"{topic_name}-not-there").exit_code == 1
    assert run(shared_node, "dlq", "list", topic_name, "--dead-letter", "not-there").exit_code == 1


def test_a_producer_group_that_nobody_is_in_is_said_to_be_so(shared_node: NodeProcess, topic_name: str) -> None:
    done = run(shared_node, "transaction", "members", topic_name)
    assert done.exit_code == 0 and f"producer group '{topic_name}' has no members" in done.output


def test_an_id_may_be_in_capitals(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name)
    send(shared_node, topic_name, stdin="x\n")
    found = json.loads(ok(shared_node, "consume", topic_name, "--json"))
    assert ok(shared_node, "message", "get", found["id"].upper(), "--format", "raw") == "x"


def test_another_topic_under_a_name_says_what_differs(shared_node: NodeProcess, topic_name: str) -> None:
    ok(shared_node, "topic", "create", topic_name, "--queues", "4", "--retention", "7d")
    ok(shared_node, "topic", "create", topic_name, "--queues", "4", "--retention", "7d")
    result = run(shared_node, "topic", "create", topic_name, "--queues", "5")
    assert "queues is 4, not 5; retention_ms is 604800000, not left out" in str(result.exception)
    assert "{" not in str(result.exception)


def test_who_reads_the_output_may_have_seen_enough(shared_node: NodeProcess, topic_name: str) -> None:
    Api(shared_node.url).create(topic_name, queues=1)
    send(shared_node, topic_name, stdin="x\n" * 50_000)
    assert first_line("consume", topic_name, "--url", shared_node.url) == b"x\n"


@pytest.mark.part(3)
def test_who_reads_a_table_may_have_seen_enough(shared_node: NodeProcess, topic_name: str, tmp_path: Path) -> None:
    log = Appender(0, 1 << 20)
    for number in range(3_000):
        log.append(encode_entry_header(EntryKind.TRIM, 1, 0, number, 1, 0, 0))
    segment = tmp_path / segment_name(0)
    segment.write_bytes(b"".join(log.take()[1]))
    assert first_line("dump", "wal", segment).split()[:3] == [b"lsn", b"end_lsn", b"kind"]
    # One that is printed while the event loop runs.
    ok(shared_node, "topic", "create", topic_name, "--queues", "named")
    ok(shared_node, "queue", "declare", topic_name, *(f"{number:0200}" for number in range(200)))
    printed = first_line("queue", "list", topic_name, "--all", "--url", shared_node.url)
    assert printed.split()[:2] == [b"queue", b"earliest"]


def first_line(*arguments: str | Path) -> bytes:
    """What ``lsmq`` prints first, to somebody who reads no more; it ends well, and says nothing."""
    command = [sys.executable, "-m", "lsmq", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        line = next(line for line in reading.stdout if line.strip())
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(PATIENCE_S) == 0
    return line


def test_status_has_a_line_for_each_shard(shared_node: NodeProcess) -> None:
    short, long = ok(shared_node, "status"), ok(shared_node, "status", "--verbose")
    assert len(short.splitlines()) < 20 < len(long.splitlines())
    assert "shard" in short and "config" not in short


def test_help_needs_no_spark(tmp_path: Path) -> None:
    """Where Spark is not installed the help says what to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pyarrow' else find(name, *rest)\n"
    )
    command = [sys.executable, "-m", "lsmq", "pipeline"]
    shown = subprocess.run(
        [*command, "--help"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert shown.returncode == 0 and 'pip install "lsmq[spark]"' in " ".join(shown.stdout.split())
    refused = subprocess.run(
        [*command, "audit", "x"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert refused.returncode == 1 and 'pip install "lsmq[spark]"' in refused.stderr


def test_a_number_of_nothing_is_shown_as_one(shared_node: NodeProcess) -> None:
    printed = ok(shared_node, "status")
    assert " - " not in printed.partition("topics")[2].partition("pressure")[0]


def test_a_command_says_what_it_waits_for_while_a_node_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # Takes connections, and never answers.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = CliRunner().invoke(root, ["topic", "list", "--url", url, "--timeout", "2500ms"])
    assert result.exit_code == 1
    assert f"no answer yet from {url}; waiting up to 2.5 s (--timeout)" in result.stderr


def test_an_interrupt_while_the_command_is_imported_is_no_defect() -> None:
    interrupted = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lsmq.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from lsmq_command import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "interrupted\n")


def test_types_times_to_live_and_conditions_are_sent_picked_and_committed(
    shared_node: NodeProcess, topic_name: str
) -> None:
    ok(shared_node, "topic", "create", topic_name, "--ttl", "1h")
    lines = [
        json.dumps({"body": f"{n}", "type": "even" if n % 2 == 0 else "odd", "properties": {"n": str(n)}})
        for n in range(9)
    ]
    send(shared_node, topic_name, "--json-lines", stdin="\n".join(lines))
    send(shared_node, topic_name, "--type", "even", "--ttl", "90s", stdin="plain\n")
    found = [
        json.loads(line) for line in ok(shared_node, "consume", topic_name, "--json", "--type", "even").splitlines()
    ]
    assert [each["body"] for each in found] == ["0", "2", "4", "6", "8", "plain"]
    assert {each["expires_ms"] - each["stored_ms"] for each in found} == {3_600_000, 90_000}
    assert {each["type"] for each in found} == {"even"}
    group = f"{topic_name}-g"
    picks = ("--filter", "n BETWEEN 3 AND 6", "--group", group, "--format", "%y %b\\n")
    assert ok(shared_node, "consume", topic_name, *picks).split("\n")[:-1] == ["odd 3", "even 4", "odd 5", "even 6"]
    (row,) = json.loads(ok(shared_node, "group", "offsets", group, "--json"))
    assert (row["committed"], row["lag"]) == (10, 0), "also what was passed over"
    refused = run(shared_node, "consume", topic_name, "--filter", "n >")
    assert refused.exit_code == 1 and "at character 4" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["send", "t"], "lsmq produce"),
        (["queue", "create", "t"], "lsmq queue declare"),
        (["dlq", "retry"], "lsmq dlq replay"),
        (["comsume", "t"], "lsmq consume"),
        (["help"], "lsmq --help"),
        (["--url", "http://127.0.0.1:7600", "status"], "lsmq COMMAND --url"),
        (["topic", "--json", "list"], "lsmq topic COMMAND --json"),
    ],
)
def test_a_near_miss_and_what_other_brokers_call_a_command_lead_to_it(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"Did you mean '{meant}'?\n")


def test_an_option_that_no_message_has_is_told_with_what_is_meant(shared_node: NodeProcess) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic("options-of-messages", queues=1)
        with sync.Producer(client, "options-of-messages") as producer:
            with pytest.raises(TypeError, match="a message has no 'delay'; did you mean delay_ms"):
                producer.send("x", delay=10)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="a message has no 'colour'; there are"):
                producer.send("x", colour="red")  # type: ignore[call-arg]


async def test_what_is_printed_is_committed_also_where_a_commit_is_cut_off_or_under_way() -> None:
    """A commit that was under way as Ctrl-C came, or as a queue was given up, did not count as what was to be done."""
    commits: list[dict[int, int]] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Committing:
        async def commit(self, offsets: dict[int, int]) -> None:
            begun.set()
            await go_on.wait()
            commits.append(offsets)

    options: dict[str, Any] = {"key": None, "picks": False, "committing": True, "limit": None}
    job = _Job(cast(Any, None), "t", lambda _: b"", **options)
    job._consumer = cast(Any, Committing())
    job._printed = {0: 5}
    cut_off = asyncio.create_task(job._commit(now=True))
    await begun.wait()
    cut_off.cancel()
    await asyncio.gather(cut_off, return_exceptions=True)
    again, last = asyncio.create_task(job._commit(now=True)), asyncio.create_task(job._commit(now=True))
    await asyncio.sleep(0)
    job._printed[1] = 7
    await asyncio.sleep(0)
    assert not last.done(), "it waits for what is under way"
    go_on.set()
    await asyncio.gather(again, last)
    assert commits == [{0: 5}, {1: 7}]

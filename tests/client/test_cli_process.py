"""The command as a process: what it does with the streams it is given, and with signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lsmq_node.storage import QueueStore
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import PATIENCE_S, eventually

LSMQ = [sys.executable, "-m", "lsmq"]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def shell(shared_node: NodeProcess) -> Shell:
    """Run a line of the shell, in which ``lsmq`` is the command; its exit code is 0 unless told otherwise."""

    def run(line: str, *, code: int = 0, **environment: str) -> subprocess.CompletedProcess[bytes]:
        whole = f'lsmq() {{ "{sys.executable}" -m lsmq "$@"; }}; {line}'
        given = {**os.environ, "LSMQ_URL": shared_node.url, "PYTHONWARNINGS": "error", **environment}
        ran = subprocess.run(["bash", "-c", whole], capture_output=True, env=given, timeout=PATIENCE_S)
        assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
        return ran

    return run


def test_streams_that_are_closed_are_as_if_they_led_nowhere(shell: Shell, topic_name: str) -> None:
    shell(f"lsmq topic create {topic_name} && echo one | lsmq produce {topic_name} 2>&-")
    for command in ("topic list", "status", "top --once", f"consume {topic_name}", f"consume {topic_name} --json"):
        assert shell(f"lsmq {command} >&-").stderr == b""
    assert b"0 messages" in shell(f"lsmq produce {topic_name} <&-").stderr
    assert b"not confirmed" in shell(f"lsmq topic delete {topic_name} <&-", code=1).stderr
    shell(f"lsmq topic describe {topic_name} <&- >&- 2>&-")
    assert shell(f"lsmq consume {topic_name} <&- 2>&-").stdout == b"one\n"


def test_all_is_sent_also_where_whoever_reads_the_receipts_has_seen_enough(shell: Shell, topic_name: str) -> None:
    shell(f"lsmq topic create {topic_name}")
    sent = shell(f"set -o pipefail; seq 60000 | lsmq produce {topic_name} --receipts | head -n 1")
    assert json.loads(sent.stdout)["offset"] == 0 and b"60000 messages" in sent.stderr
    assert shell(f"lsmq consume {topic_name} | wc -l").stdout.strip() == b"60000"


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_what_an_encoding_has_no_bytes_for_is_printed_as_an_escape(
    shell: Shell, topic_name: str, environment: dict[str, str]
) -> None:
    shell(f"lsmq topic create {topic_name} --queues named && echo one | lsmq produce {topic_name} --queue 🍕")
    assert b"\\U0001f355" in shell(f"lsmq queue list {topic_name}", **environment).stdout
    [queue] = json.loads(shell(f"lsmq queue list {topic_name} --json", **environment).stdout)
    assert queue["name"] == "🍕"
    line = '{"body": "two", "queue": "🍕"}'
    receipt = shell(f"lsmq produce {topic_name} --json-lines --receipts <<< '{line}'", **environment).stdout
    assert json.loads(receipt)["queue"] == "🍕"


def test_arguments_may_be_no_text(shell: Shell, topic_name: str) -> None:
    message = '{"body": "one", "key_b64": "/2s="}'  # The byte 255, and k.
    shell(f"lsmq topic create {topic_name} && lsmq produce {topic_name} --json-lines <<< '{message}'")
    assert shell(f"lsmq consume {topic_name} --key $'\\xffk'").stdout == b"one\n"
    shell(f"lsmq produce {topic_name} --key-separator $'\\xff' <<< $'a\\xfftwo'")
    assert shell(f"lsmq consume {topic_name} --key a").stdout == b"two\n"
    for command in ("topic create $'\\xff'", "topic describe $'\\xff'", f"consume {topic_name} --group $'\\xff'"):
        assert shell(f"lsmq {command}", code=1).stderr.startswith(b"error: invalid_request: '\\udcff' is no name")


@pytest.mark.parametrize(
    "command", ["topic delete .. --yes", "group describe ..", "schedule delete . --topic orders", "node drain .."]
)
def test_a_name_that_means_a_place_in_a_path_is_none(shell: Shell, command: str) -> None:
    assert b"means a place in a path" in shell(f"lsmq {command}", code=1).stderr


@pytest.mark.parametrize(
    "command", ["consume ''", "topic create ''", "group describe ''", "schedule delete '' --topic x"]
)
def test_a_name_without_characters_is_none(shell: Shell, command: str) -> None:
    assert b"'' is no name: it has no characters" in shell(f"lsmq {command}", code=1).stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignored", ["", "trap '' INT; "], ids=["", "without Ctrl-C"])
def test_a_member_that_is_told_to_end_leaves_its_group(
    shared_node: NodeProcess, shell: Shell, topic_name: str, number: signal.Signals, ignored: str
) -> None:
    shell(f"lsmq topic create {topic_name} && echo one | lsmq produce {topic_name}")
    member = subprocess.Popen(
        ["sh", "-c", f'{ignored}exec "$@"', "sh", *LSMQ, "consume", topic_name, "--group", topic_name, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LSMQ_URL": shared_node.url},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # Whoever runs the tests may ignore it.
    )
    assert member.stdout is not None
    assert member.stdout.readline() == b"one\n"
    member.send_signal(number)
    _, complaints = member.communicate(timeout=PATIENCE_S)
    assert (member.returncode, complaints) == (0, b"")
    assert json.loads(shell(f"lsmq group describe {topic_name} --json").stdout)["members"] == []
    assert shell(f"lsmq consume {topic_name} --group {topic_name}").stdout == b""


def test_a_command_under_nohup_does_not_end_with_its_terminal(
    shared_node: NodeProcess, shell: Shell, topic_name: str
) -> None:
    shell(f"lsmq topic create {topic_name}")
    follower = subprocess.Popen(
        ["nohup", *LSMQ, "consume", topic_name, "--follow"],
        stdout=subprocess.PIPE,
        env={**os.environ, "LSMQ_URL": shared_node.url},
    )
    assert follower.stdout is not None
    for line in (b"one\n", b"two\n"):
        shell(f"echo {line.decode().strip()} | lsmq produce {topic_name}")
        assert follower.stdout.readline() == line
        follower.send_signal(signal.SIGHUP)
    follower.terminate()
    assert follower.wait(PATIENCE_S) == 0
    follower.stdout.close()


def test_what_is_not_well_is_no_success_for_who_reads_none_of_it(
    make_node: Callable[..., NodeProcess], shell: Shell
) -> None:
    node = make_node(min_free_bytes=1 << 40).start()  # Its disk is full, as it sees it.
    said = b""

    def is_told() -> bool:
        nonlocal said
        said = run_python("-m", "lsmq", "status", env={**os.environ, "LSMQ_URL": node.url}).stdout
        return said.startswith(b"not well: ")

    eventually(is_told, "it is told that the disk is full")
    assert shell("set -o pipefail; lsmq status | :", code=1, LSMQ_URL=node.url).stderr == b""


@pytest.mark.parametrize("option", ["", "--json"])
def test_what_is_damaged_is_no_success_for_who_reads_none_of_it(shell: Shell, tmp_path: Path, option: str) -> None:
    with QueueStore(tmp_path / "queues") as store:
        store.put("orders", b"one")
    (tmp_path / "queues" / "MANIFEST").write_bytes(b"damaged")
    for command in ("verify", "repair"):
        assert shell(f"set -o pipefail; lsmq {command} {tmp_path}/queues {option} | :", code=1).stderr == b""

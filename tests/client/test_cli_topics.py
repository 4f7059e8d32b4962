"""Topics that are changed, trimmed and purged from the command line, and in both faces of the client."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import click
import pytest

import lsmq
from lsmq import sync
from lsmq.cli.topic import alter
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true, eventually

Run = Callable[..., Any]


@pytest.fixture
def run(shared_node: NodeProcess) -> Run:
    """Run ``lsmq`` with arguments; checks its exit code, 0 unless told otherwise."""
    env = {**os.environ, "LSMQ_URL": shared_node.url, "NO_COLOR": "1", "PYTHONWARNINGS": "error"}

    def run(*arguments: str, stdin: bytes = b"", code: int = 0) -> Any:
        ran = run_python("-m", "lsmq", *arguments, input=stdin, env=env)
        assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
        return ran

    return run


def test_options_are_changed_and_taken_away(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--retention-bytes", "1MiB", "--ack", "leader")
    altered = run("topic", "alter", topic_name, "--retention-ms", "1d", "--unset", "retention-bytes", "--json")
    options = json.loads(altered.stdout)["options"]
    assert (options["retention_ms"], options["retention_bytes"], options["ack"]) == (86_400_000, None, "leader")
    shown = run("topic", "alter", topic_name, "--unset", "--ack", "--unset", "retention").stdout
    assert shown.decode().strip() == f"topic {topic_name}: ack=quorum"
    for wrong, says in (
        ([], "say what to change"),
        (["--unset", "queues"], "no such option"),
        (["--ack", "leader", "--unset", "ack"], "both set and taken away"),
    ):
        assert says in run("topic", "alter", topic_name, *wrong, code=2).stderr.decode()
    assert "unknown_topic" in run("topic", "alter", f"{topic_name}x", "--ack", "leader", code=1).stderr.decode()


def test_every_option_is_taken_away_by_the_name_that_sets_it(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--ttl", "1h", "--queues", "named", "--forget-empty", "1d")
    options = [parameter.opts[0] for parameter in alter.params if isinstance(parameter, click.Option)]
    named = options[: options.index("--unset")]
    assert {"--retention", "--ttl", "--forget-empty", "--dedupe-window", "--max-bytes"} <= {*named}
    shown = run("topic", "alter", topic_name, *(each for name in named for each in ("--unset", name))).stdout.decode()
    assert shown.strip() == f"topic {topic_name}: ack=quorum"


@pytest.mark.part(2)
def test_where_messages_are_moved_to_is_set_shown_and_taken_away(
    run: Run, shared_node: NodeProcess, topic_name: str
) -> None:
    late, over = f"{topic_name}.late", f"{topic_name}.over"
    run("topic", "create", topic_name, "--ttl", "1h", "--expired-to", late)
    full = ("--queue-max-messages", "2", "--overflow", "drop_oldest")
    shown = run("topic", "alter", topic_name, *full, "--dropped-to", over).stdout.decode()
    assert f"expired_to={late}" in shown and f"dropped_to={over}" in shown
    for none_yet in (late, over):
        listed = run("dlq", "list", topic_name, "--dead-letter", none_yet)
        assert listed.stderr.decode().strip() == f"no dead letters in {none_yet}"
    assert "unknown_topic" in run("dlq", "list", topic_name, "--dead-letter", f"{late}r", code=1).stderr.decode()
    run("produce", topic_name, stdin=b"1\n2\n3\n")
    with sync.Client(shared_node.url) as client:
        eventually(lambda: client.topic_usage(topic_name).dropped["overflow"] == 1, "one is moved")
    assert "1 message went at a limit" in run("topic", "describe", topic_name).stdout.decode()
    assert json.loads(run("dlq", "list", topic_name, "--dead-letter", over, "--json").stdout)["kind"] == "overflow"
    taken = run("topic", "alter", topic_name, "--unset", "expired-to", "--unset", "dropped-to").stdout.decode()
    assert "_to=" not in taken


def test_topics_are_trimmed_and_purged(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--queues", "2")
    run("produce", topic_name, "--queue", "0", stdin=b"a\nb\nc\n")
    run("produce", topic_name, "--queue", "1", stdin=b"d\n")
    run("topic", "trim", topic_name, "--queue", "0", "--offset", "2", "--yes")
    assert run("consume", topic_name, "--queue", "0").stdout == b"c\n"
    run("topic", "trim", topic_name, "--before", "-1h", "--yes")
    assert sorted(run("consume", topic_name).stdout.split()) == [b"c", b"d"]
    assert "2 messages deleted" in run("topic", "purge", topic_name, "--yes").stderr.decode()
    assert run("consume", topic_name).stdout == b""
    assert "one of the two" in run("topic", "trim", topic_name, "--yes", code=2).stderr.decode()
    assert "needs --queue" in run("topic", "trim", topic_name, "--offset", "1", "--yes", code=2).stderr.decode()


async def test_the_asynchronous_face_alters_trims_by_time_and_purges(shared_node: NodeProcess, topic_name: str) -> None:
    async with lsmq.Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=3, retention_ms=10**9)
        altered = await client.alter_topic(topic_name, retention_ms=None, max_message_bytes=100)
        assert (altered.options["retention_ms"], altered.max_message_bytes) == (None, 100)
        async with lsmq.Producer(client, topic_name) as producer:
            for queue in (0, 1, 2, 2):
                await producer.send_and_wait("x", queue=queue)
        await client.trim_topic(topic_name, before=2**60, queues=[0, 2])
        assert list((await client.offsets(topic_name)).earliest) == [1, 0, 2]
        assert await client.purge_topic(topic_name, queues=[]) == 0
        assert await client.purge_topic(topic_name) == 1
        with pytest.raises(lsmq.InvalidRequest, match="one of the two"):
            await client.trim_topic(topic_name)
        with pytest.raises(lsmq.UnknownQueue):
            await client.purge_topic(topic_name, queues=[3])
        with pytest.raises(lsmq.InvalidRequest):
            await client.alter_topic(topic_name, queues=9)  # type: ignore[call-arg]


def test_so_does_the_blocking_one(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        assert client.alter_topic(topic_name, ack="leader").options["ack"] == "leader"
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(["one", "two"])
        client.trim_topic(topic_name, before=1)
        assert client.purge_topic(topic_name) == 2


async def test_a_producer_waits_at_a_limit_and_goes_on_when_there_is_room(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with lsmq.Client(shared_node.url) as client:
        await client.create_topic(topic_name, max_messages=3)
        async with lsmq.Producer(client, topic_name) as producer:
            for number in range(3):
                await producer.send_and_wait(f"{number}")
            waiting = await producer.send("the fourth")

            async def refused() -> bool:
                return (await client.topic_usage(topic_name)).refused > 0

            await comes_true(refused, "it is refused")
            await client.trim_topic(topic_name, {0: 1})
            assert (await waiting).offset == 3, "once, and in its turn"
        async with lsmq.Producer(client, topic_name, deadline_ms=300) as producer:
            with pytest.raises(lsmq.TimedOut, match="max_messages is 3"):
                await producer.send_and_wait("the fifth")
        usage = await client.topic_usage(topic_name)
        assert (usage.messages, usage.groups, usage.dropped["overflow"]) == (3, (), 0)


def test_a_limit_of_the_bytes_of_a_queue_is_set_and_taken_away(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--queue-max-bytes", "2KiB")
    assert "queue_max_bytes=2048" in run("topic", "describe", topic_name).stdout.decode()
    run("topic", "alter", topic_name, "--unset", "queue-max-bytes")
    assert "queue_max_bytes" not in run("topic", "describe", topic_name).stdout.decode()


def test_a_description_says_what_went_and_why(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--queue-max-messages", "2", "--overflow", "drop_oldest")
    run("produce", topic_name, stdin=b"a\nb\nc\n")
    shown = run("topic", "describe", topic_name).stdout.decode()
    assert "1 message went at a limit" in shown and "queue_max_messages=2" in shown
    found = json.loads(run("topic", "describe", topic_name, "--json").stdout)
    assert (found["messages"], found["dropped"]["overflow"], found["refused"]) == (2, 1, 0)


def test_a_description_says_how_many_groups_a_topic_has_and_asks_for_no_names(
    run: Run, shared_node: NodeProcess, topic_name: str
) -> None:
    run("topic", "create", topic_name)
    run("produce", topic_name, stdin=b"a\n")
    with sync.Client(shared_node.url) as client:
        for number in range(3):
            client.commit_offsets(f"{topic_name}-{number}", topic_name, {0: 1})
        counted = client.topic_usage(topic_name, groups=0)
        assert (counted.groups, counted.group_count) == ((), 3)
        assert len(client.topic_usage(topic_name).groups) == 3
    assert "groups       3" in run("topic", "describe", topic_name).stdout.decode()
    assert json.loads(run("topic", "describe", topic_name, "--json").stdout)["group_count"] == 3


def test_a_description_counts_no_messages_that_went_from_among_others(run: Run, topic_name: str) -> None:
    run("topic", "create", topic_name, "--queue-max-messages", "2", "--overflow", "drop_lowest_priority")
    run("produce", topic_name, stdin=b"a\nb\nc\nd\n")

    def described() -> Any:
        return json.loads(run("topic", "describe", topic_name, "--json").stdout)

    eventually(lambda: described()["dropped"]["overflow"] == 2, "two went")
    assert described()["messages"] == 2
    assert "messages     2" in run("topic", "describe", topic_name).stdout.decode()

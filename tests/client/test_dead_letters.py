"""``lsmq dlq``: dead letters are listed, sent again and deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from lsmq import Client, DeadLetter, DeadLetters, Producer, sync
from lsmq.cli import root
from lsmq.errors import InvalidRequest, UnknownMessage, UnknownQueue
from lsmq.queue_names import MAX_TOPIC_NAME
from support.node_process import NodeProcess
from support.waiting import eventually


def run(node: NodeProcess, *arguments: str) -> str:
    result = CliRunner().invoke(root, ["dlq", *arguments, "--url", node.url])
    assert result.exit_code == 0, result.output
    return result.output


def letters(node: NodeProcess, topic: str, *arguments: str) -> list[dict[str, str]]:
    lines = run(node, "list", topic, "--json", *arguments).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def fail(client: sync.Client, topic: str, group: str, bodies: Sequence[str]) -> None:
    """Have the group's consumers refuse these."""
    with sync.WorkQueue(client, topic, group) as work:
        seen = 0
        while seen < len(bodies):
            for task in work.poll(100, timeout_ms=10_000):
                seen += 1
                task.nack(dead_letter=True, reason=f"not {task.text()}")


def comes(node: NodeProcess, topic: str, count: int) -> list[dict[str, str]]:
    def are_there() -> list[dict[str, str]] | None:
        try:
            found = letters(node, topic)
        except AssertionError:
            return None  # the topic is not there yet
        return found if len(found) == count else None

    found = eventually(are_there, f"{count} are dead letters")
    assert found is not None
    return found


def test_dead_letters_are_listed_sent_again_and_deleted(shared_node: NodeProcess) -> None:
    node, topic, bodies = shared_node, "dlq-tools", [f"m{number}" for number in range(6)]
    with sync.Client(node.url) as client:
        client.create_topic(topic, queues=3)
        with sync.Producer(client, topic) as producer:
            producer.send_many(("key", body) for body in bodies).wait()
        fail(client, topic, "a", bodies)
        found = comes(node, topic, 6)
        assert sorted(letter["body"] for letter in found) == bodies
        first = found[0]
        assert (first["topic"], first["group"], first["deliveries"]) == (topic, "a", 1)
        assert (first["kind"], first["reason"]) == ("negative acknowledgement", f"not {first['body']}")
        assert first["body"] in run(node, "list", topic)
        assert letters(node, topic, "--group", "b") == []

        run(node, "replay", topic, "--id", first["id"], "--yes")
        assert len(letters(node, topic)) == 5
        with sync.WorkQueue(client, topic, "a") as work:
            (task,) = work.poll(timeout_ms=10_000)
            assert task.text() == first["body"] and task.message.key == "key"
            assert task.message.properties == {} and task.message.queue == first["queue"]
            task.ack()

        for command in ("replay", "purge"):
            missed = CliRunner().invoke(root, ["dlq", command, topic, "--id", "0000", "--yes", "--url", node.url])
            assert isinstance(missed.exception, UnknownMessage) and "no dead letter 0000" in str(missed.exception)
        run(node, "purge", topic, "--id", found[1]["source_id"], "--yes")
        assert len(letters(node, topic)) == 4
        assert "4 dead letters" in run(node, "purge", topic, "--yes")
        assert letters(node, topic) == []
        assert client.offsets(f"{topic}.dlq").earliest == client.offsets(f"{topic}.dlq").latest


def test_what_is_no_text_is_base64_as_in_all_json(shared_node: NodeProcess) -> None:
    node, topic = shared_node, "dlq-bytes"
    with sync.Client(node.url) as client:
        client.create_topic(topic)
        with sync.Producer(client, topic) as producer:
            producer.send(b"\xff\x00", key=b"\x01", headers=[("trace", b"\xfe")]).result()
            producer.send("text", key="key").result()
        with sync.WorkQueue(client, topic, "a") as work:
            for _ in range(2):
                (task,) = work.poll(1, timeout_ms=10_000)
                task.nack(dead_letter=True)
        found = {letter.get("key"): letter for letter in comes(node, topic, 2)}
        assert found["key"]["body"] == "text" and "body_b64" not in found["key"]
        letter: dict[str, object] = {**found[None]}
        assert letter["body_b64"] == "/wA=" and "body" not in letter
        assert letter["key_b64"] == "AQ==" and letter["headers"] == [{"name": "trace", "value_b64": "/g=="}]


def test_a_topic_without_dead_letters_says_so(shared_node: NodeProcess) -> None:
    result = CliRunner().invoke(root, ["dlq", "list", "nothing-died", "--url", shared_node.url])
    assert result.exit_code == 1 and "nothing-died" in str(result.exception), "a topic that is not there at all"


def test_a_topic_of_other_messages_is_not_purged_as_one_of_dead_letters(shared_node: NodeProcess) -> None:
    node, topic = shared_node, "dlq-mistaken"
    with sync.Client(node.url) as client:
        client.create_topic(topic)
        with sync.Producer(client, topic) as producer:
            producer.send("an order").result()
        arguments = ["dlq", "purge", topic, "--dead-letter", topic, "--yes", "--url", node.url]
        result = CliRunner().invoke(root, arguments)
        assert result.exit_code == 1
        assert isinstance(result.exception, InvalidRequest) and f"lsmq topic purge {topic}" in result.exception.message
        with sync.Consumer(client, topic) as consumer:
            assert [message.text() for message in consumer.poll(10)] == ["an order"]


def test_a_letter_that_somebody_made_up_is_sent_nowhere_else_than_was_said(shared_node: NodeProcess) -> None:
    """Whoever may write to a topic of dead letters would write anywhere, by the rights of who replays them."""
    node, topic, other = shared_node, "dlq-forged", "dlq-forged-other"
    with sync.Client(node.url) as client:
        for name in (topic, other, f"{topic}.dlq"):
            client.create_topic(name)

        def forge(body: str, origin: str | None) -> None:
            properties = {} if origin is None else {"lsmq-dlq-topic": origin, "lsmq-dlq-queue": "0"}
            with sync.Producer(client, f"{topic}.dlq") as producer:
                producer.send(body, properties=properties).result()

        def ends() -> list[int]:
            return [int(client.offsets(name).latest[0]) for name in (topic, other)]

        forge("its own", topic)
        forge("made up", other)
        forge("no letter", None)
        said = run(node, "replay", topic, "--yes")
        assert "1 dead letter" in said and "2 were left" in said and f"say that they come from {other}" in said
        assert ends() == [1, 0]
        assert [letter["body"] for letter in letters(node, topic)] == ["made up", "no letter"]

        dead = sync.DeadLetters(client, f"{topic}.dlq")
        made_up, no_letter = dead.read()
        forge("its own too", topic)
        (*_, own) = dead.read()
        for wrong in (made_up, no_letter):
            with pytest.raises(InvalidRequest, match=r"name in topics where letters may be sent"):
                dead.replay([own, wrong])
        assert ends() == [1, 0], "nothing is sent of what is refused"
        with pytest.raises(InvalidRequest, match=other):
            sync.DeadLetters(client, "letters").replay([made_up])
        assert dead.replay([own, made_up], topics=[topic, other]) == 2
        assert ends() == [2, 1]
        assert [letter.message.text() for letter in dead.read()] == ["no letter"]


@pytest.mark.parametrize("queues", [1, "named"])
def test_a_letter_whose_queue_is_not_there_any_more_holds_up_no_other(
    shared_node: NodeProcess, queues: int | str
) -> None:
    """As where the topic was made anew with fewer queues, or the name of its queue was not known any more."""
    node, topic = shared_node, f"dlq-fewer-{queues}"
    with sync.Client(node.url) as client:
        client.create_topic(topic, queues=queues)
        client.create_topic(f"{topic}.dlq", queues=1)
        with sync.Producer(client, f"{topic}.dlq") as producer:
            for place in (0, 7, 0):
                name = {"lsmq-dlq-queue-name": "q"} if queues == "named" and not place else {}
                where = {"lsmq-dlq-topic": topic, "lsmq-dlq-queue": str(place)}
                producer.send(f"of {place}", properties={**where, **name}).result()
        for sent in (2, 0):
            result = CliRunner().invoke(root, ["dlq", "replay", topic, "--yes", "--url", node.url])
            (left,) = letters(node, topic)
            assert left["body"] == "of 7" and f"the letter {left['id']} cannot be sent" in str(result.exception)
            assert f"{sent} dead letters" in result.output and f"not sent: {left['id']}" in result.output
        dead = sync.DeadLetters(client, f"{topic}.dlq")
        with pytest.raises((InvalidRequest, UnknownQueue)) as refused:
            dead.replay(list(dead.read()))
        assert (refused.value.details["sent"], refused.value.details["not_sent"]) == (0, [left["id"]])
        with sync.Consumer(client, topic, start="earliest") as consumer:
            assert [message.text() for message in consumer.poll(10, timeout_ms=10_000)] == ["of 0", "of 0"]


async def test_a_letter_that_went_with_its_topic_is_deleted_and_none_that_has_its_place_in_the_next_one(
    shared_node: NodeProcess,
) -> None:
    async with Client(shared_node.url) as client:
        letters = DeadLetters(client, "dlq-anew.dlq")

        async def made_with(text: str) -> list[DeadLetter]:
            await client.create_topic(letters.name, queues=1)
            async with Producer(client, letters.name) as producer:
                await producer.send_and_wait(text)
            return [letter async for letter in letters.read()]

        former = await made_with("former")
        await client.delete_topic(letters.name)
        latter = await made_with("latter")
        assert [letter.message.offset for letter in former] == [letter.message.offset for letter in latter]
        await letters.delete(former)
        assert [letter.message.text() for letter in [letter async for letter in letters.read()]] == ["latter"]
        await letters.delete([*former, *latter])
        assert [letter async for letter in letters.read()] == []


def test_dead_letters_of_a_topic_with_a_long_name_are_found(shared_node: NodeProcess) -> None:
    node, topic = shared_node, "dlq-" + "x" * (MAX_TOPIC_NAME - 4)
    with sync.Client(node.url) as client:
        client.create_topic(topic)
        with sync.Producer(client, topic) as producer:
            producer.send_many(["a", "b"]).wait()
        fail(client, topic, "g", ["a", "b"])
        comes(node, topic, 2)
        letters = sync.DeadLetters(client, topic[:-4] + ".dlq")
        first, _ = letters.read()
        assert letters.replay([first]) == 1
        assert "1 dead letter" in run(node, "replay", topic, "--yes")
        with sync.Consumer(client, topic, start="earliest") as consumer:
            assert sorted(message.text() for message in consumer.poll(10, timeout_ms=10_000)) == ["a", "a", "b", "b"]

"""Streams of named topics, asked as Spark asks: each message once, whatever happens to driver, node and names."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from lsmq.errors import Unavailable
from lsmq.sync import Client, Producer
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import DataLoss, InvalidOption
from lsmq_pipeline.named_offsets import named_from_document
from support.node_process import NodeProcess
from support.played_query import NamedSender, PlayedQuery
from support.waiting import clock_passes


@pytest.fixture
def sender(client: Client, topic_name: str) -> NamedSender:
    client.create_topic(topic_name, queues="named")
    return NamedSender(client, topic_name)


@pytest.mark.part(2)
def test_queues_that_come_later_are_read_and_offsets_stay_small(shared_node: NodeProcess, sender: NamedSender) -> None:
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest")
    sizes = []
    for turn in range(4):
        sender.send([f"agents.{number}.inbox" for number in range(500 * turn, 500 * (turn + 2))])
        query.batch()
        assert sorted(query.bodies) == sorted(sender.sent)
        assert query.batch() is None, "nothing came"
        sizes.append(len(json.dumps(query.ended[-1])))
    assert max(sizes) < 300, "whatever the number of names"
    assert query.read(query.ended[1], query.ended[2]) == query.bodies[1000:2000], "a batch is the same again"
    query.again()
    assert query.read(query.ended[1], query.ended[2]) == query.bodies[1000:2000], "by another driver as well"
    assert query.batch() is None


def test_a_stream_begins_at_its_latest_or_at_a_time(shared_node: NodeProcess, sender: NamedSender) -> None:
    sender.send(["a", "b"])
    found = sender.client.find_messages(sender.topic, filter="stored_ms > 0", limit=10).messages
    last = max(message.stored_ms for message in found)
    clock_passes(last + 1)
    latest = PlayedQuery(shared_node.url, topic=sender.topic)
    sender.send(["b", "c"])
    timed = PlayedQuery(shared_node.url, topic=sender.topic, startingTimestamp=last + 2)
    for query in (latest, timed):
        assert sorted(query.batch() or ()) == sender.sent[2:]
        query.again()
        sender.send(["c"])
        query.batch()
        assert sorted(query.bodies) == sender.sent[2:]
    moved = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets=json.dumps(latest.ended[1]))
    assert moved.batch() == sender.sent[4:], "a checkpoint's offsets are taken as they are"
    never = PlayedQuery(shared_node.url, topic=sender.topic, startingTimestamp="2100-01-01T00:00:00Z")
    assert never.batch() is None


@pytest.mark.parametrize("limit", [7, 64])
@pytest.mark.part(2)
def test_batches_are_as_large_as_they_may_be_and_never_larger(
    shared_node: NodeProcess, sender: NamedSender, limit: int
) -> None:
    chance = random.Random(limit)
    sender.send([f"q{chance.randrange(12)}" for _ in range(150)])
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest", maxMessagesPerTrigger=limit)
    batches = []
    for turn in range(6):
        batches.append(query.batch(ReadMaxRows(limit)) or [])
        sender.send([f"q{chance.randrange(20)}" for _ in range(10)])
        if turn % 2:
            query.again()
        assert query.read(query.ended[-2], query.ended[-1]) == batches[-1]
    while (found := query.batch(ReadMaxRows(limit))) is not None:
        batches.append(found)
    assert max(map(len, batches)) == limit and sorted(query.bodies) == sorted(sender.sent)
    of_one = [int(row.split()[1]) for row in query.bodies if row.startswith("q3 ")]
    assert of_one == sorted(of_one), "each queue in its order"
    sender.send(["q1"] * 40)
    query.batch(ReadMaxRows(limit))
    sender.send(["q2", "new"])
    query.batch(ReadAllAvailable())
    assert sorted(query.bodies) == sorted(sender.sent), "all there is, also in the midst of a window"


def test_too_few_messages_wait(shared_node: NodeProcess, sender: NamedSender) -> None:
    sender.send(["a"])
    options = {"topic": sender.topic, "startingOffsets": "earliest", "minMessagesPerTrigger": 3, "queuePrefix": "a"}
    query = PlayedQuery(shared_node.url, **options)
    assert query.batch(ReadMinRows(3)) == ["a 0"], "the first batch does not wait"
    sender.send(["a", "b", "b", "ab"])
    assert query.batch(ReadMinRows(3)) is None
    sender.send(["a"])
    assert len(query.batch(ReadMinRows(3)) or ()) == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [("queuePrefix", "agents.1"), ("queuePattern", "agents.*.in"), ("queueNames", '["agents.10.in", "agents.3.out"]')],
)
def test_only_queues_that_are_asked_for_make_a_batch(
    shared_node: NodeProcess, sender: NamedSender, option: str, value: str
) -> None:
    wanted: Callable[[str], bool] = {
        "queuePrefix": lambda name: name.startswith("agents.1"),
        "queuePattern": lambda name: name.endswith(".in"),
        "queueNames": lambda name: name in ("agents.10.in", "agents.3.out"),
    }[option]
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest", **{option: value})
    names = [f"agents.{number}.{box}" for number in range(13) for box in ("in", "out")]
    for _ in range(2):
        sender.send(names)
        query.batch(ReadMaxRows(3))
    while query.batch(ReadMaxRows(3)) is not None:
        pass
    assert sorted(query.bodies) == sorted(row for row in sender.sent if wanted(row.split()[0]))
    sender.send(["other"])
    assert query.batch() is None, "what came elsewhere is no batch"


def test_names_that_are_deleted_and_made_anew_are_read_once(shared_node: NodeProcess, sender: NamedSender) -> None:
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest")
    for turn in range(4):
        sender.send([f"job.{number}" for number in range(turn, turn + 20)] * 3)
        query.batch()
        assert sorted(query.bodies) == sorted(sender.sent)
        for number in range(turn, turn + 15):
            sender.client.delete_queue(sender.topic, f"job.{number}")
        if turn % 2:
            query.again()
    sender.send(["fresh", "job.0"])
    kept = sender.sent[-1:]
    sender.client.delete_queue(sender.topic, "fresh")
    sender.send(["fresher"])  # perhaps with the number that was that of the other
    with pytest.raises(DataLoss, match=r"was to be read at .*deleted queue; set failOnDataLoss"):
        query.batch()
    query.again(failOnDataLoss="false")
    assert sorted(query.read(query.ended[-2], query.ended[-1])) == sorted([*kept, sender.sent[-1]])


@pytest.mark.part(2)
def test_a_stream_goes_on_over_restarts_of_the_node_and_notices_what_has_gone(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(memtable_bytes=64 << 10, max_message_bytes=4 << 10).start()
    with Client(node.url) as client:
        client.create_topic("agents", queues="named")
        sender = NamedSender(client, "agents")
        query = PlayedQuery(node.url, topic="agents", startingOffsets="earliest", maxMessagesPerTrigger=150)
        for turn in range(6):
            sender.send([f"agents.{number}" for number in range(40 * turn, 40 * (turn + 3))] * 2)
            first = query.batch(ReadMaxRows(150))
            node.restart()
            query.again()
            assert query.read(query.ended[-2], query.ended[-1]) == first
        while query.batch(ReadMaxRows(150)) is not None:
            pass
        assert sorted(query.bodies) == sorted(sender.sent)
        # Neither the node nor the driver remember where the queue stood.
        sender.send(["agents.7"] * 5)
        query.ended.append(query.reader.latestOffset(query.ended[-1], ReadAllAvailable()))
        number = client.queue("agents", "agents.7")
        client.trim_queue("agents", "agents.7", number.latest - 2)
        node.restart()
        query.again()
        with pytest.raises(DataLoss, match="3 messages of topic 'agents' on shard 0 went before they were read"):
            query.read(query.ended[-2], query.ended[-1])
        query.again(failOnDataLoss="false")
        assert query.read(query.ended[-2], query.ended[-1]) == sender.sent[-2:]
        query.reader.stop()


def test_a_batch_has_what_is_there_where_much_of_the_backlog_is_gone(
    shared_node: NodeProcess, client: Client, sender: NamedSender
) -> None:
    options = {"failOnDataLoss": "false", "maxMessagesPerTrigger": 10}
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest", **options)
    sender.send(["a"] * 100 + ["b"] * 5)
    first = query.batch(ReadMaxRows(10))
    assert first is not None and len(first) == 10
    client.trim_queue(sender.topic, "a", 80)
    batches = []
    while (found := query.batch(ReadMaxRows(10))) is not None:
        batches.append(found)
    assert [len(found) for found in batches[:2]] == [10, 10]
    assert sorted(row for found in batches for row in found) == sorted(set(sender.sent[80:]) - set(first))


def test_a_shard_that_has_less_than_the_stream_has_seen_is_told(shared_node: NodeProcess, sender: NamedSender) -> None:
    """As after a shard was revived from a replica that was behind."""
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest")
    sender.send(["a", "b", "c"])
    query.batch()
    query.ended[-1]["topics"][sender.topic]["shards"]["0"][1] += 2
    sender.send(["a", "b", "c"])
    with pytest.raises(DataLoss, match=r"2 messages of .* are not on shard 0 any more that the stream has gone past"):
        query.batch()
    query.again(failOnDataLoss="false")
    assert query.read(query.ended[-2], query.ended[-1]) == sender.sent[3:]


def test_a_group_is_told_how_far_a_stream_is(shared_node: NodeProcess, sender: NamedSender) -> None:
    group = f"{sender.topic}-g"
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest", group=group)
    sender.send(["a", "b", "b"])
    query.batch()
    assert query.batch() is None
    numbers = {sender.client.queue(sender.topic, name).number: count for name, count in (("a", 1), ("b", 2))}
    assert sender.client.committed_offsets(group, sender.topic) == numbers


def test_a_group_is_told_after_a_restart_and_after_it_could_not_be_told(
    shared_node: NodeProcess, sender: NamedSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"{sender.topic}-g"
    query = PlayedQuery(shared_node.url, topic=sender.topic, startingOffsets="earliest", group=group)

    def committed() -> dict[str, int]:
        found = sender.client.committed_offsets(group, sender.topic)
        names = {sender.client.queue(sender.topic, name).number: name for name in ("a", "b", "c")}
        return {names[number]: offset for number, offset in found.items()}

    sender.send(["a", "b", "b", "c"])
    query.batch()
    query.again()
    assert query.batch() is None
    assert committed() == {"a": 1, "b": 2, "c": 1}, "the driver before had planned the batch"

    def unreachable(*_: object) -> None:
        raise Unavailable("no leader")

    sender.send(["a", "b"])
    query.batch()
    with monkeypatch.context() as broken:
        broken.setattr(PipelineClient, "commit", unreachable)
        assert query.batch() is None
    sender.send(["a"])
    query.batch()
    assert query.batch() is None
    assert committed() == {"a": 3, "b": 3, "c": 1}


def test_numbered_and_named_topics_share_a_stream_and_its_limit(
    shared_node: NodeProcess, client: Client, sender: NamedSender
) -> None:
    other = f"{sender.topic}-numbered"
    client.create_topic(other, queues=3)
    with Producer(client, other) as producer:
        for number in range(30):
            producer.send(f"n{number}", queue=number % 3)
    sender.send([f"q{number}" for number in range(30)])
    query = PlayedQuery(shared_node.url, topic=f"{sender.topic},{other}", startingOffsets="earliest")
    sizes = []
    while (found := query.batch(ReadMaxRows(16))) is not None:
        sizes.append(len(found))
    assert max(sizes) <= 16 and sum(sizes) == 60
    assert sorted(query.bodies) == sorted([*sender.sent, *(f"None n{number}" for number in range(30))])
    document = query.ended[-1]
    assert named_from_document(document).keys() == {sender.topic}
    query.again()
    client.delete_topic(sender.topic)
    client.create_topic(sender.topic, queues="named")
    with pytest.raises(DataLoss, match="deleted and made anew"):
        query.batch()
    query.again(failOnDataLoss="false")
    sender.send(["q1"])
    assert query.batch() == sender.sent[-1:]


def test_what_a_stream_of_names_cannot_obey_is_refused(shared_node: NodeProcess, sender: NamedSender) -> None:
    def refused(words: str, **options: Any) -> None:
        with pytest.raises(InvalidOption, match=words):
            PlayedQuery(shared_node.url, **{"topic": sender.topic, **options})

    refused("take queueNames", queues="0-1")
    refused("take queueNames", topic="", assign=json.dumps({sender.topic: [0]}))
    refused("offsets by number", startingOffsets=json.dumps({sender.topic: {"0": 3}}))
    refused("something of single queues", startingOffsetsByTimestamp=json.dumps({sender.topic: {"0": 3}}))
    refused("something of single queues", startingTimestamp=3, startingOffsetsByTimestampStrategy="error")
    refused("both say what to read", queuePrefix="a", queueNames="a")
    refused("control character", queuePrefix="a\x07")

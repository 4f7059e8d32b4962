"""The stream reader against a real node, asked as Spark asks it: what it takes, and from which queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from lsmq.errors import Unavailable, UnknownTopic
from lsmq.sync import Client, Producer
from lsmq.topics import Topic
from lsmq_pipeline.batch_reader import LsmqReader
from lsmq_pipeline.errors import DataLoss, InvalidOption
from lsmq_pipeline.options import read_options
from lsmq_pipeline.schema import message_schema
from lsmq_pipeline.stream_reader import LsmqStreamReader
from support.node_process import NodeProcess


@contextmanager
def reader(node: NodeProcess, **options: Any) -> Iterator[LsmqStreamReader]:
    given = {"url": node.url, **{name: str(value) for name, value in options.items()}}
    made = LsmqStreamReader(read_options(given, streaming=True), message_schema())
    try:
        yield made
    finally:
        made.stop()


def send(client: Client, topic: str, *counts: int) -> None:
    """So many messages to each queue of a topic."""
    client.create_topic(topic, queues=len(counts))
    with Producer(client, topic) as producer:
        for queue, count in enumerate(counts):
            for number in range(count):
                producer.send(str(number), queue=queue)


def ends(offsets: dict[str, Any], topic: str) -> str:
    text: str = offsets["topics"][topic]["offsets"]
    return text


def taken(found: LsmqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Queues of a batch and how many messages of each."""
    splits = [planned.split for planned in found.partitions(start, end)]  # type: ignore[attr-defined]
    return [
        (queue, last - first)
        for split in splits
        for queue, first, last in zip(split.queues.tolist(), split.starts, split.ends, strict=True)
    ]


def test_queues_that_are_not_asked_for_stand_still_and_cost_no_share_of_a_batch(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    send(client, topic_name, 40, 3, 40, 0)
    with reader(shared_node, assign=json.dumps({topic_name: [1, "3"]}), startingOffsets="earliest") as found:
        start = found.initialOffset()
        first = found.latestOffset(start, ReadMaxRows(2))
        assert ends(first, topic_name) == "0:0,1:2,2-3:0" and taken(found, start, first) == [(1, 2)]
        second = found.latestOffset(first, ReadMaxRows(2))
        assert ends(second, topic_name) == "0:0,1:3,2-3:0" and taken(found, first, second) == [(1, 1)]
        send(client, topic_name, 5, 0, 0, 0)
        assert found.latestOffset(second, ReadMaxRows(2)) is second, "what came elsewhere is no batch"
    with reader(shared_node, assign=json.dumps({topic_name: ["0-3"]}), group=f"{topic_name}-g") as found:
        third = found.latestOffset(second, ReadAllAvailable())
        assert taken(found, second, third) == [(0, 45), (2, 40)], "from where it stood"


def test_a_group_is_told_of_the_queues_that_are_read(shared_node: NodeProcess, client: Client, topic_name: str) -> None:
    send(client, topic_name, 4, 4)
    group = f"{topic_name}-g"
    with reader(shared_node, topic=topic_name, queues="1", group=group) as found:
        start = found.initialOffset()
        send(client, topic_name, 3, 3)
        end = found.latestOffset(start, ReadAllAvailable())
        assert found.latestOffset(end, ReadAllAvailable()) is end
    assert client.committed_offsets(group, topic_name) == {1: 7}


def test_too_few_messages_wait_unless_all_there_is_is_asked_for(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    send(client, topic_name, 2, 2)
    options = {"topic": topic_name, "startingOffsets": "earliest", "minMessagesPerTrigger": 6}
    with reader(shared_node, **options) as found:
        limit = found.getDefaultReadLimit()
        assert limit == ReadMinRows(6)
        first = found.latestOffset(found.initialOffset(), limit)
        assert ends(first, topic_name) == "0-1:2", "the first batch does not wait"
        send(client, topic_name, 3, 2)
        assert found.latestOffset(first, limit) is first
        send(client, topic_name, 0, 1)
        assert ends(found.latestOffset(first, limit), topic_name) == "0-1:5"
        send(client, topic_name, 1, 0)
        second = found.latestOffset(first, limit)
        send(client, topic_name, 1, 0)
        assert found.latestOffset(second, limit) is second
        assert ends(found.latestOffset(second, ReadAllAvailable()), topic_name) == "0:7,1:5"
    with reader(shared_node, **options, maxMessagesPerTrigger=6) as found:
        assert found.getDefaultReadLimit() == ReadMaxRows(6)
        found.prepareForTriggerAvailableNow()
        begun = found.latestOffset(first, ReadMaxRows(6))
        rest = found.latestOffset(begun, ReadMaxRows(6))
        assert ends(rest, topic_name) == "0:7,1:5", "what there is is taken to its end"
        assert found.latestOffset(rest, ReadMaxRows(6)) is rest


def test_a_batch_that_waited_too_long_is_taken(shared_node: NodeProcess, client: Client, topic_name: str) -> None:
    send(client, topic_name, 1)
    options = {"topic": topic_name, "startingOffsets": "earliest", "minMessagesPerTrigger": 6, "maxTriggerDelay": "0"}
    with reader(shared_node, **options) as found:
        first = found.latestOffset(found.initialOffset(), ReadMinRows(6))
        send(client, topic_name, 1)
        assert ends(found.latestOffset(first, ReadMinRows(6)), topic_name) == "0:2"


def test_queues_start_at_times_of_their_own(shared_node: NodeProcess, client: Client, topic_name: str) -> None:
    send(client, topic_name, 3, 3, 3)
    late = json.dumps({topic_name: {"0": 5, "1": "2100-01-01T00:00:00Z"}})
    with reader(shared_node, topic=topic_name, startingOffsetsByTimestamp=late) as found:
        assert ends(found.initialOffset(), topic_name) == "0:0,1:3,2:0"
    strict = {"startingOffsetsByTimestamp": late, "startingOffsetsByTimestampStrategy": "error"}
    with reader(shared_node, topic=topic_name, queues="0", **strict) as found:
        assert ends(found.initialOffset(), topic_name) == "0-2:0"
    refused(shared_node, "the first of them 1, have no message", topic=topic_name, **strict)
    other = {"startingOffsetsByTimestamp": '{"other": {"0": 5}}'}
    refused(shared_node, "'other' is not among those read", topic=topic_name, **other)


def refused(node: NodeProcess, told: str, **options: Any) -> None:
    with reader(node, **options) as found, pytest.raises(InvalidOption, match=told):
        found.initialOffset()


def test_what_is_assigned_must_be_there(shared_node: NodeProcess, client: Client, topic_name: str) -> None:
    with reader(shared_node, assign='{"not-there": [0]}') as found, pytest.raises(UnknownTopic, match="not-there"):
        found.initialOffset()
    send(client, topic_name, 1, 1)
    refused(shared_node, "has queues 0 to 1, not 2", assign=json.dumps({topic_name: [2]}))


def test_a_batch_has_what_is_there_where_much_of_the_backlog_is_gone(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    send(client, topic_name, 100, 0)
    options = {"topic": topic_name, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with reader(shared_node, **options) as found:
        start = found.latestOffset(found.initialOffset(), ReadMaxRows(10))
        assert taken(found, found.initialOffset(), start) == [(0, 10)]
        client.trim_topic(topic_name, {0: 80})
        end = found.latestOffset(start, ReadMaxRows(10))
        assert ends(end, topic_name) == "0:90,1:0" and taken(found, start, end) == [(0, 10)]
    with reader(shared_node, topic=topic_name, startingOffsets="earliest") as found:
        end = found.latestOffset(start, ReadMaxRows(10))
        with pytest.raises(DataLoss, match="was to be read at 10, its earliest is 80"):
            found.partitions(start, end)


def test_a_queue_that_ends_before_what_the_stream_has_read_is_told(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    """As after a cluster was made again of a backup: what comes next would be passed over as read."""
    send(client, topic_name, 3, 3)
    with reader(shared_node, topic=topic_name, startingOffsets="earliest") as found:
        start = found.latestOffset(found.initialOffset(), ReadAllAvailable())
        start["topics"][topic_name] |= {"offsets": "0:3,1:7"}
        with pytest.raises(DataLoss, match="queue 1 was to be read at 7, its latest is 3"):
            found.latestOffset(start, ReadAllAvailable())
    with reader(shared_node, topic=topic_name, queues="0") as found:
        assert found.latestOffset(start, ReadAllAvailable()) is start, "of a queue that is not asked for"
    with reader(shared_node, topic=topic_name, failOnDataLoss="false") as found:
        again = found.latestOffset(start, ReadAllAvailable())
        assert ends(again, topic_name) == "0-1:3" and taken(found, start, again) == []
        send(client, topic_name, 1, 5)
        end = found.latestOffset(again, ReadAllAvailable())
        assert taken(found, again, end) == [(0, 1), (1, 5)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_has_fewer_queues_than_are_known_of_it_is_told_and_nothing_forgotten(
    shared_node: NodeProcess, client: Client, topic_name: str, fail: str
) -> None:
    """As a node says that has not heard yet that the topic grew, and a cluster that was made again of a backup."""
    send(client, topic_name, 3, 3)
    options = {"topic": topic_name, "queues": "0-9", "group": f"{topic_name}-g", "failOnDataLoss": fail}
    with reader(shared_node, startingOffsets="earliest", **options) as found:
        begun = found.initialOffset()
        known = {"id": begun["topics"][topic_name]["id"], "queues": 4}
        start, end = (
            {**begun, "topics": {topic_name: {**known, "offsets": offsets}}}
            for offsets in ("0-1:1,2-3:0", "0-1:2,2-3:0")
        )
        for ask in (lambda: found.latestOffset(start, ReadAllAvailable()), lambda: found.partitions(start, end)):
            with pytest.raises(Unavailable, match="has 2 queues, and offsets are known of 4"):
                ask()


def gone_once_listed(found: LsmqStreamReader, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the topic is deleted just after the reader was told that it is there."""
    existing = found._existing

    def listed() -> list[Topic]:
        topics = existing()
        if topic in [each.name for each in topics]:
            client.delete_topic(topic)
        return topics

    monkeypatch.setattr(found, "_existing", listed)


def test_a_topic_that_goes_while_a_batch_is_planned_is_deleted_and_no_defect(
    shared_node: NodeProcess, client: Client, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = f"{topic_name}-a", f"{topic_name}-b"
    options = {"topicPattern": f"{topic_name}-.", "startingOffsets": "earliest"}
    for topic in (stays, goes):
        send(client, topic, 2)
    with reader(shared_node, topicPattern=f"{stays}|{goes}", startingOffsets="earliest") as found:
        begun = found.initialOffset()
        end = found.latestOffset(begun, ReadAllAvailable())
        gone_once_listed(found, client, goes, monkeypatch)
        with pytest.raises(DataLoss, match="deleted before all of it was read"):
            found.partitions(begun, end)
    with reader(shared_node, **options, failOnDataLoss="false") as found:
        assert taken(found, begun, end) == [(0, 2)]
        send(client, goes, 2)
        again = found.latestOffset(end, ReadAllAvailable())
        gone_once_listed(found, client, goes, monkeypatch)
        assert taken(found, end, again) == []
    with reader(shared_node, topicPattern=f"{stays}|{goes}", startingOffsets="earliest") as found:
        start = found.initialOffset()
        send(client, goes, 2)
        gone_once_listed(found, client, goes, monkeypatch)
        end = found.latestOffset(start, ReadAllAvailable())
        assert taken(found, start, end) == [(0, 2)], "nothing was known of it that could be lost"
        send(client, goes, 2)
        latest = found.reportLatestOffset()
        assert latest is not None and latest["topics"].keys() == {stays}


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_goes_before_a_task_reads_it_is_a_loss(
    shared_node: NodeProcess, client: Client, topic_name: str, anew: bool
) -> None:
    send(client, topic_name, 2)
    with reader(shared_node, topic=topic_name, startingOffsets="earliest") as found:
        start = found.initialOffset()
        planned = found.partitions(start, found.latestOffset(start, ReadAllAvailable()))
        client.delete_topic(topic_name)
        if anew:
            send(client, topic_name, 2)
        with pytest.raises(DataLoss, match="was deleted before all of it was read"):
            list(found.read(planned[0]))
    with reader(shared_node, topic=topic_name, startingOffsets="earliest", failOnDataLoss="false") as found:
        assert list(found.read(planned[0])) == []


def test_each_time_a_topic_is_deleted_is_told(
    shared_node: NodeProcess, client: Client, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with reader(shared_node, topicPattern=topic_name, startingOffsets="earliest", failOnDataLoss="false") as found:
        send(client, topic_name, 1)
        at = found.initialOffset()
        for _ in range(2):
            send(client, topic_name, 1)
            begun, at = at, found.latestOffset(at, ReadAllAvailable())
            assert taken(found, begun, at), "also of one that is made anew"
            client.delete_topic(topic_name)
            caplog.clear()
            for _ in range(2):
                at = found.latestOffset(at, ReadAllAvailable())
            assert [record.message for record in caplog.records if "was deleted" in record.message] == [
                f"topic {topic_name!r} was deleted: what was not read of it is gone; going on without"
            ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_of_a_pattern_that_is_gone_is_forgotten_with_the_second_batch_and_noticed_when_it_comes_again(
    shared_node: NodeProcess, client: Client, topic_name: str, restarted: bool
) -> None:
    stays, goes = (f"{topic_name}-{name}" for name in ("stays", "goes"))
    asked = {"topicPattern": f"{topic_name}-.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with ExitStack() as opened:
        send(client, stays, 1)
        send(client, goes, 2)
        found = opened.enter_context(reader(shared_node, **asked))
        at = found.initialOffset()

        def batch() -> list[int]:
            """How many messages of the topics: one has come to the one that stays."""
            nonlocal at, found
            begun = at
            if restarted:  # As a query that is run again and again for what is there.
                found = opened.enter_context(reader(shared_node, **asked))
                found.prepareForTriggerAvailableNow()
            at = found.latestOffset(begun, ReadAllAvailable())
            counts = sorted(count for _, count in taken(found, begun, at))
            send(client, stays, 1)
            return counts

        assert batch() == [1, 2]
        client.delete_topic(goes)
        assert batch() == [1] and at["topics"].keys() == {stays, goes}, "it may come again at once"
        assert batch() == [1] and at["topics"].keys() == {stays}
        send(client, goes, 3)
        assert batch() == [1, 3], "it is another one, which is read from its beginning"
        for _ in range(2):
            client.delete_topic(goes)
            assert batch() == [1] and at["topics"].keys() == {stays, goes}
            send(client, goes, 3)
            assert batch() == [1, 3], "it was gone in one batch only, each time"


def test_that_a_topic_is_gone_makes_no_batch(shared_node: NodeProcess, client: Client, topic_name: str) -> None:
    send(client, topic_name, 2)
    with reader(shared_node, topicPattern=topic_name, startingOffsets="earliest", failOnDataLoss="false") as found:
        at = found.latestOffset(found.initialOffset(), ReadAllAvailable())
        client.delete_topic(topic_name)
        for _ in range(3):
            assert found.latestOffset(at, ReadAllAvailable()) is at


def test_a_trigger_of_several_batches_looks_again_before_it_forgets_a_topic(
    shared_node: NodeProcess, client: Client, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches rest on one listing, which may have lacked one that is there."""
    stays, missed = (f"{topic_name}-{name}" for name in ("stays", "missed"))
    send(client, stays, 4)
    send(client, missed, 3)
    asked = {"topicPattern": f"{topic_name}-.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with reader(shared_node, **asked) as found:
        at = found.latestOffset(found.initialOffset(), ReadAllAvailable())
        send(client, stays, 4)
        with monkeypatch.context() as lacking:
            existing = found._existing
            lacking.setattr(found, "_existing", lambda: [each for each in existing() if each.name != missed])
            found.prepareForTriggerAvailableNow()
        for _ in range(3):
            at = found.latestOffset(at, ReadMaxRows(1))
            assert at["topics"].keys() == {stays, missed}
        send(client, missed, 1)
        found.prepareForTriggerAvailableNow()
        begun, at = at, found.latestOffset(at, ReadAllAvailable())
        assert sorted(taken(found, begun, at)) == [(0, 1), (0, 1)], "none of it is read twice"


def test_tasks_find_the_cluster_by_nodes_that_the_driver_knows(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    """As where the nodes that the query was started with have been replaced one by one."""
    send(client, topic_name, 2)
    with reader(shared_node, topic=topic_name, startingOffsets="earliest") as found:
        start = found.initialOffset()
        planned = found.partitions(start, found.latestOffset(start, ReadAllAvailable()))
    options = read_options({"url": "http://127.0.0.1:9", "topic": topic_name, "deadlineMs": "5000"}, streaming=True)
    task = LsmqStreamReader(options, message_schema())
    assert sum(batch.num_rows for batch in task.read(planned[0])) == 2


def test_topics_of_a_pattern_whose_queues_the_options_cannot_say_are_passed_over_with_a_warning(
    shared_node: NodeProcess, client: Client, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbered, named = f"{topic_name}-a", f"{topic_name}-b"
    options = {"topicPattern": f"{topic_name}-.", "startingOffsets": "earliest"}
    send(client, numbered, 2)
    with reader(shared_node, **options, queues="0-9") as found:
        start = found.initialOffset()
        client.create_topic(named, queues="named")
        with Producer(client, named) as producer:
            producer.send("x", queue="anna")
        for _ in range(2):
            end = found.latestOffset(start, ReadAllAvailable())
            assert taken(found, start, end) == [(0, 2)]
    warned = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(warned) == 1 and f"'{named}' is passed over: option queues" in warned[0]
    with reader(shared_node, **options, queueNames="anna") as found:
        assert found.initialOffset()["topics"].keys() == {named}
    with reader(shared_node, topicPattern=named, queues="0") as found, pytest.raises(InvalidOption, match="queueNames"):
        found.initialOffset()
    batch = {"url": shared_node.url, "topicPattern": f"{topic_name}-."}
    planned = LsmqReader(read_options({**batch, "queues": "0-9"}), message_schema()).partitions()
    assert [each.split.topic["name"] for each in planned] == [numbered]  # type: ignore[attr-defined]

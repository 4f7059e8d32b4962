"""Options of the data source: what a user writes, checked and typed.

Names are compared without regard to case, as Spark does, and are those of Spark's Kafka source where they mean the
same. Unknown ones are refused: a misspelt option that is silently ignored is found out at the worst moment. So are
those that would count for nothing beside others, or for a stream, or for a batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsmq.errors import InvalidFilter, InvalidQueueName
from lsmq.filter_expressions import Expression
from lsmq.queue_names import check_pattern, check_queue_name
from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.from_kafka import READ_ALIASES, read_remedy, write_remedy
from lsmq_pipeline.given import (
    DURATION,
    QUEUES,
    QUEUES_BY_TOPIC,
    TIME,
    VALUES,
    Given,
    parse_duration_ms,
    parse_pattern,
    parse_queues,
    parse_queues_by_topic,
    parse_time,
    parse_values,
)
from lsmq_pipeline.times import TIMES_BY_QUEUE, TimesByQueue, parse_times_by_queue

READ_FROM = ("follower", "leader", "any")
NO_MESSAGE_SINCE = ("latest", "error")
MAX_TRIGGER_DELAY_MS = 900_000

_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STRATEGY = "startingOffsetsByTimestampStrategy"
_OF_STREAMS = ("maxMessagesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay", "group")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to find the cluster; picklable, since tasks connect by themselves."""

    url: str
    zookeeper: str
    cluster: str | None
    deadline_ms: int
    request_timeout_ms: int
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a read starts, or where it ends: at ``times``, of the queues that have one, else at ``offsets``.

    ``offsets`` is ``earliest``, ``latest`` or JSON. With ``needs_message`` a time after which a queue has none is an
    error, and else that queue's end.
    """

    option: str
    offsets: str
    times: TimesByQueue | None
    is_start: bool
    needs_message: bool = False

    @property
    def unnamed(self) -> str:
        """Where queues stand that neither times nor offsets name, ``earliest`` or ``latest``."""
        if self.offsets in ("earliest", "latest"):
            return self.offsets
        return "earliest" if self.is_start else "latest"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of a read, batch or streaming. ``docs/pipeline.md`` says what each means.

    ``assigned`` are the queues that are read of each of ``topics``; else ``queues`` of each, all where that is None.
    """

    connection: ConnectionOptions
    topics: tuple[str, ...]
    topic_pattern: str | None
    assigned: Mapping[str, tuple[range, ...]] | None
    queues: tuple[range, ...] | None
    queue_names: tuple[str, ...] | None
    queue_pattern: str | None
    queue_prefix: str | None
    start: Edge
    end: Edge
    keys: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    types: tuple[str, ...] | None
    filter: str | None
    min_partitions: int
    max_messages_per_partition: int
    max_bytes_per_partition: int
    preserve_order: bool
    max_messages_per_trigger: int | None
    min_messages_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    include_properties: bool
    include_headers: bool
    include_queue_names: bool
    binary_keys: bool
    read_from: str
    read_node: str | None
    group: str | None
    fetch_bytes: int

    @property
    def what(self) -> str:
        return ", ".join(self.topics) if self.topics else f"pattern {self.topic_pattern}"

    def asks_for(self, topic: str) -> bool:
        """Whether a topic of this name is to be read."""
        return topic in self.topics or bool(self.topic_pattern and re.fullmatch(self.topic_pattern, topic))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Of a write, batch or streaming."""

    connection: ConnectionOptions
    topic: str | None
    ack: str | None
    flush: str | None
    query_id: str | None
    batch_bytes: int
    batch_messages: int
    compression: str


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """The options of a read. Raises :class:`InvalidOption`."""
    given = Given(options, READ_ALIASES, read_remedy)
    topics, pattern, assigned = _topics(given)
    read = ReadOptions(
        connection=_connection(given),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        queues=given.parsed("queues", parse_queues, QUEUES),
        queue_names=given.parsed("queueNames", parse_values, VALUES, strip=False),
        queue_pattern=_queue_pattern(given),
        queue_prefix=_queue_prefix(given),
        start=_start(given, "latest" if streaming else "earliest"),
        end=_end(given),
        keys=given.parsed("keys", parse_values, VALUES, strip=False),
        tags=given.parsed("tags", parse_values, VALUES, strip=False),
        types=given.parsed("types", parse_values, VALUES, strip=False),
        filter=_condition(given),
        min_partitions=given.number("minPartitions", 1),
        max_messages_per_partition=given.number("maxMessagesPerPartition", 1_000_000),
        max_bytes_per_partition=given.number("maxBytesPerPartition", 64 << 20),
        preserve_order=given.switch("preserveOrder", True),
        max_messages_per_trigger=given.count("maxMessagesPerTrigger"),
        min_messages_per_trigger=given.count("minMessagesPerTrigger"),
        max_trigger_delay_ms=_or(given.parsed("maxTriggerDelay", parse_duration_ms, DURATION), MAX_TRIGGER_DELAY_MS),
        fail_on_data_loss=given.switch("failOnDataLoss", True),
        include_properties=given.switch("includeProperties", True),
        include_headers=given.switch("includeHeaders", False),
        include_queue_names=given.switch("includeQueueNames", False),
        binary_keys=given.switch("binaryKeys", False),
        read_from=given.choice("readFrom", READ_FROM, "follower"),
        read_node=given.text("readNode") or None,
        group=given.text("group") or None,
        fetch_bytes=given.number("fetchBytes", 8 << 20, 1 << 10),
    )
    given.check_all_known("reading")
    _check_together(given, read, streaming)
    return read


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises :class:`InvalidOption`."""
    given = Given(options, remedy=write_remedy)
    write = WriteOptions(
        connection=_connection(given),
        topic=given.text("topic") or None,
        ack=given.choice("ack", ("quorum", "leader", ""), "") or None,
        flush=given.choice("flush", ("sync", "async", ""), "") or None,
        query_id=given.text("queryId") or None,
        batch_bytes=given.number("batchBytes", 1 << 20),
        batch_messages=given.number("batchMessages", 10_000),
        compression=given.choice("compression", ("none", "zstd"), "none"),
    )
    given.check_all_known("writing")
    return write


def _condition(given: Given) -> str | None:
    """Raises ``InvalidOption`` for a condition that the broker could not read."""
    text = given.text("filter") or None
    if text is not None:
        try:
            Expression(text)
        except InvalidFilter as error:
            raise InvalidOption(error.message, option="filter", position=error.details["position"]) from error
    return text


def _connection(given: Given) -> ConnectionOptions:
    """Where nothing says how to find the cluster, the driver's environment does: tasks have another one."""
    url, zookeeper, cluster = (given.text(name) or "" for name in ("url", "zookeeper", "cluster"))
    if not url and not zookeeper:
        url, zookeeper = (os.environ.get(name, "") for name in ("LSMQ_URL", "LSMQ_ZOOKEEPER"))
    if zookeeper and not cluster:
        cluster = os.environ.get("LSMQ_CLUSTER", "")
    return ConnectionOptions(
        url=url,
        zookeeper=zookeeper,
        cluster=cluster or None,
        deadline_ms=given.number("deadlineMs", 60_000),
        request_timeout_ms=given.number("requestTimeoutMs", 20_000),
        token_file=given.text("tokenFile") or None,
    )


def _topics(given: Given) -> tuple[tuple[str, ...], str | None, dict[str, tuple[range, ...]] | None]:
    """Names of topics, each once, or a pattern, or queues by topic."""
    names = [name.strip() for name in (given.text("topic") or "").split(",")]
    topics = tuple(dict.fromkeys(name for name in names if name))
    pattern = given.parsed("topicPattern", parse_pattern, "a regular expression") or None
    assigned = given.parsed("assign", parse_queues_by_topic, QUEUES_BY_TOPIC)
    if bool(topics) + (pattern is not None) + (assigned is not None) != 1:
        raise InvalidOption(
            "give one of the options topic (several separated by commas), topicPattern and assign (queues by topic)",
            option="topic",
        )
    return (tuple(assigned) if assigned is not None else topics), pattern, assigned


def _queue_pattern(given: Given) -> str | None:
    text = given.text("queuePattern") or None
    try:
        return None if text is None else check_pattern(text)
    except InvalidQueueName as error:
        raise InvalidOption(f"option queuePattern: {error.message}", option="queuePattern") from error


def _queue_prefix(given: Given) -> str | None:
    text = given.parsed("queuePrefix", str, "what names begin with", strip=False) or None
    try:
        return text if text in (None, ".", "..") else check_queue_name(text)
    except InvalidQueueName as error:
        raise InvalidOption(f"option queuePrefix: {error.message}", option="queuePrefix") from error


def _start(given: Given, default: str) -> Edge:
    times = _times(given, _STARTS)
    strategy = given.choice(_STRATEGY, NO_MESSAGE_SINCE, "latest")
    if _STRATEGY in given and times is None:
        raise InvalidOption(
            f"option {_STRATEGY} is for startingTimestamp and startingOffsetsByTimestamp; neither is given",
            option=_STRATEGY,
        )
    offsets = given.text("startingOffsets") or (default if times is None else "earliest")
    return Edge("startingOffsets", offsets, times, is_start=True, needs_message=strategy == "error")


def _end(given: Given) -> Edge:
    times = _times(given, _ENDS)
    return Edge("endingOffsets", given.text("endingOffsets") or "latest", times, is_start=False)


def _times(given: Given, names: tuple[str, str, str]) -> TimesByQueue | None:
    """Of the options for one edge: a time for all queues, times by queue, or none where offsets are given."""
    given.at_most_one(names)
    everywhere, by_queue, _ = names
    moment = given.parsed(everywhere, parse_time, TIME)
    if moment is not None:
        given.text(by_queue)
        return TimesByQueue(everywhere, moment)
    by_topic = given.parsed(by_queue, parse_times_by_queue, TIMES_BY_QUEUE)
    return None if by_topic is None else TimesByQueue(by_queue, None, by_topic)


def _check_together(given: Given, read: ReadOptions, streaming: bool) -> None:
    """Raises ``InvalidOption`` for options that cannot be obeyed beside others."""
    if streaming:
        given.refuse(_ENDS, "is for a batch: a stream has no end")
        given.refuse(["maxBytesPerPartition"], "is for a batch: a stream cuts by messages, alike at each repeat")
    else:
        given.refuse(_OF_STREAMS, "is for a stream, and this is a batch")
        if read.start.offsets == "latest":
            raise InvalidOption(
                "startingOffsets of a batch cannot be latest: nothing would be read", option="startingOffsets"
            )
    if read.end.offsets == "earliest":
        raise InvalidOption("endingOffsets cannot be earliest: nothing would be read", option="endingOffsets")
    if read.assigned is not None:
        given.refuse(["queues"], "goes with topic or topicPattern; assign names queues itself")
    picking = {"queueNames": read.queue_names, "queuePattern": read.queue_pattern, "queuePrefix": read.queue_prefix}
    if len(said := [name for name, value in picking.items() if value is not None]) > 1:
        raise InvalidOption(f"{said[0]} and {said[1]} both say what to read: give one", option=said[1])
    least, most = read.min_messages_per_trigger, read.max_messages_per_trigger
    if least is None:
        given.refuse(["maxTriggerDelay"], "bounds the delay by minMessagesPerTrigger, which is not given")
    elif most is not None and least > most:
        raise InvalidOption(
            f"minMessagesPerTrigger is {least} and maxMessagesPerTrigger {most}: no batch could be both",
            option="minMessagesPerTrigger",
        )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def as_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark wants them: text, without those that are None."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }

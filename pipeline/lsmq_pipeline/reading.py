"""What batch and streaming reads share: bounds of topics to portions, portions to splits, splits to Arrow."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from lsmq.errors import LsmqError
from lsmq.record_batch import split_batches
from lsmq.topics import Topic
from lsmq_pipeline.client import PipelineClient, Want
from lsmq_pipeline.decode import positions
from lsmq_pipeline.errors import GONE, DataLoss
from lsmq_pipeline.fetch import FetchPlan, SplitReader
from lsmq_pipeline.options import Edge, ReadOptions
from lsmq_pipeline.resolve import Mask, chosen_queues, explicit_offsets, place, times_of
from lsmq_pipeline.schema import arrow_schema, whole_schema
from lsmq_pipeline.splits import Portion, Split, plan
from lsmq_pipeline.wanted import WantedKeys

I64 = NDArray[np.int64]
_log = logging.getLogger("lsmq")

TASK_URLS = 16
SAMPLE_QUEUES = 64
SAMPLE_MESSAGES = 256
SAMPLE_BYTES = 256 << 10


class PlannedSplit(InputPartition):
    """A split and how to fetch it. Spark takes a task's copy of the reader before it asks for the plan."""

    def __init__(self, split: Split, fetch: FetchPlan) -> None:
        super().__init__(None)
        self.split = split
        self.fetch = fetch

    def __repr__(self) -> str:
        return repr(self.split)


def wanted_of(options: ReadOptions) -> WantedKeys:
    """What options ``keys``, ``tags``, ``types`` and ``filter`` ask for."""
    return WantedKeys(
        keys=None if options.keys is None else frozenset(options.keys),
        tags=None if options.tags is None else frozenset(options.tags),
        types=None if options.types is None else frozenset(options.types),
        filter=options.filter,
    )


def fetch_plan(cluster: PipelineClient, options: ReadOptions) -> FetchPlan:
    """How tasks fetch. From followers where the nodes can: else the leader is asked, in words all nodes know."""
    read_from = None
    if options.read_from != "leader" and cluster.offers_follower_reads():
        read_from = options.read_from
    return FetchPlan(
        fail_on_data_loss=options.fail_on_data_loss,
        read_from=read_from,
        fetch_bytes=options.fetch_bytes,
        deadline_ms=options.connection.deadline_ms,
        read_node=options.read_node,
        picks=wanted_of(options).picks,
        urls=nodes_for_tasks(cluster, options),
    )


def nodes_for_tasks(cluster: PipelineClient, options: ReadOptions) -> tuple[str, ...]:
    """Some nodes by which tasks find the cluster: in time none may be left of those that options name."""
    connection = options.connection
    return tuple(cluster.urls[:TASK_URLS]) if connection.url and not connection.zookeeper else ()


def passing_over_gone(options: ReadOptions) -> AbstractContextManager[None]:
    """Where a pattern says what is read, a topic that goes just now is none of it."""
    return nullcontext() if options.topic_pattern is None else suppress(*GONE)


def edges_of(
    cluster: PipelineClient, topics: Sequence[Topic], options: ReadOptions, edges: Sequence[Edge]
) -> Iterator[tuple[Topic, Mask | None, list[I64]]]:
    """Each topic, which of its queues are asked for, and where they all stand at each edge.

    Raises ``DataLoss``, ``InvalidOption``.
    """
    explicit = [explicit_offsets(edge, topics) for edge in edges]
    for edge in edges:
        if edge.times is not None:
            edge.times.check_topics({topic.name for topic in topics})
    for topic in topics:
        chosen = chosen_queues(topic, options)
        times = [times_of(edge, topic, chosen) for edge in edges]
        bounds = None
        with passing_over_gone(options):
            at_times = [None if each is None else cluster.offsets_at(topic, each) for each in times]
            bounds = cluster.bounds(topic)  # After what was found of times, so that none of that lies beyond.
        if bounds is None:
            continue
        placed = []
        for edge, offsets, at_time in zip(edges, explicit, at_times, strict=True):
            given = None if offsets is None else offsets.get(topic.name)
            fail = options.fail_on_data_loss
            placed.append(place(edge, topic, bounds, given, at_time, chosen, fail_on_data_loss=fail))
        yield topic, chosen, placed


def planned_splits(portions: Sequence[Portion], fetch: FetchPlan, options: ReadOptions) -> list[InputPartition]:
    """The splits of what is to be read, as options bound them."""
    splits = plan(
        portions,
        min_splits=options.min_partitions,
        max_messages=options.max_messages_per_partition,
        max_bytes=options.max_bytes_per_partition,
        whole_queues=options.preserve_order,
    )
    return [PlannedSplit(split, fetch) for split in splits]


def sampled_bytes(
    cluster: PipelineClient, topic: Topic, start: I64, end: I64, numbers: NDArray[np.uint32] | None = None
) -> int:
    """About how large a message is: the mean of a few of some queues that have any. 0 when there are none.

    ``numbers`` of the queues, where they have names and are known here by their places.
    """
    total = count = 0
    for route in topic.routes:
        active = np.flatnonzero(end[route.first : route.end] > start[route.first : route.end]) + route.first
        if len(active) == 0:
            continue
        chosen = active[np.linspace(0, len(active) - 1, min(SAMPLE_QUEUES, len(active))).astype(np.int64)]
        asked = chosen if numbers is None else numbers[chosen]
        want = Want(asked, start[chosen], SAMPLE_MESSAGES, SAMPLE_BYTES)
        answer = cluster.fetch(topic, route.shard, want, None).result()
        for batch in split_batches(answer, source=f"answer for shard {route.shard}"):
            if positions(batch) is None:
                total += len(batch.payload)
                count += batch.record_count
    return total // count if count else 0


def read_split(options: ReadOptions, planned: PlannedSplit, schema: StructType) -> Iterator[Any]:
    """One task's work: connect, read, disconnect. Raises ``DataLoss``."""
    wanted, asked = wanted_of(options), arrow_schema(schema)
    extra = wanted.columns - set(asked.names)
    made = asked
    if extra:
        everything = arrow_schema(whole_schema())  # Keys that nobody sees may be bytes.
        for name in sorted(extra):
            made = made.append(everything.field(name))

    def exact(batch: Any) -> Any:
        batch = wanted.exact(batch)
        return batch.select(asked.names) if extra else batch

    connection, urls = options.connection, planned.fetch.urls
    with PipelineClient(replace(connection, url=",".join(urls)) if urls else connection) as cluster:
        reader = SplitReader(cluster, planned.split, planned.fetch)
        try:
            yield from reader.arrow(made, wanted.narrow, exact) if wanted.columns else reader.arrow(made)
        except GONE as error:
            tell_deleted(reader.topic.name, error, fail_on_data_loss=options.fail_on_data_loss)


def tell_deleted(name: str, cause: LsmqError | None = None, *, fail_on_data_loss: bool) -> None:
    """Raises ``DataLoss`` of a topic that was deleted with messages that were to be read, or warns."""
    message = f"topic {name!r} was deleted before all of it was read"
    if fail_on_data_loss:
        raise DataLoss(f"{message}; set failOnDataLoss to false to go on without", topic=name) from cause
    _log.warning("%s; going on without", message)

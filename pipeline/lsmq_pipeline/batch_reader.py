"""``spark.read.format("lsmq")``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lsmq.topics import Topic
from lsmq_pipeline.cluster import Cluster
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.reading import PlannedSplit, fetch_plan, read_split, sampled_bytes
from lsmq_pipeline.resolve import EARLIEST, LATEST, explicit_offsets, place, select_queues
from lsmq_pipeline.splits import Portion, plan


class LsmqReader(DataSourceReader):
    """Plans on the driver, reads in tasks. The end is what was there when the plan was made."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Splits of all that is wanted; connects to the cluster."""
        options = self.options
        with Cluster(options.connection) as cluster:
            topics = cluster.topics(options.topics, options.topic_pattern)
            fetch = fetch_plan(cluster, options)
            portions = portions_of(cluster, topics, options)
        splits = plan(
            portions,
            min_splits=options.min_partitions,
            max_messages=options.max_messages_per_partition,
            max_bytes=options.max_bytes_per_partition,
            whole_queues=options.preserve_order,
        )
        return [PlannedSplit(split, fetch) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as Arrow batches. Spark makes an empty partition when there are no splits."""
        if isinstance(partition, PlannedSplit):
            yield from read_split(self.options, partition, self.schema)


def portions_of(
    cluster: Cluster, topics: Sequence[Topic], options: ReadOptions, *, sample: bool = True
) -> list[Portion]:
    """What options ask for, of each topic. Raises ``DataLoss``, ``InvalidOption``."""
    starting = explicit_offsets("startingOffsets", options.starting_offsets, topics, EARLIEST)
    ending = explicit_offsets("endingOffsets", options.ending_offsets, topics, LATEST)
    portions = []
    for topic in topics:
        fail = options.fail_on_data_loss
        first = cluster.bounds(topic, at_time=options.starting_ms)
        last = first if options.ending_ms == options.starting_ms else cluster.bounds(topic, at_time=options.ending_ms)
        given = None if starting is None else starting.get(topic.name)
        start = place(topic, first, given, "earliest", fail_on_data_loss=fail, may_be_lost=True)
        given = None if ending is None else ending.get(topic.name)
        end = place(topic, last, given, "latest", fail_on_data_loss=fail, may_be_lost=False)
        end = np.maximum(end, start)
        chosen = select_queues(topic, options.queues)
        if chosen is not None:
            end = np.where(chosen, end, start)
        mean_bytes = sampled_bytes(cluster, topic, start, end) if sample else 0
        portions.append(Portion(topic, start, end, mean_bytes))
    return portions

"""``spark.read.format("lsmq")``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lsmq.topics import Topic
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.named import asked_topics, places_at, queues_between
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.reading import (
    PlannedSplit,
    edges_of,
    fetch_plan,
    passing_over_gone,
    planned_splits,
    read_split,
    sampled_bytes,
)
from lsmq_pipeline.splits import Portion


class LsmqReader(DataSourceReader):
    """Plans on the driver, reads in tasks. The end is what was there when the plan was made."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Splits of all that is wanted; connects to the cluster."""
        options = self.options
        with PipelineClient(options.connection) as cluster:
            topics = asked_topics(cluster, options, set())
            fetch = fetch_plan(cluster, options)
            portions = portions_of(cluster, topics, options, with_names="queue_name" in self.schema.names)
        return planned_splits(portions, fetch, options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as Arrow batches. Spark makes an empty partition when there are no splits."""
        if isinstance(partition, PlannedSplit):
            yield from read_split(self.options, partition, self.schema)


def portions_of(
    cluster: PipelineClient, topics: Sequence[Topic], options: ReadOptions, *, with_names: bool
) -> list[Portion]:
    """What options ask for, of each topic. Raises ``DataLoss``, ``InvalidOption``."""
    portions = []
    for topic in topics:
        if topic.named:
            edges = places_at(options.start, topic), places_at(options.end, topic)
            with passing_over_gone(options):
                queues = queues_between(cluster, topic, options, edges, with_names=with_names)
                places = queues.by_place()
                mean_bytes = sampled_bytes(cluster, places, queues.starts, queues.ends, queues.numbers)
                portions.append(Portion(places, queues.starts, queues.ends, mean_bytes, queues))
    numbered = [topic for topic in topics if not topic.named]
    for topic, chosen, (start, end) in edges_of(cluster, numbered, options, (options.start, options.end)):
        end = np.maximum(end, start)
        if chosen is not None:
            end = np.where(chosen, end, start)
        with passing_over_gone(options):
            portions.append(Portion(topic, start, end, sampled_bytes(cluster, topic, start, end)))
    return portions

"""``spark.read.format("lsmq")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lsmq.topics import Topic
from lsmq_pipeline.cluster import Cluster
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.pushdown import NO_END, Pushed, push
from lsmq_pipeline.reading import PlannedSplit, chosen_queues, fetch_plan, from_options, read_split, sampled_bytes
from lsmq_pipeline.resolve import EARLIEST, LATEST, explicit_offsets, place
from lsmq_pipeline.splits import Portion, plan

I64 = NDArray[np.int64]


class _PushFilters:
    """``pushFilters`` of one reader.

    Spark refuses a reader that overrides that method while ``spark.sql.python.filterPushdown.enabled`` is off,
    which it is by default; and tells by ``__func__``. This one is called when the setting is on, and looks like the
    method of the base class when it is off: filters are then Spark's own work, and nothing fails.

    Filters are taken only with option ``pushFilters``: Spark keeps one plan for the source of a data frame, with the
    filters that were pushed first, and reads by it again in the next query of that data frame, whatever that filters.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LsmqReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        if not self._reader.options.push_filters:
            return filters
        self._reader.pushed, left = push(filters, self._reader.pushed)
        return left


class LsmqReader(DataSourceReader):
    """Plans on the driver, reads in tasks. The end is what was there when the plan was made."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = from_options(options)

    @property
    def pushFilters(self) -> Any:
        return _PushFilters(self)

    def partitions(self) -> Sequence[InputPartition]:
        """Splits of all that is wanted; connects to the cluster."""
        options = self.options
        with Cluster(options.connection) as cluster:
            topics = cluster.topics(options.topics, options.topic_pattern)
            fetch = fetch_plan(cluster, options)
            portions = portions_of(cluster, topics, options, self.pushed)
        splits = plan(
            portions,
            min_splits=options.min_partitions,
            max_messages=options.max_messages_per_partition,
            max_bytes=options.max_bytes_per_partition,
        )
        return [PlannedSplit(split, fetch) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One split as Arrow batches. Spark makes an empty partition when there are no splits."""
        if isinstance(partition, PlannedSplit):
            yield from read_split(self.options, partition, self.pushed, self.schema)


def portions_of(
    cluster: Cluster, topics: Sequence[Topic], options: ReadOptions, pushed: Pushed, *, sample: bool = True
) -> list[Portion]:
    """What options and filters ask for, of each topic. Raises ``DataLoss``, ``InvalidOption``."""
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
        start, end = pushed.offset.clip(start), pushed.offset.clip(end)
        start, end = _within_time(cluster, topic, pushed, start, end)
        chosen = chosen_queues(topic, options, pushed)
        if chosen is not None:
            end = np.where(chosen, end, start)
        mean_bytes = sampled_bytes(cluster, topic, start, end) if sample else 0
        portions.append(Portion(topic, start, end, mean_bytes))
    return portions


def _within_time(cluster: Cluster, topic: Topic, pushed: Pushed, start: I64, end: I64) -> tuple[I64, I64]:
    """Narrow to filters on time: the first message at or after either bound, of each queue."""
    if pushed.time_ms.low > 0:
        at = cluster.bounds(topic, at_time=pushed.time_ms.low).at_time
        assert at is not None
        start = np.maximum(start, at)
    if pushed.time_ms.high < NO_END:
        at = cluster.bounds(topic, at_time=pushed.time_ms.high).at_time
        assert at is not None
        end = np.minimum(end, at)
    return start, np.maximum(end, start)

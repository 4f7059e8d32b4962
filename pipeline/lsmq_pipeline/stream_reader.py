"""``spark.readStream.format("lsmq")``: offsets of all queues in the checkpoint, batches cut by admission control.

Spark keeps the offsets, as JSON, in the query's checkpoint, which alone is the truth: ``commit`` comes a batch late and
``stop`` perhaps never.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lsmq.errors import LsmqError
from lsmq.topics import Topic
from lsmq_pipeline.cluster import Cluster
from lsmq_pipeline.errors import DataLoss
from lsmq_pipeline.fetch import FetchPlan
from lsmq_pipeline.offsets import TopicOffsets, from_document, to_document
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.reading import PlannedSplit, fetch_plan, read_split
from lsmq_pipeline.resolve import EARLIEST, admit, check_loss, explicit_offsets, place, same_topic, select_queues
from lsmq_pipeline.splits import Portion, plan

Offsets = dict[str, Any]
_log = logging.getLogger("lsmq")


class LsmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. One object lives on the driver as long as the query; copies of it read in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._cluster: Cluster | None = None
        self._fetch: FetchPlan | None = None
        self._last: dict[str, TopicOffsets] | None = None
        self._committed: dict[str, TopicOffsets] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_last": None, "_committed": {}}

    # On the driver

    def initialOffset(self) -> Offsets:
        """Where a new query starts."""
        options = self.options
        topics = self._topics()
        starting = explicit_offsets("startingOffsets", options.starting_offsets, topics, EARLIEST)
        found = {}
        for topic in topics:
            bounds = self._connected().bounds(topic, at_time=options.starting_ms)
            given = None if starting is None else starting.get(topic.name)
            default = "earliest" if starting is not None else options.starting_offsets
            offsets = place(
                topic, bounds, given, default, fail_on_data_loss=options.fail_on_data_loss, may_be_lost=True
            )
            found[topic.name] = TopicOffsets(topic.name, topic.id, offsets)
        return to_document(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next batch ends: what is there, or a fair share of it from each queue."""
        known = from_document(start)
        latest = self._last if self._last is not None else self._latest()
        ends: dict[str, TopicOffsets] = {}
        for name, end in latest.items():
            before = known.get(name)
            if before is not None and before.topic_id == end.topic_id:
                begun = np.zeros(len(end.offsets), np.int64)
                begun[: len(before.offsets)] = before.offsets
                # Never back: a leader that lost messages it had not replicated is found out where they are read.
                ends[name] = TopicOffsets(name, end.topic_id, np.maximum(end.offsets, begun))
            else:
                ends[name] = end
        # What is not there any more stays in the offsets, so that it is noticed when it comes again.
        ends |= {name: known[name] for name in known.keys() - ends.keys()}
        if isinstance(limit, ReadMaxRows):
            ends = self._admitted(known, ends, limit.max_rows)
        return to_document(ends)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._latest()

    def reportLatestOffset(self) -> Offsets | None:
        return to_document(self._latest())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Splits between two offsets; the same ones for the same offsets, also after a restart."""
        options = self.options
        before, after = from_document(start), from_document(end)
        topics = {topic.name: topic for topic in self._topics(missing_ok=True)}
        if self._fetch is None:
            self._fetch = fetch_plan(self._connected(), options)
        portions = []
        for name, until in after.items():
            topic = topics.get(name)
            if topic is None or topic.id != until.topic_id:
                self._gone(name, before.get(name), until)
                continue
            portions.append(self._portion(topic, before.get(name), until))
        splits = plan(
            portions,
            min_splits=options.min_partitions,
            max_messages=options.max_messages_per_partition,
            max_bytes=options.max_bytes_per_partition,
        )
        return [PlannedSplit(split, self._fetch) for split in splits]

    def commit(self, end: Offsets) -> None:
        """Spark will not ask for anything before these offsets again. With option ``group``, tell the broker."""
        if self.options.group is None:
            return
        for name, offsets in from_document(end).items():
            done = self._committed.get(name)
            moved = offsets.offsets != (-1 if done is None else done.offsets[: len(offsets.offsets)])
            places = np.flatnonzero(moved & (offsets.offsets > 0)).tolist()
            if not places:
                continue
            chosen = dict(zip(places, offsets.offsets[places].tolist(), strict=True))
            try:
                self._connected().commit(self.options.group, name, chosen)
                self._committed[name] = offsets
            except LsmqError as error:
                # For those who look at the lag only: the checkpoint decides where the query goes on.
                _log.warning("offsets not committed: group=%s topic=%s error=%s", self.options.group, name, error)

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    # In a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PlannedSplit)
        return read_split(self.options, partition, self.schema)

    # Within

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.options.connection)
        return self._cluster

    def _topics(self, *, missing_ok: bool = False) -> list[Topic]:
        options = self.options
        if missing_ok:
            names = "|".join(map(re.escape, options.topics)) if options.topics else options.topic_pattern
            return self._connected().topics((), names) if names else []
        return self._connected().topics(options.topics, options.topic_pattern)

    def _latest(self) -> dict[str, TopicOffsets]:
        found = {}
        for topic in self._topics():
            bounds = self._connected().bounds(topic)
            found[topic.name] = TopicOffsets(topic.name, topic.id, bounds.latest)
        return found

    def _start_of(self, name: str, before: TopicOffsets | None, until: TopicOffsets) -> Any:
        """Where a topic's part of a batch starts: where the last one ended; new queues and topics at 0."""
        start = np.zeros(len(until.offsets), np.int64)
        if before is not None and before.topic_id == until.topic_id:
            start[: len(before.offsets)] = before.offsets
        return start

    def _admitted(
        self, known: dict[str, TopicOffsets], ends: dict[str, TopicOffsets], limit: int
    ) -> dict[str, TopicOffsets]:
        names = sorted(ends)
        if not names:
            return ends
        starts = [self._floor(name, known.get(name), ends[name]) for name in names]
        admitted = admit(np.concatenate(starts), np.concatenate([ends[name].offsets for name in names]), limit)
        cuts = np.cumsum([len(ends[name].offsets) for name in names])[:-1]
        parts = np.split(admitted, cuts)
        return {name: TopicOffsets(name, ends[name].topic_id, part) for name, part in zip(names, parts, strict=True)}

    def _floor(self, name: str, before: TopicOffsets | None, until: TopicOffsets) -> Any:
        """Starts for admission control: a topic new to the query counts from what it still has."""
        start = self._start_of(name, before, until)
        if before is None or before.topic_id != until.topic_id:
            topic = next((topic for topic in self._topics(missing_ok=True) if topic.id == until.topic_id), None)
            if topic is not None:
                start = np.minimum(self._connected().bounds(topic).earliest, until.offsets)
        return start

    def _portion(self, topic: Topic, before: TopicOffsets | None, until: TopicOffsets) -> Portion:
        options = self.options
        start, end = self._start_of(topic.name, before, until), until.offsets
        is_known = before is not None and same_topic(topic, before, fail_on_data_loss=options.fail_on_data_loss)
        if len(end) < topic.queues:
            start, end = (np.pad(column, (0, topic.queues - len(end))) for column in (start, end))
        active = end > start
        bounds = self._connected().bounds(topic)
        if is_known:
            lost = active & (start < bounds.earliest)
            check_loss(topic, lost, start, "earliest", bounds.earliest, options.fail_on_data_loss)
        check_loss(topic, active & (end > bounds.latest), end, "latest", bounds.latest, options.fail_on_data_loss)
        start = np.maximum(start, bounds.earliest)
        end = np.maximum(np.minimum(end, bounds.latest), start)
        chosen = select_queues(topic, options.queues)
        return Portion(topic, start, end if chosen is None else np.where(chosen, end, start))

    def _gone(self, name: str, before: TopicOffsets | None, until: TopicOffsets) -> None:
        """A topic that the offsets name is deleted: a loss if any of its messages were to be read."""
        if not (until.offsets > self._start_of(name, before, until)).any():
            return
        message = f"topic {name!r} was deleted before all of it was read"
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{message}; set failOnDataLoss to false to go on without", topic=name)
        _log.warning("%s; going on without", message)

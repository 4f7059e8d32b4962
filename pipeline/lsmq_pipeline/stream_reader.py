"""``spark.readStream.format("lsmq")``: offsets of all queues in the checkpoint, batches cut by admission control.

Spark keeps the offsets, as JSON, in the query's checkpoint, which alone is the truth: ``commit`` comes a batch late and
``stop`` perhaps never. It keeps where a batch ends, and takes for its start where the one before ended. Of what a batch
begins with there is no such end: the whole first batch, a topic that comes later, new queues. So the end of that batch
carries the start as well, and a repeat of it reads from there, or says what is gone, whatever has become of the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lsmq.errors import LsmqError, UnknownTopic
from lsmq.topics import Topic
from lsmq_pipeline.client import Bounds, PipelineClient
from lsmq_pipeline.errors import GONE, DataLoss, InvalidOption
from lsmq_pipeline.fetch import FetchPlan
from lsmq_pipeline.named import BEGINNING, asked_topics, that_fit
from lsmq_pipeline.named_offsets import NamedOffsets, ShardPlace, StreamPlaces, places_from_document
from lsmq_pipeline.named_stream import NamedStream
from lsmq_pipeline.offsets import TopicOffsets, to_document
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.reading import (
    PlannedSplit,
    edges_of,
    fetch_plan,
    nodes_for_tasks,
    passing_over_gone,
    planned_splits,
    read_split,
    tell_deleted,
)
from lsmq_pipeline.resolve import Mask, admit, check_has_queues, check_loss, chosen_queues, same_topic
from lsmq_pipeline.splits import Portion
from lsmq_pipeline.triggers import TriggerGate

I64 = NDArray[np.int64]
StreamOffsets = dict[str, Any]
_log = logging.getLogger("lsmq")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A topic that is there, and its bounds; where its queues have names, a moment of each shard."""

    topic: Topic
    bounds: Bounds | dict[int, ShardPlace]


class LsmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. One object lives on the driver as long as the query; copies of it read in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._cluster: PipelineClient | None = None
        self._fetch: FetchPlan | None = None
        self._last: dict[str, _Seen] | None = None
        self._reported: dict[str, StreamPlaces] = {}
        self._told_gone: set[str] = set()
        self._told_passed_over: set[str] = set()
        self._gate = TriggerGate(options.min_messages_per_trigger, options.max_trigger_delay_ms)
        self._named = NamedStream(options, self._connected, with_names="queue_name" in schema.names)

    def __getstate__(self) -> dict[str, Any]:
        left_here: dict[str, Any] = {
            "_cluster": None,
            "_last": None,
            "_reported": {},
            "_told_gone": set(),
            "_told_passed_over": set(),
            "_named": None,
        }
        return {**self.__dict__, **left_here}

    # On the driver

    def initialOffset(self) -> StreamOffsets:
        """Where a new query starts. Spark keeps it nowhere, and asks again when it repeats the first batch."""
        options = self.options
        topics = asked_topics(self._connected(), options, self._told_passed_over)
        found: dict[str, StreamPlaces] = {}
        for topic in topics:
            if topic.named:
                with passing_over_gone(options):
                    found[topic.name] = self._named.initial(topic)
        numbered = [topic for topic in topics if not topic.named]
        for topic, _, (offsets,) in edges_of(self._connected(), numbered, options, (options.start,)):
            found[topic.name] = TopicOffsets(topic.name, topic.id, offsets, start=offsets)
        return to_document(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back when it asks for a batch; with a trigger of one batch it asks for all there is."""
        if self.options.max_messages_per_trigger is not None:
            return ReadMaxRows(self.options.max_messages_per_trigger)
        if self.options.min_messages_per_trigger is not None:
            return ReadMinRows(self.options.min_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamOffsets, limit: ReadLimit) -> StreamOffsets:
        """Where the next batch ends: what is there, or a fair share of it from each queue.

        Every batch up to ``start`` is done. Where nothing has come, or too little to be a batch, ``start`` is returned
        to the letter: any other text would be a batch.
        """
        known = places_from_document(start)
        self._check_asked_for(known)
        seen = self._last if self._last is not None else self._seen()
        self._check_there(known, seen)
        ends = {name: self._end(known.get(name), each) for name, each in seen.items()}
        self._report(known, seen)
        if not _differ(known, ends):
            return start
        ends |= self._gone(known, seen)
        topics = {name: each.topic for name, each in seen.items()}
        may_wait = self._last is None and not isinstance(limit, ReadAllAvailable)
        if may_wait and not self._gate.lets(self._waiting(topics, known, ends)):
            return start
        self._gate.taken()
        return to_document(
            self._admitted(topics, known, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._seen()

    def reportLatestOffset(self) -> StreamOffsets | None:
        # Where queues have names, the moment that was noted last will do.
        seen = self._seen(lambda topic: self._named.known(topic) or self._bounds(topic))
        return to_document({name: _latest(each) for name, each in seen.items()})

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> Sequence[InputPartition]:
        """Splits between two offsets; the same ones for the same offsets, also after a restart."""
        if start == end:
            return []
        options = self.options
        before, after = places_from_document(start), places_from_document(end)
        self._check_asked_for(after)
        topics = {topic.name: topic for topic in self._existing()}
        if self._fetch is None:
            self._fetch = fetch_plan(self._connected(), options)
        self._fetch = replace(self._fetch, urls=nodes_for_tasks(self._connected(), options))
        portions = []
        for name, until in after.items():
            topic, portion = topics.get(name), None
            if topic is not None and topic.id == until.topic_id:
                with suppress(*GONE):
                    portion = self._portion(topic, before.get(name), until)
            if portion is None:
                self._lost(name, _has_more(before.get(name), until))
            else:
                portions.append(portion)
        return planned_splits(portions, self._fetch, options)

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    # In a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PlannedSplit)
        return read_split(self.options, partition, self.schema)

    # Within

    def _connected(self) -> PipelineClient:
        if self._cluster is None:
            self._cluster = PipelineClient(self.options.connection)
        return self._cluster

    def _existing(self) -> list[Topic]:
        found = self._connected().existing(self.options.topics, self.options.topic_pattern)
        return that_fit(found, self.options, self._told_passed_over)

    def _seen(self, bounds: Callable[[Topic], Bounds | dict[int, ShardPlace]] | None = None) -> dict[str, _Seen]:
        """The topics that are there; not those that go just now."""
        found = {}
        for topic in self._existing():
            with suppress(*GONE):
                found[topic.name] = _Seen(topic, (bounds or self._bounds)(topic))
        return found

    def _bounds(self, topic: Topic) -> Bounds | dict[int, ShardPlace]:
        return self._named.now(topic) if topic.named else self._connected().bounds(topic)

    def _check_asked_for(self, known: Iterable[str]) -> None:
        """Raises ``InvalidOption`` when the checkpoint is of another query: its topics are not those of the options."""
        others = sorted(name for name in known if not self.options.asks_for(name))
        if others:
            raise InvalidOption(
                f"the checkpoint is of a query that reads topic {others[0]!r}; this one reads {self.options.what}. "
                "Give it a checkpoint of its own, and the other's offsets as startingOffsets if it is to go on there",
                option="topic",
            )

    def _check_there(self, known: Mapping[str, StreamPlaces], seen: Mapping[str, _Seen]) -> None:
        """Raises, or warns once each time, when a topic that the query has begun with was deleted."""
        self._told_gone -= seen.keys()
        for name in sorted(known.keys() - seen.keys() - self._told_gone):
            message = f"topic {name!r} was deleted: what was not read of it is gone"
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{message}; set failOnDataLoss to false to go on without", topic=name)
            _log.warning("%s; going on without", message)
            self._told_gone.add(name)
        for name in sorted(set(self.options.topics) - known.keys() - seen.keys()):
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)

    def _gone(self, known: Mapping[str, StreamPlaces], seen: Mapping[str, _Seen]) -> dict[str, StreamPlaces]:
        """Ends of topics that are not there any more, so that it is noticed when they come again.

        One of a pattern is forgotten with the second batch in a row without it, so that offsets do not grow with all
        the topics that once were. One listing may lack a topic that is there; forgotten, it would be read again.
        """
        gone = known.keys() - seen.keys()
        forgotten = {name for name in gone if known[name].gone and name not in self.options.topics}
        if forgotten and self._last is not None:  # All batches of that trigger rest on one look.
            forgotten -= {topic.name for topic in self._existing()}
        for name in forgotten:
            self._told_gone.discard(name)
            self._reported.pop(name, None)
        return {name: replace(known[name], start=None, gone=True) for name in gone - forgotten}

    def _report(self, done: Mapping[str, StreamPlaces], seen: Mapping[str, _Seen]) -> None:
        """With option ``group``, tell the broker how far the query is.

        Not in ``commit``, which Spark calls when the batch after is planned: never for the last one.
        """
        if self.options.group is None:
            return
        for name in done.keys() & seen.keys():
            at, before, topic = done[name], self._reported.get(name), seen[name].topic
            if at.topic_id != topic.id:
                continue
            if before is not None and before.topic_id != at.topic_id:
                before = None
            try:
                if offsets := self._moved(topic, before, at):
                    self._connected().commit(self.options.group, name, offsets)
            except LsmqError as error:
                # For those who look at the lag only: the checkpoint decides where the query goes on.
                _log.warning("offsets not committed: group=%s topic=%s error=%s", self.options.group, name, error)
            else:
                self._reported[name] = at

    def _moved(self, topic: Topic, before: StreamPlaces | None, at: StreamPlaces) -> dict[int, int]:
        """Where queues that are asked for stand, of those that moved since what was reported before."""
        if isinstance(at, NamedOffsets):
            since = before.places if isinstance(before, NamedOffsets) else None
            return self._named.standing(topic, since, at.places)
        reported = np.full(len(at.offsets), -1, np.int64)
        if isinstance(before, TopicOffsets):
            reported[: len(before.offsets)] = before.offsets
        moved = (at.offsets != reported) & (at.offsets > 0)
        chosen = chosen_queues(topic, self.options)
        if chosen is not None:
            moved &= chosen[: len(moved)]
        places = np.flatnonzero(moved).tolist()
        return dict(zip(places, at.offsets[places].tolist(), strict=True))

    def _end(self, known: StreamPlaces | None, seen: _Seen) -> StreamPlaces:
        """All that is there of a topic; of one that is new to the query, and of new queues, from the beginning.

        Queues that are not asked for stay where they are: should a query that is started again ask for them, it reads
        them from there.
        """
        topic, bounds = seen.topic, seen.bounds
        fail = self.options.fail_on_data_loss
        same = known is not None and same_topic(topic, known, fail_on_data_loss=fail)
        if not isinstance(bounds, Bounds):
            former = known if same and isinstance(known, NamedOffsets) else None
            places = self._named.beginning(topic, bounds) if former is None else former.places
            begun = places if former is None or former.is_unread else None
            return NamedOffsets(topic.name, topic.id, self._named.end(topic, places, bounds), begun)
        chosen = chosen_queues(topic, self.options)
        begin = bounds.earliest.copy()
        begins = True
        if same and isinstance(known, TopicOffsets):
            begin[: len(known.offsets)] = known.offsets
            begin, moved = self._where_it_is(topic, begin, bounds, chosen)
            begins = moved or known.is_unread or len(known.offsets) < len(begin)
        end = np.maximum(bounds.latest, begin)
        if chosen is not None:
            end = np.where(chosen, end, begin)
        return TopicOffsets(topic.name, topic.id, end, begin if begins else None)

    def _where_it_is(self, topic: Topic, begin: I64, bounds: Bounds, chosen: Mask | None) -> tuple[I64, bool]:
        """Where reading goes on, and whether that is elsewhere, since what is there begins later or ends before.

        Raises ``DataLoss`` of a queue that ends before, where its next messages would pass for read ones; of what is
        gone :meth:`_portion` does, where the batch is read. With either allowed a batch begins with what there is.
        """
        asked = np.True_ if chosen is None else chosen
        fail = self.options.fail_on_data_loss
        if fail:
            check_loss(topic, asked & (begin > bounds.latest), begin, "latest", bounds.latest, fail)
            return begin, False
        inside = np.where(asked, np.clip(begin, bounds.earliest, bounds.latest), begin)
        return inside, not np.array_equal(inside, begin)

    def _portion(self, topic: Topic, before: StreamPlaces | None, until: StreamPlaces) -> Portion:
        if isinstance(until, NamedOffsets):
            return self._named.portion(topic, _begin_named(before, until), until)
        check_has_queues(topic, len(until.offsets))
        begin = _begin(before, until)
        _tell_moved(topic, before, begin)
        more = topic.queues - len(until.offsets)
        start, end = (np.pad(column, (0, more)) for column in (begin, until.offsets))
        active = end > start
        bounds = self._connected().bounds(topic)
        fail = self.options.fail_on_data_loss
        check_loss(topic, active & (start < bounds.earliest), start, "earliest", bounds.earliest, fail)
        check_loss(topic, active & (end > bounds.latest), end, "latest", bounds.latest, fail)
        start = np.maximum(start, bounds.earliest)
        return Portion(topic, start, np.maximum(np.minimum(end, bounds.latest), start))

    def _waiting(
        self, topics: Mapping[str, Topic], known: Mapping[str, StreamPlaces], ends: Mapping[str, StreamPlaces]
    ) -> int:
        """Messages between what is known to be read and these ends."""
        total = 0
        for name, end in ends.items():
            if isinstance(end, NamedOffsets):
                total += sum(count for *_, count in self._backlogs(topics.get(name), known.get(name), end))
            else:
                total += int((end.offsets - _begin(known.get(name), end)).sum())
        return total

    def _backlogs(
        self, topic: Topic | None, known: StreamPlaces | None, end: NamedOffsets
    ) -> list[tuple[int, ShardPlace, int]]:
        """Of each shard of a named topic where the batch begins, and how many messages it has; none if that is gone."""
        if topic is None:
            return []
        begin = _begin_named(known, end)
        return [
            (shard, begin[shard], self._named.waiting_in(topic, shard, begin[shard], place))
            for shard, place in end.places.items()
        ]

    def _admitted(
        self,
        topics: Mapping[str, Topic],
        known: Mapping[str, StreamPlaces],
        ends: Mapping[str, StreamPlaces],
        limit: int,
    ) -> dict[str, StreamPlaces]:
        """Ends of a batch of at most ``limit`` messages. A shard of a named topic has its share as a queue has."""
        names = sorted(ends)
        starts, stops, begins = [], [], {}
        for name in names:
            end = ends[name]
            if isinstance(end, NamedOffsets):
                begins[name] = backlogs = self._backlogs(topics.get(name), known.get(name), end)
                starts.append(np.zeros(len(backlogs), np.int64))
                stops.append(np.array([count for *_, count in backlogs], np.int64))
            else:
                starts.append(_begin(known.get(name), end))
                stops.append(end.offsets)
        if not names:
            return {}
        admitted = admit(np.concatenate(starts), np.concatenate(stops), limit)
        parts = np.split(admitted, np.cumsum([len(start) for start in starts])[:-1])
        found: dict[str, StreamPlaces] = {}
        for name, part in zip(names, parts, strict=True):
            end = ends[name]
            if isinstance(end, NamedOffsets):
                places = dict(end.places)
                for (shard, begin, _), share in zip(begins[name], part.tolist(), strict=True):
                    places[shard] = self._named.cut(topics[name], shard, begin, places[shard], share)
                found[name] = replace(end, places=places)
            else:
                found[name] = replace(end, offsets=part)
        return found

    def _lost(self, name: str, has_more: bool) -> None:
        """A topic of a batch is deleted: a loss if any of its messages were to be read."""
        if has_more:
            tell_deleted(name, fail_on_data_loss=self.options.fail_on_data_loss)


def _begin(before: StreamPlaces | None, until: TopicOffsets) -> I64:
    """Where a topic's part of a batch begins: where its end says, else where the one before ended."""
    if until.start is not None:
        return until.start
    if not isinstance(before, TopicOffsets) or before.topic_id != until.topic_id:
        return np.zeros(len(until.offsets), np.int64)
    return before.offsets


def _tell_moved(topic: Topic, before: StreamPlaces | None, begin: I64) -> None:
    """Warns of queues that the batch does not read from where the one before ended.

    Where none was read before, a later place may be what the latest is by now, and not where the query began.
    """
    if not isinstance(before, TopicOffsets) or before.topic_id != topic.id:
        return
    begin = begin[: len(before.offsets)]
    moved = np.flatnonzero(begin > before.offsets if before.is_unread else begin != before.offsets)
    if len(moved):
        _log.warning(
            "%d queues of topic %r do not have the offsets asked for: queue %d was to be read at %d; going on at %d, "
            "with what is there",
            *(len(moved), topic.name, moved[0], before.offsets[moved[0]], begin[moved[0]]),
        )


def _begin_named(before: StreamPlaces | None, until: NamedOffsets) -> Mapping[int, ShardPlace]:
    """The same of a topic whose queues have names."""
    if until.start is not None:
        return until.start
    if not isinstance(before, NamedOffsets) or before.topic_id != until.topic_id:
        return dict.fromkeys(until.places, BEGINNING)
    return before.places


def _has_more(before: StreamPlaces | None, until: StreamPlaces) -> bool:
    if isinstance(until, NamedOffsets):
        return _begin_named(before, until) != until.places
    return bool((until.offsets > _begin(before, until)).any())


def _latest(seen: _Seen) -> StreamPlaces:
    if isinstance(seen.bounds, Bounds):
        return TopicOffsets(seen.topic.name, seen.topic.id, seen.bounds.latest)
    return NamedOffsets(seen.topic.name, seen.topic.id, seen.bounds)


def _differ(known: Mapping[str, StreamPlaces], ends: Mapping[str, StreamPlaces]) -> bool:
    """Whether there is more than what is known, in what is there."""
    return any(name not in known or not _same(known[name], end) for name, end in ends.items())


def _same(known: StreamPlaces, end: StreamPlaces) -> bool:
    if known.topic_id != end.topic_id:
        return False
    if isinstance(known, NamedOffsets) or isinstance(end, NamedOffsets):
        return isinstance(known, NamedOffsets) and isinstance(end, NamedOffsets) and known.places == end.places
    return np.array_equal(known.offsets, end.offsets)

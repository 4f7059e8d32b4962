"""Reading a split: requests one ahead, rows in an order that is always the same.

A split is read in *windows*: a queue with many messages alone, and else as many queues as make up about one answer.
The broker answers in whatever order suits it; a window of several queues is therefore collected and put in order of
queue and offset. So a task that is tried again yields the same rows in the same order, which is what idempotent
writing rests on. Where a window's messages turn out to be so large that it would be too much to collect, it is begun
anew with fewer queues: however a split is cut into windows, the order of its rows is the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lsmq.errors import Unavailable
from lsmq.record_batch import Column, RecordBatch, split_batches
from lsmq.topics import Topic
from lsmq_pipeline.client import PipelineClient, Want
from lsmq_pipeline.decode import Records, Span, positions, select, to_arrow
from lsmq_pipeline.errors import DataLoss
from lsmq_pipeline.splits import Split

I64 = NDArray[np.int64]

WINDOW_MESSAGES = 10_000
WINDOW_BYTES = 32 << 20
STALL_WAIT_MS = 1_000
_log = logging.getLogger("lsmq")

#: Narrows records down before they become Arrow, and the Arrow batch after.
Narrow = Callable[[Records], Records]
NarrowArrow = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What all splits of a read have in common. ``urls`` are of nodes that the driver knows by now."""

    fail_on_data_loss: bool
    read_from: str | None
    fetch_bytes: int
    deadline_ms: int
    read_node: str | None = None
    picks: Mapping[str, Any] = field(default_factory=dict)
    urls: tuple[str, ...] = ()


class _Window:
    """Queues read together, and how far; ``first`` is the place of the first of them in the split."""

    def __init__(self, first: int, queues: NDArray[Any], starts: I64, ends: I64) -> None:
        self.first = first
        self.queues = queues
        self.starts = starts
        self.ends = ends
        self.asked = starts.copy()

    @property
    def done(self) -> bool:
        return bool((self.asked >= self.ends).all())

    @property
    def streams(self) -> bool:
        """One queue alone comes in order, and is passed on answer by answer."""
        return len(self.queues) == 1

    def want(self, max_bytes: int, wait_ms: int, picks: Mapping[str, Any]) -> Want:
        left = self.asked < self.ends
        count = int((self.ends - self.asked)[left].sum())
        return Want(self.queues[left], self.asked[left], min(count, WINDOW_MESSAGES), max_bytes, wait_ms, picks)

    def advance(self, answer: list[RecordBatch]) -> Span | None:
        """Take the positions out of an answer; what counts of it, None when no queue moved."""
        for batch in answer:
            moved = positions(batch)
            if moved is None:
                continue
            places = np.searchsorted(self.queues, moved[0])
            before = self.asked[places].copy()
            after = np.maximum(np.minimum(moved[1], self.ends[places]), before)
            self.asked[places] = after
            order = np.argsort(moved[0], kind="stable")
            return Span(moved[0][order], before[order], after[order])
        return None


class Windows:
    """A split's queues in windows, of as many messages as make up ``WINDOW_BYTES`` by what is known of their size."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._mean_bytes = split.mean_bytes
        self._first = 0

    def __iter__(self) -> Iterator[_Window]:
        return self

    def __next__(self) -> _Window:
        split, first, limit = self._split, self._first, WINDOW_MESSAGES
        if first >= len(split.queues):
            raise StopIteration
        if self._mean_bytes:
            limit = max(1, min(limit, WINDOW_BYTES // self._mean_bytes))
        # Queues up to the one that would go beyond the limit, and one at least.
        total = np.cumsum(split.ends[first : first + limit] - split.starts[first : first + limit])
        self._first = first + max(1, int(np.searchsorted(total, limit, side="right")))
        chosen = slice(first, self._first)
        return _Window(first, split.queues[chosen], split.starts[chosen], split.ends[chosen])

    def learn(self, window: _Window, size_bytes: int) -> None:
        """So much came of a window: those after it go by that, or by half of what was known if that is more."""
        moved = int((window.asked - window.starts).sum())
        if moved:
            self._mean_bytes = max(-(-size_bytes // moved), self._mean_bytes // 2)

    def again(self, window: _Window) -> _Window:
        """The queues of a window once more, and fewer of them, by what was learnt of it."""
        self._first = window.first
        return next(self)


class SplitReader:
    """Reads one split; ``topic`` is the one it was planned for."""

    def __init__(self, cluster: PipelineClient, split: Split, plan: FetchPlan) -> None:
        self._cluster = cluster
        self._split = split
        self._plan = plan
        self.topic = Topic.from_dict(split.topic)

    def arrow(self, schema: Any, narrow: Narrow | None = None, after: NarrowArrow | None = None) -> Iterator[Any]:
        """The messages as Arrow batches of ``schema``, none of them empty.

        Raises ``DataLoss``, ``TopicReplaced``, and what requests raise when the deadline is over.
        """
        for found in self.records():
            records = found if narrow is None else narrow(found)
            if len(records):
                batch = to_arrow(records, self.topic, schema, self._names(records, schema))
                if after is not None:
                    batch = after(batch)
                if batch.num_rows:
                    yield batch

    def _names(self, records: Records, schema: Any) -> Any:
        """The name of each record's queue, where it is asked for and queues have names."""
        if not self._split.names or "queue_name" not in schema.names:
            return None
        places = np.searchsorted(self._split.queues, records.columns[Column.QUEUE])
        return pa.array(self._split.names, pa.string()).take(pa.array(places))

    def records(self) -> Iterator[Records]:
        """The messages as columns, by windows: within one they may be out of order."""
        upcoming = Windows(self._split)
        window = next(upcoming, None)
        future = None if window is None else self._begin(window)
        collected: list[tuple[list[RecordBatch], Span]] = []
        size_bytes = 0
        stalled_s: float | None = None
        while window is not None and future is not None:
            current = window
            answer = list(split_batches(future.result(), source=f"answer for shard {self._split.shard}"))
            span = current.advance(answer)
            if span is None:
                stalled_s = stalled_s or time.monotonic()
                self._stalled(current, stalled_s)
            else:
                stalled_s = None
                size_bytes += sum(len(batch.payload) for batch in answer)
            if current.done:
                upcoming.learn(current, size_bytes)
                window, size_bytes = next(upcoming, None), 0
            elif size_bytes > WINDOW_BYTES and not current.streams:
                upcoming.learn(current, size_bytes)
                window, size_bytes = upcoming.again(current), 0
                span, collected = None, []
            # The next answer is on its way while this one is decoded.
            future = None if window is None else self._begin(window, STALL_WAIT_MS if stalled_s else 0)
            if span is not None:
                collected.append(([batch for batch in answer if positions(batch) is None], span))
            if collected and (current.streams or current.done):
                found = self._selected(collected)
                collected = []
                if found is not None:
                    yield found

    def _begin(self, window: _Window, wait_ms: int = 0) -> Future[bytes]:
        want = window.want(self._plan.fetch_bytes, wait_ms, self._plan.picks)
        return self._cluster.fetch(self.topic, self._split.shard, want, self._plan.read_from, self._plan.read_node)

    def _selected(self, collected: list[tuple[list[RecordBatch], Span]]) -> Records | None:
        batches = [batch for found, _ in collected for batch in found]
        spans = [span for found, span in collected for _ in found]
        records = select(batches, self.topic, spans)
        if self._plan.fail_on_data_loss:
            for found, span in collected:
                self._check_gaps(found, span, records)
        return records

    def _check_gaps(self, found: list[RecordBatch], span: Span, records: Records | None) -> None:
        """Tell retention, which is a loss, from messages that were deleted one by one."""
        moved = span.ends > span.starts
        first = np.full(len(span.queues), np.iinfo(np.int64).max)
        if records is not None:
            queues, offsets = records.columns[Column.QUEUE], records.columns[Column.OFFSET]
            inside = span.holds(queues, offsets)
            places = np.searchsorted(span.queues, queues[inside])
            np.minimum.at(first, places, offsets[inside])
        suspect = np.flatnonzero(moved & (first > span.starts))
        if len(suspect):
            queues = span.queues[suspect]
            earliest, _ = self._cluster.bounds_of(self.topic, queues.tolist())
            self._refuse(queues, span.starts[suspect], earliest, span.starts[suspect] < earliest, "earliest")

    def _stalled(self, window: _Window, since_s: float) -> None:
        """No queue moved although there should be more: that is gone, or the node asked is behind."""
        left = window.asked < window.ends
        queues, asked, ends = window.queues[left], window.asked[left], window.ends[left]
        earliest, latest = self._cluster.bounds_of(self.topic, queues.tolist())
        gone, lost = asked < earliest, latest < ends
        if gone.any() or lost.any():
            self._refuse(queues, asked, earliest, gone, "earliest")
            self._refuse(queues, ends, latest, lost, "latest")
            window.ends[left] = np.maximum(np.minimum(ends, latest), asked)
            window.asked[left] = np.clip(earliest, asked, window.ends[left])
        elif time.monotonic() - since_s > self._plan.deadline_ms / 1000:
            raise Unavailable(
                f"shard {self._split.shard} of topic {self.topic.name!r} gave nothing for "
                f"{self._plan.deadline_ms / 1000:g} s although queue {queues[0]} has messages from "
                f"{asked[0]} to {latest[0]}"
            )

    def _refuse(self, queues: NDArray[Any], wanted: I64, bounds: I64, lost: NDArray[np.bool_], bound: str) -> None:
        if not lost.any():
            return
        place = int(np.argmax(lost))
        message = (
            f"topic {self.topic.name!r} lost messages while it was read: queue {queues[place]} was to be read at "
            f"{wanted[place]}, its {bound} is {bounds[place]} ({int(np.count_nonzero(lost))} queues so)"
        )
        if self._plan.fail_on_data_loss:
            raise DataLoss(
                f"{message}; set failOnDataLoss to false to go on with what is there",
                topic=self.topic.name,
                queue=int(queues[place]),
                wanted=int(wanted[place]),
                **{bound: int(bounds[place])},
            )
        _log.warning("%s", message)

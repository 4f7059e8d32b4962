"""Filters that Spark hands down, and what becomes of them.

Queue, offset and time decide what is asked of the broker at all; keys and tags are compared by the hashes that
stand in the record batch's columns before a single byte of a message is looked at, and by themselves afterwards.
Filters that are kept exactly are Spark's no more; those on time are narrowed here and left with Spark as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from lsmq.messages import key_hash, tag_hash
from lsmq.record_batch import Column
from lsmq_pipeline.decode import Records, keep_records

I64 = NDArray[np.int64]
NO_END = 1 << 62
_NEVER_NULL = frozenset({"topic", "queue", "offset", "stored_time", "id", "body"})


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers ``[low, high)``."""

    low: int = 0
    high: int = NO_END

    def meet(self, low: int, high: int) -> Interval:
        return Interval(max(self.low, low), min(self.high, high))

    def clip(self, values: I64) -> I64:
        return np.clip(values, self.low, max(self.low, self.high))


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is wanted, as far as filters say. ``queues``, ``keys`` and ``tags`` are all values allowed, None any."""

    queue: Interval = Interval()
    queues: frozenset[int] | None = None
    offset: Interval = Interval()
    time_ms: Interval = Interval()
    keys: frozenset[str] | None = None
    tags: frozenset[str] | None = None

    def take(self, condition: Filter) -> tuple[Pushed, bool] | None:
        """This and one filter more, and whether Spark need not look at it again; None when it is none of ours."""
        match condition:
            case IsNotNull((name,)) if name in _NEVER_NULL:
                return self, True
            case EqualTo((name,), value) | EqualNullSafe((name,), value) if value is not None:
                return self._among(name, (value,)) or self._between(name, value, value)
            case In((name,), values) if all(value is not None for value in values):
                return self._among(name, tuple(values))
            case GreaterThan((name,), value):
                return self._between(name, value, None, open_low=True)
            case GreaterThanOrEqual((name,), value):
                return self._between(name, value, None)
            case LessThan((name,), value):
                return self._between(name, None, value, open_high=True)
            case LessThanOrEqual((name,), value):
                return self._between(name, None, value)
        return None

    def _among(self, name: str, values: tuple[Any, ...]) -> tuple[Pushed, bool] | None:
        match name:
            case "queue":
                return replace(self, queues=_meet(self.queues, values)), True
            case "key":
                return replace(self, keys=_meet(self.keys, values)), True
            case "tag":
                return replace(self, tags=_meet(self.tags, values)), True
        return None

    def _between(
        self, name: str, low: Any, high: Any, *, open_low: bool = False, open_high: bool = False
    ) -> tuple[Pushed, bool] | None:
        if name == "stored_time":
            # A filter has microseconds, a message milliseconds: take what may fit, and let Spark look again.
            bounds = (_floor_ms(low) if low is not None else 0, _floor_ms(high) + 1 if high is not None else NO_END)
            return replace(self, time_ms=self.time_ms.meet(*bounds)), False
        if name not in ("queue", "offset"):
            return None
        first = 0 if low is None else int(low) + open_low
        end = NO_END if high is None else int(high) + (not open_high)
        if name == "queue":
            return replace(self, queue=self.queue.meet(first, end)), True
        return replace(self, offset=self.offset.meet(first, end)), True

    def queue_mask(self, count: int) -> NDArray[np.bool_] | None:
        """Which of ``count`` queues can have what is wanted; None when all can."""
        if self.queues is None and self.queue == Interval():
            return None
        mask = np.zeros(count, np.bool_)
        mask[self.queue.low : self.queue.high] = True
        if self.queues is not None:
            chosen = np.zeros(count, np.bool_)
            chosen[[queue for queue in self.queues if 0 <= queue < count]] = True
            mask &= chosen
        return mask

    @property
    def narrows(self) -> bool:
        """Whether records must be looked at."""
        return self.keys is not None or self.tags is not None or self.time_ms != Interval()

    def narrow(self, records: Records) -> Records:
        """Records that may fit, by time and by the hashes of key and tag."""
        columns = records.columns
        keep = np.ones(len(records), np.bool_)
        if self.time_ms != Interval():
            stored = columns[Column.STORED_MS]
            keep &= (stored >= self.time_ms.low) & (stored < self.time_ms.high)
        if self.keys is not None:
            keep &= np.isin(columns[Column.KEY_HASH], np.array([key_hash(key) for key in self.keys], np.uint64))
        if self.tags is not None:
            keep &= np.isin(columns[Column.TAG_HASH], np.array([tag_hash(tag) for tag in self.tags], np.uint32))
        return keep_records(records, keep)

    def exact(self, batch: Any) -> Any:
        """Rows whose key and tag are the wanted ones: equal hashes do not make equal strings."""
        for name, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted is not None:
                batch = batch.filter(pc.is_in(batch.column(name), pa.array(sorted(wanted), pa.string())))
        return batch

    def columns_needed(self) -> frozenset[str]:
        """Columns that :meth:`exact` looks at, which a read must make even if nobody asked for them."""
        return frozenset(name for name, wanted in (("key", self.keys), ("tag", self.tags)) if wanted is not None)


def push(filters: Sequence[Filter], pushed: Pushed) -> tuple[Pushed, Iterable[Filter]]:
    """All filters that can be taken, and those that Spark must still evaluate."""
    left = []
    for condition in filters:
        taken = pushed.take(condition)
        if taken is None:
            left.append(condition)
            continue
        pushed, is_exact = taken
        if not is_exact:
            left.append(condition)
    return pushed, left


def _meet(known: frozenset[Any] | None, values: tuple[Any, ...]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _floor_ms(moment: Any) -> int:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000 // 1)
    return int(moment) // 1000

"""Options ``keys``, ``tags``, ``types`` and ``filter``: which messages of those in reach are wanted.

All of it is told the broker, which sends no others (``docs/filters.md``): keys as a part of the filter, where they are
not too many for one. What comes is compared by the hashes that stand in the record batch's columns before a single byte
of a message is looked at, and keys, tags and types by themselves afterwards.

Not supported: filters that Spark hands down (``pushFilters``). Spark 4.3 keeps what came of them with the source of a
data frame and not with one scan of it, so that a union, a self-join or the next query reads by the filters of another
scan. Spark evaluates all filters of a query itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmq.errors import InvalidFilter
from lsmq.filter_expressions import Expression
from lsmq.filters import MAX_FILTER_WORDS
from lsmq.messages import key_hash, tag_hash, type_hash
from lsmq.record_batch import Column
from lsmq_pipeline.decode import Records, keep_records


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """All keys, tags and types that are wanted, and the condition to be met; None where any is."""

    keys: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    types: frozenset[str] | None = None
    filter: str | None = None

    @property
    def picks(self) -> dict[str, Any]:
        """What the broker is told. More words than it takes are compared here alone."""
        fields: dict[str, Any] = {}
        for name, words in (("tag", self.tags), ("type", self.types)):
            if words is not None and 0 < len(words) <= MAX_FILTER_WORDS and "" not in words:
                fields[name] = sorted(words)
        if (condition := self._condition()) is not None:
            fields["filter"] = condition
        return fields

    def _condition(self) -> str | None:
        """The filter, and keys in it unless that is more than the broker reads."""
        if self.keys is None:
            return self.filter
        keys = ", ".join("'" + key.replace("'", "''") + "'" for key in sorted(self.keys))
        wanted = f"key IN ({keys})" if self.filter is None else f"key IN ({keys}) AND ({self.filter})"
        try:
            Expression(wanted)
        except InvalidFilter:
            return self.filter
        return wanted

    @property
    def _exact(self) -> tuple[tuple[str, frozenset[str]], ...]:
        named = (("key", self.keys), ("tag", self.tags), ("type", self.types))
        return tuple((name, wanted) for name, wanted in named if wanted is not None)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that :meth:`exact` looks at, which a read must make even if nobody asked for them."""
        return frozenset(name for name, _ in self._exact)

    def narrow(self, records: Records) -> Records:
        """Records that may be wanted, by the hashes of key, tag and type."""
        columns = records.columns
        keep = np.ones(len(records), np.bool_)
        if self.keys is not None:
            keep &= np.isin(columns[Column.KEY_HASH], np.array([key_hash(key) for key in self.keys], np.uint64))
        if self.tags is not None:
            keep &= np.isin(columns[Column.TAG_HASH], np.array([tag_hash(tag) for tag in self.tags], np.uint32))
        if self.types is not None:
            keep &= np.isin(columns[Column.TYPE_HASH], np.array([type_hash(kind) for kind in self.types], np.uint32))
        return keep_records(records, keep)

    def exact(self, batch: Any) -> Any:
        """Rows whose key, tag and type are the wanted ones: equal hashes do not make equal strings."""
        for name, wanted in self._exact:
            column = batch.column(name)
            batch = batch.filter(pc.is_in(column, pa.array(sorted(wanted), pa.string()).cast(column.type)))
        return batch

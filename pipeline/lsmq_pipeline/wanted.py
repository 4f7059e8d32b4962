"""Options ``keys`` and ``tags``: which messages of those in reach are wanted.

They are compared by the hashes that stand in the record batch's columns before a single byte of a message is looked
at, and by themselves afterwards.

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

from lsmq.messages import key_hash, tag_hash
from lsmq.record_batch import Column
from lsmq_pipeline.decode import Records, keep_records


@dataclass(frozen=True, slots=True)
class Wanted:
    """All keys and all tags that are wanted; None where any is."""

    keys: frozenset[str] | None = None
    tags: frozenset[str] | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Columns that :meth:`exact` looks at, which a read must make even if nobody asked for them."""
        return frozenset(name for name, wanted in (("key", self.keys), ("tag", self.tags)) if wanted is not None)

    def narrow(self, records: Records) -> Records:
        """Records that may be wanted, by the hashes of key and tag."""
        columns = records.columns
        keep = np.ones(len(records), np.bool_)
        if self.keys is not None:
            keep &= np.isin(columns[Column.KEY_HASH], np.array([key_hash(key) for key in self.keys], np.uint64))
        if self.tags is not None:
            keep &= np.isin(columns[Column.TAG_HASH], np.array([tag_hash(tag) for tag in self.tags], np.uint32))
        return keep_records(records, keep)

    def exact(self, batch: Any) -> Any:
        """Rows whose key and tag are the wanted ones: equal hashes do not make equal strings."""
        for name, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted is not None:
                column = batch.column(name)
                batch = batch.filter(pc.is_in(column, pa.array(sorted(wanted), pa.string()).cast(column.type)))
        return batch

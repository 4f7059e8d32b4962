"""A durable step of a machine, as a value. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lsmq.record_batch import RecordBatch
from lsmq_node.storage import Appended, ShardStore


class StepOffsets(NamedTuple):
    """Committed offsets of a group."""

    group: str
    topic_id: int
    queues: Sequence[int]
    offsets: Sequence[int]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Step:
    """What changes together: all of it, or nothing.

    Attributes:
        documents: to put; None deletes.
        offsets: to commit with them.
        batches: by topic's id, to append before the documents; not together with offsets.
        appended: called when the step is in line: memory may run ahead of the disk, as long as nobody is told.
        stored: called when it is durable, unless the machine is not used any more by then.
    """

    documents: Mapping[str, bytes | None] = field(default_factory=dict)
    offsets: StepOffsets | None = None
    batches: Sequence[tuple[int, RecordBatch]] = ()
    appended: Callable[[], object] = _nothing
    stored: Callable[[], object] = _nothing

    def __bool__(self) -> bool:
        return bool(self.documents or self.offsets or self.batches)

    def append_to(self, store: ShardStore) -> Appended:
        """Put it in line. Raises what a write raises; then nothing of it is."""
        if self.batches:
            return store.append_many(self.batches, documents=self.documents or None)[-1]
        if self.offsets is not None:
            group, topic_id, queues, offsets = self.offsets
            places, numbers = np.array(queues, np.uint32), np.array(offsets, np.int64)
            return store.commit_offsets(group, topic_id, places, numbers, documents=self.documents)
        return store.put_documents(self.documents)

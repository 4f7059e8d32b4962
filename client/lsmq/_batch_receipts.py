"""Receipts of rows: what ``send_batch`` returns, and where the rows were stored, as numpy arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lsmq._receipts import PendingBatch
from lsmq.messages import message_id

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class SentBatch:
    """Where the messages of a ``send_batch`` were stored: row ``i`` of each array is of its row ``i``.

    Attributes:
        topic_id: the topic's number, unique in the cluster for ever.
        queues: int64; in a named topic the numbers that the queues have.
        offsets: int64, -1 for a message that was dropped.
        dropped: bool, whether it was not stored, since the topic or queue was full and ``overflow`` is ``drop_newest``.
    """

    topic_id: int
    queues: NDArray[Any]
    offsets: NDArray[Any]
    dropped: NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"<SentBatch: {len(self)} messages, of which {int(self.dropped.sum())} were dropped>"

    def id(self, row: int) -> str:
        """The id of a message, which finds it again: ``client.message(id)``; empty where it was dropped."""
        if self.dropped[row]:
            return ""
        return message_id(self.topic_id, int(self.queues[row]), int(self.offsets[row]))


@dataclass(frozen=True, slots=True, eq=False)
class BatchPart:
    """Rows that lie in ``batch`` from ``start`` on."""

    batch: PendingBatch
    start: int
    rows: slice | NDArray[Any]
    queues: NDArray[Any] | int

    @property
    def count(self) -> int:
        """How many rows."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)


class BatchReceipt:
    """The messages of one ``send_batch``, which a producer has accepted. Await it for the :class:`SentBatch`."""

    __slots__ = ("_count", "_parts", "_topic_id")

    def __init__(self, topic_id: int, count: int) -> None:
        self._topic_id = topic_id
        self._count = count
        self._parts: list[BatchPart] = []

    def __len__(self) -> int:
        return self._count

    def __await__(self) -> Generator[object, None, SentBatch]:
        yield from self.wait().__await__()
        return self.result()

    async def wait(self) -> None:
        """Return once all are stored. Raises the first error among them; the others may be stored."""
        for part in self._parts:
            await part.batch.wait()
        for part in self._parts:
            part.batch.raise_error()

    def done(self) -> bool:
        """Whether each is stored or given up."""
        return all(part.batch.settled for part in self._parts)

    def result(self) -> SentBatch:
        """Where the messages were stored.

        Raises the first error among them, or ``asyncio.InvalidStateError`` while any is under way.
        """
        from lsmq._row_sending import places_of  # With numpy, which nobody else needs.

        self._check_done()
        for part in self._parts:
            part.batch.raise_error()
        return SentBatch(self._topic_id, *places_of(self._parts, self._count))

    def failed_rows(self) -> NDArray[Any]:
        """The rows, in order, whose batch was given up; the error that :meth:`wait` raises says whether that may be
        stored all the same. Raises ``asyncio.InvalidStateError`` while any is under way."""
        from lsmq._row_sending import failed_of  # With numpy, which nobody else needs.

        self._check_done()
        for part in self._parts:
            part.batch.error_seen = True
        return failed_of(self._parts, self._count)

    def _check_done(self) -> None:
        if not self.done():
            raise asyncio.InvalidStateError("messages are still on their way; await the receipt")

"""Limits of what a topic, or a queue of it, may hold: what is new is refused or dropped, or the oldest make room.

The leader decides when a batch is put in line. What it refuses has not happened; which messages are dropped stands in
the log with the batch; where the oldest of a queue make room, that is an entry of the log behind the batch's: so all
replicas agree. Where the oldest of a whole topic make room,
:mod:`.retention` sees to it in the background.

A shard counts what is in line, too. Messages are counted exactly; bytes of the topic as :mod:`.extents` measures them,
and what came since; bytes of a queue as :mod:`.queue_bytes` does. Other shards' part: see :mod:`.shares`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import QuotaExceeded, RequestTooLarge, TooManyMessages
from lsmq.record_batch import Column, RecordBatch

from .columns import I64, U32, group_starts
from .delayed import DUE
from .producers import BROKER_PRODUCERS
from .queue_bytes import QueueBytes
from .shares import Holding, Rest, allowed_share

if TYPE_CHECKING:
    from .applier import BatchColumns, PendingRecords
    from .state import TopicState
    from .topic_options import TopicOptions


class Quota:
    """Of a topic on this shard. The line's lock guards it."""

    __slots__ = ("_counted_at", "_limits", "appended_bytes", "messages", "queue_bytes", "refused", "size_bytes")

    def __init__(self, options: TopicOptions) -> None:
        self.messages = 0  # that can be read or are in line, or fewer by now
        self.size_bytes = 0
        self.appended_bytes = 0  # ever
        self.refused = 0  # batches
        self._counted_at: tuple[int, int] | None = None
        self._limits: tuple[int | None, int | None] = (None, None)
        self.queue_bytes: QueueBytes | None = None
        self.use(options)

    def use(self, options: TopicOptions) -> None:
        """The topic has these options now."""
        if options.queue_max_bytes is None:
            self.queue_bytes = None
        elif self.queue_bytes is None or self.queue_bytes.limit != options.queue_max_bytes:
            self.queue_bytes = QueueBytes(options.queue_max_bytes)

    def check(self, item: TopicState, batches: Sequence[tuple[RecordBatch, BatchColumns]], round_number: int) -> None:
        """Raises ``QuotaExceeded`` where these batches of the topic are too much together, and ``TooManyMessages`` or
        ``RequestTooLarge`` where they always will be."""
        options = item.topic.options
        own = [
            (batch, columns)
            for batch, columns in batches
            # What puts a delayed message at another time was taken when it was sent.
            if batch.producer_id < BROKER_PRODUCERS and Column.OFFSET not in batch.directory
        ]
        if not own or options.overflow != "refuse":
            return
        count, size = sum(batch.record_count for batch, _ in own), sum(len(batch.payload) for batch, _ in own)
        self._check_fits(item, "max_messages", options.max_messages, count, "messages")
        self._check_fits(item, "max_bytes", options.max_bytes, size, "bytes")
        most, most_bytes = self.allowed(options)
        if most is not None and self._full(item, round_number, count, most):
            raise self._exceeded(item, "max_messages", options.max_messages, self.messages, "messages")
        if most_bytes is not None and self.size_bytes + size > most_bytes:
            raise self._exceeded(item, "max_bytes", options.max_bytes, self.size_bytes, "bytes")
        if options.queue_max_messages is None and self.queue_bytes is None:
            return
        queues = np.concatenate([columns.queues for _, columns in own])
        if options.queue_max_messages is not None:
            self._check_queues(item, queues, options.queue_max_messages)
        if self.queue_bytes is not None:
            lengths = np.concatenate([columns.lengths for _, columns in own])
            self._check_queue_bytes(item, self.queue_bytes, queues, lengths, round_number)

    def dropped_of(
        self, item: TopicState, batch: RecordBatch, queues: U32, lengths: U32, rows: I64, round_number: int
    ) -> I64 | None:
        """Which of these ``rows`` of a batch find no room, where what is new is dropped; None where all do.

        What is larger than the room there is goes alone, of the others the first ones are stored. What comes later, or
        was taken before, has room.
        """
        options = item.topic.options
        if options.overflow != "drop_newest" or not len(rows):
            return None
        if batch.producer_id >= BROKER_PRODUCERS or Column.DUE_MS in batch.directory:
            return None
        own, sizes = queues[rows].astype(np.int64) - item.first, lengths[rows].astype(np.int64)
        keep, room = np.ones(len(rows), np.bool_), np.empty(0, np.int64)
        most, most_bytes = self.allowed(options)
        if self.queue_bytes is not None:
            touched, group = np.unique(own, return_inverse=True)
            room = (self.queue_bytes.limit - self.queue_bytes.held(item, touched, round_number))[group]
            keep &= sizes <= room
        if most_bytes is not None:
            keep &= sizes <= most_bytes - self.size_bytes
        if options.queue_max_messages is not None:
            keep &= sums_within(own, keep) <= options.queue_max_messages - (item.next[own] - item.live_from(own))
        if self.queue_bytes is not None:
            keep &= sums_within(own, np.where(keep, sizes, 0)) <= room
        if most is not None and self._full(item, round_number, int(np.count_nonzero(keep)), most):
            keep &= np.cumsum(keep) <= most - self.messages
        if most_bytes is not None:
            keep &= np.cumsum(np.where(keep, sizes, 0)) <= most_bytes - self.size_bytes
        return None if keep.all() else rows[~keep]

    def allowed(self, options: TopicOptions) -> tuple[int | None, int | None]:
        """Messages and bytes that this shard may hold of the topic; None without limit."""
        here, here_bytes = self._limits
        return (
            None if options.max_messages is None else options.max_messages if here is None else here,
            None if options.max_bytes is None else options.max_bytes if here_bytes is None else here_bytes,
        )

    def _full(self, item: TopicState, round_number: int, count: int, most: int) -> bool:
        """Whether so many more are too many. What went since is counted only where that decides, and all there is with
        each round: others may have led in between."""
        now, known = (item.losses, round_number), self._counted_at
        if known is None or known[1] != round_number or (known != now and self.messages + count > most):
            self.messages, self._counted_at = item.count_messages(), now
        return self.messages + count > most

    def _check_queues(self, item: TopicState, queues: U32, most: int) -> None:
        touched, counts = np.unique(queues, return_counts=True)
        largest = int(np.argmax(counts))
        self._check_fits(item, "queue_max_messages", most, int(counts[largest]), "messages", int(touched[largest]))
        rows = touched.astype(np.int64) - item.first
        over = item.next[rows] + counts - item.live_from(rows) > most
        if over.any():
            queue = int(touched[int(np.argmax(over))])
            row = queue - item.first
            held = int(item.next[row]) - item.first_live(row)
            raise self._exceeded(item, "queue_max_messages", most, held, "messages", queue)

    def _check_queue_bytes(
        self, item: TopicState, queue_bytes: QueueBytes, queues: U32, lengths: U32, round_number: int
    ) -> None:
        most = queue_bytes.limit
        touched, group = np.unique(queues, return_inverse=True)
        sizes = np.bincount(group, lengths).astype(np.int64)
        largest = int(np.argmax(sizes))
        self._check_fits(item, "queue_max_bytes", most, int(sizes[largest]), "bytes", int(touched[largest]))
        held = queue_bytes.held(item, touched.astype(np.int64) - item.first, round_number)
        over = held + sizes > most
        if over.any():
            at = int(np.argmax(over))
            raise self._exceeded(item, "queue_max_bytes", most, int(held[at]), "bytes", int(touched[at]))

    def _check_fits(
        self, item: TopicState, option: str, limit: int | None, size: int, what: str, queue: int | None = None
    ) -> None:
        """Raises ``TooManyMessages`` or ``RequestTooLarge`` where so much is more than it may hold when empty."""
        if limit is None or size <= limit:
            return
        self.refused += 1
        name, where = item.topic.name, {} if queue is None else {"queue": queue}
        place = f"topic {name!r}" if queue is None else f"queue {queue} of topic {name!r}"
        raise (RequestTooLarge if what == "bytes" else TooManyMessages)(
            f"{size} {what} are sent together to {place}, which may hold {limit} ({option}): they cannot fit, whatever "
            "goes; none of them is stored. Send fewer at a time, or raise the limit",
            topic=name,
            option=option,
            field=option,
            limit=limit,
            size=size,
            **where,
        )

    def _exceeded(
        self, item: TopicState, option: str, limit: int | None, held: int, what: str, queue: int | None = None
    ) -> QuotaExceeded:
        self.refused += 1
        name, where = item.topic.name, {} if queue is None else {"queue": queue}
        place = f"topic {name!r} on this shard" if queue is None else f"queue {queue} of topic {name!r}"
        return QuotaExceeded(
            f"{place} holds {held} {what}, and with these it would be over its limit ({option} is {limit}"
            f"{'' if queue is not None else ' for the whole topic'}); none of them is stored. Consume and trim, raise "
            "the limit, or let the oldest go with overflow drop_oldest",
            topic=name,
            limit=limit,
            option=option,
            field=option,
            held=held,
            **where,
        )

    def add(self, item: TopicState, pending: PendingRecords, round_number: int) -> tuple[U32, I64] | None:
        """Messages are in line. Those of them that come later do not count before they are due.

        Returns queues whose oldest make room for them at once, and where they begin then.
        """
        keys, offsets, lengths = pending.keys, pending.offsets, pending.lengths
        if pending.is_delayed:
            in_queues = keys < DUE
            keys, offsets, lengths = keys[in_queues], offsets[in_queues], lengths[in_queues]
        size_bytes = int(lengths.sum(dtype=np.int64))
        self.messages += len(keys)
        self.size_bytes += size_bytes
        self.appended_bytes += size_bytes
        rows, starts = self._over_messages(item, pending.touched, pending.ends)
        if self.queue_bytes is not None and len(keys):
            own = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first
            over = self.queue_bytes.add(item, own, offsets, lengths, round_number)
            if item.topic.options.moves:
                self.queue_bytes.note_over(over)
            elif item.topic.options.overflow == "drop_oldest":
                rows = np.append(rows, over)
                starts = np.append(starts, self.queue_bytes.starts_within(item, over))
        if not len(rows):
            return None
        return (rows + item.first).astype(np.uint32), starts

    def _over_messages(self, item: TopicState, touched: U32, ends: I64) -> tuple[I64, I64]:
        """Rows that hold too many messages, and where they begin without these."""
        options = item.topic.options
        most = options.queue_max_messages
        rows: I64 = touched.astype(np.int64)
        if most is None or options.overflow != "drop_oldest" or options.moves:
            return rows[:0], ends[:0]  # Where messages are moved, nothing goes that nobody has looked at.
        over = ends - item.live_from(rows) > most
        return rows[over], ends[over] - most

    # -- told by whoever measures ------------------------------------------------------------------------

    def measured(self, own: Holding, appended_bytes: int, rest: Rest | None, options: TopicOptions) -> None:
        """What the shard held when ``appended_bytes`` was so much, and what others do; None where that is not known."""
        self.size_bytes = own.size_bytes + self.appended_bytes - appended_bytes
        limits = (
            (options.max_messages, own.messages, 0 if rest is None else rest.messages),
            (
                options.max_bytes,
                own.size_bytes,
                0 if rest is None else rest.size_bytes,
            ),
        )
        here: list[int | None] = [None, None]
        for place, (limit, mine, theirs) in enumerate(limits):
            if limit is not None and rest is not None:  # Nothing is dropped while there is room anywhere.
                refuses = options.overflow == "refuse"
                here[place] = allowed_share(limit, mine, theirs, rest) if refuses else max(0, limit - theirs)
        self._limits = here[0], here[1]


def sums_within(rows: I64, values: NDArray[Any]) -> I64:
    """Of each message the sum of the values of its queue in the batch, up to and with it."""
    order = np.argsort(rows, kind="stable")
    firsts, ordered = group_starts(rows[order]), values[order].astype(np.int64)
    sums, counts = np.cumsum(ordered), np.diff(np.append(firsts, len(rows)))
    found = np.empty(len(rows), np.int64)
    found[order] = sums - np.repeat(sums[firsts] - ordered[firsts], counts)
    return found

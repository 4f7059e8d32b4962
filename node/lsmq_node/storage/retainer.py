"""A round of retention on a shard: log starts move past what has expired, then tables go that hold nothing else.

Log starts move through the log, as when a user trims, so that all replicas agree; what has expired is for
:mod:`.retention` to say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from lsmq.errors import ClientClosed, DiskFull, LsmqError, NotLeader, StoreBusy, UnknownTopic

from .columns import I64, U32
from .lapses import Lapses
from .line import Appended
from .log_writer import LogWriter
from .losses import LossReason
from .merger import Merger
from .retention import Gone, Retention
from .shard_time import ShardTime

#: An entry that moves log starts holds at most so many queues.
_TRIM_QUEUES = 1 << 18
#: One that deletes messages, so many.
_DELETED_AT_ONCE = 1 << 14
#: What was put in line is waited for before the next look, as long as that.
_PATIENCE_S = 1.0


class Retainer:
    """One thread at a time."""

    def __init__(
        self,
        retention: Retention,
        merger: Merger,
        time: ShardTime,
        writer: LogWriter,
        trim: Callable[[int, U32, I64, LossReason], Appended],
        delete: Callable[[int, U32, I64, LossReason], Appended],
        barrier: Callable[[], Appended | None],
        lapses: Lapses,
    ) -> None:
        """``trim`` puts in line that log starts of a topic's queues move up to offsets, ``delete`` that messages go;
        ``barrier`` says what to wait for until all that is in line is committed."""
        self._retention = retention
        self._merger = merger
        self._time = time
        self._line = writer.line
        self._writer = writer
        self._put_in_line = trim
        self._put_deletion = delete
        self._lapses = lapses
        self._deleting: Appended | None = None
        self._barrier = barrier
        self._epoch: int | None = None  # in which this shard has led last
        self._unsettled: Appended | None = None

    def run(self) -> bool:
        """Do a round; False when it is to be tried again soon.

        On a replica the leader moves log starts, and tables go in a later round, when that is applied here.
        """
        self._time.check()
        was_over = self._lapses.forget_over()  # Limits may have been raised since.
        leads = self._line.closed is None
        try:
            done = (not leads or self._has_settled(was_over)) and self._retention.run(
                self._trim if leads else None,
                self._delete if leads and self._has_deleted() else None,
            )
        except (UnknownTopic, DiskFull, StoreBusy, ClientClosed):
            done = False
        self._merger.drop(self._retention.dead_tables())
        return done

    def _trim(self, topic_id: int, queues: U32, offsets: I64, why: LossReason) -> Gone:
        try:
            queues, offsets, whole = self._lapses.held_back(topic_id, queues, offsets, why)
            gone = Gone.ALL if whole else Gone.SOME
            if not len(queues):
                return gone
            for first in range(0, len(queues), _TRIM_QUEUES):
                part = slice(first, first + _TRIM_QUEUES)
                appended = self._put_in_line(topic_id, queues[part], offsets[part], why)
            self._unsettled = appended
            self._writer.commit()
            return gone if self._writer.is_committed(appended) else Gone.LATER
        except NotLeader:
            return Gone.LATER

    def _has_settled(self, was_over: bool) -> bool:
        """Whether all that was let go before, by this leader and those before it, is gone: what is in line would be
        counted as there."""
        if self._epoch != self._line.epoch:
            self._epoch, self._unsettled = self._line.epoch, self._barrier()
            self._retention.begin()
        elif was_over:  # Another thread may have put some of it in line.
            self._unsettled = self._barrier()
        with contextlib.suppress(LsmqError):  # It was dropped from the line, or takes longer.
            if self._unsettled is not None:
                self._writer.wait(self._unsettled, _PATIENCE_S)
        if self._is_committed(self._unsettled):
            self._unsettled = None
        return self._unsettled is None

    def _is_committed(self, appended: Appended | None) -> bool:
        """Whether it is, or was dropped from the line."""
        try:
            return appended is None or self._writer.is_committed(appended)
        except LsmqError:
            return True

    def _has_deleted(self) -> bool:
        """Whether what was deleted last is gone, so that nothing is deleted, and counted, twice."""
        if self._is_committed(self._deleting):
            self._deleting = None
        return self._deleting is None

    def _delete(self, topic_id: int, queues: U32, offsets: I64) -> None:
        if self._lapses.drop(topic_id, queues, offsets):
            return
        with contextlib.suppress(NotLeader):
            for first in range(0, len(queues), _DELETED_AT_ONCE):
                part = slice(first, first + _DELETED_AT_ONCE)
                self._deleting = self._put_deletion(topic_id, queues[part], offsets[part], LossReason.OVERFLOW)
                self._writer.commit()

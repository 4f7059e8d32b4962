"""A round of retention on a shard: log starts move past what has expired, then tables go that hold nothing else.

Log starts move through the log, as when a user trims, so that all replicas agree; what has expired is for
:mod:`.retention` to say.
"""

from __future__ import annotations

from collections.abc import Callable

from lsmq.errors import ClientClosed, DiskFull, NotLeader, StoreBusy, UnknownTopic

from .columns import I64, U32
from .line import Appended, Line
from .log_writer import LogWriter
from .merger import Merger
from .retention import Retention
from .shard_time import ShardTime

#: An entry that moves log starts holds at most so many queues.
_TRIM_QUEUES = 1 << 18


class Retainer:
    """One thread at a time."""

    def __init__(
        self,
        retention: Retention,
        merger: Merger,
        time: ShardTime,
        line: Line,
        writer: LogWriter,
        trim: Callable[[int, U32, I64], Appended],
    ) -> None:
        """``trim`` puts in line that log starts of a topic's queues move up to offsets."""
        self._retention = retention
        self._merger = merger
        self._time = time
        self._line = line
        self._writer = writer
        self._put_in_line = trim

    def run(self) -> bool:
        """Do a round; False when it is to be tried again soon.

        On a replica the leader moves log starts, and tables go in a later round, when that is applied here.
        """
        self._time.check()
        try:
            done = self._retention.run(self._trim if self._line.closed is None else None)
        except (UnknownTopic, DiskFull, StoreBusy, ClientClosed):
            done = False
        self._merger.drop(self._retention.dead_tables())
        return done

    def _trim(self, topic_id: int, queues: U32, offsets: I64) -> bool:
        try:
            for first in range(0, len(queues), _TRIM_QUEUES):
                part = slice(first, first + _TRIM_QUEUES)
                appended = self._put_in_line(topic_id, queues[part], offsets[part])
            self._writer.commit()
            return self._writer.is_committed(appended)
        except NotLeader:
            return False

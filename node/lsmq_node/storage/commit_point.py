"""How far a log is committed, and what is written beyond it.

What is written waits here, in the order of the log, until it is committed: then it is applied, which puts it in the
memtable and shows it to readers. One thread applies while another writes what comes next.

Who says what is committed is the store's :class:`CommitRule`, the one thing in which a store by itself differs from a
replica among others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from lsmq import runtime
from lsmq.errors import LsmqError

from .applier import Applier, PendingEntry, PendingRecords
from .columns import U32
from .line import Line, Pending, WrittenEntry, end_of
from .topic_flow import Flow, TopicFlow
from .wal import LogEntry

Result = TypeVar("Result")


class CommitRule(Enum):
    """Who says what of a log is committed."""

    ALONE = "alone"
    """The in-sync set is the store itself: what is as durable as the flush mode promises is committed, and whoever made
    it so applies it at once. All that is found in the log was committed. The store leads from the start."""

    AGREED = "agreed"
    """The replication protocol, by ``ReplicaLog.advance``. What lies above the high watermark may still be cut off. The
    store follows until an epoch begins in it."""

    def reached(self, durable_lsn: int, committed_lsn: int) -> int:
        """How far a log is committed as soon as it is durable up to ``durable_lsn``."""
        return durable_lsn if self is CommitRule.ALONE else committed_lsn


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit made visible.

    Attributes:
        lsn: everything appended below it in this ``round`` is committed.
        touched: topic ids and the queues of each that got records.
        error: set when what was in line above ``lsn`` has failed; the next appends belong to ``round + 1``.
    """

    lsn: int
    round: int
    touched: list[tuple[int, U32]]
    error: LsmqError | None = None


class CommitPoint:
    """Thread-safe. :attr:`lsn` never goes back.

    A thread that is torn out of applying, by whatever exception, leaves memtable and state between two entries. Each
    step says that it is under way before it begins, so that this is seen even where the exception struck twice.
    """

    def __init__(self, line: Line, applier: Applier, lsn: int, written: Iterable[WrittenEntry]) -> None:
        """``written``: what the log holds from ``lsn`` on."""
        self._line = line
        self._applier = applier
        self.lsn = lsn
        self.lock = runtime.Lock()  # one applies at a time; taken after the writer's and before the line's
        self._applying = False  # guarded by lock: whoever takes it and finds it set comes after one that was torn out
        self._written = deque(written)  # guarded by the line's lock
        self._led = TopicFlow()  # records that this store gave their offsets; guarded by lock
        self._moved = runtime.Condition()
        self._waiting = 0  # threads in wait_for; changed under _moved
        self._listeners: list[Callable[[Committed], None]] = []
        self.after_apply: Callable[[int], None] = lambda lsn: None
        #: Stops the shard, with what tore a thread out of applying; gives what it has stopped with.
        self.on_torn: Callable[[BaseException | None], LsmqError]
        line.committed_lsn = lambda: self.lsn

    def add_listener(self, listener: Callable[[Committed], None]) -> None:
        """``listener`` is called in the thread that applies, or that drops what was in line. It must not raise."""
        self._listeners.append(listener)

    # -- what is written ---------------------------------------------------------------------------------

    def extend(self, written: Iterable[WrittenEntry]) -> None:
        """More is in the log, and not committed yet."""
        with self._line.lock:
            self._written.extend(written)

    def cut(self, lsn: int) -> None:
        """What was written from ``lsn`` on is not in the log any more. The caller holds ``lock`` and the line's."""
        assert lsn >= self.lsn, "what is committed never goes"
        while self._written and end_of(self._written[-1]) > lsn:
            self._written.pop()

    def unapplied(self) -> list[Pending]:
        """What is written and stays, whatever happens to the line: records keep their offsets."""
        return [item for item in self._written if not isinstance(item, LogEntry)]

    # -- applying ----------------------------------------------------------------------------------------

    def advance(self, lsn: int) -> int:
        """Everything below ``lsn`` is committed; apply it. Never goes back. Returns the committed LSN.

        Raises ``ShardStopped`` when something committed cannot be applied.
        """
        with self.lock:
            self._apply_whole(lambda: self._apply_written(lsn))
            return self.lsn

    def between_entries(self, work: Callable[[], Result]) -> Result:
        """Do ``work``, on the memtable or the state, while nothing is applied."""
        with self.lock:
            return self._apply_whole(work)

    def _apply_whole(self, work: Callable[[], Result]) -> Result:
        """What changes the memtable or the state is done whole, or the shard stops."""
        if self._applying:
            raise self.on_torn(None)
        try:
            self._applying = True
            result = work()
            self._applying = False
        except BaseException as error:  # durable, but not readable: what comes next must not be built on it
            failure = self.on_torn(error)
            if isinstance(error, Exception):
                raise failure from error
            raise
        return result

    def _apply_written(self, lsn: int) -> None:
        touched: list[tuple[int, U32]] = []
        reached = self.lsn
        written = self._written
        while written and end_of(written[0]) <= lsn:
            reached = end_of(written[0])
            self._apply(written[0], touched)
        if reached > self.lsn:
            self.lsn = reached
            self.after_apply(reached)
            self.tell(Committed(reached, self._line.round, touched))

    def _apply(self, item: WrittenEntry, touched: list[tuple[int, U32]]) -> None:
        """Apply the oldest of what is written, and forget it there in the same step."""
        lock = self._line.lock
        match item:
            case PendingRecords():
                # What the line keeps of it, to be dropped or noted again where a round ends, changes with this.
                of_line = item.producer is not None or item.ids is not None or item.is_delayed
                if not of_line and not item.state.guarded:
                    self._applier.apply_records(item)
                    with lock:
                        self._written.popleft()
                else:
                    with lock:
                        self._applier.apply_records(item)
                        self._line.landed(item)
                        self._written.popleft()
                if len(item.touched):
                    touched.append(item.touched_queues())
                    if not item.state.topic.is_internal:
                        self._led.add(item.state.topic.name, *item.in_queues())
            case PendingEntry():
                with lock:
                    self._applier.apply_entry(item.entry)
                    self._line.landed(item)
                    self._written.popleft()
            case LogEntry():
                with lock:
                    records = self._applier.replay(item)
                    self._written.popleft()
                if records is not None and len(records.touched):
                    touched.append(records.touched_queues())

    def take_led(self) -> dict[str, Flow]:
        """By topic, what was committed here since the last call and came to this store first: it led its shard."""
        with self.lock:
            return self._led.take()

    # -- whoever waits -----------------------------------------------------------------------------------

    def tell(self, committed: Committed) -> None:
        for listener in self._listeners:
            listener(committed)
        self.wake()

    def wake(self) -> None:
        """Have those in :meth:`wait_for` look again."""
        if self._waiting:  # whoever comes from now on looks at what is there already
            with self._moved:
                self._moved.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Return whether ``condition`` has come true, which is looked at when this moves."""
        with self._moved:
            self._waiting += 1
            try:
                return self._moved.wait_for(condition, timeout)
            finally:
                self._waiting -= 1

    def let_go(self) -> None:
        """This is a forked child: whoever held a lock is not here to release it."""
        self.lock, self._moved = runtime.Lock(), runtime.Condition()

"""The thread that writes a voter's journal: all that came together, with one sync, beside the thread that ticks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lsmq import runtime

from .journal import Journal
from .raft_outbox import SaveSnapshot, Write
from .raft_terms import Snapshot

#: After so long without a write the mark behind the last one becomes durable.
_REST_S = 1.0


class RaftWriter:
    """Owns the journal from :meth:`start` on. All methods are for the thread that ticks.

    What waits to be written is bounded by who gives it: :data:`~.raft_kept.MAX_UNWRITTEN_BYTES`.
    """

    def __init__(self, journal: Journal, wake: Callable[[], None]) -> None:
        self._journal, self._wake = journal, wake
        #: Guards what follows, between the two threads.
        self._condition = runtime.Condition()
        self._writes: list[Write] = []
        self._number = self._commit = 0
        self._to_encode: Snapshot | None = None
        self._encoded: tuple[int, int, bytes] | None = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._done: deque[tuple[int, float]] = deque()
        #: A snapshot is on its way to the disk; one is being encoded for a voter that is behind.
        self.compacting = self.encoding = False
        self._thread = runtime.Thread(target=self._run, name="raft-journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes what was given, closes the journal."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._journal.close()

    def write(self, writes: list[Write], number: int, commit: int) -> None:
        """Have these written; ``number`` is reported by :meth:`take_done` once they are durable."""
        with self._condition:
            self._writes += writes
            self._number, self._commit = number, commit
            self._condition.notify()

    def take_done(self) -> list[tuple[int, float]]:
        """Numbers that became durable, and how long that took. Raises what stopped the writing."""
        with self._condition:
            if self._failure is not None:
                raise self._failure
            taken = list(self._done)
            self._done.clear()
        return taken

    def encode(self, snapshot: Snapshot) -> None:
        """Have a snapshot encoded, for :meth:`take_encoded`."""
        with self._condition:
            self._to_encode, self.encoding = snapshot, True
            self._condition.notify()

    def take_encoded(self) -> tuple[int, int, bytes] | None:
        """Index, term and content of the snapshot asked for; None while there is none."""
        with self._condition:
            taken, self._encoded = self._encoded, None
            if taken is not None:
                self.encoding = False
        return taken

    # The thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            with self._condition:
                self._failure = error
            self._wake()

    def _turn(self) -> bool:
        with self._condition:
            if not self._has_work():
                self._condition.wait_for(self._has_work, None if self._journal.marked else _REST_S)
            stopping, writes, snapshot = self._stopping, self._writes, self._to_encode
            number, commit = self._number, self._commit
            self._writes, self._to_encode = [], None
        if writes:
            began = runtime.monotonic()
            self._journal.write(writes, commit)
            took_s = runtime.monotonic() - began
            with self._condition:
                self._done.append((number, took_s))
                if any(isinstance(write, SaveSnapshot) for write in writes):
                    self.compacting = False
            self._wake()
        if snapshot is not None:
            encoded = snapshot.index, snapshot.term, snapshot.encode()
            with self._condition:
                self._encoded = encoded
            self._wake()
        if not writes and snapshot is None:
            self._journal.rest()
        return not stopping

    def _has_work(self) -> bool:
        return bool(self._writes) or self._to_encode is not None or self._stopping

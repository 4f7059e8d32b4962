"""One life of a replica: a store, a thread that writes, one that applies, and the mailbox for what they report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from lsmq_node.storage import Committed, ShardStore

from .apply_worker import ApplyWorker
from .disk_thread import ThreadFailed
from .disk_worker import DiskWorker, Report
from .mailbox import Mailbox
from .opening import Directory

LifeReport = Report | Committed


class ReplicaLife:
    """Make it in the loop's thread. ``deliver`` is called there, and not any more after :meth:`end`."""

    def __init__(self, directory: Directory, store: ShardStore, deliver: Callable[[LifeReport], None]) -> None:
        self._deliver: Callable[[LifeReport], None] | None = deliver
        self._mailbox: Mailbox[LifeReport] = Mailbox(self._delivered)
        self.leaves = 0  # leaderships of this life that are over
        self._left_at: deque[int] = deque()  # where the last of them left the log, which reports may not know yet
        self.disk = DiskWorker(
            directory.shard,
            directory.path,
            directory.disk,
            store,
            reopen=lambda: self._listening(directory.open_store(None)),
            quiesce=lambda: self.applier.drain(),
            post=self._mailbox.post,
        )
        self.applier = ApplyWorker(
            directory.shard, lambda: self.disk.store, lambda error: self._mailbox.post(ThreadFailed(error))
        )
        self._listening(store)
        self.disk.start()
        self.applier.start()

    def _listening(self, store: ShardStore) -> ShardStore:
        store.replica.listen(self.disk.wrote, self.disk.durable, self._mailbox.post)
        return store

    def _delivered(self, item: LifeReport) -> None:
        if self._deliver is not None:
            self._deliver(item)

    def leave(self, lsn: int) -> None:
        """A leadership is over, and the log ends at ``lsn``."""
        self.leaves += 1
        self._left_at.append(lsn)

    def durable(self, lsn: int, leaves: int) -> int:
        """How far of what is left the log is durable, by a report that knew of the end of so many leaderships. Later
        reports know of no fewer."""
        while len(self._left_at) > self.leaves - leaves:
            self._left_at.popleft()
        return min([lsn, *self._left_at])

    def end(self) -> None:
        """Nothing is delivered any more."""
        self._deliver = None

    def close(self) -> None:
        """Do what is queued, end the threads, close the store. Blocking."""
        self.disk.close()
        self.applier.close()
        with suppress(OSError):
            self.disk.store.replica.save_high_watermark()
        self.disk.store.close()

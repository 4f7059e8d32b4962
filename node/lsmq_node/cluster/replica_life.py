"""One life of a replica: a store, a thread that writes, one that applies, and the mailbox for what they report."""

from __future__ import annotations

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
        self.left_at: list[int] = []  # where each leadership of this life left the log
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

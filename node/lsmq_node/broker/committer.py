"""Group commit: one thread a shard that makes durable whatever was appended, all of it at once.

Requests append on the loop thread, which costs microseconds, and then wait for their LSN. The committer's
thread calls ``ShardStore.commit`` as long as anything waits; all requests that arrive during one fdatasync
share the next. A commit reaches the loop by one ``call_soon_threadsafe``, however many requests it answers.

Who waits for what, and what becomes of it when a commit fails, is in :mod:`lsmq_node.cluster.pending`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import DiskFull, LsmqError, ShardStopped
from lsmq_node.cluster.pending import PendingWrites
from lsmq_node.storage import Appended, Committed, ShardStore

_log = structlog.get_logger("lsmq.committer")

Touched = Callable[[int, Sequence[NDArray[Any]]], None]


class Committer:
    """Commits one shard and resolves who waits for it.

    :meth:`wait` and the callbacks run on the loop thread; ``commit`` runs in a thread of its own.
    """

    def __init__(self, shard: int, store: ShardStore, on_touched: Touched) -> None:
        """``on_touched(topic_id, queues)`` is called on the loop thread for what each commit made visible."""
        self._shard = shard
        self._store = store
        self._on_touched = on_touched
        self._loop = asyncio.get_running_loop()
        self._pending = PendingWrites()
        self._events: deque[Committed] = deque()
        self._delivery_scheduled = False
        self._kick_scheduled = False
        self._signals: runtime.SimpleQueue[bool] = runtime.SimpleQueue()
        self._signalled = False
        self._thread = runtime.Thread(target=self._run, name=f"lsmq-commit-{shard}", daemon=True)
        self.stopped: LsmqError | None = None
        self.waits = 0
        self.failures = 0

    def start(self) -> None:
        """Begin to commit."""
        self._store.on_commit(self._committed)
        self._thread.start()

    def wait(self, appended: Appended) -> asyncio.Future[None] | None:
        """What to await until a write is committed; None if it is already.

        Call it in the same step of the loop as the append: what the commit says arrives in a later one. The
        future raises what made the commit fail. A caller that is cancelled leaves the write as it is.
        """
        self.waits += 1
        if appended.duplicate and appended.lsn <= self._store.committed_lsn:
            return None
        future = self._pending.add(appended.round, appended.lsn)
        if not self._kick_scheduled:
            # After the handlers that are ready in this turn of the loop, so that they share the commit.
            self._kick_scheduled = True
            self._loop.call_soon(self._kick)
        return future

    async def close(self) -> None:
        """Commit what waits, then end the thread. No append may come after."""
        while (last := self._pending.last()) is not None:
            await asyncio.wait([last])
            await asyncio.sleep(0)  # Let the delivery that resolved it take it out of the line.
        self._signals.put(False)
        await asyncio.to_thread(self._thread.join)

    def _kick(self) -> None:
        self._kick_scheduled = False
        if not self._signalled:
            # The thread clears the flag before it commits, so a flag still set means a commit is to come.
            self._signalled = True
            self._signals.put(True)

    def _run(self) -> None:
        while self._signals.get():
            self._signalled = False
            try:
                self._store.commit()
            except LsmqError:
                pass  # Said to _committed, with the round it ended.
            except Exception as error:
                _log.error("commit_failed", shard=self._shard, exc_info=error)
                self._loop.call_soon_threadsafe(self._fail_all, error)

    def _committed(self, event: Committed) -> None:
        """Runs in the thread that committed, after readers can see it."""
        self._events.append(event)
        if not self._delivery_scheduled:
            self._delivery_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._events.clear()  # The loop is closed: nobody is left to tell.

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        touched: dict[int, list[NDArray[Any]]] = {}
        while self._events:
            event = self._events.popleft()
            for topic_id, queues in event.touched:
                touched.setdefault(topic_id, []).append(queues)
            self._settle(event)
        for topic_id, pieces in touched.items():
            self._on_touched(topic_id, pieces)

    def _settle(self, event: Committed) -> None:
        """Answer all who waited for what the event decides: in line order, those up to its round and LSN."""
        error = event.error
        if error is not None:
            self.failures += 1
            if not isinstance(error, DiskFull):
                self.stopped = error
            _log.error("writes_dropped", shard=self._shard, code=error.code, message=error.message)
            self._pending.dropped(event.round, event.lsn, error)
        self._pending.reached(event.round, event.lsn)

    def _fail_all(self, cause: Exception) -> None:
        """The engine failed in a way it does not know itself: nothing it says later can be trusted."""
        self.stopped = ShardStopped(f"shard {self._shard} failed: {cause!r}; restart the node")
        self._pending.fail_all(self.stopped)

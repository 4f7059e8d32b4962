"""The thread that owns a queue store: it alone opens, writes and closes.

It takes requests (:mod:`.requests`) from an inbox and carries them out one after another. Puts that have come in
meanwhile are stored together: one look-up of names, one batch, one write, one sync; so the more threads put, the less
each put costs. While flushing and merging have not caught up, puts wait here and everything else goes on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

from lsmq import runtime
from lsmq.errors import ClientClosed, CorruptFile, InvalidRequest, LsmqError, ShardStopped, StoreBusy

from .disk import Clock, Disk, SystemClock
from .failures import again, refused
from .lock import forked
from .maintenance import Flush
from .options import StoreOptions
from .queue_writer import QueueWriter
from .requests import Close, FlushRequest, Put, Request
from .shard_store import ShardStore

#: So many requests wait for the owner; more are refused.
MAX_WAITING_REQUESTS = 10_000
_WAIT_SECONDS = 60.0


class QueueOwner:
    """:meth:`open`, :meth:`hand_over`, :meth:`dismiss` and :meth:`find` are for any thread; the rest is the owner's."""

    def __init__(self, path: Path | str, options: StoreOptions, disk: Disk | None, clock: Clock | None) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._clock = clock or SystemClock()
        self._inbox: runtime.SimpleQueue[Request | None] = runtime.SimpleQueue()  # None only wakes
        self._thread = runtime.Thread(target=self._run, name="lsmq-owner", daemon=True)
        self._opened = Request()
        self._puts: deque[Put] = deque()
        self._flushes: list[tuple[Flush, Request]] = []
        self._closers: list[Request] = []
        self.store: ShardStore
        self.writer: QueueWriter
        #: Why nothing is done any more. Set before the inbox is emptied for the last time.
        self._ended: LsmqError | None = None

    # -- for callers -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the thread; return when the store is open. Raises what made that fail: then everything is released."""
        self._thread.start()
        try:
            self._opened.wait()
        finally:
            if self._ended is not None:
                self._thread.join()

    def hand_over(self, request: Request) -> None:
        """Have a request carried out; return when it is. Raises what made it fail, ``ClientClosed``, ``StoreBusy``."""
        self.check_open()
        if self._inbox.qsize() + len(self._puts) >= MAX_WAITING_REQUESTS:
            raise StoreBusy(
                f"{MAX_WAITING_REQUESTS} requests wait for the queue store {self._path} already; try again in a moment",
                limit=MAX_WAITING_REQUESTS,
            )
        try:
            self._inbox.put(request)
            if self._ended is not None and not request.is_answered:  # the owner may not have seen it any more
                raise again(self._ended)
            request.wait()
        except BaseException:
            request.abandoned = True
            raise

    def check_open(self) -> None:
        """Raises why nothing is done any more."""
        if self._ended is not None:
            raise again(self._ended)

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def dismiss(self) -> None:
        """Have the store closed, and do not wait for it. One step: safe from any thread, and in any state."""
        self._inbox.put(Close())

    def close(self) -> None:
        """Have the store closed, and wait for it. Raises what made the last commit fail."""
        request = Close()
        self._inbox.put(request)
        if self._ended is None or request.is_answered:
            request.wait()
            self._thread.join()

    def find(self, name: str) -> int:
        """The number of a committed queue, -1 for any other. Raises ``ClientClosed``."""
        self.check_open()
        return self.writer.find(name)

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self._ended = self._closed_error()
            self._opened.answer(error)
            self._refuse_all()
            return
        self._opened.answer()
        try:
            while not self._closers:
                self._take()
                self._store_puts()
                self._finish_flushes()
            self._end(self._closed_error())
        except BaseException as error:
            failure = ShardStopped(
                f"the thread that writes to the queue store {self._path} failed ({error!r}). Nothing more is written; "
                "what was acknowledged is safe: open the store again.",
                path=str(self._path),
            )
            self.store.stop(failure)
            self._end(failure)

    def _open(self) -> None:
        store = ShardStore.open(self._path, self._options, disk=self._disk, clock=self._clock)
        try:
            store.on_fork(self._let_go)
            self.writer = QueueWriter(store)
            store.on_progress(self._wake)
        except BaseException as error:
            with contextlib.suppress(LsmqError, OSError):
                store.close()
            if isinstance(error, CorruptFile):
                raise refused(Path(self._path), error, untouched=False) from error
            raise
        self.store = store

    def _wake(self) -> None:
        self._inbox.put(None)

    def _let_go(self) -> None:
        """This is a child of the process that opened the store: the thread is not here, and nothing is ours."""
        self._ended = forked(self._path)

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(f"the queue store {self._path} is closed")

    def _take(self) -> None:
        """Wait for something to do, and take all there is."""
        timeout = max(0.0, self._puts[0].deadline - self._clock.monotonic()) if self._puts else None
        with contextlib.suppress(runtime.Empty):
            self._receive(self._inbox.get(timeout=timeout))
            while True:
                self._receive(self._inbox.get_nowait())

    def _receive(self, request: Request | None) -> None:
        match request:
            case Put():
                request.deadline = self._clock.monotonic() + _WAIT_SECONDS
                self._puts.append(request)
            case FlushRequest():
                try:
                    self._flushes.append((self.store.begin_flush(), request))
                except Exception as error:
                    request.answer(error)
            case Close():
                self._closers.append(request)
            case _:
                assert request is None, "there is no other request"

    def _finish_flushes(self) -> None:
        waiting, self._flushes = self._flushes, []
        for flush, request in waiting:
            try:
                if flush.is_over():
                    self.store.check_open()
                    request.answer()
                else:
                    self._flushes.append((flush, request))
            except Exception as error:
                request.answer(error)

    def _end(self, reason: LsmqError) -> None:
        """Close the store, and answer everybody."""
        error: BaseException | None = None
        try:
            self.store.close()
        except (LsmqError, OSError) as failure:
            error = failure
        self._ended = reason
        for put in self._puts:
            put.answer(reason)
        for _, request in self._flushes:
            request.answer(reason)
        for request in self._closers:
            request.answer(error)
        self._refuse_all()

    def _refuse_all(self) -> None:
        with contextlib.suppress(runtime.Empty):
            while True:
                request = self._inbox.get_nowait()
                if request is not None:
                    request.answer(None if isinstance(request, Close) else self._ended)

    # -- puts --------------------------------------------------------------------------------------------

    def _store_puts(self) -> None:
        """Store what has come in, as far as there is room."""
        while self._puts:
            if self._must_wait():
                self._puts = deque(put for put in self._puts if not put.abandoned)
                return
            group = self._next_group()
            if group:
                self._store_group(group)

    def _must_wait(self) -> bool:
        """Whether flushing and merging are to catch up first. They never will once the store has stopped."""
        store = self.store
        return store.pressure == "refuse" and not store.stopped and self._clock.monotonic() < self._puts[0].deadline

    def _next_group(self) -> list[Put]:
        """Puts that are stored together: as many as one batch takes, but one whatever its size."""
        group: list[Put] = []
        size = count = 0
        while self._puts:
            put = self._puts[0]
            size, count = size + put.size_bytes, count + len(put)
            if group and (size > self.writer.max_batch_bytes or count > self.writer.max_batch_records):
                break
            self._puts.popleft()
            if not put.abandoned:
                group.append(put)
        return group

    def _store_group(self, group: list[Put]) -> None:
        try:
            offsets = self.writer.write(group)
        except StoreBusy as error:
            self._put_back(group, error)
        except InvalidRequest as error:
            if len(group) == 1:
                group[0].answer(error)
            else:  # nothing of it is stored, and it is one of them that is wrong
                for put in group:
                    self._store_group([put])
        except BaseException as error:
            for put in group:
                put.answer(error)
            if not isinstance(error, Exception):
                raise
        else:
            first = 0
            for put in group:
                put.offsets = offsets[first : first + len(put)].tolist()
                first += len(put)
                put.answer()

    def _put_back(self, group: list[Put], error: StoreBusy) -> None:
        now = self._clock.monotonic()
        for put in reversed(group):
            if put.deadline <= now:
                put.answer(error)
            else:
                self._puts.appendleft(put)

"""Who changes a queue store: one thread at a time, and none that a signal's handler can tear off.

A thread that wants something (:mod:`.requests`) does it by itself while hardly anybody else does: that costs half of
what a hand-over does. In a crowd all that have little to do hand over to a thread of the store's own, the owner, so
that what they want is done together. The main thread always hands over, since there Python runs the handlers of
signals, which may raise between any two instructions. The owner also does what others could not finish, and alone
opens and closes.

Puts that have come in meanwhile are stored together: one look-up of names, one batch, one write, one sync; so the more
threads put, the less each put costs. While flushing and merging have not caught up, puts wait here and everything else
goes on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from lsmq import runtime
from lsmq.errors import ClientClosed, CorruptFile, InvalidRequest, LsmqError, ShardStopped, StoreBusy

from .columns import I64
from .disk import Clock, Disk, SystemClock
from .failures import again, refused
from .lock import forked
from .maintenance import Flush
from .options import StoreOptions
from .queue_writer import QueueWriter
from .requests import Close, FlushRequest, Put, Request
from .shard_store import ShardStore

#: So many requests wait; more are refused.
MAX_WAITING_REQUESTS = 10_000
_WAIT_SECONDS = 60.0
#: After so many rounds in a row with one request at most there is no crowd.
_ALONE_ROUNDS = 8


class QueueOwner:
    """:meth:`open`, :meth:`hand_over`, :meth:`dismiss` and :meth:`find` are for any thread; the rest is for whoever has
    the turn."""

    def __init__(self, path: Path | str, options: StoreOptions, disk: Disk | None, clock: Clock | None) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._clock = clock or SystemClock()
        #: What waits for whoever has the turn.
        self._inbox: deque[Request] = deque()
        #: What waits for the owner; None only wakes it.
        self._bell: runtime.SimpleQueue[Request | None] = runtime.SimpleQueue()
        #: It knows who has it, whatever became of that thread on its way.
        self._turn = runtime.RLock()
        self._thread = runtime.Thread(target=self._run, name="lsmq-owner", daemon=True)
        self._opened = Request()
        # From here on: of whoever has the turn.
        self._puts: deque[Put] = deque()
        #: The puts that are being stored.
        self._group: list[Put] = []
        self._flushes: list[tuple[Flush, Request]] = []
        self._closers: list[Request] = []
        #: So many rounds in a row had one request at most. Others look at it, too.
        self._alone = _ALONE_ROUNDS
        self.store: ShardStore
        self.writer: QueueWriter
        #: What tore off the one who had the turn: the store may be between two states, and nobody goes on.
        self._torn: BaseException | None = None
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
        if len(self._inbox) + self._bell.qsize() + len(self._puts) >= MAX_WAITING_REQUESTS:
            raise StoreBusy(
                f"{MAX_WAITING_REQUESTS} requests wait for the queue store {self._path} already; try again in a moment",
                limit=MAX_WAITING_REQUESTS,
            )
        self._check_outside()
        try:
            if runtime.handles_signals() or (self._alone < _ALONE_ROUNDS and not request.is_large):
                self._bell.put(request)
            else:
                self._inbox.append(request)
                if not self._serve_now():
                    self._bell.put(None)
            if self._ended is not None and not request.is_answered:  # nobody may have seen it any more
                raise again(self._ended)
            request.wait()
        except BaseException:
            request.abandoned = True
            raise

    def _check_outside(self) -> None:
        if runtime.holds(self._turn):
            raise InvalidRequest(
                f"this call is made in the midst of another one to the queue store {self._path}, by the same thread: "
                "by a finalizer or a log handler, say. Have it made by a thread of its own."
            )

    def _serve_now(self) -> bool:
        """Carry out what is in the inbox; returns False where the owner is to go on."""
        try:
            taken = self._turn.acquire(blocking=False)
            if taken:
                self._serve()
        finally:
            if runtime.holds(self._turn):  # also where this thread was torn off before it knew
                self._turn.release()
        return taken and not self._puts

    def check_open(self) -> None:
        """Raises why nothing is done any more."""
        if self._ended is not None:
            raise again(self._ended)

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def dismiss(self) -> None:
        """Have the store closed, and do not wait for it. One step: safe from any thread, and in any state."""
        self._bell.put(Close())

    def close(self) -> None:
        """Have the store closed, and wait for it. Raises what made the last commit fail."""
        self._check_outside()
        request = Close()
        self._bell.put(request)
        if self._ended is None or request.is_answered:
            request.wait()
            self._thread.join()

    def find(self, name: str) -> int:
        """The number of a committed queue, -1 for any other. Raises ``ClientClosed``, ``InvalidRequest``."""
        self.check_open()
        try:
            return self.writer.find(name)
        except AttributeError:
            if isinstance(name, str):
                raise
            raise InvalidRequest(f"a queue name is {name!r:.40}; it must be text") from None

    def find_all(self, names: Sequence[str]) -> I64:
        """The numbers of one name or more: as :meth:`find` has them."""
        self.check_open()
        return self.writer.find_all(names)

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
        patience: float | None = None
        while True:
            arrived = self._await_bell(patience)
            with self._turn:
                self._inbox.extend(arrived)
                with contextlib.suppress(BaseException):  # it is noted
                    self._serve()
                if self._torn is not None:
                    self._end(self._failure(self._torn))
                    return
                if self._closers:
                    self._end(self._closed_error())
                    return
                patience = max(0.0, self._puts[0].deadline - self._clock.monotonic()) if self._puts else None

    def _await_bell(self, patience: float | None) -> list[Request]:
        """Wait for something to do; what it is, where that is not in the inbox."""
        arrived: list[Request | None] = []
        with contextlib.suppress(runtime.Empty):
            arrived.append(self._bell.get(timeout=patience))
            while True:
                arrived.append(self._bell.get_nowait())
        return [request for request in arrived if request is not None]

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
        self._bell.put(None)

    def _let_go(self) -> None:
        """This is a child of the process that opened the store: the thread is not here, and nothing is ours."""
        self._ended = forked(self._path)

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(f"the queue store {self._path} is closed")

    def _failure(self, error: BaseException) -> ShardStopped:
        """The store has stopped: who wrote to it was torn off."""
        failure = ShardStopped(
            f"a thread that wrote to the queue store {self._path} failed ({error!r}). Nothing more is written; "
            "what was acknowledged is safe: open the store again.",
            path=str(self._path),
        )
        self.store.stop(failure)
        return failure

    # -- for whoever has the turn ------------------------------------------------------------------------

    def _serve(self) -> None:
        """Carry out all there is, as far as that is possible now. Raises what tore it off.

        Whatever is under way is always found in one place or in two: so nobody waits for ever when that happens.
        """
        if self._torn is not None or self._ended is not None:
            return
        try:
            count = len(self._inbox)
            for _ in range(count):
                self._receive(self._inbox[0])
                self._inbox.popleft()
            self._alone = 0 if count > 1 else self._alone + 1
            self._store_puts()
            self._finish_flushes()
        except BaseException as error:
            self._torn = error
            self._bell.put(None)
            raise

    def _receive(self, request: Request) -> None:
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

    def _finish_flushes(self) -> None:
        unfinished = []
        for flush, request in self._flushes:
            try:
                if flush.is_over():
                    self.store.check_open()
                    request.answer()
                else:
                    unfinished.append((flush, request))
            except Exception as error:
                request.answer(error)
        self._flushes = unfinished

    def _end(self, reason: LsmqError) -> None:
        """Close the store, and answer everybody."""
        error: BaseException | None = reason  # of those who close, unless it is closed
        try:
            self.store.close()
            error = None
        except (LsmqError, OSError) as failure:
            error = failure
        finally:
            self._ended = reason
            flushes = [request for _, request in self._flushes]
            for request in (*self._group, *self._puts, *flushes):
                request.settle(reason)
            for request in self._closers:
                request.settle(error)
            self._refuse_all()

    def _refuse_all(self) -> None:
        left: list[Request | None] = list(self._inbox)
        with contextlib.suppress(runtime.Empty):
            while True:
                left.append(self._bell.get_nowait())
        for request in left:
            if request is not None:
                request.settle(None if isinstance(request, Close) else self._ended)

    # -- puts --------------------------------------------------------------------------------------------

    def _store_puts(self) -> None:
        """Store what has come in, as far as there is room."""
        while self._puts:
            if self._must_wait():
                self._puts = deque(put for put in self._puts if not put.abandoned)
                return
            self._next_group()
            if self._group:
                self._store_group(self._group)
                self._group = []

    def _must_wait(self) -> bool:
        """Whether flushing and merging are to catch up first. They never will once the store has stopped."""
        store = self.store
        return store.pressure == "refuse" and not store.stopped and self._clock.monotonic() < self._puts[0].deadline

    def _next_group(self) -> None:
        """Puts that are stored together: as many as one batch takes, but one whatever its size."""
        group = self._group
        size = count = 0
        while self._puts:
            put = self._puts[0]
            size, count = size + put.size_bytes, count + len(put)
            if group and (size > self.writer.max_batch_bytes or count > self.writer.max_batch_records):
                break
            if not put.abandoned:
                group.append(put)
            self._puts.popleft()

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
        except Exception as error:
            for put in group:
                put.answer(error)
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

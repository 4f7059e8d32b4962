"""The file descriptors of this process: who may have how many, and what is kept back for the store.

The system lets a process have so many (``ulimit -n``) and gives them to whoever asks first. So that connections never
take what a flush needs, they are shared out: a quarter for table files that readers hold open, a quarter for the
store's own files (log segments, flushes, merges, manifests, the control plane's), the rest for connections, which
whoever accepts them keeps to (:func:`shares`). Against those who do not keep to it, as the rest of a program that a
store is part of, a few descriptors are held in *reserve*: where a file cannot be opened for want of one, table files
that are only kept open for later are closed, then the reserve is lent.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from lsmq import runtime

#: What ``open`` fails with: no descriptor is left in the process, or in the system.
SHORTAGE = (errno.EMFILE, errno.ENFILE)
_UNLIMITED = 1 << 20
_MOST_RESERVED = 32
_WARN_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_log = logging.getLogger("lsmq.storage")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """How many descriptors each part of the process may have.

    Attributes:
        limit: all of them, ``ulimit -n``.
        tables: table files held open for readers, and lent to answers that are being sent.
        reserve: held back, part of ``store``.
        store: the store's own files, and whatever else is neither table nor connection.
        connections: accepted and made.
    """

    limit: int
    tables: int
    reserve: int
    store: int
    connections: int


def shares(limit: int | None = None) -> DescriptorShares:
    """The shares of ``limit``, which is by default what the process has now."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 0 or limit > _UNLIMITED:
        limit = _UNLIMITED
    tables, store = min(limit // 4, 4096), min(limit // 4, 4096)
    return DescriptorShares(limit, tables, min(_MOST_RESERVED, store // 4), store, limit - tables - store)


class DescriptorHolder(Protocol):
    """Who holds files open that it can do without."""

    def give_back(self) -> bool:
        """Close what can be closed. False when there was nothing."""


class Descriptors:
    """What a process has of them. Thread-safe."""

    def __init__(self, reserve: int | None = None) -> None:
        """``reserve`` is how many are held back; by default what :func:`shares` says."""
        self._wanted = reserve
        self._lock = runtime.Lock()  # guards what follows
        self._reserve: list[int] = []
        self._holders: WeakKeyDictionary[DescriptorHolder, None] = WeakKeyDictionary()  # the first to join first
        self._warned = -_WARN_SECONDS
        #: How often a file could not be opened at once.
        self.shortages = 0

    def join(self, holder: DescriptorHolder) -> None:
        """Ask ``holder`` as well from now on, for as long as it lives."""
        with self._lock:
            self._holders[holder] = None
        self._refill()

    def leave(self, holder: DescriptorHolder) -> None:
        """Ask ``holder`` no more. With the last one the reserve goes."""
        with self._lock:
            self._holders.pop(holder, None)
            if not self._holders:
                while self._reserve:
                    os.close(self._reserve.pop())

    def tables_each(self) -> int:
        """Table files that each of those who joined may have open."""
        return max(2, shares().tables // max(1, len(self._holders)))

    def opening(self, attempt: Callable[[], T]) -> T:
        """What ``attempt`` opens. Raises ``OSError`` of :data:`SHORTAGE` when no descriptor can be found for it."""
        try:
            opened = attempt()
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            opened = self._retry(attempt, error)
        if len(self._reserve) < self._reserved():
            self._refill()
        return opened

    def opening_at_last(self, attempt: Callable[[], T]) -> T:
        """:meth:`opening`, for what must not fail half way: waits some time for a descriptor where there is none."""
        until = runtime.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self.opening(attempt)
            except OSError as error:
                if error.errno not in SHORTAGE or runtime.monotonic() > until:
                    raise
            runtime.sleep(_PATIENCE_SECONDS / 500)

    def _retry(self, attempt: Callable[[], T], error: OSError) -> T:
        self._note(error)
        while self._give_back():
            try:
                return attempt()
            except OSError as again:
                if again.errno not in SHORTAGE:
                    raise
        raise error

    def _give_back(self) -> bool:
        with self._lock:
            holders = list(self._holders)
        given = [holder.give_back() for holder in holders]
        if any(given):
            return True
        with self._lock:
            if not self._reserve:
                return False
            os.close(self._reserve.pop())
            return True

    def _reserved(self) -> int:
        if self._wanted is not None:
            return self._wanted
        return shares().reserve if self._holders else 0

    def _refill(self) -> None:
        """Hold so many back again, as far as there are any."""
        with self._lock:
            try:
                while len(self._reserve) < self._reserved():
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # the next file that is opened tries again

    def _note(self, error: OSError) -> None:
        """Say it, once a minute."""
        with self._lock:
            self.shortages += 1
            now = runtime.monotonic()
            if now - self._warned < _WARN_SECONDS:
                return
            self._warned = now
        _log.warning(
            "no file descriptor is left (%s; ulimit -n is %d): table files are closed, and the store's reserve is "
            "used. Raise the limit, or close connections. Seen %d times so far, said once a minute",
            error.strerror,
            shares().limit,
            self.shortages,
        )


#: Those of this process.
DESCRIPTORS = Descriptors()

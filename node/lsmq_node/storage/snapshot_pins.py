"""Files that are read past the store's own readers, and therefore kept though the store needs them no more."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lsmq import runtime

from .disk import Disk
from .failures import WANT

_log = logging.getLogger("lsmq.storage")


class PinnedFiles:
    """Removes the files of a directory, those that are held only when nobody holds them any more. Thread-safe.

    What cannot be removed for want of space, as where a file system copies what it changes, goes with the next one. It
    remembers nothing across a restart: what was not removed by then is in no manifest, and recovery removes it. Once it
    is closed it removes nothing: files of these names may be another store's.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = runtime.Lock()
        self._holders: Counter[str] = Counter()
        self._unwanted: set[str] = set()
        self._removing = runtime.Lock()  # guards what follows; held while a file is removed
        self._closed = False

    def hold(self, names: Iterable[str]) -> None:
        with self._lock:
            self._holders.update(names)

    def release(self, names: Iterable[str]) -> None:
        """Once for each time they were held. A file that cannot be removed now is left for recovery."""
        names = tuple(names)
        with self._lock:
            self._holders.subtract(names)
            free = [name for name in names if not self._holders[name]]
            for name in free:
                del self._holders[name]
            gone = self._unwanted.intersection(free)
            self._unwanted -= gone
        for name in sorted(gone):
            try:
                self._remove(name)
            except OSError as error:
                _log.warning("%s: not removed: %s", self._directory / name, error)

    def remove(self, name: str) -> None:
        """Remove a file that is in no manifest any more, or have it removed later. Raises ``OSError``, but for want."""
        with self._lock:
            self._unwanted.add(name)
            free = {unwanted for unwanted in self._unwanted if not self._holders[unwanted]}
            self._unwanted -= free
        for each in sorted(free):
            try:
                self._remove(each)
            except OSError as error:
                if error.errno not in WANT:
                    raise
                with self._lock:
                    self._unwanted.add(each)
                if each == name:
                    _log.warning("%s: not removed: %s. It goes with the next one", self._directory / name, error)

    def _remove(self, name: str) -> None:
        with self._removing:
            if not self._closed:
                self._disk.remove(self._directory / name)

    def close(self) -> None:
        """Remove nothing from here on, whoever still holds what."""
        with self._removing:
            self._closed = True

"""Backups in an object store that speaks S3, by obstore.

The names are those of a directory of backups, below the prefix, and two more::

    LOCK          of whoever changes what is here: who, and a number that it counts up
    sums/SHA256   of each file, the CRC32C of each MAX_COMPARE_BYTES of it, four bytes little-endian

The sums tell whether a shard still has the content, as reading the file does in a directory; so nothing that is here is
read again for the next backup, and damage of it is found by ``lsmq verify``.

Nobody keeps a lock for who has died. ``LOCK`` is written anew every ``_RENEW_S`` while it is held, by writes that only
count where nobody else wrote meanwhile; whoever finds it watches it, and takes it over when nothing happens for
``_DEAD_S``. Who was stopped for so long finds out before the next thing that it writes or removes; and before it adds a
backup, or removes anything, it writes the lock again: a machine that was suspended has not counted the time.

Not supported: credentials in files of the AWS command line. They come by the environment, or from the machine.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from lsmq import runtime
from lsmq.errors import DataDirectoryLocked, InvalidRequest
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES
from lsmq_node.storage.passing_files import passing_directory

from .places import BACKUPS, FILES, READ_BYTES

_log = logging.getLogger("lsmq")

_SUMS, _LOCK = "sums", "LOCK"
_RENEW_S, _DEAD_S, _LOOK_S = 10.0, 45.0, 1.0
_RETRY: Final[Any] = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
}
_LARGE_BYTES = 16 << 20  # Larger files are sent in so large parts.
_REASON_CHARACTERS = 300


class ObjectPlace:
    """``s3://BUCKET/PREFIX``. What the service is and who asks is said by the environment, as for other programs:
    ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``."""

    def __init__(self, url: str) -> None:
        """Raises ``InvalidRequest``. Nothing is asked yet."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise InvalidRequest(f'{url} needs a library that is not here: pip install "lsmq[s3]"') from error
        parsed = urlsplit(url)
        if not parsed.netloc or parsed.query or parsed.fragment or "@" in parsed.netloc:
            raise InvalidRequest(f"{url} is no place for backups; give s3://BUCKET/PREFIX")
        self._api = obstore
        self._url = url.rstrip("/")
        try:
            self._store: Any = from_url(self._url, retry_config=_RETRY)
        except Exception as error:
            raise InvalidRequest(f"{url}: {_reason(error)}") from error
        self._held: _Lock | None = None
        self._staging: Path | None = None

    def __str__(self) -> str:
        return self._url

    def there(self) -> bool:
        return any(self._pages(BACKUPS, 1))

    @contextmanager
    def changing(self) -> Iterator[None]:
        lock = _Lock(self)
        lock.take()
        try:
            self._held = lock
            with passing_directory("backup") as self._staging:
                yield
        finally:
            self._held = self._staging = None
            lock.release()

    def path(self, folder: str, name: str) -> str:
        return f"{self._url}/{folder}/{name}"

    def sizes(self, folder: str) -> dict[str, int]:
        return {
            meta["path"].removeprefix(f"{folder}/"): int(meta["size"])
            for page in self._pages(folder, 1_000)
            for meta in page
        }

    def _pages(self, folder: str, count: int) -> Iterator[Sequence[Any]]:
        with _telling(self._url):
            yield from self._api.list(self._store, folder, chunk_size=count)

    def size(self, folder: str, name: str) -> int | None:
        try:
            with _telling(self.path(folder, name)):
                return int(self._api.head(self._store, f"{folder}/{name}")["size"])
        except FileNotFoundError:
            return None

    def read(self, folder: str, name: str) -> bytes:
        with _telling(self.path(folder, name)):
            return bytes(self._api.get(self._store, f"{folder}/{name}").bytes())

    def pieces(self, name: str) -> Iterator[bytes]:
        with _telling(self.path(FILES, name)):
            for piece in self._api.get(self._store, f"{FILES}/{name}").stream(min_chunk_size=READ_BYTES):
                whole = memoryview(piece)
                for at in range(0, len(whole), READ_BYTES):
                    yield bytes(whole[at : at + READ_BYTES])

    def on_disk(self, name: str) -> Path | None:
        return None

    def checksum(self, name: str, at: int, length: int) -> int | None:
        try:
            sums = self.read(_SUMS, name)
        except FileNotFoundError:
            return None
        position = 4 * (at // MAX_COMPARE_BYTES)
        return None if position + 4 > len(sums) else int(struct.unpack_from("<I", sums, position)[0])

    def staging(self) -> Path:
        assert self._staging is not None, "files come to be while it is changed"
        return self._staging

    def spool(self) -> Path | None:
        return Path(tempfile.gettempdir())

    def free_bytes(self) -> int | None:
        return None

    def take(self, name: str, path: Path, checksums: Sequence[int]) -> None:
        self.write(_SUMS, name, struct.pack(f"<{len(checksums)}I", *checksums))
        with _telling(self.path(FILES, name)):
            self._api.put(self._store, f"{FILES}/{name}", path, chunk_size=_LARGE_BYTES)
        path.unlink()

    def write(self, folder: str, name: str, content: bytes) -> None:
        self._check_held(surely=folder == BACKUPS)
        with _telling(self.path(folder, name)):
            self._api.put(self._store, f"{folder}/{name}", content, use_multipart=False)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        if not names:
            return
        self._check_held(surely=True)
        with _telling(f"{self._url}/{folder}"):
            self._api.delete(self._store, [f"{folder}/{name}" for name in names])
        if folder == FILES:
            self.remove(_SUMS, names)

    def _check_held(self, *, surely: bool) -> None:
        assert self._held is not None, "it is changed by who said so"
        if surely:
            self._held.confirm()
        self._held.check()

    # -- what the lock is made of -------------------------------------------------------------------------

    def put_lock(self, content: bytes, after: str | None) -> str | None:
        """Write ``LOCK`` where it is as it was under the tag ``after``, or not there; its new tag. None: it is not."""
        mode: Any = "create" if after is None else {"e_tag": after}
        exceptions = self._api.exceptions
        with _telling(f"{self._url}/{_LOCK}"):
            try:
                return str(self._api.put(self._store, _LOCK, content, mode=mode, use_multipart=False)["e_tag"])
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return None
            except FileNotFoundError:
                if after is None:
                    raise  # There is no such bucket.
                return None

    def lock_now(self) -> tuple[str, bytes] | None:
        """The tag of ``LOCK`` and what it says."""
        try:
            with _telling(f"{self._url}/{_LOCK}"):
                found = self._api.get(self._store, _LOCK)
                return str(found.meta["e_tag"]), bytes(found.bytes())
        except FileNotFoundError:
            return None

    def remove_lock(self) -> None:
        with _telling(f"{self._url}/{_LOCK}"):
            self._api.delete(self._store, _LOCK)


class _Lock:
    """``LOCK`` of a place, held by this process from :meth:`take` to :meth:`release`."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        self._who = runtime.token_hex(8)
        self._count = 0
        self._guard = threading.Lock()  # of the tag and the count
        self._tag: str | None = None
        self._written_s = float("-inf")
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="backup-lock", daemon=True)

    def take(self) -> None:
        """Raises ``DataDirectoryLocked`` where somebody else holds it, and lives."""
        if not self._write(None):
            seen = self._place.lock_now()
            after = None if seen is None else self._watch(*seen)
            if not self._write(after):
                found = self._place.lock_now()
                raise self._locked(b"" if found is None else found[1])
            if after is not None:
                _log.warning("the lock of %s was not renewed for %.0f s and is taken over", self._place, _DEAD_S)
        self._renewing.start()

    def _watch(self, tag: str, _: bytes) -> str | None:
        """The tag of a lock that nobody renewed for so long that its holder is dead; None where it was let go.

        Raises ``DataDirectoryLocked`` when it is renewed.
        """
        seen_s = runtime.monotonic()
        while runtime.monotonic() < seen_s + _DEAD_S:
            self._ended.wait(_LOOK_S)
            found = self._place.lock_now()
            if found is None:
                return None
            if found[0] != tag:
                raise self._locked(found[1])
        return tag

    def _locked(self, content: bytes) -> DataDirectoryLocked:
        try:
            who = f"process {json.loads(content)['pid']} of {json.loads(content)['host']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        return DataDirectoryLocked(
            f"{self._place} is being changed by {who}; wait until it is done", directory=str(self._place)
        )

    def _write(self, after: str | None) -> bool:
        with self._guard:
            self._count += 1
            says = {"who": self._who, "count": self._count, "pid": os.getpid(), "host": os.uname().nodename}
            began_s = runtime.monotonic()
            tag = self._place.put_lock(json.dumps(says).encode(), after)
            if tag is not None:
                self._tag, self._written_s = tag, began_s
            return tag is not None

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW_S):
            try:
                if not self._renewed():
                    return
            except (OSError, ValueError) as error:
                _log.warning("the lock of %s could not be renewed: %s", self._place, error)

    def _renewed(self) -> bool:
        """Whether it is still held. Raises ``OSError``, ``ValueError`` where nobody knows."""
        if not self._write(self._tag):
            found = self._place.lock_now()  # An attempt whose answer was lost may have been ours.
            is_ours = found is not None and json.loads(found[1]).get("who") == self._who
            with self._guard:
                if found is None or not is_ours:
                    self._written_s = float("-inf")
                    return False
                self._tag = found[0]
        return True

    def confirm(self) -> None:
        """Have the place say that it is held: a machine that was suspended has not counted the time. Raises ``OSError``
        where the place does not answer."""
        try:
            self._renewed()
        except ValueError as error:
            raise OSError(None, "its lock says nothing that was written by a backup; begin again") from error

    def check(self) -> None:
        """Raises ``OSError`` where it may be somebody else's by now."""
        if runtime.monotonic() > self._written_s + _DEAD_S:
            raise OSError(None, "it was not held for a while, and another process may change it by now; begin again")

    def release(self) -> None:
        self._ended.set()
        self._renewing.join()
        try:
            found = self._place.lock_now()
            if found is not None and json.loads(found[1]).get("who") == self._who:
                self._place.remove_lock()
        except (OSError, ValueError) as error:  # It is taken over in time.
            _log.warning("the lock of %s could not be removed: %s", self._place, error)


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """What the library raises as an error of the system."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"it is not there ({_reason(error)})", name) from error
    except OSError:
        raise
    except Exception as error:
        _raise(error, name)


def _raise(error: Exception, name: str) -> NoReturn:
    if not type(error).__module__.startswith("obstore"):
        raise error
    raise OSError(None, _reason(error), name) from error


def _reason(error: Exception) -> str:
    """Its first line: the library shows its insides below."""
    text = " ".join(str(error).partition("\n\nDebug source:")[0].split())
    return text[:_REASON_CHARACTERS]

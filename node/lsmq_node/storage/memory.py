"""Memory that is not used any more goes back to the system.

The C library keeps what was freed for what comes next, for each thread that ever asked for any: after a recovery or a
flush that is a third of what a process has, and stays resident.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from lsmq import runtime

_LEAST_BYTES_KEPT = 0
#: One call is for all stores of the process, however many ask.
_PAUSE_SECONDS = 1.0


def _trimmer() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; other libraries have none, and give back by themselves."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


_trim = _trimmer()
_trimming = runtime.Lock()
_trimmed_at = float("-inf")


def give_back() -> None:
    """Let the C library return the free pages it holds: some milliseconds, without the interpreter's lock.

    Nothing is done where another thread does it, or did within the last second.
    """
    global _trimmed_at
    if _trim is None or runtime.monotonic() - _trimmed_at < _PAUSE_SECONDS or not _trimming.acquire(blocking=False):
        return
    try:
        _trim(_LEAST_BYTES_KEPT)
        _trimmed_at = runtime.monotonic()
    finally:
        _trimming.release()

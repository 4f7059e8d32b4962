"""Memory that is not used any more goes back to the system.

The C library keeps what was freed for what comes next: after a recovery or a flush that is a third of what a process
has, and stays resident. It does so in an *arena* for each thread, and of all but one gives back what lies between
pieces in use alone, never what lies behind the last.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

from lsmq import runtime

_LEAST_BYTES_KEPT = 0
_ARENA_MAX = -8  # of malloc.h, M_ARENA_MAX
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


def use_one_arena() -> None:
    """Have all threads of the process that begin from now on use one arena, unless ``MALLOC_ARENA_MAX`` says another
    number. They hold the interpreter's lock where they ask for memory, so they hardly ever wait for one another."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # glibc has it
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


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

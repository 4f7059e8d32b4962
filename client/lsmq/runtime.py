"""Threads, locks, queues, clocks and randomness, as everything of LSMQ takes them.

Each is the standard library's own object, with nothing in between. Ask for them by ``runtime.Lock()``, never by ``from
lsmq.runtime import Lock``: a simulation replaces the names of this module (:func:`install`), and whatever is made
afterwards runs on its schedule, its clock and its seed.

Not replaced, and so not to be used by what is to be simulated: ``threading``, ``queue``, ``time``, ``random``,
``secrets`` and ``uuid`` themselves. What runs on an event loop gets time and executors from the loop.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

__all__ = [
    "Condition",
    "Empty",
    "Event",
    "Lock",
    "RLock",
    "Random",
    "Semaphore",
    "SimpleQueue",
    "Thread",
    "ThreadPoolExecutor",
    "after_fork_in_child",
    "before_exit",
    "boot_time",
    "handles_signals",
    "holds",
    "install",
    "local",
    "monotonic",
    "random",
    "random_bits",
    "share_closely",
    "sleep",
    "token_bytes",
    "token_hex",
    "wall_ms",
    "wall_time",
]

Thread = threading.Thread
Lock = threading.Lock
RLock = threading.RLock
Condition = threading.Condition
Event = threading.Event
Semaphore = threading.Semaphore
local = threading.local

#: Seconds on a clock that never goes back.
monotonic: Callable[[], float] = time.monotonic
sleep: Callable[[float], None] = time.sleep
#: Seconds since 1970.
wall_time: Callable[[], float] = time.time

#: For what must not be guessed, or must differ from all others.
token_bytes: Callable[[int], bytes] = secrets.token_bytes
token_hex: Callable[[int], str] = secrets.token_hex
random_bits: Callable[[int], int] = secrets.randbits
#: For what may be guessed: which of many comes first, how long to wait. Programs may seed the ``random`` module and
#: count on its sequence, so this is another one.
random = Random()

_SWITCH_SECONDS = 0.0005
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def boot_time() -> float:
    """Seconds on a clock that never goes back, and counts while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


def handles_signals() -> bool:
    """Whether this is the thread in which Python runs the handlers of signals: they may raise at any instruction."""
    return threading.get_ident() == threading.main_thread().ident


def holds(lock: Any) -> bool:
    """Whether this thread has taken an ``RLock``. The lock knows, also when the thread was torn off taking it."""
    return bool(lock._is_owned())


def share_closely() -> None:
    """Let a thread that waits for the interpreter have it after half a millisecond, not Python's five.

    For programs, since it is for all of a process. Work goes through two threads or more, each of which would else wait
    for what flushes and merges: with a million queues that was a tenth of all time.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))


def after_fork_in_child(do: Callable[[], object]) -> None:
    """Have ``do`` called in every process that is forked from this one."""
    os.register_at_fork(after_in_child=do)


def before_exit(do: Callable[[], object]) -> None:
    """Have ``do`` called when the main thread has ended and those of executors have not; the last one first."""
    threading._register_atexit(do)  # type: ignore[attr-defined]


def install(replaced: Mapping[str, object]) -> dict[str, object]:
    """Replace names of this module; returns what they stood for. What was made before keeps what it was made of."""
    former = {name: globals()[name] for name in replaced}
    globals().update(replaced)
    return former


after_fork_in_child(random.seed)

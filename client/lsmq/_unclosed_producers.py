"""Producers that nobody has closed: told of when they are dropped, and flushed once more when the interpreter ends.

What a producer holds is lost where its event loop ends before it is sent. So a ``ResourceWarning`` names each that
holds messages when it is collected, or when the interpreter ends. By then the application's own event loops are over;
those that run in threads (:mod:`lsmq.sync`) still work, and are given :data:`EXIT_FLUSH_S` to store what there is.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # Its hook for the interpreter's end is to be there before the one below.
import logging
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from lsmq import runtime
from lsmq.errors import ClientClosed

if TYPE_CHECKING:
    from lsmq.loop_thread import LoopThread
    from lsmq.producer import Producer

EXIT_FLUSH_S = 5.0
_log = logging.getLogger("lsmq")


class OpenProducers:
    """All of this process while they live, each with the thread that its event loop runs in where that is LSMQ's."""

    def __init__(self) -> None:
        self._lock = runtime.Lock()  # guards _threads
        self._threads: weakref.WeakKeyDictionary[Producer, LoopThread | None] = weakref.WeakKeyDictionary()
        self._held: dict[Producer, int] = {}  # in the end: who held how many messages
        self._left_s = EXIT_FLUSH_S

    def add(self, producer: Producer, thread: LoopThread | None = None) -> None:
        with self._lock:
            self._threads[producer] = thread

    def leave_to_parent(self) -> None:
        """In a forked process: what these hold is the parent's to send, and to tell of."""
        for producer in self._threads:
            producer._told = True
        self._lock, self._threads = runtime.Lock(), weakref.WeakKeyDictionary()

    def _holding(self) -> dict[Producer, int]:
        with self._lock:
            return {producer: count for producer in self._threads if (count := producer._unstored())}

    def flush(self) -> None:
        """Store what those hold whose event loop runs still, within what is left of :data:`EXIT_FLUSH_S`."""
        began = runtime.monotonic()
        flushes: list[concurrent.futures.Future[None]] = []
        for producer, count in self._holding().items():
            self._held[producer] = max(count, self._held.get(producer, 0))
            if (thread := self._threads.get(producer)) is not None:
                with suppress(ClientClosed):
                    flushes.append(thread.submit(producer._settle()))
        try:
            concurrent.futures.wait(flushes, max(0.0, self._left_s))
        finally:
            self._left_s -= runtime.monotonic() - began

    def end(self) -> None:
        """Flush what came last, and tell of all that were not closed, and of what is lost."""
        self.flush()
        for producer, count in self._holding().items():
            _log.error(
                "messages were not stored when the interpreter ended: topic=%s messages=%d", producer._name, count
            )
        unclosed = [producer for producer in self._held if not (producer._closed or producer._told)]
        for producer in unclosed:
            producer._told = True
        if unclosed:
            held = "; ".join(f"of topic {each._name!r} with {pending(self._held[each])}" for each in unclosed)
            text = f"the interpreter ended with producers that were not closed: {held}"
            warnings.warn(text, ResourceWarning, stacklevel=1)


def warn_of_unclosed(producer: Producer, remedy: str) -> None:
    """Say that a producer is dropped which holds messages; once."""
    count = 0 if producer._told else producer._unstored()
    if count:
        producer._told = True
        warnings.warn(
            f"a producer of topic {producer._name!r} was dropped with {pending(count)}; {remedy}",
            ResourceWarning,
            stacklevel=3,  # who dropped it, or what was being done when it was collected
            source=producer,
        )


def pending(count: int) -> str:
    """``3 messages pending``."""
    return f"{count} message{'' if count == 1 else 's'} pending"


open_producers = OpenProducers()

# Twice: names of nodes are looked up in threads of executors, which are shut down before `atexit` is called; and the
# application's threads, which may run on until then, may send more.
runtime.before_exit(open_producers.flush)
atexit.register(open_producers.end)
runtime.after_fork_in_child(open_producers.leave_to_parent)

"""What a process that is ``lsmq`` takes care of: its three streams, and how it is told to end.

SIGTERM, and SIGHUP of a terminal that goes, end it as Ctrl-C does: members leave their groups, what was printed is
committed, temporary files go.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

_ENDS = (signal.SIGTERM, signal.SIGHUP)


def prepare() -> None:
    """Once, as the process begins."""
    _open_streams()
    for number in _ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:  # Under nohup the one is ignored, and stays so.
            signal.signal(number, signal.default_int_handler)


def cancel_when_told_to_end(task: asyncio.Task[Any]) -> None:
    """As ``asyncio.run`` has it for Ctrl-C: no exception comes from nowhere while the task's event loop runs."""
    for number in _ENDS:
        if signal.getsignal(number) is signal.default_int_handler:
            task.get_loop().add_signal_handler(number, task.cancel)


def drop_output() -> None:
    """The reader of our output has had enough, like head(1): what is left of it must not complain when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_unread(error: BaseException) -> bool:
    """Whether the reader of our output is gone. rich makes an exit with 1 of that."""
    return isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError)


@contextmanager
def exits_with(code: int) -> Iterator[None]:
    """The command ends with this answer, whether what is printed inside is read or not."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not is_unread(error):
            raise
        drop_output()
    click.get_current_context().exit(code)


def _open_streams() -> None:
    """Streams that were closed (``<&-``, ``>&-``) are as /dev/null, and no file or connection gets their numbers.

    What a terminal's encoding has no bytes for is written as ``\\u1f355`` is.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))  # Until the process ends.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")

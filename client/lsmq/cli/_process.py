"""What a process that is ``lsmq`` takes care of before anything else: its three streams."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Once, as the process begins."""
    _open_streams()


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

"""Names that fit a pattern, found among many at once.

A pattern is a name in which ``*`` may stand for one part between dots, and ``**`` at the end for any rest:
``agents.*.inbox``, ``agents.**``, ``**``.
"""

from __future__ import annotations

import re

import numpy as np

from lsmq.queue_names import check_pattern, check_queue_name

from .columns import U32
from .known_names import KnownNames

#: So many names at once are held against a pattern.
_AT_ONCE = 1 << 16


class NamePattern:
    """Names that fit a pattern. Thread-safe."""

    def __init__(self, pattern: str) -> None:
        """Raises ``InvalidQueueName`` for a pattern that is none."""
        self._fits = re.compile(b"(?m)^" + _expression(pattern) + b"$")

    def among(self, names: KnownNames, numbers: U32) -> U32:
        """Those of the numbers, in their order, whose names fit. May take long."""
        found = [self._some(names, numbers[at : at + _AT_ONCE]) for at in range(0, len(numbers), _AT_ONCE)]
        return np.concatenate(found) if found else numbers

    def _some(self, names: KnownNames, numbers: U32) -> U32:
        """Each name is a line of one text, since none has a line's end in it."""
        known, text, lengths = names.text(numbers)
        if not len(known):
            return known
        starts = np.cumsum(lengths + 1) - lengths - 1
        lines = np.full(int(lengths.sum()) + len(lengths), ord("\n"), np.uint8)
        inside = np.ones(len(lines), np.bool_)
        inside[starts + lengths] = False
        lines[inside] = text
        at = np.fromiter((fit.start() for fit in self._fits.finditer(lines.tobytes())), np.int64)
        at = at[at < len(lines)]
        return known[starts.searchsorted(at)]


class NamePrefix(NamePattern):
    """Names that begin with a text."""

    def __init__(self, prefix: str) -> None:
        """Raises ``InvalidQueueName`` for a text with which no name begins."""
        self._fits = re.compile(b"(?m)^" + re.escape(_checked_prefix(prefix).encode()))


def _checked_prefix(prefix: str) -> str:
    return prefix if prefix in (".", "..") else check_queue_name(prefix)


def _expression(pattern: str) -> bytes:
    """What :func:`lsmq.queue_names.compile_pattern` makes, for lines of bytes."""
    *parts, last = check_pattern(pattern).split(".")
    found = [rb"[^.\n]*" if part == "*" else re.escape(part.encode()) for part in parts]
    found.append(b".*" if last == "**" else rb"[^.\n]*" if last == "*" else re.escape(last.encode()))
    return rb"\.".join(found)

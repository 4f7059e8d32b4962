"""Which queues of a named topic are meant: some names, all of a pattern or a prefix, or all in some slots.

A pattern is a name in which ``*`` may stand for one part between dots, and ``**`` at the end for any rest:
``agents.*.inbox``, ``agents.**``, ``**``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lsmq.errors import InvalidRequest
from lsmq.queue_names import SLOTS, check_pattern, check_queue_name
from lsmq_node.storage import TopicNames
from lsmq_node.storage.columns import U32

#: So many names at once are held against a pattern.
_AT_ONCE = 1 << 16


class Selection(Protocol):
    """Queues of a named topic. Its functions may take long, and are called in a thread of the read pool."""

    def all(self, names: TopicNames) -> U32:
        """The numbers of all that are there, ascending. Raises ``NamesBehind``."""

    def among(self, names: TopicNames, numbers: U32) -> U32:
        """Those of the numbers, ascending, whose queues are meant."""

    def wants(self, first: int, end: int) -> bool:
        """Whether names in these slots may be meant."""

    @property
    def most(self) -> int | None:
        """How many queues there can be, where that is known."""


class ByName:
    """Queues by their names."""

    def __init__(self, names: Sequence[str], slots: Sequence[int]) -> None:
        """``slots``: in which each name lies."""
        self.names = frozenset(names)
        self._slots = frozenset(slots)

    @property
    def most(self) -> int | None:
        return len(self.names)

    def wants(self, first: int, end: int) -> bool:
        return any(first <= slot < end for slot in self._slots)

    def all(self, names: TopicNames) -> U32:
        found = names.find(sorted(self.names))
        return np.sort(found[found >= 0]).astype(np.uint32)

    def among(self, names: TopicNames, numbers: U32) -> U32:
        found = names.names(numbers)
        return numbers[np.array([name in self.names for name in found], np.bool_)]


class BySlot:
    """Queues whose names lie in some ranges of slots."""

    most = None

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Raises ``InvalidRequest`` for a range that is none."""
        for first, end in ranges:
            if not 0 <= first < end <= SLOTS:
                raise InvalidRequest(
                    f"slots has [{first}, {end}]; a range is its first slot and the one after its last, up to {SLOTS}",
                    field="slots",
                )
        self._wanted = np.zeros(1 << 16, np.bool_)  # by slot; a number without a name has none of these
        for first, end in ranges:
            self._wanted[first:end] = True
        self._ranges = tuple(ranges)

    def wants(self, first: int, end: int) -> bool:
        return any(low < end and first < high for low, high in self._ranges)

    def all(self, names: TopicNames) -> U32:
        return names.all_numbers(self._ranges)

    def among(self, names: TopicNames, numbers: U32) -> U32:
        return numbers[self._wanted[names.slots_of(numbers)]]


class ByPattern:
    """Queues whose names fit a pattern."""

    most = None

    def __init__(self, pattern: str) -> None:
        """Raises ``InvalidQueueName`` for a pattern that is none."""
        self._fits = re.compile(b"(?m)^" + _expression(pattern) + b"$")

    def wants(self, first: int, end: int) -> bool:
        return True

    def all(self, names: TopicNames) -> U32:
        return self.among(names, names.all_numbers())

    def among(self, names: TopicNames, numbers: U32) -> U32:
        found = [self._some(names, numbers[at : at + _AT_ONCE]) for at in range(0, len(numbers), _AT_ONCE)]
        return np.concatenate(found) if found else numbers

    def _some(self, names: TopicNames, numbers: U32) -> U32:
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


class ByPrefix(ByPattern):
    """Queues whose names begin with a text."""

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

"""Which queues of a named topic are meant: some names, all of a pattern or a prefix, all in some slots, or those of a
pattern in some slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lsmq.errors import InvalidRequest
from lsmq.queue_names import SLOTS
from lsmq_node.storage import TopicNames
from lsmq_node.storage.columns import U32
from lsmq_node.storage.name_patterns import NamePattern


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
    """Queues whose names fit a pattern, all of them or those that lie in some slots."""

    most = None

    def __init__(self, pattern: NamePattern, slots: BySlot | None = None) -> None:
        self._pattern = pattern
        self._slots = slots

    def wants(self, first: int, end: int) -> bool:
        return self._slots is None or self._slots.wants(first, end)

    def all(self, names: TopicNames) -> U32:
        return self._pattern.among(names, names.all_numbers() if self._slots is None else self._slots.all(names))

    def among(self, names: TopicNames, numbers: U32) -> U32:
        return self._pattern.among(names, numbers if self._slots is None else self._slots.among(names, numbers))

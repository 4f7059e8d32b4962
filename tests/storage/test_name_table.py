"""The table of names with given numbers against a dict: held, shown, dropped, forgotten, and names that collide."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from lsmq_node.storage import name_table
from lsmq_node.storage.name_table import NO_SLOT, NameTable

from .harness import profile

NAMES = [
    *(f"q{at}" for at in range(30)),
    *("n" * size for size in (22, 23, 24, 25, 48, 255)),
    *("n" * 40 + c for c in "ab"),
]
picks = st.lists(st.sampled_from(NAMES), min_size=1, max_size=12, unique=True)


class TableMachine(RuleBasedStateMachine):
    """``held`` and ``shown``: by name its number."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = mock.patch.object(name_table, "_FIRST_SLOTS", 4)
        self.patch.start()
        self.table = NameTable(hash_bits=4)
        self.held: dict[str, int] = {}
        self.shown: dict[str, int] = {}
        self.free = list(range(60))

    def teardown(self) -> None:
        self.patch.stop()

    def batch(self, names: list[str]) -> Any:
        return self.table.batch_joined("\0".join(names).encode())

    @staticmethod
    def taken(known: dict[str, int], data: st.DataObject) -> tuple[list[str], Any]:
        """Some of the names are no more there; they and their numbers."""
        names = data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
        return names, np.array([known.pop(name) for name in names], np.uint32)

    @rule(names=picks, data=st.data())
    def hold(self, names: list[str], data: st.DataObject) -> None:
        names = [name for name in names if name not in self.held and name not in self.shown]
        if names:
            numbers = [self.free.pop(data.draw(st.integers(0, len(self.free) - 1))) for _ in names]
            self.table.hold(np.array(numbers, np.uint32), self.batch(names))
            self.held.update(zip(names, numbers, strict=True))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        names, numbers = self.taken(self.held, data)
        self.table.show(numbers, numbers.astype(np.uint16))
        self.shown.update(zip(names, numbers.tolist(), strict=True))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        _, numbers = self.taken(self.held, data)
        self.table.drop(numbers)
        self.free += numbers.tolist()

    @precondition(lambda self: self.shown)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        _, numbers = self.taken(self.shown, data)
        self.table.forget(numbers)
        self.free += numbers.tolist()

    @rule()
    def look(self) -> None:
        known, table = {**self.held, **self.shown}, self.table
        expected = [known.get(name, -1) for name in NAMES]
        assert table.find(self.batch(NAMES)).tolist() == expected
        assert [table.find_one(name.encode()) for name in NAMES] == expected
        assert table.count == len(self.shown)
        numbers = np.arange(-1, 70)
        shown = set(self.shown.values())
        assert table.has(numbers).tolist() == [number in shown for number in numbers.tolist()]
        assert np.flatnonzero(table.slots != NO_SLOT).tolist() == sorted(shown)
        assert all(table.slots[number] == number for number in shown)
        by_number = {number: name for name, number in known.items()}
        some = np.array(sorted(by_number), np.int64)
        assert table.names(some) == [by_number[number] for number in some.tolist()]


TestTable = TableMachine.TestCase
TestTable.settings = profile(300)

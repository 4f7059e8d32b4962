"""The layer of ids against a dict: ids that are added, applied, dropped from the line, added again, and looked for."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from lsmq_node.storage.dedupe_layer import IdColumns, IdLayer, keys_of

from .harness import profile

Id = tuple[int, int]
#: Of few halves, so that many share one.
HALVES = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
IDS = st.lists(st.tuples(HALVES, HALVES), min_size=1, max_size=12, unique=True)


class LayerMachine(RuleBasedStateMachine):
    """``rows``: what was added, in order, as id and offset. ``applied``: so many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch("lsmq_node.storage.dedupe_layer._COMPARED", 2),
            mock.patch("lsmq_node.storage.dedupe_layer._HALF", np.uint64(62)),  # so that many share a mark
            mock.patch("lsmq_node.storage.dedupe_layer._SMALL_ROWS", 4),
            mock.patch("lsmq_node.storage.dedupe_layer._SLAB_ROWS", 1 << 5),
            mock.patch("lsmq_node.storage.dedupe_layer._PIECE_ROWS", 5),
        ]
        for patch in self.patches:
            patch.start()
        self.layer = IdLayer()
        self.rows: list[tuple[Id, tuple[int, int, int]]] = []  # of each its offset, time and topic
        self.applied = 0
        self.offset = 0

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()

    @rule(ids=IDS, again=st.booleans(), stored_ms=st.integers(5, 7), topic=st.integers(1, 2))
    def add(self, ids: list[Id], again: bool, stored_ms: int, topic: int) -> None:
        if again and self.rows:
            ids = [self.rows[-1][0], *(each for each in ids if each != self.rows[-1][0])]
        high, low = (np.array(half, np.uint64) for half in zip(*ids, strict=True))
        offsets = np.arange(self.offset, self.offset + len(ids))
        self.layer.add(IdColumns(high, low, keys_of(high, low), offsets, stored_ms, topic))
        self.rows += [(each, (at, stored_ms, topic)) for each, at in zip(ids, offsets.tolist(), strict=True)]
        self.offset += len(ids)

    @precondition(lambda self: self.applied < len(self.rows))
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.rows) - self.applied))
        self.applied += count
        self.layer.applied += count

    @rule()
    def cut(self) -> None:
        self.layer.cut()
        del self.rows[self.applied :]

    @rule(others=IDS, few=st.booleans(), data=st.data())
    def find(self, others: list[Id], few: bool, data: st.DataObject) -> None:
        known = dict(self.rows)
        asked = list(dict.fromkeys([*others[: 1 if few else None], *([] if few else known)]))
        if few and known:
            asked = list(dict.fromkeys([*asked, data.draw(st.sampled_from(sorted(known)))]))
        high, low = (np.array(half, np.uint64) for half in zip(*asked, strict=True))
        places, offsets, stored_ms = self.layer.find(high, low)
        said = zip(offsets.tolist(), stored_ms.tolist(), strict=True)
        found = {asked[place]: each for place, each in zip(places.tolist(), said, strict=True)}
        assert found == {each: known[each][:2] for each in asked if each in known}

    @rule()
    def look_at_all(self) -> None:
        applied = dict(self.rows[: self.applied])
        kept = [row for rows in self.layer.kept() for row in rows]
        found = [((row["high"], row["low"]), (row["offset"], row["stored_ms"], row["topic"])) for row in kept]
        assert found == sorted(applied.items())
        in_line = []
        for some in self.layer.in_line():
            assert some.keys.tolist() == keys_of(some.high, some.low).tolist()
            ids = zip(some.high.tolist(), some.low.tolist(), strict=True)
            in_line += [(each, (at, some.stored_ms, some.topic)) for each, at in zip(ids, some.offsets, strict=True)]
        assert in_line == self.rows[self.applied :]


TestLayer = LayerMachine.TestCase
TestLayer.settings = profile(300)


@pytest.mark.parametrize("line", [0, 3])
def test_a_layer_whose_line_was_dropped_after_it_was_looked_through_goes_on(line: int) -> None:
    layer = IdLayer()
    high, low = np.arange(1, 2_001, dtype=np.uint64), np.arange(1, 2_001, dtype=np.uint64)

    def add(some: slice) -> None:
        count = len(high[some])
        layer.add(IdColumns(high[some], low[some], keys_of(high[some], low[some]), np.arange(count), 1, 1))

    add(slice(0, 1_000))
    layer.find(high, low)  # sorts them
    layer.applied = 1_000
    add(slice(1_000, 2_000))
    layer.find(high[:5], low[:5])
    layer.cut()
    add(slice(1_000, 1_000 + line))
    assert layer.find(high, low)[0].tolist() == list(range(1_000 + line))

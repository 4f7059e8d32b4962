"""The maps of many shards and topics do what a dict does, and what was taken from them before stays as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.pieces import PIECE, NamedPieces, Pieces

numbers = st.integers(0, 5 * PIECE)


@given(st.dictionaries(numbers, st.integers()), st.lists(st.tuples(numbers, st.integers()), max_size=20))
def test_it_is_a_dict_whose_copies_share_what_did_not_change(
    entries: dict[int, int], changes: list[tuple[int, int]]
) -> None:
    versions = [(Pieces(entries), dict(entries))]
    for number, value in changes:
        former, expected = versions[-1]
        versions.append((former.with_entry(number, value), {**expected, number: value}))
    for pieces, expected in versions:
        assert dict(pieces) == expected
        assert pieces == Pieces(expected)
        assert len(pieces) == len(expected)
        assert sorted(pieces) == sorted(expected)
        assert sorted(pieces.values()) == sorted(expected.values())
        assert dict(pieces.items()) == expected
        assert [pieces.get(number) for number in range(6 * PIECE)] == [expected.get(n) for n in range(6 * PIECE)]


def test_what_is_no_number_of_an_entry_is_not_there() -> None:
    pieces = Pieces({0: "a"})
    assert pieces.get(-1) is None  # type: ignore[call-overload]
    assert "0" not in pieces
    assert 1 not in pieces
    assert PIECE not in pieces


names = st.text(max_size=2)


@given(st.dictionaries(names, st.integers()), st.lists(st.tuples(names, st.none() | st.integers()), max_size=20))
def test_names_come_and_go_and_whoever_knows_an_earlier_map_is_told_which(
    entries: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    versions = [(NamedPieces(entries), dict(entries))]
    for name, value in changes:
        former, expected = versions[-1]
        if value is None:
            versions.append((former.without(name), {key: each for key, each in expected.items() if key != name}))
        else:
            versions.append((former.with_entry(name, value), {**expected, name: value}))
    latest, there = versions[-1]
    for pieces, expected in versions:
        assert dict(pieces) == expected == dict(pieces.items())
        assert pieces == NamedPieces(expected)
        assert len(pieces) == len(expected)
        assert [pieces.get(name) for name in (*expected, "not there")] == [*expected.values(), None]
        changed, gone = latest.changed_since(pieces), latest.gone_since(pieces)
        assert {name: value for name, value in there.items() if expected.get(name) != value}.items() <= changed.items()
        assert changed.items() <= there.items()
        assert gone == {name: value for name, value in expected.items() if name not in there}
        assert pieces.changed(changed, gone) == latest

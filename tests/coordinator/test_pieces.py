"""The map of many shards does what a dict does, and what was taken from it before stays as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.pieces import PIECE, Pieces

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

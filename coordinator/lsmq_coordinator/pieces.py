"""An immutable map from small numbers, of which a copy with one entry changed costs little, however many there are.

Numbers are kept :data:`PIECE` to a dict; a copy has another dict of those and shares the others. Iteration is by
pieces, and in a piece in the order in which numbers came.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Generic, TypeVar

Value = TypeVar("Value")

PIECE = 256


class Pieces(Mapping[int, Value], Generic[Value]):
    """From 0 on, and as dense as it may be: a piece that holds nothing takes its place as well."""

    __slots__ = ("_count", "_pieces")

    def __init__(self, entries: Mapping[int, Value] | None = None) -> None:
        found: list[dict[int, Value]] = []
        for number, value in (entries or {}).items():
            while len(found) <= number // PIECE:
                found.append({})
            found[number // PIECE][number] = value
        self._pieces = tuple(found)
        self._count = sum(map(len, found))

    @classmethod
    def of(cls, entries: Mapping[int, Value]) -> Pieces[Value]:
        """The same entries; the map itself where it is one."""
        return entries if isinstance(entries, Pieces) else cls(entries)

    def with_entry(self, number: int, value: Value) -> Pieces[Value]:
        """A map with one entry more, or another one."""
        place = number // PIECE
        pieces = [*self._pieces, *({} for _ in range(place + 1 - len(self._pieces)))]
        pieces[place] = {**pieces[place], number: value}
        changed: Pieces[Value] = Pieces()
        changed._pieces, changed._count = tuple(pieces), self._count + (number not in self)
        return changed

    def changed_since(self, former: Pieces[Value]) -> dict[int, Value]:
        """The entries that ``former`` does not have, or has otherwise. Looks only where a piece is another one."""
        found: dict[int, Value] = {}
        for place, piece in enumerate(self._pieces):
            before = former._pieces[place] if place < len(former._pieces) else {}
            if piece is not before:
                found |= {number: value for number, value in piece.items() if before.get(number) is not value}
        return found

    def __getitem__(self, number: int) -> Value:
        if not isinstance(number, int) or not 0 <= number < PIECE * len(self._pieces):
            raise KeyError(number)
        return self._pieces[number // PIECE][number]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._pieces)

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[Value]:
        return _Values(self)

    def items(self) -> ItemsView[int, Value]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"Pieces({dict(self)!r})"


class _Values(ValuesView[Value]):
    _mapping: Pieces[Value]

    def __iter__(self) -> Iterator[Value]:
        return chain.from_iterable(piece.values() for piece in self._mapping._pieces)


class _Items(ItemsView[int, Value]):
    _mapping: Pieces[Value]

    def __iter__(self) -> Iterator[tuple[int, Value]]:
        return chain.from_iterable(piece.items() for piece in self._mapping._pieces)

"""Immutable maps of which a copy with one entry changed costs little, however many there are.

Entries are kept in many small dicts, by key; a copy has another dict where an entry changed, and shares all others. So
two of them are compared by a look at which dicts are the same. Iteration is by pieces, and in a piece in the order in
which keys came: the same in every process.
"""

from __future__ import annotations

from abc import abstractmethod
from binascii import crc32
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Generic, Self, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

PIECE = 256
_NAMED_PIECES = 512


class _PieceMap(Mapping[Key, Value], Generic[Key, Value]):
    __slots__ = ("_count", "_pieces")

    def __init__(self, entries: Mapping[Key, Value] | None = None) -> None:
        pieces: list[dict[Key, Value]] = []
        for key, value in (entries or {}).items():
            self._piece_of(pieces, key)[key] = value
        self._take(pieces)

    @classmethod
    def of(cls, entries: Mapping[Key, Value]) -> Self:
        """The same entries; the map itself where it is one."""
        return entries if isinstance(entries, cls) else cls(entries)

    @staticmethod
    @abstractmethod
    def _place(key: Key) -> int:
        """Which piece has the key."""

    def _piece_of(self, pieces: list[dict[Key, Value]], key: Key) -> dict[Key, Value]:
        place = self._place(key)
        while len(pieces) <= place:
            pieces.append({})
        return pieces[place]

    def _take(self, pieces: Iterable[dict[Key, Value]]) -> None:
        self._pieces = tuple(pieces)
        self._count = sum(map(len, self._pieces))

    def changed(self, entries: Mapping[Key, Value], gone: Iterable[Key] = ()) -> Self:
        """A map with other entries, more of them or fewer; those that are ``gone`` are in it, or it is the same."""
        pieces = list(self._pieces)
        copied: set[int] = set()
        for key in (*entries, *gone):
            piece, place = self._piece_of(pieces, key), self._place(key)
            if place not in copied:
                pieces[place] = piece.copy()
                copied.add(place)
        for key, value in entries.items():
            pieces[self._place(key)][key] = value
        for key in gone:
            pieces[self._place(key)].pop(key, None)
        found = type(self)()
        found._take(pieces)
        return found

    def with_entry(self, key: Key, value: Value) -> Self:
        """A map with one entry more, or another one."""
        return self.changed({key: value})

    def without(self, key: Key) -> Self:
        """A map that does not have the key."""
        return self.changed({}, (key,))

    def changed_since(self, former: Self) -> dict[Key, Value]:
        """The entries that ``former`` does not have, or has otherwise. Looks only where a piece is another one."""
        found: dict[Key, Value] = {}
        for piece, before in self._others(former):
            if piece is not before:
                found |= {key: value for key, value in piece.items() if before.get(key) is not value}
        return found

    def gone_since(self, former: Self) -> dict[Key, Value]:
        """The entries of ``former`` whose keys are not here any more."""
        found: dict[Key, Value] = {}
        for piece, before in self._others(former):
            if piece is not before:
                found |= {key: value for key, value in before.items() if key not in piece}
        return found

    def _others(self, former: Self) -> Iterator[tuple[dict[Key, Value], dict[Key, Value]]]:
        nothing: dict[Key, Value] = {}
        for place in range(max(len(self._pieces), len(former._pieces))):
            yield (
                self._pieces[place] if place < len(self._pieces) else nothing,
                former._pieces[place] if place < len(former._pieces) else nothing,
            )

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(self._pieces)

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[Value]:
        return _Values(self)

    def items(self) -> ItemsView[Key, Value]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class Pieces(_PieceMap[int, Value]):
    """By small numbers, from 0 on and as dense as it may be: a piece that holds nothing takes its place as well."""

    __slots__ = ()

    @staticmethod
    def _place(key: int) -> int:
        return key // PIECE

    def __getitem__(self, key: int) -> Value:
        if not isinstance(key, int) or not 0 <= key < PIECE * len(self._pieces):
            raise KeyError(key)
        return self._pieces[key // PIECE][key]


class NamedPieces(_PieceMap[str, Value]):
    """By names."""

    __slots__ = ()

    @staticmethod
    def _place(key: str) -> int:
        return crc32(key.encode(errors="surrogatepass")) % _NAMED_PIECES

    def __getitem__(self, key: str) -> Value:
        place = self._place(key)
        if place >= len(self._pieces):
            raise KeyError(key)
        return self._pieces[place][key]


class _Values(ValuesView[Value]):
    _mapping: _PieceMap[object, Value]

    def __iter__(self) -> Iterator[Value]:
        return chain.from_iterable(piece.values() for piece in self._mapping._pieces)


class _Items(ItemsView[Key, Value]):
    _mapping: _PieceMap[Key, Value]

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        return chain.from_iterable(piece.items() for piece in self._mapping._pieces)

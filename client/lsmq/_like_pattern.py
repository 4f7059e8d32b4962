"""Patterns of ``LIKE``: ``%`` is any text, ``_`` any character.

Each ``%`` takes the nearest that fits and never tries again, which finds a fit where there is one. What stands between
two of them is searched for in time that grows with the text alone, whatever is in the pattern: so none is slow, and
none keeps other threads waiting for long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class _Piece:
    """What stands between two ``%``; None is any character."""

    __slots__ = ("_fits", "_masks", "_text", "length")

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        #: Where it has no ``_``.
        self._text = None if None in characters else "".join(filter(None, characters))
        self._fits = re.compile("".join("." if each is None else re.escape(each) for each in characters), re.DOTALL)
        any_character = sum(1 << at for at, each in enumerate(characters) if each is None)
        self._masks = dict.fromkeys(filter(None, characters), any_character)
        for at, each in enumerate(characters):
            if each is not None:
                self._masks[each] |= 1 << at
        self._masks[""] = any_character  # of all other characters

    def fits(self, text: str, at: int) -> bool:
        return self._fits.match(text, at) is not None

    def end_in(self, text: str, start: int, stop: int) -> int:
        """Where it ends first within ``text[start:stop]``; -1 where it is not in it."""
        if self._text is not None:
            found = text.find(self._text, start, stop)
            return found if found < 0 else found + self.length
        # Bit i of ``begun``: its first i + 1 characters end here (Baeza-Yates and Gonnet 1992, shift-and).
        begun, whole, others = 0, 1 << (self.length - 1), self._masks[""]
        for at in range(start, stop):
            begun = (begun << 1 | 1) & self._masks.get(text[at], others)
            if begun & whole:
                return at + 1
        return -1


@dataclass(frozen=True, slots=True)
class LikePattern:
    """``first`` stands at the begin, ``last`` at the end, and ``middle`` between them, in this order."""

    first: _Piece
    middle: tuple[_Piece, ...]
    last: _Piece | None

    @classmethod
    def of(cls, like: str, escape: str) -> LikePattern:
        """``escape`` takes the meaning of the character behind it away; empty: none does."""
        pieces: list[list[str | None]] = [[]]
        at = 0
        while at < len(like):
            character = like[at]
            if escape and character == escape and at + 1 < len(like):
                at += 1
                pieces[-1].append(like[at])
            elif character == "%":
                pieces.append([])
            else:
                pieces[-1].append(None if character == "_" else character)
            at += 1
        first, *others = (_Piece(piece) for piece in pieces)
        last = others.pop() if others else None
        return cls(first, tuple(piece for piece in others if piece.length), last)

    def matches(self, text: str) -> bool:
        at = self.first.length
        if self.last is None:
            return at == len(text) and self.first.fits(text, 0)
        stop = len(text) - self.last.length
        if at > stop or not self.first.fits(text, 0) or not self.last.fits(text, stop):
            return False
        for piece in self.middle:
            at = piece.end_in(text, at, stop)
            if at < 0:
                return False
        return True

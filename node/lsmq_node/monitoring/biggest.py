"""Which of many have a series of their own, as pure code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import nlargest
from typing import Final, TypeVar

#: In place of a topic's or a group's name, which has no parentheses: the sum of all that have no series of their own.
OTHERS: Final = "(others)"
#: One that is so many times as big takes the place of another: series do not come and go with every change.
_MUCH_BIGGER: Final = 2

Key = TypeVar("Key", str, tuple[str, str])


def biggest(before: Collection[Key], sizes: Mapping[Key, float], limit: int) -> set[Key]:
    """Up to ``limit``, of those that had a series ``before`` and those with a size; who has none counts as 0."""

    def rank(key: Key) -> tuple[float, Key]:
        return sizes.get(key, 0), key

    chosen = nlargest(limit, before, rank)
    others = nlargest(limit, sizes.keys() - before, rank)
    room = limit - len(chosen)
    found, stay = set(others[:room]), len(chosen)
    for other in others[room:]:
        if not stay or rank(other)[0] <= _MUCH_BIGGER * rank(chosen[stay - 1])[0]:
            break
        found.add(other)
        stay -= 1
    return found.union(chosen[:stay])

"""How much of what could be tried is tried: in each run of the suite a part, another one each time, and all of it in a
soak, ``scripts/test --soak``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")

#: Whether everything is tried.
SOAK = os.environ.get("TEST_SOAK") == "1"


def part_of(items: Sequence[Item], share: int = 4) -> Sequence[Item]:
    """One of ``share`` of them, evenly spread, which ones is up to chance; all in a soak.

    Ask inside a test, whose failure says which it was: what pytest collects has to be the same in each of its workers.
    """
    return items if SOAK else items[random.SystemRandom().randrange(min(share, len(items))) :: share]


def part_in_number(count: int, share: int = 4) -> int:
    """So many in a soak, and one of ``share`` of them else: of what is made up anew, as Hypothesis' examples are."""
    return count if SOAK else max(1, count // share)


def soaked(items: Iterable[Any], *, but: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which all ``but`` some are left to a soak."""
    return [item if item in but else pytest.param(item, marks=pytest.mark.soak) for item in items]

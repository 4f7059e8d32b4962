"""How much of what could be tried is tried: in each run of the suite a part, another one each time, and all of it in a
soak, ``scripts/test --soak``.

Which part it is goes by a number, ``TEST_PART``, that the suite chooses and says: with it what failed is tried again.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")

#: Whether everything is tried.
SOAK = os.environ.get("TEST_SOAK") == "1"
#: Whether a run leaves out tests that say ``pytest.mark.part``: the suite does; who asks for a test gets it.
LEAVES_OUT = "TEST_PART" in os.environ and not SOAK
_PART = os.environ.get("TEST_PART") or str(random.SystemRandom().randrange(1 << 30))


def part_of(items: Sequence[Item], share: int = 4) -> Sequence[Item]:
    """One of ``share`` of them, evenly spread, which ones is up to chance; all in a soak.

    Ask inside a test, whose failure says which it was.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return items if SOAK else items[_drawn(test, min(share, len(items))) :: share]


def part_in_number(count: int, share: int = 4) -> int:
    """So many in a soak, and one of ``share`` of them else: of what is made up anew, as Hypothesis' examples are."""
    return count if SOAK else max(1, count // share)


def soaked(items: Iterable[Any], *, but: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which all ``but`` some are left to a soak."""
    return [item if item in but else pytest.param(item, marks=pytest.mark.soak) for item in items]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests marked ``part(share)`` a run of the suite has one of ``share``, and another one the others."""
    if not LEAVES_OUT:
        return
    left = {item for item in items if not all(_is_drawn(item, mark.args[0]) for mark in item.iter_markers("part"))}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def _is_drawn(item: pytest.Item, share: int) -> bool:
    return _drawn(item.nodeid, share) == 0


def _drawn(what: str, share: int) -> int:
    return zlib.crc32(f"{_PART} {what}".encode()) % share

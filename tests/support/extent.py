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
#: Whether a run leaves out some tests that say ``pytest.mark.part``, or are slow: the suite does. Who asks gets all.
LEAVES_OUT = "TEST_PART" in os.environ and not SOAK and os.environ.get("TEST_WHOLE") != "1"
#: Of slow tests that say nothing else a run has one of so many.
SLOW_SHARE = 4
_PART = os.environ.get("TEST_PART") or str(random.SystemRandom().randrange(1 << 30))


def part_of(items: Sequence[Item], share: int = 8) -> Sequence[Item]:
    """One of ``share`` of them, evenly spread, which ones is up to chance; all in a soak.

    Ask inside a test, whose failure says which it was.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return items if SOAK else items[_drawn(test, min(share, len(items))) :: share]


def part_in_number(count: int, share: int = 8) -> int:
    """So many in a soak, and one of ``share`` of them else: of what is made up anew, as Hypothesis' examples are."""
    return count if SOAK else max(1, count // share)


def soaked(items: Iterable[Any], *, but: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which all ``but`` some are left to a soak."""
    return [item if item in but else pytest.param(item, marks=pytest.mark.soak) for item in items]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests marked ``part(share)`` a run of the suite has one of ``share``, and another one the others.

    So it is with slow ones, of which those that each run has say ``part(1)``.
    """
    if not LEAVES_OUT:
        return
    left = {item for item in items if not _is_drawn(item, _share_of(item))}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def _share_of(item: pytest.Item) -> int:
    said = item.get_closest_marker("part")
    if said is None:
        return 1 if item.get_closest_marker("slow") is None else SLOW_SHARE
    return int(said.args[0])


def _is_drawn(item: pytest.Item, share: int) -> bool:
    return _drawn(item.nodeid, share) == 0


def _drawn(what: str, share: int) -> int:
    return zlib.crc32(f"{_PART} {what}".encode()) % share

"""Which runs to merge next. Pure functions of sizes.

Level 0 holds one table a flush; level 1 is a list of *generations*, runs of tables in key order that do not overlap,
oldest first. Two threads merge, since a large merge takes long and level 0 must not wait for it:

- when enough tables wait in level 0 they become the newest generation, together with the three before it where those
  are of about that size;
- where four generations in a row are of about one size they become one, together with the three before them where
  those are of about the size that comes out, and so on, up to ``generation_bytes``. Beyond it eight become one, unless
  most of what they hold is to expire: then a stretch of time should stay a file of its own.

So sizes grow by fours with age, a record is rewritten a logarithmic number of times, and so is the number of runs a
read may have to look at. A third kind of merge, for space, is in :mod:`.garbage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: So many runs of about one size become one, and so many of those that are full.
FAN = 4
FULL_FAN = 8
#: Runs are of about one size up to this factor.
_ALIKE = 2


@dataclass(frozen=True, slots=True)
class MergePick:
    """What to merge: the oldest ``level0`` tables and the newest ``generations``."""

    level0: int
    generations: int


def choose_level0(
    level0_bytes: Sequence[int], generation_bytes: Sequence[int], *, least: int, busy: int, limit_bytes: int
) -> MergePick | None:
    """The next merge of level 0, or None. Sizes are oldest first; the generations are those that may be merged.

    Args:
        least: no merge of fewer tables.
        busy: with so many tables in level 0 nothing else is taken with them.
        limit_bytes: of a generation.
    """
    if not level0_bytes or len(level0_bytes) < least:
        return None
    total = sum(level0_bytes)
    tier = generation_bytes[:-FAN:-1]
    alike = len(tier) == FAN - 1 and max(tier) <= _ALIKE * total
    if alike and total + sum(tier) <= limit_bytes and len(level0_bytes) < busy:
        return MergePick(len(level0_bytes), FAN - 1)
    return MergePick(len(level0_bytes), 0)


def choose_tier(generation_bytes: Sequence[int], expiring: Sequence[bool], limit_bytes: int) -> tuple[int, int] | None:
    """The next generations to merge, ``[first, end)`` of those given, oldest first; or None.

    Args:
        expiring: of each generation, whether most of what it holds is to expire.
        limit_bytes: no generation is merged beyond this but for the second tier.
    """
    count = len(generation_bytes)
    for end in range(count, FAN - 1, -1):
        first = _tier(generation_bytes, end, limit_bytes)
        if first is not None:
            return first, end
    for end in range(count, FULL_FAN - 1, -1):
        first = end - FULL_FAN
        sizes = generation_bytes[first:end]
        full = min(sizes) > limit_bytes // FAN and max(sizes) <= limit_bytes
        if full and not any(expiring[first:end]):
            return first, end
    return None


def _tier(sizes: Sequence[int], end: int, limit_bytes: int) -> int | None:
    """Where the tier that ends before ``end`` begins, those it runs into included; None when there is none."""
    first, total = end - 1, sizes[end - 1]
    newest = total
    while first >= FAN - 1:
        tier = sizes[first - (FAN - 1) : first]
        if max(tier) > _ALIKE * newest or total + sum(tier) > limit_bytes:
            break
        first -= FAN - 1
        total += sum(tier)
        newest = total
    return first if first < end - 1 else None

"""Which of the newest of a row of things to join: they come one after another, and joining costs by their size."""

from __future__ import annotations

from collections.abc import Sequence


def joined_tier(sizes: Sequence[int], fan: int, small: int) -> int:
    """How many of the newest to join; 0 for none. ``sizes`` has the oldest first, in whatever unit.

    Where ``fan`` in a row are of about one size they become one, together with those before it of about the size that
    comes out, and so on: so there are fewer than ``fan`` of each size, and each is joined a logarithmic number of
    times. What is smaller than ``small`` counts as that.
    """
    newest_first = [max(size, small) for size in sizes[::-1]]
    count, total = 1, sum(newest_first[:1])
    while True:
        tier = newest_first[count : count + fan - 1]
        if len(tier) < fan - 1 or max(tier) > 2 * total:
            return count if count > 1 else 0
        total += sum(tier)
        count += len(tier)

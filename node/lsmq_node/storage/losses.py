"""Why messages went that nobody deleted: it stands in the log with each move of log starts, and with deletions.

What nobody asked for is counted.
"""

from __future__ import annotations

from enum import IntEnum


class LossReason(IntEnum):
    """Numbers are on disk: never renumber."""

    ASKED = 0  # somebody trimmed or purged
    EXPIRED = 1  # retention, by age, bytes or number
    OVERFLOW = 2  # at the limit of a topic or queue others made room, or what was new was dropped
    CONSUMED = 3  # all groups had done with them
    DISK = 4  # the oldest made room on a full disk
    LAPSED = 5  # their time to live was over, and they were moved to another topic


Losses = dict[int, int]
"""By reason, how many messages went, but for what was :attr:`LossReason.ASKED` for."""


def add(losses: Losses, why: int, count: int) -> None:
    if count and why != LossReason.ASKED:
        losses[why] = losses.get(why, 0) + count

"""Where a new shard goes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """``size_bytes`` is all of the disk, ``free_bytes`` what this process may still write."""

    shards: int
    size_bytes: int
    free_bytes: int


def choose(disks: Sequence[DiskRoom], needed_bytes: int) -> int:
    """The place in ``disks`` of the one that a new shard goes to.

    Disks get shards by their size: twice as large, twice as many. What is full by now (less than ``needed_bytes`` are
    free) gets none while another is not; where all are, the one with most room does. Of equals the first one.

    Not by free room alone: shards are made when they are empty, several at a time, and fill later.
    """
    with_room = [place for place, disk in enumerate(disks) if disk.free_bytes >= needed_bytes]
    if not with_room:
        return max(range(len(disks)), key=lambda place: (disks[place].free_bytes, -place))
    return min(with_room, key=lambda place: ((disks[place].shards + 1) / max(disks[place].size_bytes, 1), place))

"""Where new shards go."""

from __future__ import annotations

from lsmq_node.disks.choice import DiskRoom, choose

GIB = 1 << 30


def placed(sizes: list[int], shards: int) -> list[int]:
    """How many of so many new shards each of some empty disks gets."""
    room = [DiskRoom(0, size, size) for size in sizes]
    for _ in range(shards):
        at = choose(room, GIB)
        room[at] = DiskRoom(room[at].shards + 1, room[at].size_bytes, room[at].free_bytes)
    return [disk.shards for disk in room]


def test_disks_of_one_size_have_as_many_each_and_the_first_one_more() -> None:
    assert placed([8 * GIB, 8 * GIB, 8 * GIB], 7) == [3, 2, 2]


def test_a_disk_twice_as_large_has_twice_as_many() -> None:
    assert placed([4 * GIB, 8 * GIB], 6) == [2, 4]


def test_a_disk_that_was_added_is_used_for_what_comes() -> None:
    room = [DiskRoom(4, 8 * GIB, GIB), DiskRoom(4, 8 * GIB, GIB), DiskRoom(0, 8 * GIB, 8 * GIB)]
    assert choose(room, GIB) == 2


def test_a_full_disk_gets_nothing_while_another_has_room() -> None:
    assert choose([DiskRoom(0, 8 * GIB, GIB - 1), DiskRoom(9, 8 * GIB, GIB)], GIB) == 1
    assert choose([DiskRoom(0, 8 * GIB, 5), DiskRoom(9, 8 * GIB, 7)], GIB) == 1
    assert choose([DiskRoom(3, 0, 0)], GIB) == 0

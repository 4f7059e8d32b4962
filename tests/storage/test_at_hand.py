"""What is at hand is little, came just now, and is read without tables and without sorting much."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.storage import ShardStore, memtable, queries
from lsmq_node.storage.memtable import Memtable
from lsmq_node.storage.version import Version

from .harness import flush, open_stepped, profile, put, tiny

QUEUES = 40


def is_at_hand(store: ShardStore, queues: list[int], offsets: list[int], topic_id: int) -> bool:
    return store.are_at_hand(topic_id, np.array(queues, np.uint32), np.array(offsets))


def read_at_hand(store: ShardStore, topic_id: int, queues: list[int], offsets: list[int]) -> list[tuple[int, bytes]]:
    """As a loop reads: the tables are not there, and no more is put in order than came last."""

    order = Memtable._order

    def little(self: Memtable, first: int, end: int) -> object:
        assert end - first <= memtable.RECENT_RECORDS, "all is sorted"
        return order(self, first, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Version, "runs", lambda version: (object(),))  # which is of no use to anybody
        patch.setattr(Memtable, "_order", little)
        found = store.read_many(
            topic_id, np.array(queues, np.uint32), np.array(offsets), max_records=10_000, max_bytes=1 << 24
        )
    return [
        (message.queue, bytes(message.body))
        for batch in found.batches()
        for message in batch.messages("t")
        if message.offset >= offsets[queues.index(message.queue)]
    ]


@pytest.mark.part(2)
@profile(20)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_said_to_be_at_hand_is_read_whole_without_tables(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, at_hand = random.Random(seed), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        open_stepped(tmp_path_factory.mktemp("hand") / "s", tiny(memtable_bytes=1 << 20)) as store,
    ):
        patch.setattr(memtable, "RECENT_RECORDS", chance.choice((8, 64, 1_024)))
        patch.setattr(memtable, "CHUNK_RECORDS", chance.choice((32, 16_384)))
        topic = store.create_topic("t", QUEUES)
        contents: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}
        for number in range(60):
            for queue in chance.choices(range(QUEUES), k=chance.choice((1, 5, 40))):
                put(store, topic.id, (queue, b"%d" % number))
                contents[queue].append(b"%d" % number)
            if chance.random() < 0.1:
                flush(store)
            if chance.random() < 0.1:
                queue = chance.randrange(QUEUES)
                store.delete(topic.id, np.array([queue], np.uint32), np.array([max(0, len(contents[queue]) - 2)]))
                store.commit()
            queues = sorted(chance.sample(range(QUEUES), chance.choice((1, 3, QUEUES))))
            offsets = [max(0, len(contents[queue]) - chance.choice((0, 0, 1, 2, 5))) for queue in queues]
            if is_at_hand(store, queues, offsets, topic.id):
                at_hand += 1
                expected = [
                    (queue, body)
                    for queue, offset in zip(queues, offsets, strict=True)
                    for body in contents[queue][offset:]
                ]
                assert read_at_hand(store, topic.id, queues, offsets) == expected
    assert at_hand


def test_what_is_old_much_or_elsewhere_is_not_at_hand(tmp_path: Path) -> None:
    with open_stepped(tmp_path / "s", tiny(memtable_bytes=4 << 20)) as store:
        topic = store.create_topic("t", QUEUES)
        put(store, topic.id, (3, b"old"), (5, b"old"))
        assert is_at_hand(store, [3, 5], [0, 0], topic.id)
        flush(store)
        put(store, topic.id, (3, b"new"))
        assert is_at_hand(store, [3, 5], [1, 1], topic.id) and is_at_hand(store, [5], [1], topic.id)
        assert not is_at_hand(store, [3, 5], [0, 1], topic.id) and not is_at_hand(store, [5], [0], topic.id)
        assert not is_at_hand(store, [QUEUES], [0], topic.id) and not is_at_hand(store, [3], [0], topic.id + 1)
        assert not is_at_hand(store, [], [], topic.id)
        put(store, topic.id, (9, b"a"), (9, b"b"), (9, b"c"))
        store.delete(topic.id, np.array([9], np.uint32), np.array([1]))
        store.commit()
        assert not is_at_hand(store, [3, 9], [1, 1], topic.id) and is_at_hand(store, [3, 9], [1, 2], topic.id)
        for size, count in ((10, queries.AT_HAND_RECORDS), (6_000, queries.AT_HAND_BYTES // 6_100)):
            first = store.latest_offsets(topic.id, np.array([7], np.uint32)).item(0)
            for _ in range(count):
                put(store, topic.id, (7, bytes(size)))
            assert is_at_hand(store, [7], [first + count // 2], topic.id)
            put(store, topic.id, (7, bytes(size)))
            assert not is_at_hand(store, [7], [first], topic.id)
        for _ in range(memtable.RECENT_RECORDS):
            put(store, topic.id, (8, b"x"))
        assert not is_at_hand(store, [3], [1], topic.id), "others came since"


def test_whoever_would_have_to_sort_first_is_not_kept_waiting_for(tmp_path: Path) -> None:
    with open_stepped(tmp_path / "s", tiny(memtable_bytes=4 << 20)) as store:
        topic = store.create_topic("t", QUEUES)
        for _ in range(memtable.CHUNK_RECORDS // 1_000 + 1):
            put(store, topic.id, *((number % QUEUES, b"x") for number in range(1_000)))
        put(store, topic.id, (3, b"new"))
        last = store.latest_offsets(topic.id, np.array([3], np.uint32)).item(0) - 1
        assert not is_at_hand(store, [3], [last], topic.id)
        store.read(topic.id, 3, last)
        assert is_at_hand(store, [3], [last], topic.id)

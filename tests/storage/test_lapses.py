"""Messages that have expired and are to be moved: kept until they are, found each once, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.lapses import STRETCH
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.queue_options import QueueOptions, encode, key_of

from .harness import flush, merge, profile, put, read_queue, spoil
from .test_expiry import Shard


class Moving(Shard):
    """One that moves what expires to a topic of its own."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, **{"expired_to": "d", **options})
        self.target = self.store.create_topic("d", 1, TopicOptions()).id
        self.lapses = self.store.lapses.begin()

    def reopen(self) -> None:
        super().reopen()
        self.lapses = self.store.lapses.begin()

    def move(self, max_messages: int = 100, *, times: int | None = None) -> None:
        """All that has expired; or ``times`` some of it."""
        while times is None or times > 0:
            lapsed = self.lapses.find(self.topic, max_messages, 1 << 20)
            if lapsed is None:
                return
            if len(lapsed.queues):
                builder = BatchBuilder()
                for batch, places in lapsed.batches:
                    for message in batch.messages("t"):
                        if (message.queue, message.offset) in places:
                            builder.add(0, message.body)
                self.store.wait(self.lapses.move(lapsed, self.target, RecordBatch(builder.build())))
                times = None if times is None else times - 1
            self.lapses.moved(lapsed)

    def moved(self) -> list[bytes]:
        return [message.body for message in read_queue(self.store, self.target, 0)]


@pytest.fixture
def shard(tmp_path: Path) -> Moving:
    return Moving(tmp_path)


def used_bytes(shard: Moving) -> int:
    return sum(table.meta.size_bytes for table in shard.store._tables.version.tables())


def test_what_expires_is_kept_by_merges_until_it_is_moved(shard: Moving) -> None:
    for number in range(40):
        shard.put(*((0, b"%05d" % number * 100, 10_000) for _ in range(40)), (1, b"kept %d" % number, 0))
        if number % 4 == 3:
            flush(shard.store)
    merge(shard.store)
    used = used_bytes(shard)
    shard.after(11_000)
    merge(shard.store)
    assert used_bytes(shard) == used
    assert shard.bodies() == [], "nobody reads it"
    shard.reopen()
    shard.move()
    assert len(shard.moved()) == 1_600
    assert shard.store.retention.usage(shard.topic).gone == {LossReason.LAPSED: 1_600}
    shard.store.trim(shard.target, 0, 1_600)
    shard.store.commit()
    flush(shard.store)
    merge(shard.store)
    assert used_bytes(shard) < used // 20
    shard.reopen()
    shard.move()
    assert shard.moved() == []
    assert len(shard.bodies(1)) == 40


def test_what_expires_goes_with_merges_where_the_topic_to_move_to_is_taken_away(shard: Moving) -> None:
    for number in range(40):
        shard.put(*((0, b"%05d" % number * 100, 10_000) for _ in range(40)))
        if number % 4 == 3:
            flush(shard.store)
    merge(shard.store)
    used = used_bytes(shard)
    shard.after(11_000)
    merge(shard.store)
    shard.store.alter_topic("t", TopicOptions(revision=1))
    assert merge(shard.store) > 0
    assert used_bytes(shard) < used // 20


def test_retention_waits_for_what_has_expired_and_goes_on_when_it_is_moved(shard: Moving) -> None:
    shard.put((0, b"first", 0), (0, b"expires", 1_000), (0, b"last", 0))
    shard.after(1_500)
    shard.store.alter_topic("t", TopicOptions(expired_to="d", retention_ms=500, revision=1))
    assert not shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (1, 3)
    shard.move()
    assert shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (3, 3)
    assert shard.moved() == [b"expires"]
    assert shard.store.retention.usage(shard.topic).gone == {LossReason.EXPIRED: 2, LossReason.LAPSED: 1}


def test_the_oldest_make_room_in_a_queue_only_when_what_has_expired_among_them_is_moved(tmp_path: Path) -> None:
    shard = Moving(tmp_path, queue_max_messages=2, overflow="drop_oldest")
    shard.put((0, b"expires", 1_000), (0, b"second", 0))
    shard.after(1_500)
    shard.put((0, b"third", 0), (0, b"fourth", 0))
    shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (0, 4)
    shard.move()
    assert shard.store._maintenance._retain()
    assert shard.bodies() == [b"third", b"fourth"]
    assert shard.moved() == [b"expires"]


def test_what_waits_to_be_moved_holds_up_no_other_queue(tmp_path: Path) -> None:
    shard = Moving(tmp_path, queues=3, queue_max_messages=2, overflow="drop_oldest", retention_ms=60_000)
    shard.put((0, b"expires", 1_000), (0, b"last", 0))
    shard.after(61_000)
    for _ in range(10):
        shard.put((1, b"x", 0))
    shard.store._maintenance._retain()
    assert [shard.store.bounds(shard.topic, queue) for queue in (0, 1)] == [(0, 2), (8, 10)]


def test_a_disk_nearly_full_gets_room_though_something_waits_to_be_moved(shard: Moving) -> None:
    shard.store.retention.rest = None
    yields = shard.store.create_topic("yields", 1, TopicOptions(on_disk_full="drop_oldest"))
    for _ in range(40):
        put(shard.store, yields.id, (0, b"x" * 500))
        shard.after(1)
    shard.put((0, b"expires", 1_000), (0, b"last", 0))
    shard.after(1_500)
    shard.store.alter_topic("t", TopicOptions(expired_to="d", retention_ms=500, revision=1))
    shard.store.retention.disk_shortage = lambda: 5_000
    shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (0, 2), "it waits"
    assert 5 <= shard.store.bounds(yields.id, 0)[0] <= 20


def test_log_starts_move_over_much_in_pieces(shard: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_node.storage.lapses._MOST_AT_ONCE", 20)
    monkeypatch.setattr("lsmq_node.storage.lapses._READ_RECORDS", 10)
    shard.put(*((0, b"%d" % number, 60_000) for number in range(100)))
    reached = []
    for _ in range(5):
        _, offsets, whole = shard.store.lapses.held_back(
            shard.topic, np.array((0,), np.uint32), np.array((100,), np.int64), LossReason.CONSUMED
        )
        assert whole == (offsets.tolist() == [100])
        reached += offsets.tolist()
        shard.store.wait(shard.store.trim(shard.topic, 0, reached[-1]))
    assert reached == [20, 40, 60, 80, 100]


def test_log_starts_that_move_by_themselves_wait_for_it_and_go_on(shard: Moving) -> None:
    shard.put((0, b"first", 0), (0, b"expires", 1_000), (0, b"last", 0), (1, b"other", 0))
    shard.after(1_500)
    queues, offsets, whole = shard.store.lapses.held_back(
        shard.topic, np.array((1, 0), np.uint32), np.array((1, 3), np.int64), LossReason.CONSUMED
    )
    assert (queues.tolist(), offsets.tolist(), whole) == ([1, 0], [1, 1], False)
    shard.move()
    _, offsets, whole = shard.store.lapses.held_back(
        shard.topic, np.array((0,), np.uint32), np.array((3,), np.int64), LossReason.CONSUMED
    )
    assert (offsets.tolist(), whole) == ([3], True)
    assert shard.moved() == [b"expires"]


def test_a_stretch_is_looked_at_again_for_each_message_that_expires_in_it(shard: Moving) -> None:
    shard.put(*((0, b"%d" % number, 1_000 * number) for number in (3, 1, 2, 5)), (0, b"stays", 0))
    for number in (1, 2, 3):
        shard.after(1_000 if number > 1 else 1_001)
        shard.move()
        assert shard.moved()[-1] == b"%d" % number
        assert shard.lapses.find(shard.topic, 100, 1 << 20) is None
    assert len(shard.moved()) == 3


def test_a_stretch_of_which_a_part_was_moved_is_looked_at_again(shard: Moving) -> None:
    shard.put(*((0, b"%d" % number, 1_000) for number in range(10)))
    shard.move()
    shard.after(1_001)
    shard.move(3)
    assert [int(body) for body in shard.moved()] == list(range(10))


def test_what_was_found_and_not_moved_is_found_again(shard: Moving) -> None:
    shard.put(*((queue, b"%d" % queue, 1_000) for queue in range(3)))
    shard.after(1_001)
    found = [shard.lapses.find(shard.topic, 100, 1 << 20) for _ in range(2)]
    assert [None if each is None else each.queues.tolist() for each in found] == [[0, 1, 2]] * 2


def test_many_messages_of_long_queues_are_moved_in_pieces_each_once(shard: Moving) -> None:
    count = STRETCH + 500
    for first in range(0, count, 500):
        shard.put(*((0, b"%d" % number, 1_000 + number % 7) for number in range(first, first + 500)))
    flush(shard.store)
    shard.after(900)
    shard.move()
    assert shard.moved() == []
    shard.after(1_000)
    shard.move(300, times=3)
    shard.reopen()
    shard.move(300)
    found = [int(body) for body in shard.moved()]
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= count


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_lowest_priority", "drop_nearest_deadline"])
def test_what_is_over_the_limit_of_a_queue_is_moved_and_nothing_else(tmp_path: Path, overflow: str) -> None:
    shard = Moving(tmp_path, expired_to=None, dropped_to="d", queue_max_messages=2, overflow=overflow)
    shard.put(*((0, b"%d" % number, 10_000 * number) for number in range(1, 6)), (1, b"other", 0))
    for _ in range(2):
        shard.store._maintenance._retain()
        assert len(shard.bodies()) == 5, "it is there until it is moved"
    shard.move(2)
    assert sorted(shard.moved()) == [b"1", b"2", b"3"], "each look finds again what was not moved yet"
    shard.reopen()
    for _ in range(3):
        shard.store._maintenance._retain()
        shard.move()
    assert shard.store._maintenance._retain()
    assert (shard.bodies(), shard.bodies(1)) == ([b"4", b"5"], [b"other"])
    assert sorted(shard.moved()) == [b"1", b"2", b"3"]
    assert shard.store.retention.usage(shard.topic).gone == {LossReason.OVERFLOW: 3}
    flush(shard.store)
    shard.reopen()
    assert sorted(shard.moved()) == [b"1", b"2", b"3"]


def test_what_is_over_the_bytes_of_a_queue_is_there_until_it_is_moved(tmp_path: Path) -> None:
    shard = Moving(tmp_path, expired_to=None, dropped_to="d", queue_max_bytes=250, overflow="drop_oldest")
    shard.store._maintenance._retain()
    sent = [b"%d" % number * 100 for number in range(5)]
    for body in sent:
        shard.put((0, body, 0))
    assert shard.bodies() == sent
    for _ in range(3):
        shard.store._maintenance._retain()
        shard.move()
    assert (shard.moved(), shard.bodies()) == (sent[:3], sent[3:])


def test_what_is_over_the_limit_of_a_topic_is_moved_and_what_has_expired_goes_its_own_way(tmp_path: Path) -> None:
    shard = Moving(tmp_path, dropped_to="d", max_messages=2, overflow="drop_oldest")
    shard.store.retention.rest = None
    for number in range(6):
        shard.put((number % 3, b"%d" % number, 1_000 if number == 1 else 0))
        shard.after(1)
    shard.after(1_000)
    for _ in range(4):
        shard.store._maintenance._retain()
        shard.move()
    left = [body for queue in range(3) for body in shard.bodies(queue)]
    assert sorted(left + shard.moved()) == [b"%d" % number for number in range(6)]
    assert set(left) <= {b"4", b"5"} and left
    gone = shard.store.retention.usage(shard.topic).gone
    assert gone == {LossReason.LAPSED: 1, LossReason.OVERFLOW: 5 - len(left)}


def test_a_queue_with_limits_of_number_and_bytes_waits_for_what_has_expired(shard: Moving) -> None:
    document = encode(0, QueueOptions(retention_messages=3, retention_bytes=1_000))
    shard.store.wait(shard.store.put_documents({key_of(shard.topic, 0): document}))
    shard.put((0, b"first" * 100, 0), (0, b"expires" * 100, 1_000), *((0, b"last" * 100, 0) for _ in range(4)))
    shard.after(1_500)
    shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (1, 6)
    shard.move()
    shard.store._maintenance._retain()
    assert shard.store.bounds(shard.topic, 0) == (3, 6)


def test_what_is_over_a_limit_is_moved_though_something_comes_all_the_time(tmp_path: Path) -> None:
    shard = Moving(tmp_path, dropped_to="d", queue_max_messages=2, overflow="drop_oldest")
    shard.put(*((0, b"%d" % number, 0) for number in range(5)))
    shard.store._maintenance._retain()
    for _ in range(10):
        shard.put((1, b"other", 0))
        lapsed = shard.lapses.find(shard.topic, 100, 1 << 20)
        assert lapsed is not None
        if lapsed.why is LossReason.OVERFLOW:
            break
        shard.lapses.moved(lapsed)
    assert lapsed.offsets.tolist() == [0, 1, 2]


def test_of_many_queues_over_their_limit_none_waits_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_node.storage.evictions._AT_ONCE", 5)
    shard = Moving(
        tmp_path, queues=3, expired_to=None, dropped_to="d", queue_max_messages=2, overflow="drop_lowest_priority"
    )
    shard.put(*((queue, b"%d" % queue, 0) for queue in range(3) for _ in range(5)))
    shard.store._maintenance._retain()
    shard.move()
    assert [len(shard.bodies(queue)) for queue in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("overflow", ["refuse", "drop_newest"])
def test_a_topic_that_drops_nothing_it_had_moves_nothing(overflow: str) -> None:
    with pytest.raises(InvalidRequest, match="dropped_to"):
        TopicOptions.from_dict({"dropped_to": "d", "overflow": overflow, "queue_max_messages": 2})
    with pytest.raises(InvalidRequest, match="dropped_to"):
        TopicOptions.from_dict({"dropped_to": 7, "overflow": "drop_oldest"})


def test_a_limit_that_is_raised_before_they_are_moved_keeps_what_is_there(tmp_path: Path) -> None:
    shard = Moving(tmp_path, dropped_to="d", queue_max_messages=2, overflow="drop_oldest")
    shard.put(*((0, b"%d" % number, 0) for number in range(4)))
    shard.store._maintenance._retain()
    options = TopicOptions(expired_to="d", dropped_to="d", queue_max_messages=9, overflow="drop_oldest", revision=1)
    shard.store.alter_topic("t", options)
    assert shard.store._maintenance._retain()
    shard.move()
    assert (len(shard.bodies()), shard.moved()) == (4, [])


def test_what_cannot_be_read_stays_and_holds_up_nothing_else(tmp_path: Path) -> None:
    shard = Moving(tmp_path, queues=3)
    for queue in range(3):
        shard.put(*((queue, b"%d %03d" % (queue, number) * 200, 1_000) for number in range(40)))
        shard.put((queue, b"does not expire", 0))
    flush(shard.store)
    spoil(shard.store, shard.disk, b"1 030" * 200)
    shard.reopen()
    shard.after(1_500)
    shard.move()
    shard.store.alter_topic("t", TopicOptions(expired_to="d", retention_ms=1, revision=1))
    for _ in range(3):
        shard.store._maintenance._retain()
        shard.move()
    bodies = [message.decode()[:5] for message in shard.moved()]
    assert {body for body in bodies if body[0] != "1"} == {f"{queue} {n:03}" for queue in (0, 2) for n in range(40)}
    assert len(bodies) == len(set(bodies)) and "1 000" in bodies and "1 030" not in bodies
    starts = [shard.store.bounds(shard.topic, queue)[0] for queue in range(3)]
    assert starts[0] == starts[2] == 41 and starts[1] <= 30


Message = tuple[int, int]  # queue and time to live
Step = list[Message] | str


@profile(40)
@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0, 1, 50, 1_000, 5_000))), min_size=1, max_size=8),
            st.sampled_from(("move", "some", "flush", "merge", "reopen", "later", "much later")),
        ),
        max_size=30,
    )
)
def test_whatever_happens_each_message_is_read_or_moved_and_never_both(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    shard = Moving(tmp_path_factory.mktemp("moving"))
    sent: list[tuple[bytes, int]] = []  # body, and when it expires
    for step in steps:
        match step:
            case "move":
                shard.move()
            case "some":
                shard.move(1, times=1)
            case "flush":
                flush(shard.store)
            case "merge":
                flush(shard.store)
                merge(shard.store)
            case "reopen":
                shard.reopen()
            case "later":
                shard.after(49)
            case "much later":
                shard.after(2_000)
            case messages:
                assert isinstance(messages, list)
                bodies = [b"%d" % (len(sent) + number) for number in range(len(messages))]
                shard.put(*((queue, body, ttl) for body, (queue, ttl) in zip(bodies, messages, strict=True)))
                now = shard.clock.now_ms()
                sent += [(body, now + ttl if ttl else 0) for body, (_, ttl) in zip(bodies, messages, strict=True)]
        assert len(shard.moved()) == len(set(shard.moved()))
    shard.move()
    flush(shard.store)
    merge(shard.store)
    now = shard.clock.now_ms()
    expired = {body for body, expires in sent if expires and expires < now}
    maybe = {body for body, expires in sent if expires == now}
    moved = set(shard.moved())
    read = {body for queue in range(3) for body in shard.bodies(queue)}
    assert expired <= moved <= expired | maybe
    assert read | moved == {body for body, _ in sent}
    assert not read & moved


def test_lapses_know_nothing_of_a_topic_that_is_gone(shard: Moving) -> None:
    shard.put((0, b"goes", 1_000))
    shard.move()
    assert shard.lapses.topics() == [shard.topic]
    shard.store.delete_topic("t")
    assert shard.lapses.topics() == []

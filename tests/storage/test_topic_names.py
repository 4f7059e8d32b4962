"""Names of a named topic's queues against a dict: new ones, deleted ones, restarts, rounds that a full disk drops."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from lsmq.errors import DiskFull, InvalidQueueName, InvalidRequest, OffsetOutOfRange, TooManyQueues
from lsmq.queue_names import queue_slot
from lsmq.record_batch import BatchBuilder, Column, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import (
    Accounts,
    Appended,
    NamesBehind,
    ShardStore,
    Slots,
    TopicNames,
    TopicOptions,
    name_makers,
    recent_names,
)
from lsmq_node.storage import name_listing as listings
from lsmq_node.storage import topic_names as names_module
from lsmq_node.storage.name_slots import queue_slots
from lsmq_node.storage.name_table import NameTable
from lsmq_node.storage.named_topics import NamedTopics
from lsmq_node.storage.renumber import with_queues
from lsmq_node.storage.state import NAMES_TOPIC
from support.clock import SimClock

from .harness import abandon, flush, keep_house, merge, open_stepped, profile, tiny, torn_out_of

ALL = Slots(0, 4096)
#: Short and long ones, some alike for long, some beyond ASCII.
NAMES = [
    *(f"q{at}" for at in range(6)),
    *(f"agents.{at:07d}.inbox" for at in range(6)),
    "ä/b c",
    *("x" * size for size in (7, 8, 16, 23, 24, 31, 32)),
    "y" * 255,
]
picks = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6)
makers = st.sampled_from([(), ("one", "both"), ("two", "both"), ("two",)])


def pack(items: list[tuple[str, bytes]], **producer: int) -> tuple[bytes, RecordBatch]:
    """Messages by name, as they are appended: the names, and a batch whose queues count them."""
    builder, names = BatchBuilder(), list(dict.fromkeys(name for name, _ in items))
    for name, body in items:
        builder.add(names.index(name), body)
    return "\0".join(names).encode(), RecordBatch(builder.build(**producer))


def current(names: TopicNames) -> TopicNames:
    while not names.is_current():
        names.refresh()
    return names


def put(
    store: ShardStore, topic_id: int, *items: tuple[str, bytes], by: Accounts = (), **producer: int
) -> tuple[Appended, list[int]]:
    names = current(store.names(topic_id))
    appended, numbers = names.append(*pack(list(items), **producer), ALL, admit=lambda count: by)
    return appended, numbers.tolist()


def bodies(store: ShardStore, topic_id: int, name: str) -> list[bytes]:
    (number,) = current(store.names(topic_id)).find((name,)).tolist()
    return [] if number < 0 else store.read_bytes(topic_id, number, 0, 1000)


class NamesMachine(RuleBasedStateMachine):
    """``model``: by name what can be read and how long the queue is. ``line`` is what was put in line since, and whom
    queues count for that it makes; ``makers`` whom those count for that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "shard"
        self.disk, self.clock = Drive(Path(self.directory.name)), SimClock()
        self.model: dict[str, list[bytes]] = {}
        self.line: list[tuple[Any, Accounts]] = []
        self.makers: dict[str, Accounts] = {}
        self.serial = 0
        self.store = open_stepped(self.path, tiny(), self.disk, self.clock)
        self.id = self.store.create_topic("t", 4096, TopicOptions(named=True)).id

    @property
    def names(self) -> TopicNames:
        return current(self.store.names(self.id))

    @rule(names=picks, by=makers)
    def send(self, names: list[str], by: Accounts) -> None:
        items = []
        for name in names:
            self.serial += 1
            items.append((name, b"%d" % self.serial))
        put(self.store, self.id, *items, by=by)

        def happen(model: dict[str, list[bytes]]) -> None:
            for name, body in items:
                model.setdefault(name, []).append(body)

        self.line.append((happen, by))

    @rule(names=picks, by=makers)
    def declare(self, names: list[str], by: Accounts) -> None:
        self.names.declare(names, ALL, lambda count: by)
        self.line.append((lambda model: [model.setdefault(name, []) for name in names], by))

    @rule(names=picks)
    def delete(self, names: list[str]) -> None:
        expected = dict(self.model)
        for happen, _ in self.line:
            happen(expected := {name: list(found) for name, found in expected.items()})
        _, gone = self.names.delete(names)
        assert set(gone) == set(names) & expected.keys()
        self.makers |= dict.fromkeys(self.makers.keys() & set(gone), ())  # also where they stay after all
        self.line.append((lambda model: [model.pop(name, None) for name in names], ()))

    @rule()
    def forget_all_that_are_empty(self) -> None:
        self.commit()
        appended = self.names.forget(self.names.all_numbers())
        if appended is not None:
            self.store.wait(appended)
        self.model = {name: found for name, found in self.model.items() if found}
        self._makers_are_of_those_there({}, ())

    @rule()
    def commit(self) -> None:
        self.store.commit()
        for happen, by in self.line:
            before = dict(self.model)
            happen(self.model)
            self._makers_are_of_those_there(before, by)
        self.line = []

    def _makers_are_of_those_there(self, before: dict[str, Any], by: Accounts) -> None:
        self.makers |= dict.fromkeys(self.model.keys() - before.keys() - self.makers.keys(), by)
        self.makers = {name: made_by for name, made_by in self.makers.items() if name in self.model}

    @rule()
    def the_disk_is_full(self) -> None:
        if self.line:
            self.disk.at(1, errno.ENOSPC, ("write",))
            with contextlib.suppress(DiskFull):
                self.store.commit()
            self.disk.heal()
            keep_house(self.store)  # which finds that there is room again
            self.line = []

    @rule()
    def write_the_names_anew(self) -> None:
        self.commit()
        begin, cursor = self.names.log_end(), 0
        while cursor is not None:
            appended, cursor = self.names.rewrite(cursor, 5)
            if appended is not None:
                self.store.wait(appended)
        self.store.wait(self.store.trim(self.id | NAMES_TOPIC, 0, begin))

    @rule()
    def flush(self) -> None:
        self.commit()
        flush(self.store)
        merge(self.store)

    @rule(power=st.booleans(), seed=st.integers(0, 1 << 20))
    def crash(self, power: bool, seed: int) -> None:
        self.commit()
        survivor = self.disk.power_cut(seed) if power else self.disk.kill()
        abandon(self.store)
        self.disk = survivor
        self.store = open_stepped(self.path, tiny(), self.disk, self.clock)
        self.line = []
        self.makers = dict.fromkeys(self.model, ())

    @rule()
    def look(self) -> None:
        self.commit()
        names = self.names
        found = dict(zip(NAMES, names.find(NAMES).tolist(), strict=True))
        assert {name for name, number in found.items() if number >= 0} == self.model.keys()
        numbers = [number for number in found.values() if number >= 0]
        assert len(set(numbers)) == len(numbers) == names.count
        assert set(names.names(np.array(numbers, np.uint32))) == self.model.keys()
        assert {name: bodies(self.store, self.id, name) for name in self.model} == self.model
        for account in ("one", "two", "both"):
            made = sum(account in made_by for made_by in self.makers.values())
            assert self.store.named.makers.count(account) == made
        assert names.count_to_come == self.store.named.count() == names.count
        listed = self.store.named.listing(self.id).page(b"", b"", 1000)
        assert [raw.decode() for raw, _ in listed] == sorted(self.model)
        for raw, number in listed:
            assert int(names.slots_of(np.array((number,), np.uint32))[0]) == queue_slot(raw.decode())

    def teardown(self) -> None:
        self.look()
        self.store.close()
        self.directory.cleanup()


NamesMachine.TestCase.settings = profile(40, 30)
TestNames = NamesMachine.TestCase


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        yield store


def named(store: ShardStore) -> int:
    return store.create_topic("t", 4096, TopicOptions(named=True)).id


def test_whoever_is_not_admitted_makes_nothing_and_queues_of_a_topic_that_is_gone_count_for_nobody(
    store: ShardStore,
) -> None:
    first, counts = named(store), store.named.makers
    asked: list[int] = []

    def admit(count: int) -> Accounts:
        asked.append(count)
        if len(asked) > 1:
            raise TooManyQueues("no more")
        return ("one",)

    names = current(store.names(first))
    names.append(*pack([("a", b"1"), ("b", b"2"), ("a", b"3")]), ALL, admit=admit)
    names.append(*pack([("a", b"4"), ("b", b"5")]), ALL, admit=admit)
    with pytest.raises(TooManyQueues):
        names.append(*pack([("a", b"6"), ("c", b"7")]), ALL, admit=admit)
    with pytest.raises(TooManyQueues):
        names.declare(("c", "d"), ALL, admit)
    store.commit()
    assert asked == [2, 1, 2]
    assert bodies(store, first, "a") == [b"1", b"3", b"4"]
    assert (counts.count("one"), store.named.count()) == (2, 2)

    second = store.create_topic("u", 4096, TopicOptions(named=True)).id
    put(store, second, *((f"n{at}", b"x") for at in range(3)), by=("one", "two"))
    store.commit()
    assert (counts.count("one"), counts.count("two"), store.stats().named_queues) == (5, 3, 5)
    store.delete_topic("t")
    assert store.named.count() == 3
    store.named.forget_gone()
    assert (counts.count("one"), counts.count("two")) == (3, 3)
    store.wait(current(store.names(second)).delete(["n0", "n1", "n2"])[0])
    current(store.names(second))
    assert not counts._counts and not counts._makers, "a count of nothing is not kept"


def test_of_so_many_it_is_known_who_made_queues_and_places_come_back(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_makers, "MOST_MAKERS", 2)
    topic, counts = named(store), store.named.makers
    for account in ("one", "two", "three"):
        put(store, topic, (account, b"x"), by=(account,))
    put(store, topic, ("again", b"x"), by=("one",))
    store.commit()
    assert [counts.count(account) for account in ("one", "two", "three")] == [2, 1, 0]
    store.wait(current(store.names(topic)).delete(["two", "three"])[0])
    put(store, topic, ("later", b"x"), by=("three",))
    store.commit()
    assert [counts.count(account) for account in ("one", "two", "three")] == [2, 0, 1]


def test_a_number_is_given_again_and_its_offsets_go_on(store: ShardStore) -> None:
    topic = named(store)
    appended, (number,) = put(store, topic, ("old", b"1"))
    put(store, topic, ("old", b"2"))
    store.commit()
    store.wait(current(store.names(topic)).delete(("old",))[0])
    appended, (again,) = put(store, topic, ("new", b"3"))
    store.wait(appended)
    assert again == number
    assert appended.offsets.tolist() == [2]
    assert store.bounds(topic, number) == (2, 3)


def test_ids_go_with_the_queue_that_had_the_number(tmp_path: Path) -> None:
    builder = BatchBuilder()
    builder.add(0, b"x", dedupe_hash=7)
    batch = RecordBatch(builder.build())

    def is_repeat(store: ShardStore) -> bool:
        appended, numbers = current(store.names(topic)).append(b"q", batch, ALL)
        assert numbers.tolist() == [0]
        store.wait(appended)
        return appended.repeats is not None

    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        topic = store.create_topic("t", 4096, TopicOptions(named=True, dedupe_window_ms="forever")).id
        assert [is_repeat(store) for _ in range(2)] == [False, True]
        store.wait(store.names(topic).delete(("q",))[0])
        assert [is_repeat(store) for _ in range(2)] == [False, True]
        store.wait(store.names(topic).delete(("q",))[0])
    with ShardStore.open(tmp_path / "shard", tiny()) as store:  # what was deleted is known from the log of names
        assert [is_repeat(store) for _ in range(2)] == [False, True]
        store.wait(store.names(topic).delete(("q",))[0])
        begin = store.names(topic).log_end()
        appended, cursor = store.names(topic).rewrite(0, 5)
        assert appended is not None and cursor is None
        store.wait(appended)
        store.wait(store.trim(topic | NAMES_TOPIC, 0, begin))
        assert store.bounds(topic | NAMES_TOPIC, 0) == (begin, begin + 1)
    with ShardStore.open(tmp_path / "shard", tiny()) as store:  # and from one that was written anew
        assert [is_repeat(store) for _ in range(2)] == [False, True]


def test_a_queue_is_trimmed_whatever_has_its_name_when_that_is_put_in_line(store: ShardStore) -> None:
    topic = named(store)
    put(store, topic, ("q", b"1"), ("q", b"2"))
    store.commit()
    names = current(store.names(topic))
    names.delete(("q",))
    assert names.trim("q", 2) is None, "it is to go"
    put(store, topic, ("q", b"3"))
    with pytest.raises(OffsetOutOfRange, match="queue 'q' of topic 't', which is 0"):
        names.trim("q", 2)
    store.commit()
    appended = current(names).trim("q", 1)
    assert appended is not None
    store.wait(appended)
    assert store.bounds(topic, names.find(("q",)).item(0)) == (1, 1)


def test_a_name_in_line_is_found_by_the_next_append_and_by_no_reader(store: ShardStore) -> None:
    topic = named(store)
    _, first = put(store, topic, ("a", b"1"))
    _, second = put(store, topic, ("b", b"2"), ("a", b"3"))
    assert second[1] == first[0] != second[0]
    assert store.names(topic).find(("a", "b")).tolist() == [-1, -1]
    store.commit()
    assert store.names(topic).find(("a", "b")).tolist() == [first[0], second[0]]


def test_names_of_a_round_that_is_dropped_are_forgotten_with_it(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(), disk, SimClock())
    topic = named(store)
    put(store, topic, ("lost", b"1"))
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.commit()
    disk.heal()
    keep_house(store)
    appended, numbers = put(store, topic, ("kept", b"2"))
    store.wait(appended)
    assert numbers == [0], "the number is free again"
    assert store.names(topic).find(("lost", "kept")).tolist() == [-1, 0]
    assert store.read_bytes(topic, 0, 0, 10) == [b"2"]
    store.close()


@pytest.mark.parametrize("is_full", [False, True])
def test_who_is_torn_out_of_giving_names_numbers_leaves_none_that_is_not_in_the_log(
    tmp_path: Path, is_full: bool
) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(), disk, SimClock())
    topic = named(store)
    appended, _ = put(store, topic, ("first", b"1"))
    store.wait(appended)
    with torn_out_of(NameTable, "hold"):
        put(store, topic, ("torn", b"2"))
    if is_full:
        disk.at(1, errno.ENOSPC, ("write",))
        with pytest.raises(DiskFull):
            store.commit()
        disk.heal()
        keep_house(store)
    else:
        store.commit()
    appended, numbers = put(store, topic, ("next", b"3"), ("torn", b"4"))
    store.wait(appended)
    assert numbers == ([1, 2] if is_full else [2, 1])
    assert [bodies(store, topic, name) for name in ("first", "torn", "next")] == [
        [b"1"],
        [b"4"] if is_full else [b"2", b"4"],
        [b"3"],
    ]
    store.close()


def test_a_repeat_of_a_producer_is_answered_as_before(store: ShardStore) -> None:
    topic = named(store)
    producer = {"producer_id": 7, "producer_epoch": 0, "sequence": 0}
    first, numbers = put(store, topic, ("a", b"1"), ("b", b"2"), **producer)
    store.wait(first)
    again, repeated = put(store, topic, ("a", b"1"), ("b", b"2"), **producer)
    assert again.duplicate and repeated == numbers
    assert again.offsets.tolist() == first.offsets.tolist()
    assert bodies(store, topic, "a") == [b"1"]


def test_names_that_are_none_are_refused_and_nothing_is_stored(store: ShardStore) -> None:
    topic = named(store)
    for name in ("", "a\nb", "x" * 256):
        with pytest.raises(InvalidQueueName):
            put(store, topic, ("fine", b"1"), (name, b"2"))
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        store.names(topic).append(b"\xff", pack([("a", b"1")])[1], ALL)
    slot = queue_slot("elsewhere")
    with pytest.raises(InvalidRequest, match="slot"):
        store.names(topic).append(*pack([("elsewhere", b"1")]), Slots(slot + 1, 4097))
    store.commit()
    assert current(store.names(topic)).count == 0


def test_more_names_than_numbers_are_refused(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MAX_NAMES", 3)
    topic = named(store)
    put(store, topic, *((f"q{at}", b"1") for at in range(3)))
    with pytest.raises(TooManyQueues, match="the limit is 3"):
        put(store, topic, ("q3", b"1"))
    put(store, topic, ("q2", b"2"))
    store.commit()
    store.wait(store.names(topic).delete(("q1",))[0])
    put(store, topic, ("q3", b"1"))
    store.commit()
    assert bodies(store, topic, "q3") == [b"1"]


def test_columns_and_packed_payloads_are_kept_when_queues_are_numbered(store: ShardStore) -> None:
    topic = named(store)
    builder = BatchBuilder()
    for at in range(300):
        builder.add(at % 3, b"body %d " % at * 5, key=f"k{at}", tag="t", priority=at % 7)
    batch = RecordBatch(builder.build())
    appended, numbers = store.names(topic).append(b"a\0b\0c", batch, ALL)
    store.wait(appended)
    assert sorted(set(numbers.tolist())) == [0, 1, 2]
    found = [
        (row[1], bytes(read.payload[row[3] : row[5]]), row[7])
        for queue in range(3)
        for read in store.read(topic, queue, 0).batches()
        for row in read.rows(topic)
    ]
    sent = [(row[1], bytes(batch.payload[row[3] : row[5]]), row[7]) for row in batch.rows(topic)]
    assert sorted(found) == sorted(sent)


def test_a_batch_that_points_beyond_its_names_is_refused(store: ShardStore) -> None:
    topic = named(store)
    builder = BatchBuilder()
    builder.add(2, b"x")
    with pytest.raises(InvalidRequest, match="there are 1"):
        store.names(topic).append(b"a", RecordBatch(builder.build()), ALL)


def test_names_are_read_on_where_they_were_left(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        topic = named(store)
        for first in range(0, 5_000, 1_000):
            put(store, topic, *((f"n{at}", b"x") for at in range(first, first + 1_000)))
        store.flush()
        put(store, topic, ("late", b"x"))
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        names = store.names(topic)
        with pytest.raises(NamesBehind):
            names.find(("late",))
        assert current(names).count == 5_001
        assert names.find(("late",)).tolist() == [5_000]
        assert [topic.name for topic in store.topics()] == ["t"]


def test_a_deleted_topic_takes_its_names_along(store: ShardStore) -> None:
    topic = named(store)
    put(store, topic, ("a", b"1"))
    store.commit()
    store.delete_topic("t")
    assert named(store) != topic
    assert current(store.names(named(store))).count == 0


def test_what_came_since_a_version_is_known_and_where_that_is_too_long_ago_it_is_said(store: ShardStore) -> None:
    topic = named(store)
    names = store.names(topic)
    put(store, topic, ("a", b"1"), ("b", b"1"))
    store.commit()
    fresh, version = names.changed_since(0)
    assert fresh is not None and fresh.tolist() == [0, 1]
    put(store, topic, ("c", b"1"))
    store.commit()
    fresh, version = names.changed_since(version)
    assert fresh is not None and fresh.tolist() == [2]
    again, _ = names.changed_since(version)
    assert again is not None and not len(again)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_names, "REMEMBERED", 1)
        put(store, topic, ("last", b"1"))
        store.commit()
        assert names.changed_since(0)[0] is None


def test_many_names_are_listed_a_page_at_a_time_while_they_come_and_go(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "_FEW", 20)
    chance, topic = random.Random(1), named(store)
    there: set[str] = set()
    for _ in range(30):
        fresh = {f"{chance.choice(('a.', 'b.', 'c/'))}{chance.randrange(400)}" for _ in range(25)}
        put(store, topic, *((name, b"") for name in sorted(fresh)))
        gone = chance.sample(sorted(there), min(len(there), 12))
        store.commit()
        there |= fresh
        if gone:
            store.wait(current(store.names(topic)).delete(gone)[0])
            there -= set(gone)
        prefix = chance.choice(("", "a.", "b.1", "zz"))
        found, after = [], ""
        while page := store.named.listing(topic).page(prefix.encode(), after.encode(), 7):
            found += [raw.decode() for raw, _ in page]
            after = found[-1]
        assert found == sorted(name for name in there if name.startswith(prefix))


def test_names_that_are_read_as_others_come_are_all_listed(store: ShardStore) -> None:
    """As on a node that hears of names by its log: what is to be read first is read, and the page asked for again."""
    topic = named(store)
    put(store, topic, ("a", b"1"), ("b", b"1"))
    store.commit()
    named_topics = NamedTopics(store._state, store._line, store._queries, tiny(), store.time)
    names, listing = named_topics.names(topic), named_topics.listing(topic)
    current(names)
    put(store, topic, ("c", b"1"))
    store.commit()
    with pytest.raises(NamesBehind):
        listing.page(b"", b"", 10)
    current(names)
    assert [raw for raw, _ in listing.page(b"", b"", 10)] == [b"a", b"b", b"c"]


def test_the_column_of_queues_alone_is_another(store: ShardStore) -> None:
    _, batch = pack([("a", b"1"), ("b", b"22")], producer_id=5, producer_epoch=2, sequence=9)
    changed = with_queues(batch, np.array((1 << 24, 5), np.uint32))
    read = RecordBatch(bytes(changed.buffer))  # its checksum is right
    assert list(read.column(Column.QUEUE)) == [1 << 24, 5]
    assert bytes(read.payload) == b"122"
    assert (read.producer_id, read.producer_epoch, read.sequence) == (5, 2, 9)
    assert changed.directory == read.directory


def test_slots_of_many_names_are_those_of_each_and_names_that_may_be_none_are_left_to_be_looked_at() -> None:
    raw = [name.encode() for name in NAMES]
    found = queue_slots(raw)
    assert found is not None and found.tolist() == [queue_slot(name) for name in NAMES]
    for wrong in ("", "x" * 256, "a\nb", "a\x7f", "\x85", ".", ".."):
        assert queue_slots([*raw, wrong.encode()]) is None
    assert queue_slots([*raw, b"\xff"]) is None and queue_slots([]) is None

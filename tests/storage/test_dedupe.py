"""Deduplication by the user's ids: what is stored once, in which queue, for how long, and over what."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lsmq.errors import CorruptFile, DiskFull, InvalidRequest, QuotaExceeded
from lsmq.messages import dedupe_hash
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import Appended, ShardStore, TopicOptions
from lsmq_node.storage.columns import I64, U64
from lsmq_node.storage.dedupe_chain import joined
from lsmq_node.storage.dedupe_file import IdFile, IdFileMeta, IdWriter, newest_of
from lsmq_node.storage.dedupe_layer import ROW, IdColumns, IdLayer, IdRows, keys_of
from lsmq_node.storage.repair import repair_store
from lsmq_node.storage.snapshot_install import install
from support.clock import SimClock

from .harness import (
    Put,
    abandon,
    batch_of,
    bodies,
    flush,
    freeze,
    keep_house,
    merge,
    open_stepped,
    profile,
    small,
    stored,
    tiny,
)
from .leading import open_replica
from .snapshots import take

WINDOW_MS = 60_000
FOREVER = TopicOptions(dedupe_window_ms="forever")


def named(*ids: str | None, queue: int = 0, **fields: int) -> RecordBatch:
    return batch_of([Put(queue, (each or "-").encode(), dedupe_id=each) for each in ids], **fields)


def places(appended: Appended) -> tuple[list[int], list[bool]]:
    repeats = appended.repeats
    return appended.offsets.tolist(), [False] * len(appended.offsets) if repeats is None else repeats.tolist()


# -- what is a repeat ------------------------------------------------------------------------------------


def test_the_second_message_with_an_id_is_answered_with_the_place_of_the_first(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 2, FOREVER)
    assert places(stored(store, topic.id, named("a", None, "b"))) == ([0, 1, 2], [False, False, False])
    assert places(stored(store, topic.id, named("c", "a", None, "b"))) == ([3, 0, 4, 2], [False, True, False, True])
    assert places(stored(store, topic.id, named("a", queue=1))) == ([0], [False]), "another queue, another id"
    assert bodies(store, topic.id, 0) == {0: b"a", 1: b"-", 2: b"b", 3: b"c", 4: b"-"}
    abandon(store)


def test_repeats_within_a_batch_and_of_batches_that_go_together_are_stored_once(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic, other = store.create_topic("t", 1, FOREVER), store.create_topic("u", 1, FOREVER)
    one, two, three = store.append_many(
        [(topic.id, named("a", "a", "b")), (other.id, named("a")), (topic.id, named("b", "c", "a"))]
    )
    store.commit()
    assert places(one) == ([0, 0, 1], [False, True, False])
    assert places(two) == ([0], [False]), "another topic, another id"
    assert places(three) == ([1, 2, 0], [True, False, True])
    assert list(bodies(store, topic.id, 0).values()) == [b"a", b"b", b"c"]
    abandon(store)


def test_what_is_in_line_counts_and_is_forgotten_when_it_is_dropped(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    stored(store, topic.id, named("kept"))
    assert places(store.append(topic.id, named("a"))) == ([1], [False])
    assert places(store.append(topic.id, named("a", "kept"))) == ([1, 0], [True, True])
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.commit()
    keep_house(store)
    assert places(stored(store, topic.id, named("a", "kept"))) == ([1, 0], [False, True])
    abandon(store)


def test_an_id_counts_for_its_window_and_not_longer(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms=WINDOW_MS))
    stored(store, topic.id, named("a"))
    clock.time_ms += WINDOW_MS
    assert places(stored(store, topic.id, named("a"))) == ([0], [True])
    clock.time_ms += 1
    assert places(stored(store, topic.id, named("a"))) == ([1], [False])
    assert places(stored(store, topic.id, named("a"))) == ([1], [True]), "the later one is what counts from there"
    flush(store)
    assert places(stored(store, topic.id, named("a"))) == ([1], [True])
    abandon(store)


def test_a_clock_that_jumps_forgets_nothing_early(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms=WINDOW_MS))
    stored(store, topic.id, named("a"))
    clock.wrong_ms = 1_000 * WINDOW_MS
    assert places(stored(store, topic.id, named("a"))) == ([0], [True])
    abandon(store)


def test_an_id_outlives_its_message(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    stored(store, topic.id, named("a"))
    store.wait(store.trim(topic.id, 0, 1))
    flush(store)
    merge(store)
    assert bodies(store, topic.id, 0) == {}
    assert places(stored(store, topic.id, named("a"))) == ([0], [True])
    abandon(store)


def test_a_producers_retry_is_answered_as_before_also_where_it_held_repeats(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    stored(store, topic.id, named("a", "b"))
    batch = named("b", "c", producer_id=5, sequence=0)
    assert places(stored(store, topic.id, batch)) == ([1, 2], [True, False])
    for _ in range(2):
        again = stored(store, topic.id, batch)
        assert again.duplicate and places(again) == ([1, 2], [True, False])
        assert places(stored(store, topic.id, named("b", producer_id=5, sequence=1))) == ([1], [True])
        abandon(store)
        disk = disk.kill()
        store = open_stepped(tmp_path / "s", tiny(), disk)
    assert stored(store, topic.id, named("d", producer_id=5, sequence=2)).offsets.tolist() == [3]
    abandon(store)


def test_ids_of_a_topic_without_a_window_are_not_kept(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    assert [places(stored(store, topic.id, named("a"))) for _ in range(2)] == [([0], [False]), ([1], [False])]
    assert store.stats().dedupe_ids == 0
    abandon(store)


def test_repeats_beside_messages_that_come_later_are_not_stored(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    stored(store, topic.id, named("a"))

    def mixed(*ids: str) -> RecordBatch:
        builder = BatchBuilder()
        builder.add(0, b"later", due_ms=60_000)
        for each in ids:
            builder.add(0, each.encode(), dedupe_hash=dedupe_hash(each))
        return RecordBatch(builder.build())

    for ids, expected in ((("a", "b"), ([0, 1], [True, False])), (("a", "b"), ([0, 1], [True, True]))):
        offsets, repeats = places(stored(store, topic.id, mixed(*ids)))
        assert (offsets[1:], repeats[1:]) == expected and not repeats[0]
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(), disk.kill())
    assert bodies(store, topic.id, 0) == {0: b"a", 1: b"b"}
    assert places(stored(store, topic.id, named("b", "c"))) == ([1, 2], [True, False])
    abandon(store)


@pytest.mark.parametrize("window", [-1, 1.5, True, "always", 1 << 62])
def test_a_window_that_is_none_is_refused(window: object) -> None:
    with pytest.raises(InvalidRequest, match="dedupe_window_ms"):
        TopicOptions.from_dict({"dedupe_window_ms": window})


def test_no_window_is_written_as_none() -> None:
    assert TopicOptions.from_dict({"dedupe_window_ms": 0}).to_dict() == TopicOptions().to_dict()


# -- a model ---------------------------------------------------------------------------------------------


class DedupeMachine(RuleBasedStateMachine):
    """A store against a dict of what was stored under which id, and when."""

    def __init__(self) -> None:
        super().__init__()
        self._path = Path(tempfile.mkdtemp()) / "s"
        self._disk = Drive(self._path.parent)
        self._clock = SimClock()
        self._store = self._open()
        self._topic = self._store.create_topic("t", 3, TopicOptions(dedupe_window_ms=WINDOW_MS)).id
        self._known: dict[tuple[int, str], tuple[int, int]] = {}
        self._messages: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self._serial = 0

    def _open(self) -> ShardStore:
        return open_stepped(self._path, tiny(), self._disk, self._clock)

    def teardown(self) -> None:
        abandon(self._store)

    @rule(
        sent=st.lists(
            st.tuples(st.integers(0, 2), st.one_of(st.none(), st.sampled_from("abcdefgh"))), min_size=1, max_size=6
        ),
        commit=st.booleans(),
    )
    def send(self, sent: Sequence[tuple[int, str | None]], commit: bool) -> None:
        puts, offsets, repeats = [], [], []
        now_ms = self._clock.time_ms
        for queue, name in sent:
            self._serial += 1
            content = b"%d" % self._serial
            puts.append(Put(queue, content, dedupe_id=name))
            offset, stored_ms = self._known.get((queue, name or ""), (0, -WINDOW_MS))
            repeated = name is not None and now_ms - stored_ms <= WINDOW_MS
            if not repeated:
                offset = len(self._messages[queue])
                self._messages[queue].append(content)
                if name is not None:
                    self._known[queue, name] = offset, now_ms
            offsets.append(offset)
            repeats.append(repeated)
        appended = self._store.append(self._topic, batch_of(puts))
        assert places(appended) == (offsets, repeats)
        if commit:
            self._store.commit()

    @rule(ms=st.sampled_from([1, WINDOW_MS // 3, WINDOW_MS]))
    def wait(self, ms: int) -> None:
        self._clock.time_ms += ms

    @rule()
    def freeze(self) -> None:
        freeze(self._store)

    @rule()
    def flush(self) -> None:
        flush(self._store)

    @rule()
    def merge(self) -> None:
        merge(self._store)

    @rule(power=st.booleans(), seed=st.integers(0, 99))
    def die(self, power: bool, seed: int) -> None:
        self._store.commit()
        self._store.append(self._topic, named("a", "never", queue=1))  # and not committed
        abandon(self._store)
        self._disk = self._disk.power_cut(seed) if power else self._disk.kill()
        self._store = self._open()

    @invariant()
    def each_message_is_where_it_was_said_to_be(self) -> None:
        self._store.commit()
        for queue, messages in self._messages.items():
            assert list(bodies(self._store, self._topic, queue).values()) == messages


TestDedupe = DedupeMachine.TestCase
TestDedupe.settings = profile(60, steps=40)


# -- replicas --------------------------------------------------------------------------------------------


def test_replicas_and_snapshots_know_the_ids(tmp_path: Path) -> None:
    from .test_replica_log import lead, ship

    with (
        ShardStore.open(tmp_path / "a", tiny(), replicated=True) as leader,
        ShardStore.open(tmp_path / "b", tiny(), replicated=True) as follower,
    ):
        lead(leader, 1)
        leader.put_topic(_topic(), 0, 1)
        leader.replica.advance(leader.replica.write())
        leader.append(1, named("a", "b"))
        leader.append(1, named("b", "c"))
        leader.replica.advance(leader.replica.write())
        take(leader, tmp_path / "c")
        leader.append(1, named("d", "a"))
        ship_lsn = leader.replica.write()
        leader.replica.advance(ship_lsn)
        ship(leader, follower)
        follower.replica.advance(ship_lsn)
        assert bodies(follower, 1, 0) == bodies(leader, 1, 0) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
        follower.replica.begin_epoch(2, 1 << 51, 1)
        follower.replica.advance(follower.replica.write())
        assert places(follower.append(1, named("d", "e", "a"))) == ([3, 4, 0], [True, False, True])
    install(tmp_path / "c")
    with open_replica(tmp_path / "c") as third:
        third.replica.begin_epoch(3, 1 << 51, 1)
        third.replica.advance(third.replica.write())
        assert places(third.append(1, named("c", "e", "a"))) == ([2, 3, 0], [True, False, True])


def _topic() -> object:
    from lsmq_node.storage.state import StoredTopic

    return StoredTopic(1, "t", 1, FOREVER)


# -- layers and files ------------------------------------------------------------------------------------


def rows_of(ids: Sequence[tuple[int, int]], offset: int = 0) -> IdRows:
    rows = np.zeros(len(ids), ROW)
    rows["high"], rows["low"] = [high for high, _ in ids], [low for _, low in ids]
    rows["offset"], rows["topic"] = np.arange(offset, offset + len(ids)), 1
    return rows


HALVES = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1), st.integers((1 << 64) - 4, (1 << 64) - 1))


@profile(100)
@given(ids=st.lists(st.tuples(HALVES, HALVES), min_size=1, max_size=300, unique=True), cut=st.integers(1, 300))
def test_ids_are_found_in_layers_and_files_and_no_others(ids: list[tuple[int, int]], cut: int) -> None:
    here, absent = rows_of(ids[:cut]), rows_of(ids[cut:])
    layer = IdLayer()
    for begin in range(0, len(here), 7):
        some = here[begin : begin + 7]
        high, low = some["high"].copy(), some["low"].copy()
        layer.add(IdColumns(high, low, keys_of(high, low), some["offset"], 0, 1))
    layer.applied = layer.count
    kept = list(layer.kept())
    assert (np.concatenate(kept) if kept else rows_of([])).tolist() == newest_of(here).tolist()
    disk = Drive(Path("/d"))
    writer = IdWriter(disk, Path("/d/1.ids"), len(here))
    writer.add(newest_of(here))
    size = writer.finish()
    file = IdFile(disk, Path("/d/1.ids"), IdFileMeta(1, size, 5))
    file.verify()
    assert np.concatenate(list(file.scan())).tolist() == newest_of(here).tolist()
    asked = np.concatenate((absent, here))
    for source in (layer, file):
        found, offsets, _ = source.find(asked["high"].copy(), asked["low"].copy())
        assert dict(zip(found.tolist(), offsets.tolist(), strict=True)) == {
            len(absent) + at: at for at in range(len(here))
        }


@profile(50)
@given(ids=st.lists(st.lists(st.tuples(HALVES, st.integers(0, 2)), unique=True), min_size=1, max_size=5))
def test_joined_files_hold_the_newest_of_each_id(ids: list[list[tuple[int, int]]]) -> None:
    with mock.patch("lsmq_node.storage.dedupe_chain._PIECE_ROWS", 7):
        sources = [newest_of(rows_of(each, 1000 * age)) for age, each in enumerate(ids)]
        found = list(joined([iter((rows,)) for rows in sources], sum(map(len, sources))))
    expected: dict[tuple[int, int], int] = {}
    for rows in reversed(sources):
        expected.update({(row["high"], row["low"]): row["offset"] for row in rows})
    all_rows = np.concatenate(found) if found else rows_of([])
    assert [(row["high"], row["low"]) for row in all_rows] == sorted(expected)
    assert {(row["high"], row["low"]): row["offset"] for row in all_rows} == expected


def test_files_of_ids_are_joined_and_what_has_expired_leaves_the_disk(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms=WINDOW_MS))
    gone = store.create_topic("gone", 1, FOREVER)
    for number in range(40):
        stored(store, topic.id, named(*(f"{number}-{each}" for each in range(200))))
        stored(store, gone.id, named(*(f"{number}-{each}" for each in range(100))))
        flush(store)
        merge(store)
    assert store.stats().dedupe_ids == 12_000 and store.stats().dedupe_files == 1 + 40 - 32
    store.delete_topic("gone")
    merge(store)
    clock.time_ms += WINDOW_MS + 1
    stored(store, topic.id, named("last"))
    flush(store)
    merge(store)
    assert (store.stats().dedupe_ids, store.stats().dedupe_files) == (1, 1)
    assert len([name for name in disk.list(tmp_path / "s" / "tables") if name.endswith(".ids")]) == 1
    abandon(store)


def test_files_that_are_full_together_become_one_and_full_ones_stay(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    counts = []
    with mock.patch("lsmq_node.storage.dedupe_chain.FULL_ROWS", 1_000):
        for number in range(8):
            stored(store, topic.id, named(*(f"{number}-{each}" for each in range(300))))
            flush(store)
            merge(store)
            counts.append([file.count for file in store._tables.ids.files])
    assert counts[2:5] == [[300, 300, 300], [1_200], [1_200, 300]] and counts[7] == [1_200, 1_200]
    for number in range(8):
        assert places(stored(store, topic.id, named(f"{number}-0", f"{number}-299")))[1] == [True, True]
    abandon(store)


def test_ids_that_expire_before_a_file_is_full_are_not_written_again_with_each_flush(
    tmp_path: Path, disk: Drive
) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms=WINDOW_MS))
    written = 0
    with mock.patch("lsmq_node.storage.dedupe_chain.FULL_ROWS", 1_000):
        for number in range(60):
            clock.time_ms += WINDOW_MS // 9  # nine flushes are within a window: never enough for a full file
            stored(store, topic.id, named(*(f"{number}-{each}" for each in range(100))))
            flush(store)
            before = store._tables.ids.files
            merge(store)
            written += sum(file.count for file in set(store._tables.ids.files) - set(before))
        assert 0 < written < 2 * 6_000
        assert store.stats().dedupe_ids < 4_000
        for number in range(52, 60):
            assert places(stored(store, topic.id, named(f"{number}-0")))[1] == [True]
    abandon(store)


def test_files_of_an_earlier_run_are_read_once_and_then_new_ids_are_not_looked_for_in_them(
    tmp_path: Path, disk: Drive
) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, FOREVER)
    for number in range(3):
        stored(store, topic.id, named(*(f"{number}-{each}" for each in range(50))))
        flush(store)
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(), disk.kill())
    asked: list[int] = []
    find = IdFile.find

    def watched(file: IdFile, high: U64, low: U64) -> tuple[I64, I64, I64]:
        asked.append(len(high))
        return find(file, high, low)

    with mock.patch.object(IdFile, "find", watched):
        fresh = [f"fresh-{each}" for each in range(100)]
        assert places(stored(store, topic.id, named(*fresh, "0-7")))[1] == [False] * 100 + [True]
        assert asked == [101, 101, 101], "nothing is known of them yet"
        merge(store)
        asked.clear()
        assert places(stored(store, topic.id, named(*(f"more-{each}" for each in range(100)))))[1] == [False] * 100
        assert sum(asked) == 0
        assert places(stored(store, topic.id, named("0-7", "2-49", fresh[3])))[1] == [True] * 3
    abandon(store)


def test_ids_that_are_too_many_to_be_known_are_found_in_their_files(tmp_path: Path, disk: Drive) -> None:
    """Filters come and go all the time; whatever they have forgotten is still a repeat."""
    sizes = ((64, 16), (64, 32))
    with (
        mock.patch("lsmq_node.storage.dedupe_recent._SIZES", sizes),
        mock.patch("lsmq_node.storage.dedupe.KNOWN_IDS", 64),
        mock.patch("lsmq_node.storage.dedupe_chain.FULL_ROWS", 150),
    ):
        store = open_stepped(tmp_path / "s", tiny(), disk)
        topic = store.create_topic("t", 1, FOREVER)
        for number in range(60):
            names = [f"{number}-{each}" for each in range(17)]
            assert places(stored(store, topic.id, named(*names)))[1] == [False] * 17
            back = number * 7 % (number + 1)
            assert places(stored(store, topic.id, named(f"{back}-3", f"{back}-16"))) == (
                [back * 17 + 3, back * 17 + 16],
                [True, True],
            )
            if number % 3 == 1:
                freeze(store)
            if number % 5 == 4:
                flush(store)
            if number % 10 == 9:
                merge(store)
            if number % 20 == 9:
                abandon(store)
                disk = disk.kill()
                store = open_stepped(tmp_path / "s", tiny(), disk)
        ids = store._state.ids
        assert ids._recent.oldest > 0
        assert any(file.since < ids._recent.oldest for file in store._tables.ids.files)
        for number in range(60):
            assert places(stored(store, topic.id, named(f"{number}-0", f"{number}-9")))[1] == [True, True]
        abandon(store)


def test_ids_of_a_batch_that_was_refused_are_not_taken_for_repeats(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms="forever", max_messages=3))
    stored(store, topic.id, named("a", "b"))
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            store.append(topic.id, named("c", "d", "a"))
    assert places(stored(store, topic.id, named("c"))) == ([2], [False])
    store.wait(store.trim(topic.id, 0, 3))
    assert places(stored(store, topic.id, named("d", "a", "d"))) == ([3, 0, 3], [False, True, True])
    abandon(store)


@pytest.mark.part(2)
def test_a_damaged_file_of_ids_is_named_kept_and_repaired_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = open_stepped(path, small())
    topic = store.create_topic("t", 1, FOREVER)
    stored(store, topic.id, named(*(str(number) for number in range(1_000))))
    flush(store)
    stored(store, topic.id, named("in the log", "3"))
    (file,) = store._tables.ids.files
    raw = bytearray(file.path.read_bytes())
    raw[5_000] ^= 1  # in the second block
    file.path.write_bytes(bytes(raw))
    damaged = 0
    for number in range(1_000):
        try:
            assert places(store.append(topic.id, named(str(number)))) == ([number], [True])
        except CorruptFile as error:
            assert file.path.name in error.message
            damaged += 1
    assert damaged == 128, "one block of eight"
    assert [file.path.name in message for message in store.damage()] == [True]
    store.commit()
    abandon(store)
    found = []
    repair_store(path, tmp_path / "new", tell=found.append)
    assert any("deduplication" in str(each) for each in found)
    with ShardStore.open(tmp_path / "new", small()) as repaired:
        again = [places(repaired.append(topic.id, named(str(number))))[1][0] for number in range(1_000)]
        assert sum(again) == 1_000 - 128
        assert places(repaired.append(topic.id, named("in the log"))) == ([1_000], [True])


@pytest.mark.part(3)
def test_ids_are_known_while_flushes_and_merges_move_them(tmp_path: Path) -> None:
    """One thread sends and repeats, the store's own flush and merge; no repeat is ever missed."""
    with ShardStore.open(tmp_path / "s", small(memtable_bytes=256 << 10)) as store:
        topic = store.create_topic("t", 1, FOREVER)
        for number in range(600):
            names = [f"{number}.{each}" for each in range(20)]
            assert places(stored(store, topic.id, named(*names)))[0][0] == number * 20
            back = number * 7 % (number + 1)
            assert places(stored(store, topic.id, named(f"{back}.3", f"{back}.19"))) == (
                [back * 20 + 3, back * 20 + 19],
                [True, True],
            )
            if number % 40 == 0:
                freeze(store)
        store.compact()
        assert store.stats().dedupe_ids == 12_000
    with ShardStore.open(tmp_path / "s", small()) as store:
        assert places(stored(store, topic.id, named("0.0", "599.19"))) == ([0, 11_999], [True, True])

"""A store as a replica: shipping its log as bytes, applying what is committed, taking back what is not."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import CorruptFile, DiskFull, InvalidRequest, LogTrimmed, NotLeader, TimedOut
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.dump import dump_checkpoint, dump_wal
from lsmq_node.storage.failures import may_pass
from lsmq_node.storage.state import StoredTopic
from lsmq_node.storage.wal import segment_name
from lsmq_node.storage.wal_reader import LogFloor
from support.waiting import eventually

from .harness import abandon, bodies, body, profile, tiny

QUEUES = 3
#: Of the replica that leads: its incarnation, and which of its starts.
LIFE = (1 << 52, 3)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[ShardStore, ShardStore]]:
    """A leader in epoch 1, and a follower with nothing."""
    with ExitStack() as stack:
        leader, follower = (
            stack.enter_context(ShardStore.open(tmp_path / name, tiny(), replicated=True)) for name in ("a", "b")
        )
        lead(leader, 1)
        yield leader, follower


def lead(store: ShardStore, epoch: int) -> None:
    store.replica.begin_epoch(epoch, *LIFE)
    store.replica.advance(store.replica.write())


def make_topic(store: ShardStore) -> int:
    """On a leader that is its own in-sync set: what is durable is committed."""
    appended = store.put_topic(StoredTopic(1, "t", QUEUES), 0, QUEUES)
    store.replica.advance(store.replica.write())
    assert appended.lsn <= store.committed_lsn
    return 1


def put(store: ShardStore, queue: int, content: bytes) -> int:
    """Append and write, without committing; the LSN after it."""
    builder = BatchBuilder()
    builder.add(queue, content)
    lsn = store.append(1, RecordBatch(builder.build())).lsn
    assert store.replica.write() >= lsn
    return lsn


def ship(source: ShardStore, target: ShardStore, pieces: Iterator[int] | None = None, until: int | None = None) -> None:
    """Bring the target up to the source, piece by piece."""
    at = target.replica.end_lsn
    limit = source.replica.end_lsn if until is None else until
    while at < limit:
        size = next(pieces) if pieces is not None else 1 << 20
        piece = source.replica.read(at, min(size, limit - at))
        target.replica.receive(at, piece)
        at += len(piece)
    target.replica.sync()


def log_bytes(store: ShardStore, first: int = 0) -> bytes:
    parts = []
    while piece := store.replica.read(first, 1 << 20):
        parts.append(piece)
        first += len(piece)
    return b"".join(parts)


def test_nothing_is_readable_before_it_is_committed(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, follower = stores
    make_topic(leader)
    lsn = put(leader, 0, b"one")
    assert leader.bounds(1, 0) == (0, 0)
    ship(leader, follower)
    assert follower.topics() == []
    follower.replica.advance(lsn - 1)
    assert follower.bounds(1, 0) == (0, 0)
    for store in stores:
        assert store.replica.advance(lsn) == lsn
        assert bodies(store, 1, 0) == {0: b"one"}
        assert store.replica.advance(0) == lsn, "the high watermark never goes back"


@profile(30)
@given(seed=st.integers(0, 1 << 32), sizes=st.lists(st.integers(1, 8_000), min_size=1, max_size=40))
def test_pieces_of_any_size_make_the_same_log_and_the_same_messages(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int]
) -> None:
    chance, path = random.Random(seed), tmp_path_factory.mktemp("ship")
    with (
        ShardStore.open(path / "a", tiny(), replicated=True) as leader,
        ShardStore.open(path / "b", tiny(), replicated=True) as follower,
    ):
        lead(leader, 1)
        make_topic(leader)
        pieces = iter(chance.choice((1, 5, 7, 100, 4_096, 70_000)) for _ in iter(int, 1))
        for size in sizes:
            lsn = put(leader, chance.randrange(QUEUES), body(size, size))
            leader.replica.advance(lsn)
            if chance.random() < 0.3:
                ship(leader, follower, pieces)
                follower.replica.advance(lsn)
        ship(leader, follower, pieces)
        follower.replica.advance(leader.committed_lsn)
        first = max(leader.replica.first_lsn(), follower.replica.first_lsn())
        assert log_bytes(leader, first) == log_bytes(follower, first)
        assert follower.replica.history == leader.replica.history == [(1, 0, *LIFE)]
        for queue in range(QUEUES):
            assert bodies(leader, 1, queue) == bodies(follower, 1, queue)


def test_a_former_leader_forgets_what_nobody_committed(stores: tuple[ShardStore, ShardStore]) -> None:
    old, new = stores
    make_topic(old)
    committed = put(old, 0, b"kept")
    ship(old, new)
    for store in stores:
        store.replica.advance(committed)
    put(old, 0, b"lost")
    put(old, 1, b"lost too")
    new.replica.truncate(new.replica.end_lsn)
    lead(new, 2)
    lsn = put(new, 0, b"instead")
    new.replica.advance(lsn)
    assert new.replica.history == [(1, 0, *LIFE), (2, committed, *LIFE)]
    old.replica.truncate(committed)
    assert old.replica.end_lsn == old.replica.durable_lsn == committed
    ship(new, old)
    old.replica.advance(lsn)
    assert log_bytes(old) == log_bytes(new)
    assert bodies(old, 1, 0) == {0: b"kept", 1: b"instead"}
    assert bodies(old, 1, 1) == {}
    assert old.replica.history == new.replica.history


@pytest.mark.parametrize("leaves", [False, True], ids=["told-to", "leadership-ends"])
def test_a_full_disk_puts_off_what_is_to_be_cut_and_changes_nothing(tmp_path: Path, leaves: bool) -> None:
    """That the log was durable further than it is to reach is noted beside it, and to take that back needs space."""
    disk = Drive(tmp_path)
    store = ShardStore.open(tmp_path / "a", tiny(), disk=disk, replicated=True)
    lead(store, 1)
    make_topic(store)
    committed = put(store, 0, b"kept")
    store.replica.advance(committed)
    put(store, 0, b"lost")
    store.close()
    store = ShardStore.open(tmp_path / "a", tiny(), disk=disk, replicated=True)
    store.replica.advance(committed)
    end_lsn = store.replica.end_lsn

    def cut() -> None:
        if leaves:
            store.replica.leave(committed, NotLeader("another one leads"))
        else:
            store.replica.truncate(committed)

    disk.at(1, errno.ENOSPC, ("create", "write"), lasting=True)
    for _ in range(2):
        with pytest.raises(DiskFull) as refused:
            cut()
        assert may_pass(refused.value) and not store.stopped
        assert store.replica.end_lsn == end_lsn
    disk.heal()
    cut()
    assert store.replica.end_lsn == store.replica.durable_lsn == committed
    store.close()
    with ShardStore.open(tmp_path / "a", tiny(), disk=disk, replicated=True) as again:
        assert again.replica.end_lsn == committed and again.replica.damage is None


def test_what_is_committed_is_never_truncated(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, _ = stores
    make_topic(leader)
    lsn = put(leader, 0, b"one")
    leader.replica.advance(lsn)
    with pytest.raises(InvalidRequest, match="committed"):
        leader.replica.truncate(lsn - 1)
    assert bodies(leader, 1, 0) == {0: b"one"}


def test_a_restart_serves_what_is_known_to_be_committed_and_keeps_the_rest(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as store:
        lead(store, 1)
        make_topic(store)
        known = put(store, 0, b"known")
        store.replica.advance(known)
        store.replica.save_high_watermark()
        later = put(store, 0, b"later")
        store.replica.advance(later)
        end = put(store, 0, b"open")
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as store:
        assert bodies(store, 1, 0) == {0: b"known"}
        assert store.committed_lsn == known
        assert store.replica.end_lsn == end
        assert store.replica.history == [(1, 0, *LIFE)]
        store.replica.advance(later)
        assert bodies(store, 1, 0) == {0: b"known", 1: b"later"}
        store.replica.truncate(later)
        lead(store, 2)
        lsn = put(store, 0, b"after")
        store.replica.advance(lsn)
        assert bodies(store, 1, 0) == {0: b"known", 1: b"later", 2: b"after"}
    (tmp_path / "a" / "HIGH_WATERMARK").write_bytes(b"damaged")
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as store:
        assert store.topics() == []
        store.replica.advance(lsn)
        assert bodies(store, 1, 0) == {0: b"known", 1: b"later", 2: b"after"}
        assert store.replica.history == [(1, 0, *LIFE), (2, later, *LIFE)]


def test_epochs_survive_flushes(stores: tuple[ShardStore, ShardStore], tmp_path: Path) -> None:
    leader, _ = stores
    make_topic(leader)
    for epoch in (3, 4, 9):
        lead(leader, epoch)
        leader.replica.advance(put(leader, 0, body(epoch, 3_000)))
        leader.flush()
    history = leader.replica.history
    assert [start.epoch for start in history] == [1, 3, 4, 9]
    leader.close()
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as store:
        assert store.replica.history == history
        with pytest.raises(InvalidRequest, match="above 9"):
            store.replica.begin_epoch(9, *LIFE)


@pytest.mark.part(2)
def test_epochs_before_the_beginning_of_the_log_are_forgotten(
    stores: tuple[ShardStore, ShardStore], tmp_path: Path
) -> None:
    """By the log, by its followers, and in every file of the checkpoint; all but the one of the log's first bytes."""
    leader, follower = stores
    make_topic(leader)
    for epoch in range(2, 80):
        lead(leader, epoch)
        lsn = put(leader, 0, body(epoch, 3_000))
        leader.replica.advance(lsn)
        if epoch == 78:
            first_lsn = leader.replica.first_lsn()
        ship(leader, follower)  # before the flush: what is in tables may leave the log at once
        leader.flush()
        follower.replica.advance(lsn)
        follower.flush()
    assert first_lsn > 0, "the log was recycled"
    for name, store in (("a", leader), ("b", follower)):
        history, first_lsn = store.replica.history, store.replica.first_lsn()
        assert history[-1].epoch == 79
        kept = -(-(store.replica.end_lsn - first_lsn) // 3_000)
        assert len(history) <= kept + 2
        assert history[0].lsn <= first_lsn
        store.close()
        for path in (tmp_path / name / "tables").glob("*.ckp"):
            assert len(next(dump_checkpoint(path))["epochs"]) <= kept + 30
        with ShardStore.open(tmp_path / name, tiny(), replicated=True) as again:
            assert again.replica.history[-1] == history[-1]
            assert again.replica.history[0].lsn <= first_lsn


def test_the_entry_of_an_epoch_says_who_began_it(stores: tuple[ShardStore, ShardStore], tmp_path: Path) -> None:
    """Two logs with the same epoch at the same place are told apart, by those that only copied them as well."""
    leader, follower = stores
    with ShardStore.open(tmp_path / "c", tiny(), replicated=True) as other:
        other.replica.begin_epoch(1, 5, 6)
        other.replica.advance(other.replica.write())
        assert other.replica.end_lsn == leader.replica.end_lsn
        assert other.replica.history == [(1, 0, 5, 6)] != leader.replica.history
        ship(other, follower)
        assert follower.replica.history == [(1, 0, 5, 6)]
        other.flush()
    (segment,) = (tmp_path / "c" / "wal").glob("*.wal")
    (begun,) = [entry for entry in dump_wal(segment) if entry.get("kind") == "epoch"]
    assert (begun["epoch"], begun["incarnation"], begun["start"]) == (1, 5, 6)
    with ShardStore.open(tmp_path / "c", tiny(), replicated=True) as other:
        assert other.replica.history == [(1, 0, 5, 6)]


def test_damaged_bytes_are_refused_and_the_log_goes_on_with_good_ones(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, follower = stores
    make_topic(leader)
    ship(leader, follower)
    at = follower.replica.end_lsn
    lsn = put(leader, 0, b"x" * 500)
    piece = bytearray(leader.replica.read(at, 1 << 20))
    piece[300] ^= 1
    with pytest.raises(CorruptFile, match="checksum"):
        follower.replica.receive(at, bytes(piece))
    assert follower.replica.end_lsn == at
    ship(leader, follower)
    follower.replica.advance(lsn)
    assert bodies(follower, 1, 0) == {0: b"x" * 500}
    with pytest.raises(InvalidRequest, match="bytes came for"):
        follower.replica.receive(lsn + 100, b"far ahead")
    assert follower.replica.receive(at, leader.replica.read(at, 1 << 20)) == lsn, "what is here is passed over"


def test_a_quorum_write_waits_for_the_high_watermark(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, _ = stores
    make_topic(leader)
    builder = BatchBuilder()
    builder.add(0, b"one")
    appended = leader.append(1, RecordBatch(builder.build()))
    with pytest.raises(TimedOut):
        leader.wait(appended, timeout=0.05)
    assert leader.replica.durable_lsn >= appended.lsn
    leader.replica.advance(appended.lsn)
    leader.wait(appended, timeout=0)


def kept(store: ShardStore) -> int:
    """Bytes of the log that are there."""
    return store.replica.end_lsn - store.replica.first_lsn()


def test_the_log_is_kept_for_replicas_within_its_limit(tmp_path: Path) -> None:
    options = tiny(wal_keep_bytes=512 * 1024)
    with ShardStore.open(tmp_path / "a", options, replicated=True) as store:
        lead(store, 1)
        make_topic(store)
        store.replica.keep_from(0)
        for number in range(200):
            store.replica.advance(put(store, 0, body(number, 8_000)))
        store.flush()
        limit = options.wal_keep_bytes + 2 * options.segment_bytes
        eventually(lambda: kept(store) <= limit, "the log beyond the limit is let go, just after the flush")
        assert kept(store) >= options.wal_keep_bytes
        with pytest.raises(LogTrimmed):
            store.replica.read(0, 100)
        store.replica.keep_from(None)
        store.replica.advance(put(store, 0, b"last"))
        store.flush()
        eventually(lambda: kept(store) <= options.segment_bytes, "nobody needs the log any more")


@pytest.mark.parametrize("seed", range(12))
def test_what_a_follower_had_not_synced_is_no_damage_when_a_power_cut_takes_part_of_it(
    tmp_path: Path, seed: int
) -> None:
    """Its entries say how far the *leader* was durable, which is no word about this disk."""
    disk = Drive(tmp_path)
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as leader:
        lead(leader, 1)
        make_topic(leader)
        follower = ShardStore.open(tmp_path / "b", tiny(), disk=disk, replicated=True)
        ship(leader, follower)
        synced = follower.replica.durable_lsn
        for number in range(8):
            at = follower.replica.end_lsn
            put(leader, 0, body(number, 3_000))
            follower.replica.receive(at, leader.replica.read(at, 1 << 20))
        after = disk.power_cut(seed)
        with suppress(Exception):
            follower.close()
        with ShardStore.open(tmp_path / "b", tiny(), disk=after, replicated=True, floor=LogFloor(synced)) as follower:
            assert follower.replica.damage is None
            assert follower.replica.end_lsn >= synced
            ship(leader, follower)
            follower.replica.advance(leader.replica.end_lsn)
            assert bodies(follower, 1, 0) == {number: body(number, 3_000) for number in range(8)}


def damage(path: Path, lsn: int) -> bytes:
    """Flip a bit of the log; what the file holds then."""
    segment = path / "wal" / segment_name(0)
    content = bytearray(segment.read_bytes())
    content[lsn] ^= 1
    segment.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("by", ["its floor", "its high watermark", "an entry it made"])
def test_damage_in_the_middle_ends_the_log_and_what_lies_behind_stays_until_it_is_cut_off(
    tmp_path: Path, by: str
) -> None:
    path = tmp_path / "a"
    options = tiny(segment_bytes=4 << 20)
    with ShardStore.open(path, options, replicated=True) as store:
        lead(store, 1)
        make_topic(store)
        ends = [put(store, 0, body(number, 3_000)) for number in range(10)]
        if by == "its high watermark":
            store.replica.advance(ends[5])
            store.replica.save_high_watermark()
    content = damage(path, ends[3] + 100)
    floor = LogFloor(ends[4] if by == "its floor" else 0, 1 if by == "an entry it made" else None)
    segment = path / "wal" / segment_name(0)
    for _ in range(2):
        with ShardStore.open(path, options, replicated=True, floor=floor) as store:
            assert store.replica.damage is not None
            assert store.replica.end_lsn == ends[3]
            with pytest.raises(NotLeader):
                store.drop_topic(7)
        assert segment.read_bytes() == content, "what lies behind the damage may be all there is"
    with ShardStore.open(path, options, replicated=True, floor=floor) as store:
        store.replica.truncate(store.replica.end_lsn)
        assert store.replica.damage is None
        lead(store, 2)
        lsn = put(store, 0, b"instead")
        store.replica.advance(lsn)
        assert bodies(store, 1, 0)[4] == b"instead"
    with ShardStore.open(path, options, replicated=True, floor=LogFloor(0, 2)) as store:
        assert store.replica.damage is None
        assert store.replica.end_lsn == lsn


@pytest.mark.parametrize("kinds", [("create",), ("create", "write")], ids="+".join)
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_full_disk_puts_off_what_is_to_be_cut_of_a_damaged_log(
    tmp_path: Path, kinds: tuple[str, ...], nth: int
) -> None:
    path, disk, options = tmp_path / "a", Drive(tmp_path), tiny(segment_bytes=4 << 20)
    with ShardStore.open(path, options, disk=disk, replicated=True) as store:
        lead(store, 1)
        make_topic(store)
        ends = [put(store, 0, body(number, 3_000)) for number in range(10)]
    segment = path / "wal" / segment_name(0)
    content = bytearray(disk.content(segment))
    content[ends[3] + 100] ^= 1
    disk.put(segment, bytes(content))
    store = ShardStore.open(path, options, disk=disk, replicated=True, floor=LogFloor(ends[4], None))
    end_lsn = store.replica.end_lsn
    assert end_lsn == ends[3]
    disk.at(nth, errno.ENOSPC, kinds, lasting=True)
    for _ in range(3):
        try:
            store.replica.truncate(end_lsn)
        except (DiskFull, OSError) as error:
            assert may_pass(error) and not store.stopped and store.replica.damage is not None
            assert store.replica.end_lsn == end_lsn
        else:
            assert nth > 1  # Nothing more than that is written.
    disk.heal()
    store.replica.truncate(end_lsn)
    assert store.replica.damage is None and not store.stopped
    lead(store, 2)
    lsn = put(store, 0, b"instead")
    store.replica.advance(lsn)
    assert bodies(store, 1, 0)[4] == b"instead"
    store.close()
    with ShardStore.open(path, options, disk=disk, replicated=True, floor=LogFloor(0, 2)) as again:
        assert again.replica.damage is None and again.replica.end_lsn == lsn


@pytest.mark.parametrize("closed", [True, False])
def test_damage_where_nothing_was_known_to_be_durable_is_a_torn_end(tmp_path: Path, closed: bool) -> None:
    store = ShardStore.open(tmp_path / "a", tiny(), replicated=True)
    lead(store, 1)
    make_topic(store)
    ends = [put(store, 0, body(number, 3_000)) for number in range(6)]
    if closed:
        store.close()
    else:
        abandon(store)
    damage(tmp_path / "a", ends[3] + 100)
    with ShardStore.open(tmp_path / "a", tiny(), replicated=True) as store:
        assert (store.replica.damage is not None, store.replica.end_lsn) == (closed, ends[3])
        assert not closed or f"up to LSN {ends[5]}" in str(store.replica.damage)


def test_a_former_leader_takes_no_writes_and_says_so_to_who_waits(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, follower = stores
    make_topic(leader)
    ship(leader, follower)
    known = leader.replica.end_lsn
    builder = BatchBuilder()
    builder.add(0, b"written")
    written = leader.append(1, RecordBatch(builder.build()))
    leader.replica.write()
    in_line = leader.append(1, RecordBatch(builder.build()))
    failure = NotLeader("it is over", sent=True)
    leader.replica.close_line(failure)
    with pytest.raises(NotLeader):
        leader.append(1, RecordBatch(builder.build()))
    assert leader.replica.write() == written.lsn, "what is in line is not written any more"
    leader.replica.leave(known, failure)
    assert leader.replica.end_lsn == known
    for appended in (written, in_line):
        with pytest.raises(NotLeader):
            leader.wait(appended, timeout=0)
    lead(follower, 2)
    lsn = put(follower, 0, b"another, as long as what was lost")
    ship(follower, leader)
    for store in (leader, follower):
        store.replica.advance(lsn)
    with pytest.raises(NotLeader):
        leader.wait(written, timeout=0)
    assert bodies(leader, 1, 0) == bodies(follower, 1, 0)


def test_entries_are_read_whole_and_verified(stores: tuple[ShardStore, ShardStore]) -> None:
    leader, _ = stores
    make_topic(leader)
    begin = leader.replica.end_lsn
    ends = [put(leader, 0, body(number, size)) for number, size in enumerate((10, 7_000, 10, 10, 7_000))]
    end = ends[-1]
    log = log_bytes(leader)
    for limit, wanted in ((end, end), (begin + 1, ends[0]), (ends[0] - 1, ends[0]), (ends[3] + 5, ends[3])):
        assert leader.replica.read_entries(begin, limit, 1 << 20) == log[begin:wanted]
    assert leader.replica.read_entries(ends[0], end, 100) == log[ends[0] : ends[1]], "one at least"
    assert leader.replica.read_entries(end, end, 100) == b""
    with (leader.path / "wal" / segment_name(0)).open("r+b") as file:
        file.seek(ends[0] + 500)
        file.write(b"\xff")
    with pytest.raises(CorruptFile):
        leader.replica.read_entries(begin, end, 1 << 20)

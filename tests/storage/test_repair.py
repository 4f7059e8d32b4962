"""What is whole of a damaged store is saved, what is not is named, and the store itself is not touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import crc32c
import pytest

from lsmq.errors import CorruptFile, DataDirectoryLocked, InvalidRequest, UnsupportedFormat
from lsmq.record_batch import split_batches
from lsmq_node.storage import QueueStore
from lsmq_node.storage.dump import dump_sstable
from lsmq_node.storage.repair import Damage, Finding, Renamed, Unknown, Unplaced, repair_store
from lsmq_node.storage.wal import segment_name
from support.clock import SimClock
from support.extent import part_in_number

from .harness import Put, abandon, batch_of, flush, merge, open_stepped, put
from .repairing import Filled, Named, QuickDisk, Repaired, everything, options, renamed

WAL_BLOCK = 32 * 1024
#: So many places of each file are flipped.
FLIPS = part_in_number(16, 4)
Change = Callable[[bytearray], object]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return Filled.make(tmp_path_factory.mktemp("filled") / "s")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Named:
    return Named(tmp_path_factory.mktemp("named") / "s")


def flip(at: int, mask: int = 0xFF) -> Change:
    def change(raw: bytearray) -> None:
        raw[at] ^= mask

    return change


def cut(length: int) -> Change:
    def change(raw: bytearray) -> None:
        del raw[length:]

    return change


def zero(begin: int, end: int) -> Change:
    def change(raw: bytearray) -> None:
        raw[begin:end] = bytes(len(raw[begin:end]))

    return change


def test_a_whole_store_is_saved_as_it_is(filled: Filled, tmp_path: Path) -> None:
    repaired = filled.repaired(tmp_path / "out")
    assert repaired.shown == filled.live
    assert not repaired.summary.damaged
    assert repaired.findings == []
    assert repaired.summary.messages == sum(map(len, filled.live.values()))
    assert repaired.topics == {1: "t", 2: "u"}


def in_block(path: Path, at: int) -> Callable[[tuple[int, int, int]], bool]:
    """Whether a message may lie in the block of a table that a byte is of; of no block for the index."""
    for row in dump_sstable(path):
        if "position" in row and row["position"] <= at < row["position"] + row["size_bytes"]:
            first, last = (
                (row[f"{end}_topic_id"], row[f"{end}_queue"], row[f"{end}_offset"]) for end in ("first", "last")
            )
            return lambda where: first <= where <= last
    return lambda where: False


def in_log(filled: Filled, path: Path, at: int, repaired: Repaired) -> Callable[[tuple[int, int, int]], bool]:
    """Whether a message is of an entry that a block of the log has a part of, or that could not be placed."""
    block = int(path.stem, 16) + at - at % WAL_BLOCK
    unplaced = {found.lsn for found in repaired.findings if isinstance(found, Unplaced)}
    begin, lost = 0, set()
    for end, rows in filled.entries:
        if (begin < block + WAL_BLOCK and end > block) or begin in unplaced:
            lost.update(rows)
        begin = end
    # What says of an unplaced entry where it begins is another kind of entry now and then.
    return lambda where: where in lost or bool(unplaced)


def stride(size: int, count: int) -> list[int]:
    """About ``count`` places of ``size``, not all at the same place of what repeats."""
    step = max(1, size // count) | 1
    return list(range(size % step, size, step))


def damages(path: Path) -> Iterator[tuple[str, int, Change | None]]:
    size = len(path.read_bytes().rstrip(b"\0"))
    for at in stride(size, FLIPS):
        yield f"flip {at}", at, flip(at, 1 << at % 8)
    for at in stride(size, FLIPS // 4):
        yield f"zero {at}", at, zero(at, at + 40)
        yield f"cut {at}", -1, cut(at)
    yield "empty", -1, cut(0)
    yield "gone", -1, None


@pytest.mark.parametrize("pattern", ["tables/*.tbl", "tables/*.ckp", "MANIFEST", "LOG_MARK", "wal/*.wal"])
@pytest.mark.part(3)
def test_whatever_is_damaged_the_rest_is_saved_and_the_loss_is_named(
    filled: Filled, tmp_path: Path, pattern: str
) -> None:
    for path in filled.files(pattern):
        for what, at, change in damages(path):
            message = f"{path.name} {what}"
            inside = in_block(path, at) if pattern.endswith(".tbl") and at >= 0 else None
            with filled.changed(path, change):
                repaired = filled.repaired(tmp_path / "out")
            missing = filled.check(repaired)
            if pattern not in ("tables/*.tbl", "wal/*.wal"):
                assert not missing, message
                assert repaired.summary.damaged, message
                assert repaired.topics.keys() == {1, 2}, message
            elif inside is not None:
                assert all(inside(where) or inside((where[0], where[1], where[2] + 1)) for where in missing), message
                assert repaired.summary.damaged, message
            elif at >= 0:
                assert all(map(in_log(filled, path, at, repaired), missing)), message


def test_each_message_outside_the_damaged_blocks_is_saved(filled: Filled, tmp_path: Path) -> None:
    path = max(filled.files("tables/*.tbl"), key=lambda path: path.stat().st_size)
    rows = [row for row in dump_sstable(path) if "position" in row and not row["tombstones"]]
    for row in rows[:: max(1, len(rows) // 4)]:
        with filled.changed(path, zero(row["position"], row["position"] + row["size_bytes"])):
            repaired = filled.repaired(tmp_path / "out")
        missing = filled.check(repaired)
        assert len(missing) <= row["records"]
        (damage,) = [found for found in repaired.findings if isinstance(found, Damage)]
        assert (damage.first_byte, damage.end_byte) == (row["position"], row["position"] + row["size_bytes"])
        assert damage.file == f"tables/{path.name}"


def test_all_tables_and_the_manifest_damaged_at_once(filled: Filled, tmp_path: Path) -> None:
    with ExitStack() as changes:
        for number, path in enumerate(filled.files("tables/*.tbl")):
            size = path.stat().st_size
            changes.enter_context(filled.changed(path, flip(number * 997 % size)))
        changes.enter_context(filled.changed(filled.path / "MANIFEST", None))
        repaired = filled.repaired(tmp_path / "out")
    missing = filled.check(repaired)
    assert len(missing) < sum(map(len, filled.live.values())) // 4


def test_without_manifest_checkpoint_and_mark_the_messages_are_saved(filled: Filled, tmp_path: Path) -> None:
    with ExitStack() as changes:
        for path in filled.files("tables/*.ckp", "MANIFEST", "LOG_MARK"):
            changes.enter_context(filled.changed(path, None))
        repaired = filled.repaired(tmp_path / "out")
    for place, rows in filled.live.items():
        kept = repaired.shown.get(place, {})
        assert all(kept.get(offset) == content for offset, content in rows.items() if offset < 40)
    assert {found.name for found in repaired.findings if isinstance(found, Renamed)} == {"lost-found-1", "lost-found-2"}
    assert any(
        "beside" in found.what or "entries" in found.what for found in repaired.findings if isinstance(found, Unknown)
    )


@pytest.mark.part(2)
def test_many_files_damaged_at_once(filled: Filled, tmp_path: Path) -> None:
    files = filled.files("tables/*", "MANIFEST", "LOG_MARK", "wal/*.wal")
    for seed in range(part_in_number(40)):
        chosen = random.Random(seed)
        with ExitStack() as changes:
            for path in chosen.sample(files, chosen.choice((2, 3, 6))):
                size = max(1, len(path.read_bytes().rstrip(b"\0")))
                at = chosen.randrange(size)
                kinds = (flip(at), zero(at, at + chosen.randrange(1, 3000)), cut(at), None)
                changes.enter_context(filled.changed(path, chosen.choice(kinds)))
            repaired = filled.repaired(tmp_path / "out")
        filled.check(repaired)


def test_footers_and_manifest_lost_leave_what_the_blocks_say(filled: Filled, tmp_path: Path) -> None:
    with ExitStack() as changes:
        changes.enter_context(filled.changed(filled.path / "MANIFEST", None))
        for path in filled.files("tables/*.tbl"):
            changes.enter_context(filled.changed(path, cut(path.stat().st_size - 20)))
        repaired = filled.repaired(tmp_path / "out")
    assert not filled.check(repaired)


def in_segment(filled: Filled, lsn: int) -> tuple[Path, int]:
    """The segment file that an LSN lies in, and where in it."""
    size = options().segment_bytes
    return filled.path / "wal" / segment_name(lsn - lsn % size), lsn % size


def test_a_log_is_read_on_behind_a_hole_as_far_as_offsets_are_proven(filled: Filled, tmp_path: Path) -> None:
    last = len(filled.entries) - 1
    begin, (end, lost) = filled.entries[last - 50][0], filled.entries[last - 49]
    path, at = in_segment(filled, begin)
    assert in_segment(filled, end)[0] == path
    with filled.changed(path, zero(at + 10, at + end - begin - 10)):
        repaired = filled.repaired(tmp_path / "out")
    missing = filled.check(repaired)
    assert missing.issuperset(lost)
    (damage,) = [found for found in repaired.findings if isinstance(found, Damage)]
    assert (damage.file, damage.first_byte) == (f"wal/{path.name}", at)
    # Entries of one queue behind the hole prove where they belong, though others of that queue are gone.
    assert len(missing) < 20
    for topic_id, queue, offset in lost:
        assert repaired.reported(topic_id, queue, offset)
        assert repaired.shown[topic_id, queue].keys() & set(range(offset + 1, offset + 20))
    assert [found for found in repaired.findings if isinstance(found, Unknown)]
    unplaced = [found for found in repaired.findings if isinstance(found, Unplaced)]
    files = list((repaired.path / "unplaced").glob("*")) if unplaced else []
    kept = sum(batch.record_count for file in files for batch in split_batches(file.read_bytes()))
    assert kept == sum(found.records for found in unplaced)


def test_the_new_store_goes_on(filled: Filled, tmp_path: Path) -> None:
    path = filled.files("tables/*.tbl")[0]
    with filled.changed(path, flip(30)):
        repaired = filled.repaired(tmp_path / "out")
    assert filled.check(repaired)
    store = open_stepped(repaired.path, options(), clock=SimClock())
    latest = {queue: store.bounds(1, queue)[1] for queue in range(6)}
    assert put(store, 1, *((queue, b"new") for queue in range(6))) == list(latest.values())
    again = store.append(2, batch_of([Put(1, b"next")], producer_id=7, producer_epoch=0, sequence=9))
    store.wait(again)
    assert store.producer_epoch(7) == 0
    assert dict(store.documents("group/")) == {"group/0": b"6", "group/1": b"7", "group/2": b"5"}
    assert store.committed_offsets("g", 1).tolist() == [7, 8, 3, 4, 5, 6]
    flush(store)
    merge(store)
    shown = everything(store)
    abandon(store)
    for place, rows in repaired.shown.items():
        assert rows.items() <= shown[place].items()


def test_what_is_killed_in_a_write_is_no_damage(tmp_path: Path) -> None:
    filled = Filled.make(tmp_path / "s", close=False)
    path, end = in_segment(filled, filled.entries[-1][0])
    raw = path.read_bytes()
    path.write_bytes(raw[: end - 20].ljust(len(raw), b"\0"))
    repaired = filled.repaired(tmp_path / "out")
    assert not repaired.summary.damaged
    (place,) = filled.entries[-1][1]
    assert place[2] not in repaired.shown[place[:2]]


def test_what_stands_behind_a_write_that_was_cut_short_is_kept_aside(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "s", options(), clock=SimClock())
    topic = store.create_topic("t", 2).id
    put(store, topic, (0, b"acknowledged"))
    begin = store.committed_lsn
    first = store.append(topic, batch_of([Put(0, b"cut short")]))
    store.wait(store.append(topic, batch_of([Put(1, b"behind it")])))
    abandon(store)
    path = tmp_path / "s" / "wal" / segment_name(0)
    raw = bytearray(path.read_bytes())
    raw[begin : first.lsn] = b"?" * (first.lsn - begin)
    path.write_bytes(raw)
    findings: list[Finding] = []
    summary = repair_store(tmp_path / "s", tmp_path / "out", tell=findings.append)
    assert (summary.messages, summary.damaged) == (1, False)
    (kept,) = [found for found in findings if isinstance(found, Unplaced)]
    (batch,) = split_batches((tmp_path / "out" / kept.file).read_bytes())
    assert (kept.lsn, batch.payload.tobytes()) == (first.lsn, b"behind it")


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        store.put("a", b"1")
        with pytest.raises(DataDirectoryLocked, match="in use by process"):
            repair_store(tmp_path / "s")
    assert repair_store(tmp_path / "s").messages == 1


def test_nothing_is_written_over(filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for out, message in ((tmp_path / "full", "not empty"), (filled.path / "new", "lies in"), (filled.path, "lies in")):
        with pytest.raises(InvalidRequest, match=message):
            repair_store(filled.path, out)
    with pytest.raises(InvalidRequest, match="no store"):
        repair_store(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_a_newer_format_is_refused_and_leaves_nothing(filled: Filled, tmp_path: Path) -> None:
    raw = bytearray((filled.path / "MANIFEST").read_bytes())
    raw[8] += 1
    raw[16:20] = crc32c.crc32c(bytes(raw[8:16]) + bytes(raw[20:])).to_bytes(4, "little")
    changed = filled.changed(filled.path / "MANIFEST", lambda old: old.__setitem__(slice(None), raw))
    with changed, pytest.raises(UnsupportedFormat):
        repair_store(filled.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- names -----------------------------------------------------------------------------------------------


def names_block(named: Named) -> tuple[Path, int, int]:
    """The first table, and where its block of names lies."""
    path = min((named.path / "tables").glob("*.tbl"))
    row = next(row for row in dump_sstable(path) if row.get("first_topic_id") == 1)
    return path, row["position"], row["size_bytes"]


def test_queues_whose_names_are_lost_get_names_that_say_so(named: Named, tmp_path: Path) -> None:
    path, position, size = names_block(named)
    whole = path.read_bytes()
    path.write_bytes(whole[:position] + bytes(size) + whole[position + size :])
    findings: list[Finding] = []
    try:
        with pytest.raises(CorruptFile, match="lsmq repair"):
            QueueStore(named.path)
        repair_store(named.path, tmp_path / "out", tell=findings.append)
    finally:
        path.write_bytes(whole)
    given = renamed(findings)
    assert given and all(name == f"lost+found/{number}" for number, name in given.items())
    shown = named.shown(tmp_path / "out")
    lost = named.model.keys() - shown.keys()
    assert len(lost) == len(given)
    assert all(shown[name] == messages for name, messages in named.model.items() if name in shown)
    assert sorted(shown[name] for name in given.values()) == sorted(named.model[name] for name in lost)


def test_a_generated_name_that_is_taken_is_not_given_again(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s", block_bytes=512) as store:
        for number in range(60):
            store.put(f"queue-{number}", b"%d" % number)
        store.put("lost+found/0", b"mine")
        store.flush()
    path = min((tmp_path / "s" / "tables").glob("*.tbl"))
    row = next(row for row in dump_sstable(path) if row.get("first_topic_id") == 1)
    raw = bytearray(path.read_bytes())
    raw[row["position"] + 50] ^= 1
    path.write_bytes(raw)
    repair_store(tmp_path / "s", tmp_path / "out")
    with QueueStore(tmp_path / "out") as store:
        assert store.get("lost+found/0", 0, 9) == [b"mine"]
        assert store.get("lost+found/0-", 0, 9) == [b"0"]


@pytest.mark.parametrize("pattern", ["tables/*.tbl", "tables/*.ckp", "MANIFEST"])
def test_a_queue_store_is_saved_whatever_is_damaged(named: Named, tmp_path: Path, pattern: str) -> None:
    for path in sorted(named.path.glob(pattern)):
        whole = path.read_bytes()
        for at in stride(len(whole), FLIPS // 2):
            raw = bytearray(whole)
            raw[at] ^= 0x55
            path.write_bytes(raw)
            findings: list[Finding] = []
            out = tmp_path / f"{path.name}-{at}"
            summary = repair_store(named.path, out, tell=findings.append, disk=QuickDisk())
            path.write_bytes(whole)
            assert summary.damaged
            shown, given = named.shown(out), set(renamed(findings).values())
            assert shown.keys() - given <= named.model.keys()
            for name in shown.keys() - given:
                assert all(message in named.model[name] for message in shown[name])
            kept = sum(map(len, shown.values()))
            assert kept + summary.lost >= sum(map(len, named.model.values()))

"""A queue store's own thread: what it promises to callers beyond storing their messages."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import ClientClosed, CorruptFile, DiskFull, InvalidRequest, LsmqError, RequestTooLarge, ShardStopped
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore, ShardStore
from lsmq_node.storage.queue_writer import QueueWriter
from lsmq_node.storage.requests import Put
from lsmq_node.storage.retainer import Retainer
from support.clock import SimClock
from support.waiting import PATIENCE_S, eventually

from .harness import (
    TINY,
    abandon,
    append,
    background,
    body,
    flush,
    freeze,
    keep_house,
    merge,
    no_threads,
    open_stepped,
    put,
    small,
    tiny,
)


@pytest.fixture
def stepped(tmp_path: Path, disk: Drive) -> Iterator[QueueStore]:
    """Its owner runs, its background threads do not."""
    with no_threads():
        store = QueueStore(tmp_path / "q", disk=disk, clock=SimClock(), **{**TINY, "max_memtables": 40})
    yield store
    abandon(store)


class TornOff(BaseException):
    """What a debugger, or a test runner, throws into a thread."""


class Caller(threading.Thread):
    """A thread that makes one call; ``failure`` is what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except (LsmqError, TornOff) as error:
            self.failure = error

    def ended(self) -> BaseException | None:
        self.join(30)
        assert not self.is_alive()
        return self.failure


def wait_for_callers(store: QueueStore, puts: int = 0, flushes: int = 0) -> None:
    """So many puts and flushes wait with the owner."""
    owner = store._owner
    eventually(lambda: (len(owner._puts), len(owner._flushes)) == (puts, flushes), "all callers wait")


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lsmq-")]


# -- opening and closing ---------------------------------------------------------------------------------


def test_a_store_that_cannot_be_opened_leaves_no_lock_and_no_threads(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with QueueStore(path, **TINY) as store:
        store.put_many([(f"queue {at}", b"x") for at in range(100)])
        store.flush()
    [table] = (path / "tables").glob("*.tbl")
    whole = table.read_bytes()
    at = whole.index(b"queue 50")  # among the names
    table.write_bytes(whole[:at] + b"Q" + whole[at + 1 :])
    with pytest.raises(CorruptFile, match=table.name):
        QueueStore(path, **TINY)
    assert own_threads() == []
    table.write_bytes(whole)
    with QueueStore(path, **TINY) as store:
        assert store.get("queue 50", 0, 9) == [b"x"]
    assert own_threads() == []


@pytest.mark.part(2)
def test_a_store_that_nobody_refers_to_any_more_is_closed(tmp_path: Path) -> None:
    store = QueueStore(tmp_path / "q", **TINY)
    store.put("q", b"x")
    del store
    gc.collect()
    eventually(lambda: own_threads() == [], "its threads have ended")
    with QueueStore(tmp_path / "q", **TINY) as again:
        assert again.get("q", 0, 9) == [b"x"]


def test_closing_wakes_a_put_that_waits_for_room_and_a_flush(stepped: QueueStore) -> None:
    crowd(stepped)
    blocked = Caller(lambda: stepped.put("q", b"too much"))
    flushing = Caller(stepped.flush)
    wait_for_callers(stepped, puts=1, flushes=1)
    stepped.close()
    assert isinstance(blocked.ended(), ClientClosed)
    assert isinstance(flushing.ended(), ClientClosed)
    with pytest.raises(ClientClosed):
        stepped.put("q", b"x")
    with pytest.raises(ClientClosed):
        stepped.get("q", 0, 1)


FORKING = """
import os, sys
from storage.harness import TINY
from lsmq.errors import ClientClosed, DataDirectoryLocked
from lsmq_node.storage import QueueStore

def refused(call):
    try:
        call()
    except ClientClosed as error:
        assert "forked" in error.message and str(os.getpid()) in error.message, error
    else:
        raise AssertionError("was not refused")

path, mode = sys.argv[1:]
with QueueStore(path, **{**TINY, "flush_mode": mode}) as store:
    store.put("q", b"1")
    begun, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for call in (
            lambda: store.put("q", b"never"),
            lambda: store.put_many([("q", b"never")]),
            lambda: store.get("q", 0, 1),
            store.flush,
            store.store.commit,
        ):
            refused(call)
        try:
            QueueStore(path, **TINY)
        except DataDirectoryLocked:
            pass
        else:
            raise AssertionError("the directory is the parent's")
        store.close()
        os.write(begun[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    assert os.read(begun[0], 1) == b"x"
    assert store.put("q", b"2") == 1
# The child is still there, and holds nothing.
with QueueStore(path, **TINY) as store:
    assert store.get("q", 0, 9) == [b"1", b"2"]
    assert store.put("q", b"3") == 2
os.write(done[1], b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path, mode: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", FORKING, str(tmp_path / "q"), mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


# -- puts ------------------------------------------------------------------------------------------------


def test_a_large_put_that_is_refused_has_stored_nothing(tmp_path: Path) -> None:
    for nth in range(1, 8):
        disk = Drive(tmp_path, seed=nth)
        with no_threads():
            store = QueueStore(tmp_path / str(nth), disk=disk, clock=SimClock(), **{**TINY, "segment_bytes": 65_536})
        store.put("before", b"x")
        pairs = [(f"queue {at % 9}", body(at, 4_000)) for at in range(200)]  # many batches in many segments
        disk.at(nth, errno.ENOSPC, ("create", "write", "preallocate"))
        with pytest.raises(DiskFull):
            store.put_many(pairs)
        assert len(store) == 1
        keep_house(store.store)
        assert store.put_many(pairs) == [at // 9 for at in range(200)]
        abandon(store)


def test_a_put_of_more_than_may_wait_in_line_is_refused_with_the_limit(stepped: QueueStore) -> None:
    limit = stepped.store.options.max_waiting_bytes
    with pytest.raises(RequestTooLarge, match="max_waiting_bytes") as refused:
        stepped.put_many([("q", bytes(8_000))] * (limit // 8_000 + 1))
    assert refused.value.details["limit"] == limit
    assert (len(stepped), stepped.get("q", 0, 1)) == (0, [])


def test_puts_that_come_at_the_same_time_are_stored_together_and_a_wrong_one_fails_alone(stepped: QueueStore) -> None:
    crowd(stepped)
    before = stepped.store.stats()
    good = [Caller(lambda at=at: stepped.put(f"queue {at}", b"%d" % at)) for at in range(20)]  # type: ignore[misc]
    wrong = [Caller(lambda: stepped.put("x" * 1_001, b"x")), Caller(lambda: stepped.put("y", bytes(9_000)))]
    wait_for_callers(stepped, puts=22)
    flush_all(stepped)
    assert [caller.ended() for caller in good] == [None] * 20
    assert [type(caller.ended()).__name__ for caller in wrong] == ["InvalidRequest", "MessageTooLarge"]
    assert [stepped.get(f"queue {at}", 0, 9) for at in range(20)] == [[b"%d" % at] for at in range(20)]
    del good[:]
    crowd(stepped)
    good = [Caller(lambda at=at: stepped.put(f"queue {at}", b"more")) for at in range(20)]  # type: ignore[misc]
    wait_for_callers(stepped, puts=20)
    before = stepped.store.stats()
    flush_all(stepped)
    assert [caller.ended() for caller in good] == [None] * 20
    assert stepped.store.stats().commits_total - before.commits_total == 1


def test_a_put_that_waits_for_room_fails_as_soon_as_a_flush_has_failed(stepped: QueueStore, disk: Drive) -> None:
    crowd(stepped)
    blocked = Caller(lambda: stepped.put("q", b"x"))
    wait_for_callers(stepped, puts=1)
    disk.at(1, errno.EIO, ("create",))
    background(stepped.store, stepped.store._tables.flush_oldest)
    assert isinstance(blocked.ended(), ShardStopped)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("q", "text")], "the message for queue 'q' is text; encode it"),
        ([(b"q", b"x")], "a queue name is b'q'; it must be text"),
        ([("q", 5)], "for queue 'q' is of type int; it must be bytes"),
        ([("q", None)], "for queue 'q' is of type NoneType; it must be bytes"),
        ([5], "each item is a queue name and a message; this one is 5"),
        ([("q", b"x"), ("q", b"x", 1)], r"this one \(number 1 of 2\) is \('q', b'x', 1\)"),
        ([("q", [1])], "for queue 'q' is of type list; it must be bytes"),
        ([("good", b"x"), ("q", "text")], r"the message \(number 1 of 2\) for queue 'q' is text"),
        ([("q", memoryview(b"12345678").cast("I"))], "cast it to 'B'"),
        ([("q", memoryview(bytes(80)).cast("I"))] * 2_000, "cast it to 'B'"),
        ([(f"q{at}", memoryview(bytes(80)).cast("I")) for at in range(2_000)], "cast it to 'B'"),
        ([("q", b"x")] * 501 + [("other", "text")], r"the message \(number 501 of 502\) for queue 'other' is text"),
        ([("good", b"x"), ("\ud800", b"x")], "cannot be encoded in UTF-8"),
    ],
)
def test_what_is_no_message_is_refused_and_the_store_goes_on(
    stepped: QueueStore, pairs: list[Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        stepped.put_many(pairs)
    assert len(stepped) == 0
    assert stepped.put("q", bytearray(b"x")) == 0  # type: ignore[arg-type]
    assert stepped.get("q", 0, 1) == [b"x"]


@pytest.mark.parametrize("count", [1, 499, 500, 501, 1_300])
@pytest.mark.parametrize("queues", [1, 2, 2_000])
def test_what_is_put_is_packed_in_pieces_and_whole(stepped: QueueStore, count: int, queues: int) -> None:
    pairs = [(f"queue {at * 7 % queues}", b"%d" % at * (at % 5)) for at in range(count)]
    pairs[count // 2] = pairs[0]  # ends and middle alike, and not all
    stepped.put_many(pairs)
    for name in {name for name, _ in pairs}:
        assert stepped.get(name, 0, count) == [message for owner, message in pairs if owner == name]


def test_there_are_as_many_queues_as_documented_and_one_more_is_refused_by_name(
    stepped: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_node.storage.queue_writer.MAX_QUEUES", 70_000)
    monkeypatch.setattr("lsmq_node.storage.catalog.MAX_QUEUES", 70_000)
    for first in range(0, 70_000, 1_750):
        stepped.put_many([(f"{at:x}", b"") for at in range(first, first + 1_750)])
        if first % 7_000 == 0:
            flush_all(stepped)
    with pytest.raises(InvalidRequest, match="up to 70000 queues"):
        stepped.put("one more", b"")
    assert stepped.put("0", b"still taken") == 1


def test_a_name_is_shown_only_once_it_is_stored(stepped: QueueStore, disk: Drive) -> None:
    """Else a reader might be sent to a queue whose number another name gets."""
    append_many, seen = ShardStore.append_many, []

    def look(self: ShardStore, *given: Any, **options: Any) -> Any:
        appended = append_many(self, *given, **options)
        seen.append((stepped._owner.find("new"), len(stepped)))
        return appended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardStore, "append_many", look)
        stepped.put("new", b"x")
    assert seen == [(-1, 0)]
    assert (stepped._owner.find("new"), len(stepped)) == (0, 1)


def test_errors_that_many_get_do_not_keep_what_they_passed_through(stepped: QueueStore, disk: Drive) -> None:
    disk.at(1, errno.EIO, ("sync",))
    depths = []
    for _ in range(5):
        with pytest.raises(ShardStopped) as stopped:
            stepped.put("q", b"x")
        depths.append(len(traceback.extract_tb(stopped.value.__traceback__)))
    assert depths[1:] == depths[1:2] * 4


# -- whose turn it is ------------------------------------------------------------------------------------


def test_a_thread_puts_by_itself_and_the_main_thread_has_it_done(
    stepped: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers of signals run in the main thread, and raise where they like."""
    write, who = QueueWriter.write, []

    def note(self: QueueWriter, group: Any) -> Any:
        who.append(threading.current_thread().name)
        return write(self, group)

    monkeypatch.setattr(QueueWriter, "write", note)
    assert stepped.put("q", b"main") == 0
    caller = Caller(lambda: stepped.put("q", b"thread"))
    assert caller.ended() is None
    assert who == ["lsmq-owner", caller.name]
    assert stepped.get("q", 0, 9) == [b"main", b"thread"]


@pytest.mark.parametrize("where", ["thread", "owner"])
def test_a_call_in_the_midst_of_another_one_of_the_same_thread_is_refused(
    stepped: QueueStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A finalizer or a log handler that puts: it would wait for itself."""
    write = QueueWriter.write

    def put_again(self: QueueWriter, group: Any) -> Any:
        for call in (lambda: stepped.put("q", b"again"), stepped.flush, stepped.close):
            with pytest.raises(InvalidRequest, match="in the midst of another one"):
                call()
        return write(self, group)

    monkeypatch.setattr(QueueWriter, "write", put_again)
    if where == "thread":
        assert Caller(lambda: stepped.put("q", b"x")).ended() is None
    else:
        stepped.put("q", b"x")
    assert stepped.get("q", 0, 9) == [b"x"]


@pytest.mark.parametrize("place", ["before the write", "after it", "while it answers"])
def test_where_a_thread_is_torn_off_in_a_put_the_store_stops_and_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store = QueueStore(tmp_path / "q", **TINY)
    store.put("q", b"0")
    writing, both_wait, torn = threading.Event(), threading.Event(), []
    who: list[threading.Thread] = []  # wrote: the caller, or the owner where that took the store for crowded
    write, answer = QueueWriter.write, Put.answer

    def tear(self: QueueWriter, group: Any) -> Any:
        if torn:
            return write(self, group)
        who.append(threading.current_thread())
        writing.set()
        assert both_wait.wait(PATIENCE_S)
        torn.append(place)
        offsets = write(self, group) if place != "before the write" else None
        if place == "while it answers":
            return offsets
        raise TornOff

    def tear_answer(self: Put, error: BaseException | None = None) -> None:
        if place == "while it answers" and torn == [place]:
            torn.append("answered")
            self.is_answered = True
            raise TornOff
        answer(self, error)

    monkeypatch.setattr(QueueWriter, "write", tear)
    monkeypatch.setattr(Put, "answer", tear_answer)
    first = Caller(lambda: store.put("q", b"1"))
    assert writing.wait(PATIENCE_S)
    others = [Caller(lambda: store.put("q", b"2")), Caller(store.flush)]
    eventually(lambda: len(store._owner._inbox) == 2, "both wait")
    both_wait.set()
    assert [type(caller.ended()) for caller in others] == [ShardStopped, ShardStopped]
    assert type(first.ended()) is (TornOff if who == [first] else ShardStopped)
    with pytest.raises(ShardStopped, match="TornOff"):
        store.put("q", b"3")
    store.close()
    monkeypatch.undo()
    with QueueStore(tmp_path / "q", **TINY) as again:
        assert again.get("q", 0, 9) in ([b"0"], [b"0", b"1"])
    assert own_threads() == []


# -- flushes ---------------------------------------------------------------------------------------------


def crowd(store: QueueStore) -> None:
    """So many memtables wait for their flush that puts wait too."""
    at = 0
    while store.store.pressure != "refuse":
        store.put("crowd", body(at, 900))
        freeze(store.store)
        at += 1


def flush_all(store: QueueStore) -> None:
    flush(store.store)
    merge(store.store)
    store._owner._wake()  # as the flushing thread does


def test_a_flush_waits_for_what_was_stored_before_it_only(stepped: QueueStore) -> None:
    for at in range(4):
        stepped.put("q", b"%d" % at)
        freeze(stepped.store)
    flushing = Caller(stepped.flush)
    wait_for_callers(stepped, flushes=1)
    for at in range(8):
        stepped.put("q", b"later %d" % at)
        freeze(stepped.store)
    for left in (11, 10, 9, 8):
        assert flushing.is_alive()
        stepped.store._tables.flush_oldest()
        assert len(stepped.store._tables.frozen) == left
    stepped._owner._wake()
    assert flushing.ended() is None


def test_so_does_the_flush_of_a_shard(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(), disk)
    topic = store.create_topic("t", 1)
    put(store, topic.id, (0, b"x"))
    flushing = Caller(store.flush)
    eventually(lambda: len(store._tables.frozen) == 1, "the flush has begun")
    put(store, topic.id, (0, b"y"))
    freeze(store)
    store._tables.flush_oldest()
    assert flushing.ended() is None
    assert len(store._tables.frozen) == 1
    abandon(store)


# -- rounds ----------------------------------------------------------------------------------------------


def test_a_dropped_write_is_never_reported_as_stored_however_long_ago_it_was(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    lost = []
    for at in range(200):
        lost.append(append(store, topic.id, (0, b"lost %d" % at)))
        disk.at(1, errno.ENOSPC, ("write",))
        with pytest.raises(DiskFull):
            store.commit()
        keep_house(store)
    for at in range(300):
        put(store, topic.id, (0, body(at, 100)))
    for appended in lost:
        assert appended.lsn <= store.committed_lsn, "another write lies there now"
        with pytest.raises(DiskFull):
            store.wait(appended)
    abandon(store)


@pytest.mark.parametrize("seen", [True, False], ids=["before-the-look-at-its-round", "after-it"])
def test_a_write_is_judged_by_its_round_also_when_its_place_is_taken_in_between(
    tmp_path: Path, disk: Drive, seen: bool
) -> None:
    """Another thread commits the next round between the two looks of ``is_committed``, or right after the second."""
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    lost = append(store, topic.id, (0, b"lost"))
    fate = lost.fate
    looked: list[int] = []

    def take_its_place(lsn: int) -> None:
        looked.append(lsn)
        disk.at(1, errno.ENOSPC, ("write",))
        with pytest.raises(DiskFull):
            store.commit()
        keep_house(store)
        put(store, topic.id, (0, b"stored in its place"))

    class Between:
        """The round, as it is when something happens beside the look at it."""

        def check(self, lsn: int) -> None:
            if seen:
                take_its_place(lsn)
            fate.check(lsn)
            if not seen:
                take_its_place(lsn)

    object.__setattr__(lost, "fate", Between())
    if seen:
        with pytest.raises(DiskFull):
            store._writer.is_committed(lost)
    else:
        assert not store._writer.is_committed(lost), "what was committed by then was another write"
    assert looked
    object.__setattr__(lost, "fate", fate)
    with pytest.raises(DiskFull):
        store._writer.is_committed(lost)
    abandon(store)


# -- asynchronous mode -----------------------------------------------------------------------------------


def test_the_log_is_synced_in_time_whatever_retention_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, release = threading.Event(), threading.Event()

    def retain(self: Retainer) -> bool:
        going_on.set()
        return release.wait(30)

    monkeypatch.setattr(Retainer, "run", retain)
    options = {**TINY, "flush_mode": "async", "flush_interval_ms": 20, "retention_interval_ms": 1}
    with QueueStore(tmp_path / "q", **options) as store:
        try:
            assert going_on.wait(30)
            for at in range(5):
                store.put("q", b"%d" % at)
                eventually(lambda: store.store.stats().durable_lsn == store.store.committed_lsn, "the log is synced")
        finally:
            release.set()

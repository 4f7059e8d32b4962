"""Exceptions that strike a caller anywhere: a call is carried out whole or not at all, and the store goes on.

Python runs signal handlers in the main thread, between any two instructions. So the first tests raise at every single
instruction of a call, one after another; the others send real signals at random moments.
"""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lsmq_node.storage
from lsmq.errors import LsmqError, ShardStopped
from lsmq_node.storage import QueueStore, ShardStore

from .harness import TINY, Put, abandon, batch_of, bodies, body, open_stepped, small_parts, tiny

ENGINE = str(Path(lsmq_node.storage.__file__).parent)


class Struck(BaseException):
    """What a signal handler raises. No ``Exception``: nobody may take it for a failure of the work at hand."""


class Strikes:
    """Raises at the ``nth`` instruction, or line, that this thread runs in the engine.

    No line that begins with ``with`` is struck: a trace function could strike between a lock and what releases it,
    where the interpreter runs no signal handler.
    """

    def __init__(self, nth: int, *, lines: bool = False) -> None:
        self._left = nth
        self._lines = lines
        self.struck = False

    def __enter__(self) -> Strikes:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.struck or not frame.f_code.co_filename.startswith(ENGINE):
            return None
        frame.f_trace_opcodes = not self._lines
        if event == ("line" if self._lines else "opcode") and not (self._lines and _is_with(frame)):
            self._left -= 1
            if self._left == 0:
                self.struck = True
                raise Struck
        return self._trace


def _is_with(frame: FrameType) -> bool:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def struck_by(nth: int, call: Callable[[], object], *, lines: bool = False) -> bool:
    """Whether the call was struck; otherwise it has run to its end."""
    strikes = Strikes(nth, lines=lines)
    try:
        with strikes:
            call()
    except Struck:
        pass
    return strikes.struck


def every(call: Callable[[], object], check: Callable[[bool], None], *, lines: bool = False) -> int:
    """Make the call again and again, struck at each instruction in turn, until it gets through. Returns how often."""
    nth = 1
    while True:
        struck = struck_by(nth, call, lines=lines)
        check(struck)
        if not struck:
            return nth
        nth += 1


class Queues:
    """A queue store beside what it should hold; what was struck may be there or not, but whole."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = {**TINY, "flush_mode": "async", **options}
        self.model: dict[str, list[bytes]] = {}
        self.serial = 0
        self.store = QueueStore(path, **self.options)

    def pairs(self, *names: str) -> list[tuple[str, bytes]]:
        self.serial += 1
        return [(name, body(self.serial * 100 + at, 20 + at)) for at, name in enumerate(names)]

    def settle(self, pairs: list[tuple[str, bytes]], struck: bool) -> None:
        """What follows is stored behind the call before: from its offset it is seen what became of that."""
        stored = not struck
        if struck:
            [(_, last)] = following = self.pairs(pairs[0][0])
            offset = self.store.put(pairs[0][0], last)
            known = len(self.model.get(pairs[0][0], ()))
            assert offset in (known, known + sum(name == pairs[0][0] for name, _ in pairs)), "all of it or nothing"
            stored = offset > known
            if stored:
                self._add(pairs)
            self._add(following)
        else:
            self._add(pairs)
        for name, _ in pairs:
            assert self.store.length(name) == len(self.model.get(name, ())), (name, stored)
            assert self.store.get(name, 0, 1 << 20) == self.model.get(name, [])

    def _add(self, pairs: list[tuple[str, bytes]]) -> None:
        for name, content in pairs:
            self.model.setdefault(name, []).append(content)

    def reopen(self) -> None:
        self.store.close()
        self.store = QueueStore(self.path, **self.options)
        assert {name: self.store.get(name, 0, 1 << 20) for name in self.model} == self.model
        assert len(self.store) == len(self.model)


@pytest.fixture
def queues(tmp_path: Path) -> Any:
    made = Queues(tmp_path / "q")
    yield made
    made.store.close()


@pytest.mark.parametrize("names", [("a",), ("a", "b", "a"), tuple(f"queue {at}" for at in range(12))])
def test_a_put_that_is_struck_at_any_instruction_is_stored_whole_or_not_at_all(
    queues: Queues, names: tuple[str, ...]
) -> None:
    pairs: list[tuple[str, bytes]] = []

    def put() -> None:
        if len(pairs) == 1:
            queues.store.put(*pairs[0])
        else:
            queues.store.put_many(pairs)

    def check(struck: bool) -> None:
        queues.settle(pairs, struck)
        pairs[:] = queues.pairs(*(f"{name} {queues.serial % 50}" for name in names))

    pairs[:] = queues.pairs(*names)
    assert every(put, check) > 50
    queues.reopen()


@pytest.mark.part(2)
def test_a_get_that_is_struck_at_any_instruction_leaves_all_there_is_to_be_found(queues: Queues) -> None:
    """A reader sorts what has come since the last one: here something has, each time."""
    sent: list[bytes] = []

    def more() -> None:
        fresh = [body(len(sent) + at, 30) for at in range(12)]
        sent.extend(fresh)
        queues.store.put_many([("q", content) for content in fresh])

    def check(struck: bool) -> None:
        assert queues.store.get("q", max(0, len(sent) - 40), 40) == sent[-40:]
        more()

    with small_parts():
        more()
        assert every(lambda: queues.store.get("q", len(sent) - 2, 2), check) > 50
        assert queues.store.get("q", 0, len(sent)) == sent


def test_a_flush_that_is_struck_at_any_instruction_happens_all_the_same_or_not(queues: Queues) -> None:
    def check(struck: bool) -> None:
        queues.settle(queues.pairs("a"), struck=True)

    assert every(lambda: queues.store.flush(), check) > 10
    queues.reopen()


@pytest.mark.part(3)
def test_opening_and_closing_can_be_struck_at_any_line_and_tried_again(tmp_path: Path) -> None:
    nth = 1
    opened = closed = False
    while not (opened and closed):
        kept: list[QueueStore] = []

        def opening(kept: list[QueueStore] = kept) -> None:
            kept.append(QueueStore(tmp_path / "q", **TINY))

        opened = not struck_by(nth, opening, lines=True)
        if not kept:
            kept.append(opened_again(tmp_path / "q"))
        assert kept[0].put("q", b"%d" % nth) == nth - 1
        closed = not struck_by(nth, kept[0].close, lines=True)
        kept[0].close()
        kept.clear()
        nth += 1
    assert nth > 20
    with opened_again(tmp_path / "q") as store:
        assert store.get("q", 0, nth) == [b"%d" % at for at in range(1, nth)]
    assert_no_threads()


def opened_again(path: Path) -> QueueStore:
    """As soon as the one that nobody has got is closed: its own thread sees to that."""
    while True:
        try:
            return QueueStore(path, **TINY)
        except LsmqError as error:
            if error.code != "data_directory_locked":
                raise


def assert_no_threads() -> None:
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lsmq-")] == []


@pytest.mark.slow
def test_a_shard_that_is_struck_while_it_writes_stops_and_is_right_when_it_is_opened_again(tmp_path: Path) -> None:
    """Who uses the engine below directly writes with a thread of its own: the shard stops, loudly, or goes on well."""
    stops = 0
    model: dict[int, bytes] = {}
    nth = 1
    store = open_stepped(tmp_path / "s", tiny())
    topic = store.create_topic("t", 1)
    while True:
        content = body(nth, 40)

        def put(store: ShardStore = store, topic_id: int = topic.id, content: bytes = content) -> None:
            store.wait(store.append(topic_id, batch_of([Put(0, content)])))

        struck = struck_by(nth, put, lines=True)
        following = body(nth, 41)
        try:
            offset = int(put_and_wait(store, topic.id, following).offsets[0])
        except ShardStopped:
            stops += 1
            offset = -1
        assert offset in (-1, len(model), len(model) + 1)
        abandon(store)
        store = open_stepped(tmp_path / "s", tiny())
        found = bodies(store, topic.id, 0)
        fresh = [found[at] for at in range(len(model), len(found))]
        assert {at: found[at] for at in model} == model, "what was acknowledged is there"
        assert fresh in ([], [content], [following], [content, following])
        assert (following in fresh) == (offset >= 0)
        assert struck or content in fresh
        assert offset < 0 or found[offset] == following
        model = found
        if not struck:
            break
        nth += 1
    store.close()
    assert nth > 100
    assert stops > 30


def put_and_wait(store: ShardStore, topic_id: int, content: bytes) -> Any:
    appended = store.append(topic_id, batch_of([Put(0, content)]))
    store.wait(appended)
    return appended


# -- real signals ----------------------------------------------------------------------------------------

PROGRAM = """
import ctypes, os, random, signal, sys, threading, time
from storage.harness import TINY, body
from lsmq.errors import ClientClosed, ShardStopped
from lsmq_node.storage import QueueStore

path, seed, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
chance = random.Random(seed)
options = {**TINY, "level0_merge": 2, "flush_mode": chance.choice(("sync", "async"))}

ROUNDS = 250

class Struck(BaseException):
    pass

def strike(*_):
    raise Struck

def run(rounds, arm, disarm, may_stop=False):
    # A main thread's store goes on; that of another thread may have stopped, and is opened again.
    model, serial, strikes, stops = {}, 0, 0, 0
    store = QueueStore(path, **options)
    for turn in range(rounds):
        serial += 1
        names = [f"queue {chance.randrange(30)}" for _ in range(chance.choice((1, 1, 1, 5, 40)))]
        pairs = [(name, body(serial * 100 + at, chance.choice((8, 100, 900)))) for at, name in enumerate(names)]
        work = chance.choice(("put", "put", "put", "get", "flush", "close"))
        struck = False
        try:
            try:
                arm()
                if work == "put":
                    store.put_many(pairs)
                elif work == "get":
                    store.get(names[0], 0, 1000)
                elif work == "flush":
                    store.flush()
                else:
                    store.close()
            finally:
                disarm()
        except Struck:
            struck = True
            strikes += 1
        if struck and may_stop:
            try:
                store.put("stopped?", b"")
            except (ShardStopped, ClientClosed):
                stops += 1
                work = "put" if work == "put" else "close"
                store.close()
                store = QueueStore(path, **options)
        if work == "close":
            store.close()
            store = QueueStore(path, **options)
        elif work == "put":
            for name in dict.fromkeys(names):
                mine = [content for other, content in pairs if other == name]
                following = body(serial * 100 + 99, 10)
                offset = store.put(name, following)
                known = model.setdefault(name, [])
                assert offset in ((len(known), len(known) + len(mine)) if struck else (len(known) + len(mine),)), (
                    turn, name, offset, len(known), len(mine), struck)
                known += mine if offset > len(known) else []
                known.append(following)
                assert store.get(name, 0, 1 << 20) == known, (turn, name)
    store.close()
    with QueueStore(path, **options) as store:
        assert {name: store.get(name, 0, 1 << 20) for name in model} == model
        assert len(store) - (store.length("stopped?") > 0) == len(model)
    print(strikes, stops, flush=True)

def by_alarm():
    signal.signal(signal.SIGALRM, strike)
    signal.signal(signal.SIGINT, strike)
    def arm():
        signal.setitimer(signal.ITIMER_REAL, chance.expovariate(1 / 300e-6) + 1e-6)
    def disarm():
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                return
            except Struck:
                continue
    run(ROUNDS, arm, disarm)

def by_exception():
    # Another thread throws it in, as a debugger or a test runner's timeout does: once for each token, at most.
    tokens, failures, thrown = [], [], []

    def arm():
        thrown[:] = [[]]
        tokens.append(thrown[0])

    def disarm():
        try:
            tokens.pop()
        except IndexError as missing:
            while missing.__context__ is None and not thrown[0]:  # under way
                time.sleep(1e-4)

    def write():
        try:
            run(ROUNDS, arm, disarm, may_stop=True)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        time.sleep(chance.expovariate(1 / 300e-6))
        if tokens:
            try:
                token = tokens.pop()
            except IndexError:
                continue
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Struck))
            token.append(True)
    sys.exit(1 if failures else 0)

by_alarm() if way == "alarm" else by_exception()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "seed"), [("alarm", 0), ("alarm", 1), ("thrown in", 2)])
def test_exceptions_at_random_moments_leave_every_queue_right(tmp_path: Path, way: str, seed: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "q"), str(seed), way],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    strikes, stops = map(int, done.stdout.split())
    assert strikes > 20, "most calls were over before they could be struck"
    assert (stops > 0) == (way == "thrown in")

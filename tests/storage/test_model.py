"""The engine against plain dicts: any sequence of operations, reopens and crashes shows the same messages."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lsmq.errors import (
    LsmqError,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
)
from lsmq_lab.world.disk import PowerCut
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import Appended, QueueStore, ShardStore
from support.clock import SimClock

from .harness import (
    KIB,
    SMALL,
    Put,
    abandon,
    assert_no_orphans,
    background,
    batch_of,
    body,
    flush,
    keep_house,
    merge,
    no_threads,
    open_stepped,
    profile,
    small,
    small_parts,
)
from .model import Model, Row, view

picks = st.integers(0, 2)
NAMES = ("alpha", "beta", "gamma")
MAX_QUEUES = 6
SIZES = (0, 1, 20, 20, 200, 200, 1_000, 1_000, 4_000, 20_000, 90 * KIB)
TEXTS = (None, None, "", "k", "a key of some length")
sizes = st.sampled_from(SIZES)
#: A drawn seed stands for many choices: that leaves room for long runs, at the price of coarser shrinking.
seeds = st.integers(0, 1 << 20)
fractions = st.sampled_from([at / 16 for at in range(17)])

Effect = Callable[[Model], None]


class StoreMachine(RuleBasedStateMachine):
    """``model`` is what was committed; ``line`` what was appended since, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        self.path = root / "shard"
        self.clock = SimClock()
        self.disk = Drive(root)
        self.model = Model()
        self.line: list[Effect] = []
        self.appended: list[Appended] = []
        self.times: dict[tuple[int, int], list[int]] = {}  # topic id and queue to stored_ms by offset
        self.producers: dict[int, list[tuple[Any, int, list[int]]]] = {}  # batches in order, with their answers
        self.serial = 0
        self.patches = contextlib.ExitStack()

    @initialize(compression=st.sampled_from(("none", "zstd")), parts=st.booleans())
    def start(self, compression: str, parts: bool) -> None:
        if parts:
            self.patches.enter_context(small_parts())
        self.options = small(compression=compression, cache_bytes=16 * KIB)
        self.store = self.open()
        for name in NAMES[:2]:
            self.create(name, 3)

    def open(self) -> ShardStore:
        return open_stepped(self.path, self.options, self.disk, self.clock)

    def topic(self, pick: int) -> str:
        names = sorted(self.model.topics)
        return names[pick % len(names)]

    def commit(self) -> None:
        self.store.commit()
        for effect in self.line:
            effect(self.model)
        for appended in self.appended:
            self.store.wait(appended)
        self.line.clear()
        self.appended.clear()

    # -- catalog -----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), queues=st.integers(1, MAX_QUEUES))
    def create(self, name: str, queues: int) -> None:
        self.commit()
        if name in self.model.topics:
            queues = self.model.topics[name].queues
        topic = self.store.create_topic(name, queues)
        self.model.create(name, topic.id, queues)
        assert topic.id == self.model.topics[name].id

    @rule(topic=picks, queues=st.integers(1, MAX_QUEUES))
    def grow(self, topic: int, queues: int) -> None:
        name = self.topic(topic)
        self.commit()
        self.model.grow(name, queues)
        assert self.store.grow_topic(name, queues).queues == self.model.topics[name].queues

    @rule(topic=picks, sure=st.integers(0, 5))
    def drop(self, topic: int, sure: int) -> None:
        name = self.topic(topic)
        if len(self.model.topics) > 1 and sure == 0:
            self.commit()
            topic_id = self.model.topics[name].id
            self.store.delete_topic(name)
            self.model.drop(name)
            with pytest.raises(UnknownTopic):
                self.store.bounds(topic_id, 0)

    # -- writing -----------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """No threads run: what a test fills up, it must clear away."""
        if self.store.pressure == "refuse":
            while self.store._tables.frozen:
                self.store._tables.flush_oldest()
            merge(self.store)

    def append_puts(self, name: str, items: list[Put], **fields: int) -> Appended | None:
        topic = self.model.topics[name]
        batch = batch_of(items, **fields)
        if len(batch.payload) > self.options.max_batch_bytes:
            with pytest.raises(MessageTooLarge):
                self.store.append(topic.id, batch)
            return None
        ahead = self.model.copy()
        for waiting in self.line:
            waiting(ahead)
        expected = ahead.append(name, items)
        self.make_room()
        appended = self.store.append(topic.id, batch)
        assert appended.offsets.tolist() == expected
        assert not appended.duplicate

        def effect(model: Model) -> None:
            model.append(name, items)
            for item in items if model is self.model else ():
                self.times.setdefault((topic.id, item.queue), []).append(appended.stored_ms)

        self.line.append(effect)
        self.appended.append(appended)
        return appended

    def some_puts(self, name: str, seed: int, largest: int = 90 * KIB) -> list[Put]:
        chance, queues = random.Random(seed), self.model.topics[name].queues
        plain, items = chance.random() < 0.5, []
        for _ in range(chance.choice((1, 2, 5, 12, 40))):
            self.serial += 1
            content = body(self.serial, min(largest, chance.choice(SIZES[: chance.randint(3, len(SIZES))])))
            if plain:
                items.append(Put(chance.randrange(queues), content))
                continue
            priority = chance.randint(0, 3)
            key, tag = chance.choice(TEXTS), chance.choice(TEXTS)
            items.append(Put(chance.randrange(queues), content, key, tag, priority))
        return items

    @rule(topic=picks, seed=seeds, wait=st.booleans())
    def append(self, topic: int, seed: int, wait: bool) -> None:
        name = self.topic(topic)
        self.append_puts(name, self.some_puts(name, seed))
        if wait:
            self.commit()

    @rule(topic=picks, seed=seeds, turns=st.integers(1, 4))
    def fill(self, topic: int, seed: int, turns: int) -> None:
        """Several tables at once."""
        name = self.topic(topic)
        for turn in range(turns):
            self.append_puts(name, self.some_puts(name, seed + turn, 1_000))
            self.commit()
            flush(self.store)

    @rule(topic=picks, seed=seeds, producer=st.integers(1, 2), repeat=st.integers(0, 2))
    def append_once(self, topic: int, seed: int, producer: int, repeat: int) -> None:
        name = self.topic(topic)
        known = self.producers.setdefault(producer, [])
        items = self.some_puts(name, seed, 1_000)
        fields = {"producer_id": producer, "sequence": len(known)}
        appended = self.append_puts(name, items, **fields)
        assert appended is not None
        known.append((batch_of(items, **fields), self.model.topics[name].id, appended.offsets.tolist()))
        for _ in range(repeat):
            self.repeat_last(producer)
        self.commit()
        self.repeat_last(producer)
        ahead = batch_of(items, producer_id=producer, sequence=len(known) + 1)
        with pytest.raises(OutOfOrderSequence):
            self.store.append(self.model.topics[name].id, ahead)
        with pytest.raises(UnknownProducer):
            self.store.append(self.model.topics[name].id, batch_of(items, producer_id=99, sequence=1))

    def repeat_last(self, producer: int) -> None:
        batch, topic_id, offsets = self.producers[producer][-1]
        if topic_id in [topic.id for topic in self.model.topics.values()]:
            again = self.store.append(topic_id, batch)
            assert again.duplicate
            assert again.offsets.tolist() == offsets

    @rule(pick=picks, queue=st.integers(0, MAX_QUEUES - 1), where=fractions)
    def trim(self, pick: int, queue: int, where: float) -> None:
        name = self.topic(pick)
        self.commit()
        topic = self.model.topics[name]
        queue %= topic.queues
        offset = int(where * len(topic.queue(queue).rows))
        self.store.wait(self.store.trim(topic.id, queue, offset))
        self.model.trim(name, queue, offset)

    @rule(pick=picks, queue=st.integers(0, MAX_QUEUES - 1), first=fractions, count=st.integers(1, 9))
    def delete(self, pick: int, queue: int, first: float, count: int) -> None:
        name = self.topic(pick)
        self.commit()
        topic = self.model.topics[name]
        queue %= topic.queues
        latest = len(topic.queue(queue).rows)
        offsets = list(range(int(first * latest), min(latest, int(first * latest) + count)))
        if offsets:
            queues = np.full(len(offsets), queue, np.uint32)
            self.store.wait(self.store.delete(topic.id, queues, np.array(offsets)))
            self.model.delete(name, queue, offsets)

    @rule(pick=picks, group=st.sampled_from(("g", "h")), queue=st.integers(0, MAX_QUEUES - 1), where=fractions)
    def commit_offsets(self, pick: int, group: str, queue: int, where: float) -> None:
        name = self.topic(pick)
        self.commit()
        topic = self.model.topics[name]
        queue %= topic.queues
        offset = int(where * len(topic.queue(queue).rows))
        appended = self.store.commit_offsets(group, topic.id, np.array([queue], np.uint32), np.array([offset]))
        self.store.wait(appended)
        self.model.commit_offsets(group, name, queue, offset)

    @rule(ms=st.integers(0, 5_000))
    def time_passes(self, ms: int) -> None:
        self.clock.time_ms += ms

    # -- reading -----------------------------------------------------------------------------------------

    @rule(
        pick=picks,
        queue=st.integers(0, MAX_QUEUES),
        where=st.sampled_from([at / 16 for at in range(-1, 19)]),
        max_records=st.integers(1, 20),
        max_bytes=st.sampled_from((1, 300, 5_000, 200_000)),
    )
    def read(self, pick: int, queue: int, where: float, max_records: int, max_bytes: int) -> None:
        name = self.topic(pick)
        topic = self.model.topics[name]
        if queue >= topic.queues:
            with pytest.raises(UnknownQueue):
                self.store.read(topic.id, queue, 0)
            return
        item = topic.queue(queue)
        latest = len(item.rows)
        offset = int(where * (latest + 1))
        if not item.start <= offset <= latest:
            with pytest.raises(OffsetOutOfRange) as refusal:
                self.store.read(topic.id, queue, offset)
            assert (refusal.value.details["earliest"], refusal.value.details["latest"]) == (item.start, latest)
            return
        found = self.store.read(topic.id, queue, offset, max_records=max_records, max_bytes=max_bytes)
        got = self.rows_of(found, {queue: offset})
        expected = {(queue, at): row for at, row in item.readable(offset).items()}
        moved = int(found.next_offsets[0])
        assert got == {key: row for key, row in expected.items() if key[1] < moved}
        assert len(got) == found.record_count <= max_records
        assert bool(got) == bool(expected), "at least one where there is one"
        assert moved == latest or got

    def rows_of(self, found: Any, wanted: dict[int, int]) -> dict[tuple[int, int], Row]:
        rows: dict[tuple[int, int], Row] = {}
        last: dict[int, int] = {}
        for batch in found.batches():
            for message in batch.messages("t"):
                if message.offset >= wanted[message.queue]:
                    assert message.offset > last.get(message.queue, -1)
                    last[message.queue] = message.offset
                    rows[message.queue, message.offset] = Row.of(message)
        return rows

    @rule(pick=picks, seed=seeds, max_records=st.integers(1, 60))
    def read_many(self, pick: int, seed: int, max_records: int) -> None:
        name = self.topic(pick)
        topic = self.model.topics[name]
        chance = random.Random(seed)
        queues = chance.sample(range(topic.queues), chance.randint(1, topic.queues))
        offsets = [chance.randint(0, len(topic.queue(queue).rows) + 1) for queue in queues]
        found = self.store.read_many(
            topic.id, np.array(queues, np.uint32), np.array(offsets, np.int64), max_records=max_records
        )
        wanted = {queue: max(offset, topic.queue(queue).start) for queue, offset in zip(queues, offsets, strict=True)}
        got = self.rows_of(found, wanted)
        moved = dict(zip(found.queues.tolist(), found.next_offsets.tolist(), strict=True))
        expected = {
            (queue, at): row
            for queue in moved
            for at, row in topic.queue(queue).readable(wanted[queue]).items()
            if at < moved[queue]
        }
        assert got == expected
        assert len(got) == found.record_count <= max_records
        assert sorted(moved) == sorted(found.queues.tolist()), "each once"
        served = {queue for queue, _ in got}
        assert [queue for queue in found.queues.tolist() if queue in served] == [q for q in queues if q in served]
        backlog = [queue for queue in queues if wanted[queue] < len(topic.queue(queue).rows)]
        assert bool(moved) == bool(backlog)

    @rule(pick=picks, some=st.lists(st.integers(0, MAX_QUEUES - 1), max_size=4), back_ms=st.integers(-10, 20_000))
    def offsets_for_time(self, pick: int, some: list[int], back_ms: int) -> None:
        name = self.topic(pick)
        topic = self.model.topics[name]
        queues = [queue % topic.queues for queue in some]
        time_ms = self.clock.time_ms - back_ms
        offsets = self.store.offsets_for_time(topic.id, np.array(queues, np.uint32), time_ms)
        for queue, found in zip(queues, offsets.tolist(), strict=True):
            item = topic.queue(queue)
            times = self.times.get((topic.id, queue), [])
            assert item.start <= found <= len(item.rows)
            for offset in item.readable():
                assert (times[offset] >= time_ms) == (offset >= found)

    # -- background work, reopening, crashes ---------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.commit()
        flush(self.store)

    @rule()
    def compact(self) -> None:
        self.commit()
        flush(self.store)
        merge(self.store)
        keep_house(self.store)

    @rule(max_records=st.sampled_from((1, 2, 7, 1_000)), max_bytes=st.sampled_from((1, 300, 5_000, 100_000)))
    def check(self, max_records: int, max_bytes: int) -> None:
        self.commit()
        assert view(self.store, max_records=max_records, max_bytes=max_bytes) == self.model.view()

    @rule()
    def reopen(self) -> None:
        self.commit()
        self.store.close()
        self.store = self.open()
        self.agree()

    @rule(seed=st.integers(0, 1 << 16), nth=st.integers(1, 25), power=st.booleans(), busy=st.booleans())
    def crash(self, seed: int, nth: int, power: bool, busy: bool) -> None:
        """The process dies at the ``nth`` operation of a commit, a flush and a merge."""
        point = self.disk.at(nth)
        with contextlib.suppress(PowerCut, LsmqError):
            self.store.commit()
            if busy:
                background(self.store, lambda: flush(self.store))
                background(self.store, lambda: merge(self.store))
        note(f"died at {self.disk.log[-1] if point.hits else 'rest'}")
        abandon(self.store)
        self.disk = self.disk.power_cut(seed) if power else self.disk.kill()
        self.store = self.open()
        assert_no_orphans(self.store, self.disk, self.path)
        found = view(self.store)
        while self.model.view() != found:
            assert self.line, "the store shows what was never written, or lost what was committed"
            self.line.pop(0)(self.model)  # it got that far
        self.line.clear()
        self.appended.clear()
        self.agree()

    def agree(self) -> None:
        assert view(self.store) == self.model.view()
        for producer in self.producers:
            self.repeat_last(producer)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            abandon(self.store)
        self.patches.close()
        self.directory.cleanup()


TestStore = StoreMachine.TestCase
TestStore.settings = profile(100, 50)


class QueueStoreMachine(RuleBasedStateMachine):
    """Queues by name: names and messages come back together, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        self.path = root / "queues"
        self.disk = Drive(root)
        self.model: dict[str, list[bytes]] = {}
        self.serial = 0
        self.store = self.open()

    def open(self) -> QueueStore:
        with no_threads():
            return QueueStore(self.path, disk=self.disk, clock=SimClock(), **SMALL)

    def pairs(self, names: list[str], size: int) -> list[tuple[str, bytes]]:
        pairs = []
        for name in names:
            self.serial += 1
            pairs.append((name, body(self.serial, size)))
        return pairs

    @rule(seed=seeds, size=sizes)
    def put(self, seed: int, size: int) -> None:
        if self.store.store.pressure != "ok":  # no threads run: what a test fills up, it must clear away
            self.compact()
        chance = random.Random(seed)
        count = chance.choice((1, 3, 10, 30))
        pairs = self.pairs(["".join(chance.choices("aé水x", k=chance.randint(1, 4))) for _ in range(count)], size)
        expected = []
        for name, content in pairs:
            expected.append(len(self.model.setdefault(name, [])))
            self.model[name].append(content)
        assert self.store.put_many(pairs) == expected

    @precondition(lambda self: self.model)
    @rule(pick=seeds, offset=st.integers(0, 20), num=st.integers(0, 20))
    def get(self, pick: int, offset: int, num: int) -> None:
        name = sorted(self.model)[pick % len(self.model)]
        assert self.store.get(name, offset, num) == self.model[name][offset : offset + num]
        assert self.store.length(name) == len(self.model[name])

    @rule(name=st.text(max_size=3))
    def get_unknown(self, name: str) -> None:
        if name not in self.model:
            assert self.store.get(name, 0, 10) == []
            assert self.store.length(name) == 0

    @rule()
    def compact(self) -> None:
        flush(self.store.store)
        merge(self.store.store)
        keep_house(self.store.store)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()
        self.agree()

    @rule(
        names=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1), seed=st.integers(0, 999), power=st.booleans()
    )
    def crash(self, names: list[str], seed: int, power: bool) -> None:
        pairs = self.pairs(names, 100)
        self.disk.at(seed % 4 + 1)
        done = False
        with contextlib.suppress(PowerCut, LsmqError):
            self.store.put_many(pairs)
            done = True
        abandon(self.store)
        self.disk = self.disk.power_cut(seed) if power else self.disk.kill()
        self.store = self.open()
        fresh = {name: list(contents) for name, contents in self.model.items()}
        for name, content in pairs:
            fresh.setdefault(name, []).append(content)
        if done or {name: self.store.get(name, 0, 999) for name in fresh} == fresh:
            self.model = fresh
        self.agree()

    def agree(self) -> None:
        assert {name: self.store.get(name, 0, 999) for name in self.model} == self.model
        # A name may be stored without its message when the crash came between the two entries of one write.
        assert all(self.store.length(name) for name in self.model)

    def teardown(self) -> None:
        abandon(self.store)
        self.directory.cleanup()


TestQueueStore = QueueStoreMachine.TestCase
TestQueueStore.settings = profile(50, 30)

"""Names on three replicas of a shard whose leader changes: who held names in line follows, and leads again.

What each replica knows, kept up to date all the while, is compared with what is read afresh from its log, and with a
model of what was committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import NotLeader
from lsmq_node.storage import ShardStore, StoredTopic, TopicNames, TopicOptions, topic_names
from lsmq_node.storage.name_log import encode
from lsmq_node.storage.named_topics import NamedTopics
from lsmq_node.storage.state import NAMES_TOPIC
from support.clock import SimClock

from .harness import open_stepped, tiny
from .test_topic_names import ALL, pack

TOPIC = 1
NAMES = [*(f"q{at}" for at in range(8)), *(f"agents.{at:024d}.inbox" for at in range(6)), "z" * 255]
Model = dict[str, list[bytes]]


class Replicas:
    """``done``: all that was put in line, each with its epoch, the LSN behind it, and what it does to the model.

    ``is_fine``: logs are cut, and committed, in the middle of a request as well, whose names take several batches; what
    comes of it no model says.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.is_fine = bool(seed % 2)
        self.chance = random.Random(seed)
        self.clock = SimClock()
        self.stores = [open_stepped(path / str(at), tiny(), None, self.clock, replicated=True) for at in range(3)]
        self.written: list[tuple[int, int]] = []  # by all who led: epochs and ends of entries
        self.done: list[tuple[int, int, Callable[[Model], object]]] = []
        self.model: Model = {}
        self.epoch = self.serial = self.epoch_end = self.applied = 0
        for at, store in enumerate(self.stores):
            self._listen(at, store)
        self.leading = 0
        self._lead(0)
        appended = self.leader.put_topic(StoredTopic(TOPIC, "t", 4096, TopicOptions(named=True)), 0, 4096)
        self.write()
        self.ship(whole=True)
        self.commit(appended.lsn)

    def _listen(self, at: int, store: ShardStore) -> None:
        def written(lsn: int, end: int, raw: bytes, ends: list[int]) -> None:
            if at == self.leading:
                self.written += [(self.epoch, each) for each in (ends if self.is_fine else [end])]

        store.replica.listen(written, lambda lsn: None, lambda told: None)

    def _has(self, epoch: int, lsn: int) -> bool:
        """Whether the leader's log has what was put in line there."""
        history = self.leader.replica.history
        follow = [*(start.lsn for start in history[1:]), 1 << 60]
        return any(start.epoch == epoch and lsn <= end for start, end in zip(history, follow, strict=True))

    @property
    def ends(self) -> list[int]:
        """Where the leader's log may be cut."""
        last = self.leader.replica.end_lsn
        return sorted({lsn for epoch, lsn in self.written if self._has(epoch, lsn) and lsn <= last})

    def note(self, lsn: int, happen: Callable[[Model], object]) -> None:
        self.done.append((self.epoch, lsn, happen))
        if lsn == self.leader._line.end_lsn:  # Else it waits for a part of another request.
            self.written.append((self.epoch, lsn))

    @property
    def leader(self) -> ShardStore:
        return self.stores[self.leading]

    @property
    def names(self) -> TopicNames:
        return self.leader.names(TOPIC)

    def up_to_date(self, names: TopicNames) -> TopicNames:
        while not names.is_current():
            names.refresh()
        return names

    # -- what happens ------------------------------------------------------------------------------------

    def send(self) -> None:
        items = []
        for name in self.some():
            self.serial += 1
            items.append((name, b"%d" % self.serial))
        appended, _ = self.up_to_date(self.names).append(*pack(items), ALL)

        def happen(model: Model) -> None:
            for name, body in items:
                model.setdefault(name, []).append(body)

        self.note(appended.lsn, happen)

    def declare(self) -> None:
        names = self.some()
        appended = self.up_to_date(self.names).declare(names, ALL)
        if appended is not None:
            self.note(appended.lsn, lambda model: [model.setdefault(name, []) for name in names])

    def delete(self) -> None:
        names = self.some()
        appended, gone = self.up_to_date(self.names).delete(names)
        if appended is not None:
            self.note(appended.lsn, lambda model: [model.pop(name, None) for name in gone])

    def forget(self) -> None:
        names = self.up_to_date(self.names)
        numbers = names.all_numbers()
        appended = names.forget(numbers)
        if appended is not None:
            gone = names._table.names(names._in_line[-1].changes.numbers)
            self.note(appended.lsn, lambda model: [model.pop(name, None) for name in gone])

    def write_anew(self) -> None:
        self.write()
        self.ship(whole=True)
        self.commit(self.leader.replica.end_lsn)
        names = self.up_to_date(self.names)
        begin, cursor = names.log_end(), 0
        while cursor is not None:
            _, cursor = names.rewrite(cursor, 4)
            if self.chance.random() < 0.3:
                self.send()
            self.write()
            self.ship(whole=True)
            self.commit(self.leader.replica.end_lsn)
        self.leader.trim(TOPIC | NAMES_TOPIC, 0, begin)

    def some(self) -> list[str]:
        return self.chance.sample(NAMES, self.chance.randint(1, 4))

    def write(self) -> None:
        self.leader.replica.write()

    def ship(self, whole: bool = False) -> None:
        for at, store in enumerate(self.stores):
            if at == self.leading or (not whole and self.chance.random() < 0.4):
                continue
            self._cut(store)
            lsn, limit = store.replica.end_lsn, self.leader.replica.end_lsn
            if not whole and self.ends:
                limit = self.chance.choice([end for end in self.ends if end >= lsn][:4] or [lsn])
            while lsn < limit:
                piece = self.leader.replica.read(lsn, limit - lsn)
                store.replica.receive(lsn, piece)
                lsn += len(piece)
            store.replica.sync()

    def _cut(self, store: ShardStore) -> None:
        """What is not in the leader's log goes."""
        mine, theirs = store.replica.history, self.leader.replica.history
        both = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False))))
        ends = [each[both].lsn for each in (mine, theirs) if len(each) > both]
        limit = min([*ends, self.leader.replica.end_lsn])
        if limit < store.replica.end_lsn:
            store.replica.truncate(limit)

    def commit(self, lsn: int | None = None) -> None:
        """Up to what two of three have of this epoch, or less."""
        held = sorted(
            store.replica.end_lsn for store in self.stores if store.replica.history == self.leader.replica.history
        )
        if len(held) < 2:
            return
        reached = held[-2]
        if lsn is None:
            lsn = self.chance.choice([end for end in self.ends if end <= reached][-4:] or [0])
        lsn = min(lsn, reached)
        if lsn < self.epoch_end:
            return
        self.leader.replica.advance(lsn)
        for store in self.stores:
            if store.replica.history == self.leader.replica.history and self.chance.random() < 0.6:
                store.replica.advance(min(store.replica.end_lsn, self.leader.committed_lsn))
        now = self.leader.committed_lsn
        due = [item for item in self.done if self.applied < item[1] <= now and self._has(item[0], item[1])]
        for _, _, happen in sorted(due, key=lambda item: item[1]):
            happen(self.model)
        self.applied = now

    def _lead(self, at: int) -> None:
        self.leading, self.epoch = at, self.epoch + 1
        store = self.leader
        appended = store.replica.begin_epoch(self.epoch, (1 << 52) + at, self.epoch)
        self.write()
        self.epoch_end = appended.lsn

    def change_leader(self) -> None:
        def rank(store: ShardStore) -> tuple[int, int]:
            history = store.replica.history
            return (history[-1].epoch if history else 0, store.replica.end_lsn)

        former = self.leader.replica
        former.leave(self.chance.choice((former.end_lsn, former.end_lsn, former.committed_lsn)), NotLeader("over"))
        ranks = [rank(store) for store in self.stores]
        may = [at for at in range(3) if sum(each <= ranks[at] for each in ranks) >= 2]
        self._lead(self.chance.choice(may))
        # A leader is asked once what it began with is committed.
        self.ship(whole=True)
        self.commit(self.epoch_end)

    def freeze(self) -> None:
        store = self.chance.choice(self.stores)
        store._commits.between_entries(store._tables.freeze)

    # -- what is asked -----------------------------------------------------------------------------------

    def look(self) -> None:
        store = self.chance.choice(self.stores)
        if not store.has_topic(TOPIC):
            return
        self.same(store)

    def same(self, store: ShardStore) -> None:
        afresh = self.up_to_date(
            NamedTopics(store._state, store._line, store._queries, tiny(), store.time).names(TOPIC)
        )
        known = self.up_to_date(store.names(TOPIC))
        if known.version < afresh.version:
            assert known._in_line[0].end > afresh.version, "a part of a request is committed"
            return
        numbers = np.arange(64, dtype=np.uint32)
        assert known.names(numbers) == afresh.names(numbers)
        assert known.find(NAMES).tolist() == afresh.find(NAMES).tolist()
        assert [int(known.find((name,))[0]) for name in NAMES] == afresh.find(NAMES).tolist()
        assert known.count == afresh.count == len(afresh.all_numbers())
        assert known.all_numbers().tolist() == afresh.all_numbers().tolist()
        assert known.slots_of(numbers).tolist() == afresh.slots_of(numbers).tolist()
        begins = [np.append(each._table.begins, np.zeros(64, np.int64))[:64].tolist() for each in (known, afresh)]
        assert begins[0] == begins[1]
        listing = [raw.decode() for raw, _ in store.named.listing(TOPIC).page(b"", b"", 100)]
        assert listing == sorted(name for name in known.names(numbers) if name is not None)
        if not self.is_fine and store.committed_lsn == self.leader.committed_lsn:
            found = known.find(NAMES).tolist()
            assert {name for name, number in zip(NAMES, found, strict=True) if number >= 0} == self.model.keys()
            for name, number in zip(NAMES, found, strict=True):
                if number >= 0:
                    assert store.read_bytes(TOPIC, number, 0, 1000) == self.model[name]

    def end(self) -> None:
        self.write()
        self.ship(whole=True)
        self.commit(self.leader.replica.end_lsn)
        for store in self.stores:
            store.replica.advance(self.leader.committed_lsn)
            self.same(store)
        assert self.names.count_to_come == self.names.count
        for store in self.stores:
            store.close()


def play(path: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(path, seed)
    if replicas.is_fine:
        monkeypatch.setattr(topic_names, "encode", lambda changes, max_bytes, max_count: encode(changes, max_bytes, 2))
    often = [replicas.send] * 5 + [replicas.declare] * 2 + [replicas.delete] * 3 + [replicas.write] * 4
    often += [replicas.ship] * 4 + [replicas.commit] * 4 + [replicas.look] * 3
    seldom = [replicas.change_leader, replicas.change_leader, replicas.freeze, replicas.forget, replicas.write_anew]
    for _ in range(steps):
        replicas.chance.choice(often if replicas.chance.random() < 0.85 else seldom)()
    replicas.end()


@pytest.mark.parametrize("seed", range(6))
def test_replicas_know_the_same_names_whoever_led_when_they_were_made(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, seed, 120, monkeypatch)

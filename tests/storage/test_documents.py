"""Documents of a shard: as durable as messages, a change whole or not at all, and never ahead of their batches."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from lsmq.errors import DocumentsFull, InvalidRequest, LsmqError, NotLeader, RequestTooLarge
from lsmq_lab.world.disk import PowerCut
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.documents import MAX_CHANGE_BYTES, MAX_DOCUMENT_BYTES, MAX_DOCUMENT_KEY_BYTES, Documents

from .harness import Put, abandon, background, batch_of, bodies, flush, open_stepped, profile, tiny
from .leading import Leader, open_replica

keys = st.text("ab/\u00e9\U0001f600", min_size=1, max_size=4)
values = st.none() | st.binary(max_size=30) | st.just(b"long" * 5_000)


class DocumentsMachine(RuleBasedStateMachine):
    """``model`` is what was committed; ``line`` the changes in line since."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.disk = Drive(Path(self.directory.name))
        self.model: dict[str, bytes] = {}
        self.line: list[dict[str, bytes | None]] = []
        self.store = self.open()

    def open(self) -> ShardStore:
        return open_stepped(Path(self.directory.name) / "s", tiny(), self.disk)

    def land(self, changes: dict[str, bytes | None]) -> None:
        for key, value in changes.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    @rule(changes=st.dictionaries(keys, values, min_size=1, max_size=5))
    def put(self, changes: dict[str, bytes | None]) -> None:
        self.store.put_documents(changes)
        self.line.append(changes)

    @rule()
    def commit(self) -> None:
        self.store.commit()
        for changes in self.line:
            self.land(changes)
        self.line.clear()

    @rule()
    def flush(self) -> None:
        self.commit()
        flush(self.store)

    @rule(prefix=st.text("ab/\u00e9", max_size=2))
    def read(self, prefix: str) -> None:
        expected = sorted(item for item in self.model.items() if item[0].startswith(prefix))
        assert self.store.documents(prefix) == expected
        assert self.store.stats().documents == len(self.model)
        assert self.store.stats().documents_bytes == sum(len(key) + len(value) for key, value in self.model.items())
        for key in (prefix, *self.model):
            assert self.store.document(key) == self.model.get(key)

    @rule()
    def reopen(self) -> None:
        self.commit()
        self.store.close()
        self.store = self.open()
        self.read("")

    @rule(seed=st.integers(0, 1 << 16), nth=st.integers(1, 15), power=st.booleans())
    def crash(self, seed: int, nth: int, power: bool) -> None:
        self.disk.at(nth)
        with contextlib.suppress(PowerCut, LsmqError):
            self.store.commit()
            background(self.store, lambda: flush(self.store))
        abandon(self.store)
        self.disk = self.disk.power_cut(seed) if power else self.disk.kill()
        self.store = self.open()
        while self.store.documents() != sorted(self.model.items()):
            assert self.line, "the store shows what was never written, or lost what was committed"
            self.land(self.line.pop(0))  # it got that far: changes in order, each of them whole
        self.line.clear()

    def teardown(self) -> None:
        abandon(self.store)
        self.directory.cleanup()


TestDocuments = DocumentsMachine.TestCase
TestDocuments.settings = profile(40, 30)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_never_leaves_documents_without_the_batches_they_came_with(tmp_path: Path, power: bool) -> None:
    sent = [bytes([at]) * 7_000 for at in range(4)]  # so that a cut may fall between the entries
    batches = [batch_of([Put(0, content)], producer_id=5, sequence=at) for at, content in enumerate(sent)]
    outcomes = set()
    for seed in range(30):
        disk, path = Drive(tmp_path), tmp_path / str(seed)
        store = open_stepped(path, tiny(), disk)
        topic_id = store.create_topic("t", 1).id
        store.wait(store.put_documents({"txn/1": b"half"}))
        disk.at(1 + seed % 2)
        with contextlib.suppress(PowerCut, LsmqError):
            store.append_many([(topic_id, batch) for batch in batches], documents={"txn/1": None})
            store.commit()
        abandon(store)
        store = open_stepped(path, tiny(), disk.power_cut(seed) if power else disk.kill())
        stored, decided = len(bodies(store, topic_id, 0)), store.document("txn/1") is None
        outcomes.add(stored)
        assert stored == len(sent) if decided else True
        if not decided:  # done again, as its coordinator would
            *appended, last = store.append_many([(topic_id, batch) for batch in batches], documents={"txn/1": None})
            assert [item.duplicate for item in appended] == [at < stored for at in range(len(sent))]
            store.wait(last)
        assert (bodies(store, topic_id, 0), store.document("txn/1")) == (dict(enumerate(sent)), None)
        abandon(store)
    assert not power or {0, len(sent)} < outcomes, "no cut fell between the entries"


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_never_leaves_documents_without_the_offsets_they_came_with(tmp_path: Path, power: bool) -> None:
    queues, ends = np.zeros(1, np.uint32), np.ones(1, np.int64)
    outcomes = set()
    for seed in range(20):
        disk, path = Drive(tmp_path), tmp_path / str(seed)
        store = open_stepped(path, tiny(), disk)
        topic_id = store.create_topic("t", 1).id
        store.wait(store.append(topic_id, batch_of([Put(0, b"x")])))
        store.wait(store.put_documents({"work/1": b"settled"}))
        disk.at(1 + seed % 2)
        with contextlib.suppress(PowerCut, LsmqError):
            store.commit_offsets("g", topic_id, queues, ends, documents={"work/1": None, "work/2": bytes(7_000)})
            store.commit()
        abandon(store)
        store = open_stepped(path, tiny(), disk.power_cut(seed) if power else disk.kill())
        committed = int(store.committed_offsets("g", topic_id, queues)[0])
        changed = store.document("work/1") is None
        assert changed == (store.document("work/2") is not None)
        assert committed == 1 or not changed
        outcomes.add((committed, changed))
        abandon(store)
    assert {(-1, False), (1, True)} <= outcomes if power else outcomes


def test_a_change_beyond_the_limits_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny(max_documents_bytes=10_000)) as store:
        end = store.committed_lsn
        for changes in ({}, {"": b""}, {"k" * (MAX_DOCUMENT_KEY_BYTES + 1): b""}, {"line\n": b""}):
            with pytest.raises(InvalidRequest, match="document"):
                store.put_documents(changes)
        with pytest.raises(DocumentsFull, match=r"max_documents_bytes"):
            store.put_documents({"k": bytes(10_000)})
        store.commit()
        assert store.committed_lsn == end
        store.wait(store.put_documents({"k": bytes(9_999)}))
        with pytest.raises(DocumentsFull):
            store.put_documents({"l": b"x"})
        store.wait(store.put_documents({"k": bytes(9_000), "l": b"x"}))  # less than before
        store.wait(store.put_documents({"k": None}))
        assert store.documents() == [("l", b"x")]


def test_a_document_has_a_size_that_followers_and_checkpoints_can_bear(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny(max_waiting_bytes=64 << 20)) as store:
        large = bytes(MAX_DOCUMENT_BYTES)
        store.wait(store.put_documents({"k": large}))
        with pytest.raises(RequestTooLarge):
            store.put_documents({"k": large + b"x"})
        with pytest.raises(RequestTooLarge, match=str(MAX_CHANGE_BYTES)):
            store.put_documents({"a": large, "b": large})
        assert store.document("k") == large
    with ShardStore.open(tmp_path / "s", tiny()) as store:
        assert store.document("k") == large


def test_documents_are_seen_when_they_are_committed_and_follow_the_leader(tmp_path: Path) -> None:
    leading, following = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    try:
        leader = Leader(leading)
        appended = leading.put_documents({"k": b"v"})
        leading.replica.write()
        assert leading.document("k") is None
        leader.commit(appended)
        assert leading.document("k") == b"v"
        following.replica.receive(0, leading.replica.read(0, 1 << 20))
        following.replica.sync()
        assert following.document("k") is None
        following.replica.advance(leading.committed_lsn)
        assert following.documents("") == [("k", b"v")]
        with pytest.raises(NotLeader):
            following.put_documents({"k": None})
    finally:
        leading.close()
        following.close()


def test_one_document_of_each_place_is_found_among_all_that_these_have() -> None:
    documents = Documents()
    own = [f"work/{group}/{topic}/" for group in ("a", "a-b", "a.c", "b") for topic in (1, 10, 2)]
    for at, place in enumerate(own):
        for name in ("1/0", "burial", *(["settings"] if at % 4 else [])):
            documents.put(place + name, name.encode())
    for other in ("wor", "work", "work/", "work/c", "work/c/settings", "work/c/1", "works/a/1/settings"):
        documents.put(other, b"no place of these")
    wanted = [(f"{place}settings", b"settings") for at, place in enumerate(own) if at % 4]
    assert documents.of_each("work/", 2, "settings") == sorted(wanted)
    assert Documents().of_each("work/", 2, "settings") == []

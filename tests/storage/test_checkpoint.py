"""Snapshots of a shard's state: what is taken stays as it was, however late and often it is written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule

from lsmq.record_batch import Column
from lsmq_node.storage.applier import Applier
from lsmq_node.storage.checkpoint import Checkpointer, Snapshot, checkpoint_name, load_checkpoint
from lsmq_node.storage.columns import encode_columns
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.state import ShardState, Topic, TopicOptions
from lsmq_node.storage.stats import Counters
from lsmq_node.storage.wal import Entry, EntryKind

from .harness import profile

Ends = dict[int, tuple[list[int], list[int]]]
"""By topic, the end and the log start of each queue."""

topics = st.integers(1, 2)
queues = st.integers(0, 3)


def ends(state: ShardState) -> Ends:
    return {
        topic_id: (item.committed[: item.end].tolist(), item.start[: item.end].tolist())
        for topic_id, item in state.topics.items()
    }


class CheckpointMachine(RuleBasedStateMachine):
    """Several snapshots wait to be written; one whose flush fails is written again."""

    waiting: Bundle[tuple[Snapshot, Ends]] = Bundle("waiting")

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self._state = ShardState()
        self._checkpointer = Checkpointer()
        for topic_id in (1, 2):
            self._put(topic_id, 4)

    def teardown(self) -> None:
        self._scratch.cleanup()

    def _put(self, topic_id: int, count: int) -> None:
        self._state.put_topic(Topic(topic_id, f"t{topic_id}", count, TopicOptions(), 0), 0, count)

    @rule(topic_id=topics, queue=queues, count=st.integers(1, 300))
    def append(self, topic_id: int, queue: int, count: int) -> None:
        item = self._state.topics[topic_id]
        item.committed[queue] += count
        item.version += 1

    @rule(topic_id=topics, queue=queues)
    def trim(self, topic_id: int, queue: int) -> None:
        item = self._state.topics[topic_id]
        body = encode_columns(1, {Column.QUEUE: queue, Column.OFFSET: int(item.committed[queue])})
        entry = Entry(0, 0, EntryKind.TRIM, 1, 0, 0, topic_id, 1, 0, body)
        tables: Any = SimpleNamespace(applied_lsn=0)
        Applier(self._state, tables, Counters(), "test").apply_entry(entry)

    @rule(topic_id=topics)
    def grow(self, topic_id: int) -> None:
        self._put(topic_id, self._state.topics[topic_id].end + 1)

    @rule(target=waiting)
    def take(self) -> tuple[Snapshot, Ends]:
        return self._checkpointer.take(self._state, 0), ends(self._state)

    @rule(target=waiting, taken=consumes(waiting), fails=st.booleans())
    def write(self, taken: tuple[Snapshot, Ends], fails: bool) -> object:
        snapshot, expected = taken
        directory = Path(self._scratch.name)
        self._checkpointer.write(OsDisk(), directory, 7, snapshot)
        assert ends(load_checkpoint(OsDisk(), directory / checkpoint_name(7))[1]) == expected
        if fails:
            return taken
        self._checkpointer.done(snapshot)
        return multiple()


TestCheckpoints = CheckpointMachine.TestCase
TestCheckpoints.settings = profile(100)

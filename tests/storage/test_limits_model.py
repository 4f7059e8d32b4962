"""Log starts of a real store against a plain model of them: limits that change, a clock that goes on, and restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lsmq.errors import QuotaExceeded, TooManyMessages
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.shard_time import GAP_MS

from .harness import abandon, flush, merge, profile, put, retain
from .test_retention import Bench

QUEUES = 4
MINUTE_MS = 60_000

options = st.builds(
    TopicOptions,
    retention_ms=st.sampled_from([None, MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS]),
    retention_messages=st.sampled_from([None, None, 1, 4]),
    queue_max_messages=st.sampled_from([None, None, 4]),
    max_messages=st.sampled_from([None, None, 20]),
    delete_consumed=st.booleans(),
)


class Limits(RuleBasedStateMachine):
    """One topic. ``queues`` has of each queue when each of its messages was stored, and ``starts`` where it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.bench = Bench(Path(self.directory.name))
        self.topic_id = self.bench.store.create_topic("t", QUEUES).id
        self.bench.store.create_topic("beside", 1)
        self.bench.store.retention.rest = None
        self.options = TopicOptions()
        self.queues: list[list[int]] = [[] for _ in range(QUEUES)]
        self.starts = [0] * QUEUES
        self.gone: dict[int, int] = {}
        self.committed: dict[str, dict[int, int]] = {}
        self.stamped_ms = self.bench.clock.time_ms

    def teardown(self) -> None:
        abandon(self.bench.store)
        self.directory.cleanup()

    def lose(self, queue: int, start: int, why: LossReason) -> None:
        start = min(start, len(self.queues[queue]))
        if start > self.starts[queue]:
            if why is not LossReason.ASKED:
                self.gone[why] = self.gone.get(why, 0) + start - self.starts[queue]
            self.starts[queue] = start

    def held(self, queue: int) -> int:
        return len(self.queues[queue]) - self.starts[queue]

    @rule(sent=st.lists(st.integers(0, QUEUES - 1), min_size=1, max_size=7))
    def send(self, sent: list[int]) -> None:
        most, all_most = self.options.queue_max_messages, self.options.max_messages
        refuses = self.options.overflow == "refuse"
        full = all_most is not None and sum(map(self.held, range(QUEUES))) + len(sent) > all_most
        over = most is not None and any(self.held(queue) + sent.count(queue) > most for queue in set(sent))
        never = most is not None and any(sent.count(queue) > most for queue in set(sent))
        batch = [(queue, b"m") for queue in sent]
        if refuses and (full or over):
            with pytest.raises(TooManyMessages if never and not full else QuotaExceeded):
                put(self.bench.store, self.topic_id, *batch)
            return
        put(self.bench.store, self.topic_id, *batch)
        self.stamped_ms = self.bench.clock.time_ms
        for queue in sent:
            self.queues[queue].append(self.stamped_ms)
        for queue in set(sent) if most is not None and not refuses else ():
            self.lose(queue, len(self.queues[queue]) - most, LossReason.OVERFLOW)  # type: ignore[operator]

    @rule(minutes=st.integers(0, 4), milliseconds=st.sampled_from([0, 0, 1]))
    def wait(self, minutes: int, milliseconds: int) -> None:
        self.bench.clock.time_ms += minutes * MINUTE_MS + milliseconds
        self.retain()

    @initialize(wanted=options, drops=st.booleans())
    def start(self, wanted: TopicOptions, drops: bool) -> None:
        self.alter(wanted, drops)

    @rule(wanted=options, drops=st.booleans())
    def alter(self, wanted: TopicOptions, drops: bool) -> None:
        changes = {**wanted.to_dict(), "revision": self.options.revision + 1}
        if drops:  # the oldest of a whole topic go about when they should: that has tests of its own
            changes |= {"overflow": "drop_oldest", "max_messages": None}
        self.options = TopicOptions.from_dict(changes)
        self.bench.store.alter_topic("t", self.options)

    @rule(group=st.sampled_from("ab"), queue=st.integers(0, QUEUES - 1), part=st.floats(0, 1))
    def commit(self, group: str, queue: int, part: float) -> None:
        offset = int(part * len(self.queues[queue]))
        store = self.bench.store
        store.wait(store.commit_offsets(group, self.topic_id, np.array([queue], np.uint32), np.array([offset])))
        known = self.committed.setdefault(group, {})
        known[queue] = max(offset, known.get(queue, 0))

    @rule(group=st.sampled_from("ab"))
    def forget(self, group: str) -> None:
        self.bench.store.wait(self.bench.store.forget_group(group))
        self.committed.pop(group, None)

    @rule(queue=st.integers(0, QUEUES - 1), minutes=st.integers(0, 20))
    def trim_by_time(self, queue: int, minutes: int) -> None:
        before_ms = self.bench.clock.time_ms - minutes * MINUTE_MS
        store = self.bench.store
        queues, offsets, messages = store.starts_after(self.topic_id, range(queue, queue + 1), before_ms=before_ms)
        held = self.held(queue)
        self.lose(queue, sum(stored < before_ms for stored in self.queues[queue]), LossReason.ASKED)
        assert messages == held - self.held(queue)
        if len(queues):
            store.wait(store.trim(self.topic_id, queues, offsets))

    def retain(self) -> None:
        retain(self.bench.store)
        age, newest = self.options.retention_ms, self.options.retention_messages
        for queue, stored in enumerate(self.queues):
            if age is not None:
                before_ms = self.bench.clock.time_ms - age
                self.lose(queue, sum(each < before_ms for each in stored), LossReason.EXPIRED)
            if newest is not None:
                self.lose(queue, len(stored) - newest, LossReason.EXPIRED)
            most = self.options.queue_max_messages
            if most is not None and self.options.overflow == "drop_oldest":  # It was lowered: nobody wrote to it since.
                self.lose(queue, len(stored) - most, LossReason.OVERFLOW)
            if self.options.delete_consumed and self.committed:
                floor = min(known.get(queue, 0) for known in self.committed.values())
                self.lose(queue, floor, LossReason.CONSUMED)

    @rule()
    def flush(self) -> None:
        flush(self.bench.store)

    @rule()
    def merge(self) -> None:
        merge(self.bench.store)

    @precondition(lambda self: self.bench.clock.time_ms - self.stamped_ms < GAP_MS)
    @rule()
    def reopen(self) -> None:
        self.bench.reopen()
        self.bench.store.retention.rest = None

    @invariant()
    def queues_begin_where_the_model_says(self) -> None:
        store = self.bench.store
        assert store.earliest_offsets(self.topic_id).tolist() == self.starts
        assert store.latest_offsets(self.topic_id).tolist() == [len(stored) for stored in self.queues]
        assert store.retention.usage(self.topic_id).gone == self.gone


class TestLimits(Limits.TestCase):  # type: ignore[name-defined,misc]
    settings = profile(100, 60)

"""The ledger against a model, with crashes: at least once, acknowledged never again, hidden as long as promised."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lsmq_node.workqueue import chunks as chunks_module
from lsmq_node.workqueue.chunks import SettledChunk
from lsmq_node.workqueue.ledger import WorkLedger
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.settings import WorkSettings
from lsmq_node.workqueue.tasks import DeliveryState, OpenMessage, Refusal
from support.counted_lines import counted_lines
from support.extent import part_in_number

QUEUES = 3
CHUNK_OFFSETS = 8  # so that a few messages are several chunks
_TRUE_CHUNK_OFFSETS = chunks_module.CHUNK_OFFSETS
SETTINGS = WorkSettings(max_deliveries=4, retry_first_ms=50, retry_max_ms=400)
Place = tuple[int, int]


@dataclass
class Durable:
    """What a shard keeps: committed offsets and documents."""

    cursors: dict[int, int] = field(default_factory=dict)
    documents: dict[tuple[int, int], bytes] = field(default_factory=dict)


@dataclass
class Issued:
    """A delivery as its consumer knows it. ``until``: hidden from others, as long as the leader is the same."""

    receipt: DeliveryReceipt
    leader: int
    until: int
    over: bool = False

    @property
    def place(self) -> Place:
        return self.receipt.queue, self.receipt.offset


class WorkQueueMachine(RuleBasedStateMachine):
    """What is in ``acked`` was acknowledged and answered; ``dead`` was put away. Neither may come again."""

    def __init__(self) -> None:
        super().__init__()
        chunks_module.CHUNK_OFFSETS = CHUNK_OFFSETS
        self.now = 1_000_000
        self.ends = dict.fromkeys(range(QUEUES), 0)
        self.durable = Durable()
        self.leader = 0
        self.issued: list[Issued] = []
        self.holders: dict[Place, Issued] = {}
        self.settling: set[Place] = set()  # acknowledged, not answered yet
        self.acked: set[Place] = set()
        self.unknown: set[Place] = set()  # acknowledged, and the leader died before it answered
        self.dead: set[Place] = set()
        self.failures: dict[Place, int] = {}  # durable ones
        self.failing: dict[Place, int] = {}
        self.ledger = self.load()

    def load(self) -> WorkLedger:
        self.leader += 1
        durable = self.durable
        ledger = WorkLedger(SETTINGS, self.leader, lambda queue: durable.cursors.get(queue, 0), self.ends.__getitem__)
        for queue in range(QUEUES):
            chunks = {
                number: SettledChunk.decode(body, number, "chunk")
                for (owner, number), body in durable.documents.items()
                if owner == queue
            }
            if chunks:
                ledger.load(queue, durable.cursors.get(queue, 0), chunks, self.now)
        return ledger

    @rule(queue=st.integers(0, QUEUES - 1), count=st.sampled_from([1, 2, 5, CHUNK_OFFSETS]))
    def send(self, queue: int, count: int) -> None:
        self.ends[queue] = min(self.ends[queue] + count, 3 * CHUNK_OFFSETS)

    @rule(limit=st.sampled_from([1, 3, 100]), visibility_ms=st.sampled_from([100, 1_000]))
    def pop(self, limit: int, visibility_ms: int) -> None:
        self.ledger.advance(self.now)
        tasks = self.ledger.take_ready(limit)
        receipts = [self.ledger.deliver(task, self.now, visibility_ms) for task in tasks]
        limit -= len(receipts)
        for queue in range(QUEUES):
            first = self.ledger.next_of(queue)
            end = min(self.ends[queue], first + limit)
            if first < end:
                receipts += self.ledger.deliver_fresh(queue, range(first, end), end, self.now, visibility_ms)
                limit -= end - first
        for receipt in receipts:
            if receipt is not None:  # else somebody picked it before
                self.deliver(receipt)

    @rule(queue=st.integers(0, QUEUES - 1), every=st.sampled_from([1, 2, 5]), limit=st.sampled_from([1, 4, 100]))
    def pick(self, queue: int, every: int, limit: int) -> None:
        """Of those that nobody has, only each so many-th is wanted."""
        self.ledger.advance(self.now)
        again = [task for task in self.ledger.ready() if task.offset % every == 0][:limit]
        for receipt in [self.ledger.deliver(task, self.now, 1_000) for task in again if self.ledger.take(task)]:
            assert receipt is not None
            self.deliver(receipt)
        first = self.ledger.next_of(queue)
        wanted = [offset for offset in range(first, self.ends[queue]) if offset % every == 0][: limit - len(again)]
        for offset, receipt in zip(wanted, self.ledger.deliver_picked(queue, wanted, self.now, 1_000), strict=True):
            if receipt is not None:
                assert receipt.offset == offset
                self.deliver(receipt)

    def deliver(self, receipt: DeliveryReceipt) -> None:
        place = receipt.queue, receipt.offset
        assert place not in self.acked | self.settling | self.dead, "what was settled comes again"
        other = self.holders.get(place)
        assert other is None or not self.holds(other), "delivered twice before its visibility ended"
        assert receipt.count > self.failures.get(place, 0), "a durable failure is not counted"
        assert receipt.count <= SETTINGS.max_deliveries
        self.issued.append(Issued(receipt, self.leader, receipt.expires_ms))
        self.holders[place] = self.issued[-1]

    def choose(self, number: int) -> Issued:
        return self.issued[-1 - number % len(self.issued)]

    def holds(self, one: Issued) -> bool:
        """Whether the delivery must count: made by this leader, not over, still hidden."""
        return one.leader == self.leader and not one.over and one.until > self.now

    @precondition(lambda self: self.issued)
    @rule(number=st.integers(0, 30), count=st.sampled_from([1, 1, 7, 100]))
    def ack(self, number: int, count: int) -> None:
        for one in [self.choose(number + step) for step in range(min(count, len(self.issued)))]:
            settled = one.place in self.acked | self.settling | self.unknown | self.dead
            refusal = self.ledger.ack(one.receipt, self.now)
            if refusal is None:
                assert not (one.leader == self.leader and not self.holds(one) and not settled)
                self.settling.add(one.place)
                one.over = True
            else:
                assert refusal is Refusal.EXPIRED
                assert not self.holds(one), "a delivery that holds was refused"

    @precondition(lambda self: self.issued)
    @rule(number=st.integers(0, 30), delay_ms=st.sampled_from([None, 0, 10_000]), bury=st.booleans())
    def nack(self, number: int, delay_ms: int | None, bury: bool) -> None:
        one = self.choose(number)
        held, before = self.holds(one), self.ledger.counts.nacked
        refusal = self.ledger.nack(one.receipt, self.now, delay_ms=delay_ms, bury=bury)
        assert refusal is None or not held
        if self.ledger.counts.nacked > before:
            self.failing[one.place] = one.receipt.count
            one.over = True

    @precondition(lambda self: self.issued)
    @rule(number=st.integers(0, 30))
    def extend(self, number: int) -> None:
        one = self.choose(number)
        held = self.holds(one)
        if self.ledger.extend(one.receipt, self.now, 2_000) is None:
            assert held or one.leader != self.leader
            one.until, one.leader, one.over = self.now + 2_000, self.leader, False
            self.holders[one.place] = one
        else:
            assert not held

    @precondition(lambda self: self.issued)
    @rule(number=st.integers(0, 30))
    def release(self, number: int) -> None:
        one = self.choose(number)
        if self.ledger.release(one.receipt, self.now) is None:
            one.over = True

    @rule(passed_ms=st.sampled_from([1, 60, 300, 5_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now += passed_ms
        self.ledger.advance(self.now)

    @rule()
    def store(self) -> None:
        changes = self.ledger.take_changes()
        self.durable.cursors.update(zip(changes.queues, changes.cursors, strict=True))
        for key, body in changes.documents.items():
            if body is None:
                self.durable.documents.pop(key, None)
            else:
                self.durable.documents[key] = body
        self.ledger.stored(changes, self.now)
        self.acked |= self.settling
        self.settling.clear()
        self.failures.update(self.failing)
        self.failing.clear()

    @rule()
    def bury(self) -> None:
        tasks = self.ledger.take_dead(100)
        self.dead |= {(task.queue, task.offset) for task in tasks}
        self.ledger.settle_dead(tasks)
        self.store()

    @rule(half=st.booleans())
    def crash(self, half: bool) -> None:
        """What was not stored may be, with ``half`` only as far as the committed offsets; or not at all."""
        if half:
            changes = self.ledger.take_changes()
            self.durable.cursors.update(zip(changes.queues, changes.cursors, strict=True))
        self.unknown |= self.settling  # these may come again, or not
        self.settling.clear()
        self.failing.clear()
        self.ledger = self.load()

    @rule()
    def could_not_store(self) -> None:
        """The same leader reads again what is stored. What it has delivered counts, and stays hidden from others."""
        held = [
            one
            for one in self.holders.values()
            if self.holds(one) or (one.place in self.settling and one.leader == self.leader and one.until > self.now)
        ]
        self.ledger.take_changes()
        deliveries = self.ledger.deliveries()
        self.settling.clear()
        self.failing.clear()
        self.ledger = self.load()
        self.ledger.carry_over(deliveries, self.now)
        for one in held:
            one.leader, one.over = self.leader, False

    @invariant()
    def counts_add_up(self) -> None:
        assert all(count >= 0 for count in self.ledger.states.values())
        assert self.ledger.states[DeliveryState.TAKEN] == 0

    def teardown(self) -> None:
        """In the end every message was acknowledged, is dead, or comes (again)."""
        try:
            self.finish()
        finally:
            chunks_module.CHUNK_OFFSETS = _TRUE_CHUNK_OFFSETS

    def finish(self) -> None:
        unknown = set(self.settling)
        self.store()
        for _ in range(200):
            self.now += 100_000
            self.ledger.advance(self.now)
            self.bury()
            before = len(self.issued)
            self.pop(10_000, 100)
            fresh = self.issued[before:]
            self.issued = []
            for one in fresh:
                assert self.ledger.ack(one.receipt, self.now) is None
                self.settling.add(one.place)
            self.store()
            if not fresh:
                break
        everything = {(queue, offset) for queue in range(QUEUES) for offset in range(self.ends[queue])}
        assert self.ledger.open_count == 0
        for queue, end in self.ends.items():
            assert self.durable.cursors.get(queue, 0) == end
        assert not self.durable.documents, "documents are left of what is settled"
        assert not self.ledger.windows()
        assert everything >= self.acked | self.dead | unknown


WorkQueueMachine.TestCase.settings = settings(max_examples=part_in_number(40, 3), stateful_step_count=30)
TestWorkQueue = WorkQueueMachine.TestCase


@pytest.mark.part(3)
def test_a_stubborn_message_costs_nothing_as_others_pass_it() -> None:
    ends = [100_000]
    ledger = WorkLedger(SETTINGS, 1, lambda queue: 0, lambda queue: ends[0])
    now, written = 0, 0
    for first in range(0, 100_000, 1_000):
        receipts = ledger.deliver_fresh(0, range(first, first + 1_000), first + 1_000, now, 10_000)
        for receipt in receipts:
            assert receipt is not None
            if receipt.offset:
                assert ledger.ack(receipt, now) is None
        changes = ledger.take_changes()
        written += sum(len(body or b"") for body in changes.documents.values())
        ledger.stored(changes, now)
    assert ledger.open_count == 1 and ledger.next_of(0) == 100_000
    assert written < 10_000


def test_a_message_that_was_read_twice_is_delivered_once() -> None:
    ledger = WorkLedger(SETTINGS, 1, lambda queue: 0, lambda queue: 3)
    receipts = ledger.deliver_fresh(0, [0, 1, 0, 1, 2], 3, 0, 1_000)
    assert [receipt and receipt.offset for receipt in receipts] == [0, 1, None, None, 2]
    assert ledger.open_count == 3


def test_timers_of_settled_messages_do_not_pile_up() -> None:
    ledger = WorkLedger(WorkSettings(), 1, lambda queue: 0, lambda queue: 10**9)
    for offset in itertools.count(step=100):
        if offset > 60_000:
            break
        for receipt in ledger.deliver_fresh(0, range(offset, offset + 100), offset + 100, 0, 40_000_000):
            assert receipt is not None and ledger.ack(receipt, 0) is None
    assert len(ledger._timers) < 20_200


def test_many_that_are_dead_cost_a_batch_of_dead_letters_no_comparison_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, compared = 2_000, 0

    def compares(one: OpenMessage, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    ledger = WorkLedger(SETTINGS, 1, lambda queue: 0, lambda queue: count)
    for receipt in ledger.deliver_fresh(0, range(count), count, 0, 60_000):
        assert receipt is not None and ledger.nack(receipt, 0, bury=True) is None
    tasks = ledger.take_dead(100)
    monkeypatch.setattr(OpenMessage, "__eq__", compares)
    assert ledger.dead_at([(task.queue, task.offset) for task in tasks]) == tasks
    assert compared < count
    assert len(ledger.take_dead(count)) == count - len(tasks), "each is taken once"


def test_a_page_of_what_is_in_flight_costs_what_its_own_queues_have() -> None:
    """Counted in lines of the interpreter."""
    ledger, queues, each = WorkLedger(SETTINGS, 1, lambda queue: 0, lambda queue: 100), 50, 100
    for queue in range(queues):
        ledger.deliver_fresh(queue, range(each), each, 0, 60_000)
    pages, after = [], (-1, -1)
    while True:
        with counted_lines() as lines:
            page = ledger.in_flight(after, 30)
        assert lines.count < queues * each
        if not page:
            break
        pages += page
        after = page[-1].queue, page[-1].offset
    assert [(found.queue, found.offset) for found in pages] == [(q, o) for q in range(queues) for o in range(each)]

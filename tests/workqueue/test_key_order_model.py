"""Order by key against a model, with crashes: nothing is handed out before what precedes it is settled for good."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lsmq_node.workqueue import chunks as chunks_module
from lsmq_node.workqueue import open_messages as open_messages_module
from lsmq_node.workqueue.chunks import SettledChunk
from lsmq_node.workqueue.ledger import WorkLedger
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.settings import FairBy, Order, WorkSettings
from lsmq_node.workqueue.tasks import DeliveryState, WorkChanges
from support.counted_lines import counted_lines
from support.extent import part_in_number

QUEUES = 2
KEYS = 4
CHUNK_OFFSETS = 8  # so that a few messages are several chunks
MAX_BLOCKED = 12  # so that queues stall
_TRUE_COST = open_messages_module.LANE_COST
_TRUE = chunks_module.CHUNK_OFFSETS, open_messages_module.MAX_BLOCKED
SETTINGS = WorkSettings(max_deliveries=4, retry_first_ms=50, retry_max_ms=400, order=Order.KEY)
Place = tuple[int, int]


@dataclass
class Durable:
    """What a shard keeps: committed offsets and documents."""

    cursors: dict[int, int] = field(default_factory=dict)
    documents: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def store(self, changes: WorkChanges, *, documents: bool = True) -> None:
        self.cursors.update(zip(changes.queues, changes.cursors, strict=True))
        if documents:
            for key, body in changes.documents.items():
                if body is None:
                    self.documents.pop(key, None)
                else:
                    self.documents[key] = body

    def chunks(self, queue: int) -> dict[int, SettledChunk]:
        return {
            number: SettledChunk.decode(body, number, "chunk")
            for (owner, number), body in self.documents.items()
            if owner == queue
        }

    def is_settled(self, queue: int, offset: int) -> bool:
        if offset < self.cursors.get(queue, 0):
            return True
        pairs = (pair for chunk in self.chunks(queue).values() for pair in chunk.settled)
        return any(first <= offset < end for first, end in pairs)


@dataclass
class Held:
    """A delivery as its consumer knows it."""

    receipt: DeliveryReceipt
    until: int
    leader: int
    over: bool = False

    @property
    def place(self) -> Place:
        return self.receipt.queue, self.receipt.offset


class KeyOrderMachine(RuleBasedStateMachine):
    """Messages are the numbers of their keys, by queue; 0 is none."""

    SETTINGS = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        chunks_module.CHUNK_OFFSETS, open_messages_module.MAX_BLOCKED = CHUNK_OFFSETS, MAX_BLOCKED
        self.now = 1_000_000
        self.keys: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
        self.earliest = dict.fromkeys(range(QUEUES), 0)
        self.durable = Durable()
        self.leader = 0
        self.held: list[Held] = []
        self.last: dict[Place, Held] = {}
        self.settling: set[Place] = set()
        self.done: set[Place] = set()
        self.ledger = self.load()

    def load(self) -> WorkLedger:
        self.leader += 1
        ledger = WorkLedger(self.SETTINGS, self.leader, self.start_of, lambda queue: len(self.keys[queue]))
        for queue in range(QUEUES):
            if chunks := self.durable.chunks(queue):
                ledger.load(queue, self.start_of(queue), chunks, self.now)
        return ledger

    def start_of(self, queue: int) -> int:
        return max(self.durable.cursors.get(queue, 0), self.earliest[queue])

    # What happens

    @rule(queue=st.integers(0, QUEUES - 1), keys=st.lists(st.integers(0, KEYS), min_size=1, max_size=12))
    def send(self, queue: int, keys: list[int]) -> None:
        self.keys[queue] += keys[: 4 * CHUNK_OFFSETS - len(self.keys[queue])]

    @rule(limit=st.sampled_from([1, 3, 100]), visibility_ms=st.sampled_from([100, 1_000]))
    def pop(self, limit: int, visibility_ms: int) -> None:
        self.ledger.advance(self.now)
        again = self.ledger.take_ready(limit)
        self.ledger.gone([task for task in again if task.offset < self.earliest[task.queue]], self.now)
        for task in again:
            if (receipt := self.ledger.deliver(task, self.now, visibility_ms)) is not None:
                self.deliver(receipt)
        limit -= len(again)
        for queue in self.keys:
            limit -= self.look(queue, limit, visibility_ms)

    def look(self, queue: int, limit: int, visibility_ms: int) -> int:
        """Look at new messages of a queue, and deliver up to ``limit``; how many these were."""
        keys, count = self.keys[queue], 0
        first = max(self.ledger.next_of(queue), self.earliest[queue])
        if limit <= 0 or first >= len(keys) or self.ledger.is_stalled(queue):
            return 0
        end = min(len(keys), first + 10)
        for task in self.ledger.line_up(queue, range(first, end), keys[first:end], end, limit, self.now):
            if task is not None:
                receipt = self.ledger.deliver(task, self.now, visibility_ms)
                assert receipt is not None
                self.deliver(receipt)
                count += 1
        return count

    def deliver(self, receipt: DeliveryReceipt) -> None:
        queue, offset = place = receipt.queue, receipt.offset
        assert not self.durable.is_settled(queue, offset) and place not in self.settling, "settled, and comes again"
        before = self.last.get(place)
        assert before is None or not self.holds(before), "delivered twice before its visibility ended"
        self.check_turn(queue, offset)
        self.held.append(Held(receipt, receipt.expires_ms, self.leader))
        self.last[place] = self.held[-1]

    def check_turn(self, queue: int, offset: int) -> None:
        key = self.keys[queue][offset]
        earlier = [at for at, other in enumerate(self.keys[queue][:offset]) if key and other == key]
        open_before = [at for at in earlier if at >= self.earliest[queue] and not self.durable.is_settled(queue, at)]
        assert not open_before, f"{offset} was handed out before {open_before} of its key were settled for good"

    def holds(self, one: Held) -> bool:
        kept = one.receipt.offset >= self.earliest[one.receipt.queue]
        return kept and one.leader == self.leader and not one.over and one.until > self.now

    def choose(self, number: int) -> Held:
        return self.held[-1 - number % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 30), count=st.sampled_from([1, 1, 7, 100]))
    def ack(self, number: int, count: int) -> None:
        for one in [self.choose(number + step) for step in range(min(count, len(self.held)))]:
            if self.ledger.ack(one.receipt, self.now) is None:
                one.over = True
                self.settling.add(one.place)
            else:
                assert not self.holds(one), "a delivery that holds was refused"

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 30), delay_ms=st.sampled_from([None, 0, 10_000]), bury=st.booleans())
    def nack(self, number: int, delay_ms: int | None, bury: bool) -> None:
        one = self.choose(number)
        held = self.holds(one)
        if self.ledger.nack(one.receipt, self.now, delay_ms=delay_ms, bury=bury) is None:
            one.over = True
        else:
            assert not held

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 30), how=st.sampled_from(["release", "extend"]))
    def release_or_extend(self, number: int, how: str) -> None:
        one = self.choose(number)
        if how == "release":
            one.over |= self.ledger.release(one.receipt, self.now) is None
        elif self.ledger.extend(one.receipt, self.now, 2_000) is None:
            one.until, one.leader, one.over = self.now + 2_000, self.leader, False
            self.last[one.place] = one

    @rule(passed_ms=st.sampled_from([1, 60, 300, 5_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now += passed_ms
        self.ledger.advance(self.now)

    @rule(queue=st.integers(0, QUEUES - 1), count=st.integers(1, 5))
    def retention(self, queue: int, count: int) -> None:
        self.earliest[queue] = min(self.earliest[queue] + count, len(self.keys[queue]))

    @rule()
    def store(self) -> None:
        changes = self.ledger.take_changes()
        self.durable.store(changes)
        self.ledger.stored(changes, self.now)
        self.done |= self.settling
        self.settling.clear()

    @rule()
    def bury(self) -> None:
        self.ledger.settle_dead(self.ledger.take_dead(100))
        self.store()

    @rule(stored=st.sampled_from(["nothing", "all"]))
    def crash(self, stored: str) -> None:
        if stored == "all":  # it was, and the leader died before it knew
            self.durable.store(self.ledger.take_changes())
        self.settling.clear()
        self.ledger = self.load()

    @rule()
    def could_not_store(self) -> None:
        """The same leader reads again what is stored; what it has delivered stays hidden from others."""
        held = [one for one in self.last.values() if self.holds(one)]
        self.ledger.take_changes()
        deliveries = self.ledger.deliveries()
        self.settling.clear()
        self.ledger = self.load()
        self.ledger.carry_over(deliveries, self.now)
        for one in held:
            one.leader = self.leader

    @invariant()
    def counts_add_up(self) -> None:
        ledger = self.ledger
        assert all(count >= 0 for count in ledger.states.values())
        assert ledger.states[DeliveryState.TAKEN] == 0
        assert 0 <= ledger.blocked + ledger.lined <= MAX_BLOCKED
        windows = list(ledger._windows.values())
        assert ledger.blocked + ledger.lined == sum(window.blocked for window in windows)
        for window in windows:
            marked = sum(mask.bit_count() for mask in window.unsettled.values())
            assert marked == len(window.open) - len(window.early) + window.blocked
            assert window.cursor <= window.next

    def teardown(self) -> None:
        """In the end every message is settled, and nothing is left to know."""
        try:
            self.finish()
        finally:
            chunks_module.CHUNK_OFFSETS, open_messages_module.MAX_BLOCKED = _TRUE

    def finish(self) -> None:
        for keys in self.keys.values():
            keys.append(0)  # whatever retention took, the next message has it looked at
        self.store()
        for _ in range(400):
            if all(self.durable.cursors.get(queue, 0) >= len(keys) for queue, keys in self.keys.items()):
                break
            self.now += 100_000
            self.ledger.advance(self.now)
            self.bury()
            before = len(self.held)
            self.pop(10_000, 100)
            for one in self.held[before:]:
                assert self.ledger.ack(one.receipt, self.now) is None
                self.settling.add(one.place)
            self.held = self.held[:before]
            self.store()
        self.bury()
        assert self.ledger.open_count == self.ledger.blocked == self.ledger.lined == 0
        for queue, keys in self.keys.items():
            assert self.durable.cursors.get(queue, 0) == len(keys)
        assert not self.durable.documents, "documents are left of what is settled"
        assert not self.ledger.windows()


KeyOrderMachine.TestCase.settings = settings(max_examples=part_in_number(60, 3), stateful_step_count=40, deadline=None)
TestKeyOrder = KeyOrderMachine.TestCase


class TurnsMachine(KeyOrderMachine):
    """The same with turns by key: the key is the tenant, and its remainder by two the priority."""

    SETTINGS = replace(
        SETTINGS, order=Order.PRIORITY, fair_by=FairBy.KEY, weights={"x": 3}, max_in_flight_per=2, max_rate_per=20
    )

    def __init__(self) -> None:
        super().__init__()
        open_messages_module.LANE_COST = 1

    def look(self, queue: int, limit: int, visibility_ms: int) -> int:
        while not self.ledger.is_stalled(queue):
            keys = self.keys[queue]
            first = max(self.ledger.next_of(queue), self.earliest[queue])
            if first >= len(keys):
                break
            end = min(len(keys), first + 10)
            levels = [key % 2 for key in keys[first:end]]
            self.ledger.look_at(queue, range(first, end), keys[first:end], levels, end, self.now)
        return 0

    def pop(self, limit: int, visibility_ms: int) -> None:
        for queue in self.keys:
            self.look(queue, limit, visibility_ms)
        super().pop(limit, visibility_ms)

    def check_turn(self, queue: int, offset: int) -> None:
        states = [
            (task.tenant, task.state) for window in self.ledger._windows.values() for task in window.open.values()
        ]
        flying = Counter(tenant for tenant, state in states if state in (DeliveryState.IN_FLIGHT, DeliveryState.TAKEN))
        assert flying == +self.ledger._flying, "those in flight are counted"

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            open_messages_module.LANE_COST = _TRUE_COST


TurnsMachine.TestCase.settings = settings(max_examples=part_in_number(60, 3), stateful_step_count=40, deadline=None)
TestTurns = TurnsMachine.TestCase


def look_at(ledger: WorkLedger, keys: list[int], limit: int, size: int = 1_000) -> list[DeliveryReceipt]:
    """Look ahead as a pop does, until ``limit`` were delivered or all was looked at."""
    receipts: list[DeliveryReceipt] = []
    while len(receipts) < limit and (first := ledger.next_of(0)) < len(keys) and not ledger.is_stalled(0):
        end = min(len(keys), first + size)
        tasks = ledger.line_up(0, range(first, end), keys[first:end], end, limit - len(receipts), 0)
        receipts += [found for task in tasks if task is not None and (found := ledger.deliver(task, 0, 60_000))]
    return receipts


def test_a_key_with_a_hundred_thousand_waiting_takes_ten_bytes_each_and_delays_no_other() -> None:
    keys = [1] * 100_000 + list(range(2, 1_002))
    ledger = WorkLedger(WorkSettings(order=Order.KEY), 1, lambda queue: 0, lambda queue: len(keys))
    receipts = look_at(ledger, keys, 1_001)
    assert [receipt.offset for receipt in receipts] == [0, *range(100_000, 101_000)]
    assert (ledger.open_count, ledger.blocked) == (1_001, 99_999)
    window = ledger._windows[0]
    line = window.held[1]
    assert line is not None
    taken = sys.getsizeof(line._offsets) + sum(map(sys.getsizeof, window.unsettled.values()))
    assert taken < 10 * 100_000


def test_releasing_one_of_a_long_line_costs_the_same_wherever_it_is() -> None:
    """Counted in steps of the interpreter, as a scan of what waits would show."""
    keys = [1] * 20_000
    ledger = WorkLedger(WorkSettings(order=Order.KEY), 1, lambda queue: 0, lambda queue: len(keys))
    (receipt,) = look_at(ledger, keys, 1, 20_000) or look_at(ledger, keys, 1)
    costs = []
    look_at(ledger, keys, 1)
    for number in range(2_000):
        with counted_lines() as lines:
            assert ledger.ack(receipt, 0) is None
            ledger.stored(ledger.take_changes(), 0)
            (task,) = ledger.take_ready(1)
        found = ledger.deliver(task, 0, 60_000)
        assert found is not None and found.offset == number + 1
        receipt = found
        costs.append(lines.count)
    assert max(costs) < 4 * min(costs)


def test_a_long_line_that_was_purged_costs_what_its_chunks_do() -> None:
    """Counted in lines of the interpreter. What is open of another key, and what came since, stays."""
    count, first = 100_000, 0
    ledger = WorkLedger(WorkSettings(order=Order.KEY), 1, lambda queue: first, lambda queue: count + 1)
    keys = [8 if offset == 5_000 else 7 for offset in range(count)]
    head, other = look_at(ledger, keys, 3)
    first = count - 3
    assert ledger.ack(head, 0) is None
    changes = ledger.take_changes()
    with counted_lines() as lines:
        ledger.stored(changes, 0)
    assert lines.count < count / 20
    assert ledger.blocked == 2 and [task.offset for task in ledger.take_ready(10)] == [first]
    assert ledger.ack(other, 0) is None
    changes = ledger.take_changes()
    assert changes.cursors == [first] and not any(changes.documents.values())


def test_a_queue_at_its_bound_looks_no_further_until_some_of_it_is_settled_and_others_go_on() -> None:
    ends = {0: 100, 1: 100}
    bound, open_messages_module.MAX_BLOCKED = open_messages_module.MAX_BLOCKED, 20
    try:
        ledger = WorkLedger(WorkSettings(order=Order.KEY), 1, lambda queue: 0, ends.__getitem__)
        (stuck,) = look_at(ledger, [1] * 100, 5)
        assert ledger.is_stalled(0) and ledger.blocked == 10, "half of what there is room for"
        tasks = ledger.line_up(1, range(5), range(1, 6), 5, 10, 0)
        assert all(tasks) and not ledger.is_stalled(1)
        assert ledger.ack(stuck, 0) is None
        assert not ledger.take_resumed()
        ledger.stored(ledger.take_changes(), 0)
        assert ledger.take_resumed() == [0] and not ledger.is_stalled(0)
    finally:
        open_messages_module.MAX_BLOCKED = bound

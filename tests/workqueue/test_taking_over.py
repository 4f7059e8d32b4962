"""What a ledger makes of what another one has stored, and of deliveries that the other one has made."""

from __future__ import annotations

import pytest

from lsmq_node.workqueue import chunks as chunks_module
from lsmq_node.workqueue.chunks import SettledChunk
from lsmq_node.workqueue.ledger import WorkLedger
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.settings import MAX_DELAY_MS, Order, WorkSettings
from lsmq_node.workqueue.tasks import Refusal

HOUR_MS = 3_600_000
SETTINGS = WorkSettings(max_deliveries=9, retry_first_ms=HOUR_MS, retry_max_ms=HOUR_MS)


class Stored:
    """What a shard keeps of one queue, and who leads it."""

    def __init__(self, end: int, settings: WorkSettings = SETTINGS) -> None:
        self.cursor, self.end, self.settings = 0, end, settings
        self.documents: dict[int, bytes] = {}
        self.now, self.leaders = 1_000_000, 0
        self.take_over()

    def take_over(self) -> None:
        self.leaders += 1
        self.ledger = WorkLedger(self.settings, self.leaders, lambda _: self.cursor, lambda _: self.end)
        chunks = {number: SettledChunk.decode(body, number, "chunk") for number, body in self.documents.items()}
        self.ledger.load(0, self.cursor, chunks, self.now)

    def store(self) -> None:
        changes = self.ledger.take_changes()
        self.cursor = max([self.cursor, *changes.cursors])
        for (_, number), body in changes.documents.items():
            if body is None:
                del self.documents[number]
            else:
                self.documents[number] = body
        self.ledger.stored(changes, self.now)

    def deliver(self, count: int) -> list[DeliveryReceipt]:
        first = self.ledger.next_of(0)
        receipts = self.ledger.deliver_fresh(0, range(first, first + count), first + count, self.now, HOUR_MS)
        return [receipt for receipt in receipts if receipt is not None]

    def deliver_again(self) -> list[DeliveryReceipt]:
        self.ledger.advance(self.now)
        receipts = [self.ledger.deliver(task, self.now, HOUR_MS) for task in self.ledger.take_ready(100)]
        return [receipt for receipt in receipts if receipt is not None]


def test_what_had_failed_and_is_acknowledged_under_the_next_leader_comes_under_no_other() -> None:
    stored = Stored(3)
    _, second, _ = stored.deliver(3)
    assert stored.ledger.nack(second, stored.now, delay_ms=0) is None
    stored.store()
    stored.take_over()
    (again,) = stored.deliver_again()
    assert (again.offset, again.count) == (1, 2)
    assert stored.ledger.ack(again, stored.now) is None
    stored.store()
    stored.take_over()
    assert stored.deliver_again() == []
    assert [receipt.offset for receipt in stored.deliver(3)] == [0, 2]


def test_a_delay_goes_on_under_the_next_leader_and_is_not_longer_than_one_may_be() -> None:
    stored = Stored(2)
    first, second = stored.deliver(2)
    assert stored.ledger.nack(first, stored.now, delay_ms=HOUR_MS) is None
    assert stored.ledger.nack(second, stored.now, delay_ms=52 * MAX_DELAY_MS) is None  # by a clock that is ahead
    stored.store()
    stored.take_over()
    assert stored.deliver_again() == []
    stored.now += HOUR_MS
    assert [receipt.offset for receipt in stored.deliver_again()] == [0]
    stored.now += MAX_DELAY_MS
    assert [receipt.offset for receipt in stored.deliver_again()] == [0, 1]


def test_what_a_crash_left_of_chunks_below_the_cursor_goes_with_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_OFFSETS", 8)
    stored = Stored(20)
    receipts = stored.deliver(20)
    for receipt in receipts[1:]:
        assert stored.ledger.ack(receipt, stored.now) is None
    stored.store()
    assert list(stored.documents) == [1, 2, 0]
    assert stored.ledger.ack(receipts[0], stored.now) is None
    stored.cursor = stored.ledger.take_changes().cursors[0]  # the documents go after the cursor, and the leader dies
    stored.take_over()
    assert stored.ledger.is_dirty
    stored.store()
    assert not stored.documents and not stored.ledger.windows()


def test_what_is_known_of_messages_that_were_purged_goes_with_the_next_leader() -> None:
    stored = Stored(3)
    receipts = stored.deliver(3)
    assert stored.ledger.nack(receipts[0], stored.now) is None
    assert stored.ledger.ack(receipts[1], stored.now) is None
    stored.store()
    assert stored.documents
    stored.cursor = 3
    stored.take_over()
    stored.store()
    assert not stored.documents and not stored.ledger.windows()


def test_of_an_earlier_leader_the_delivery_that_was_last_counts_until_it_expires() -> None:
    stored = Stored(4)
    _, failed, expired, held = stored.deliver(4)
    assert stored.ledger.nack(failed, stored.now, delay_ms=0) is None
    stored.store()
    (expired_too,) = stored.deliver_again()
    stored.take_over()
    assert stored.ledger.ack(failed, stored.now) is Refusal.EXPIRED, "it has failed"
    assert stored.ledger.extend(held, stored.now, 2 * HOUR_MS) is None
    stored.now += HOUR_MS
    for receipt in (expired, expired_too):
        assert stored.ledger.ack(receipt, stored.now) is Refusal.EXPIRED
    assert stored.ledger.ack(held, stored.now) is None
    again = stored.deliver_again() + stored.deliver(4)
    assert sorted(receipt.offset for receipt in again) == [0, 1, 2]


def test_what_was_given_back_is_not_carried_over() -> None:
    stored = Stored(3)
    given_back, failed, held = stored.deliver(3)
    assert stored.ledger.release(given_back, stored.now) is None
    assert stored.ledger.nack(failed, stored.now) is None
    assert [each.receipt for each in stored.ledger.deliveries()] == [held]


def test_receipts_say_by_which_leader_they_are_and_of_which_life_of_the_work_queue() -> None:
    leader, other = 0x1234_5678, 0x9ABC_5678  # the lower halves are the same

    def deliver(leader: int, begun: int) -> tuple[WorkLedger, DeliveryReceipt]:
        ledger = WorkLedger(SETTINGS, leader, lambda _: 0, lambda _: 1, begun=begun)
        (receipt,) = ledger.deliver_fresh(0, [0], 1, 0, HOUR_MS)
        assert receipt is not None
        return ledger, receipt

    for begun in (0, 5):
        ledger, receipt = deliver(leader, begun)
        _, earlier = deliver(other, 0 if begun == 0 else 6)
        assert ledger.ack(earlier, 0) is Refusal.EXPIRED
        assert ledger.ack(receipt, 0) is None


def test_where_the_first_of_a_key_is_gone_the_next_comes_at_once_and_the_one_after_waits_for_it() -> None:
    ledger = WorkLedger(WorkSettings(order=Order.KEY), 1, lambda _: 0, lambda _: 3)
    first, *others = ledger.line_up(0, range(3), [7, 7, 7], 3, 3, 0)
    assert first is not None and others == [None, None]
    ledger.gone([first], 0)
    (second,) = ledger.take_ready(9)
    receipt = ledger.deliver(second, 0, HOUR_MS)
    assert receipt is not None and receipt.offset == 1
    ledger.stored(ledger.take_changes(), 0)
    assert ledger.take_ready(9) == []
    assert ledger.ack(receipt, 0) is None
    ledger.stored(ledger.take_changes(), 0)
    assert [task.offset for task in ledger.take_ready(9)] == [2]


def test_what_somebody_has_holds_its_key_though_it_is_deleted_and_its_leader_begins_anew() -> None:
    settings = WorkSettings(order=Order.KEY)
    before, ledger = (WorkLedger(settings, leader, lambda _: 0, lambda _: 3) for leader in (1, 2))
    first, _ = before.line_up(0, range(2), [7, 7], 2, 2, 0)
    assert first is not None
    receipt = before.deliver(first, 0, HOUR_MS)
    assert receipt is not None
    ledger.carry_over(before.deliveries(), 0)
    second, other = ledger.line_up(0, [1, 2], [7, 8], 3, 2, 0)
    assert second is None and other is not None
    assert ledger.ack(receipt, 0) is None
    ledger.stored(ledger.take_changes(), 0)
    assert [task.offset for task in ledger.take_ready(9)] == [1]

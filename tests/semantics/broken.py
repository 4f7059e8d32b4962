"""What is broken on purpose, one thing at a time: an area has to find it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lsmq import Message
from lsmq._requests import Requests
from lsmq.groups import Group
from lsmq_node.api import selecting
from lsmq_node.broker import selection
from lsmq_node.broker.limit_sharing import LimitSharing
from lsmq_node.groups.assignment import _Odd
from lsmq_node.schedules.shard_schedules import ShardSchedules
from lsmq_node.storage import evictions, name_patterns, own_limits, sequences, shard_store
from lsmq_node.storage import search as searching
from lsmq_node.storage.dedupe import DedupeIds
from lsmq_node.storage.extents import Extent
from lsmq_node.storage.group_patterns import GroupPatterns
from lsmq_node.storage.lapses import Lapses
from lsmq_node.storage.producers import BatchKey, Head
from lsmq_node.storage.queries import Queries
from lsmq_node.storage.quotas import Quota
from lsmq_node.storage.retention import Gone, Retention
from lsmq_node.storage.search import SearchFound, SearchQuery
from lsmq_node.storage.shard_time import ShardTime
from lsmq_node.transactions.book import TransactionBook
from lsmq_node.transactions.coordinator import ShardTransactions
from lsmq_node.transactions.records import BookChange, RecordKey, TransactionRecord, TransactionState
from lsmq_node.workqueue import shard_work
from lsmq_node.workqueue.burial import DeadLetterMover
from lsmq_node.workqueue.departed import DepartedLook
from lsmq_node.workqueue.ledger import WorkLedger
from lsmq_node.workqueue.pace import TenantPace
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.tasks import DeliveryState, OpenMessage, Refusal
from lsmq_node.workqueue.turns import TenantTurns, Turn
from lsmq_node.workqueue.window import KeyLine, Window
from simulation import test_uses


def a_turn_never_ends(patch: pytest.MonkeyPatch) -> None:
    take_turn = TenantTurns._take_turn

    def all_at_once(self: TenantTurns, level: int, limit: int) -> Iterator[Turn]:
        self._credits[level] = 1_000
        return take_turn(self, level, limit)

    patch.setattr(TenantTurns, "_take_turn", all_at_once)


def what_all_have_read_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "_drop_consumed", lambda self, item, trim: Gone.ALL)


def the_dead_are_not_put_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadLetterMover, "wake", lambda self: None)


def pages_leave_one_out(patch: pytest.MonkeyPatch) -> None:
    def search(queries: Queries, query: SearchQuery) -> SearchFound:
        queue, offset = query.begin
        return searching.search(queries, replace(query, begin=(queue, offset + (offset > 0))))

    patch.setattr(shard_store, "search", search)


def parts_of_names_are_any_rest(patch: pytest.MonkeyPatch) -> None:
    expression = name_patterns._expression
    patch.setattr(name_patterns, "_expression", lambda pattern: expression(re.sub(r"(?<!\*)\*$", "**", pattern)))


def keys_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    hold = Window.hold
    patch.setattr(Window, "hold", lambda self, offset, key: hold(self, offset, 0))


def the_last_of_a_key_comes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyLine, "pop", lambda self: self._offsets.pop())


def receipts_end_with_their_leader(patch: pytest.MonkeyPatch) -> None:
    find = WorkLedger._find

    def only_ours(self: WorkLedger, receipt: DeliveryReceipt, now: int) -> OpenMessage | Refusal | None:
        return find(self, receipt, now) if receipt.token >> 32 == self._leader else Refusal.EXPIRED

    patch.setattr(WorkLedger, "_find", only_ours)


def what_waits_for_its_turn_is_done(patch: pytest.MonkeyPatch) -> None:
    """As an earlier leader, who has delivered it, hears of whoever has it."""
    patch.setattr(WorkLedger, "_is_lined_up", lambda self, queue, offset: False)


def what_comes_again_is_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    room = WorkLedger.room_of
    patch.setattr(WorkLedger, "room_of", lambda self, tenant: room(self, tenant) + self.states[DeliveryState.READY])


def a_rate_is_of_all_together(patch: pytest.MonkeyPatch) -> None:
    spend = TenantPace.spend
    patch.setattr(TenantPace, "spend", lambda self, tenant, now, count=1: spend(self, 0, now, count))


def rates_are_doubled(patch: pytest.MonkeyPatch) -> None:
    keep = TenantPace.__init__
    patch.setattr(TenantPace, "__init__", lambda self, per_s: keep(self, 2 * per_s))


def rolling_back_commits(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionBook.decide

    def commits(self: TransactionBook, key: RecordKey, state: TransactionState, by: str, wall_ms: int) -> BookChange:
        return decide(self, key, TransactionState.COMMITTED, by, wall_ms)

    patch.setattr(TransactionBook, "decide", commits)


def only_the_first_part_is_delivered(patch: pytest.MonkeyPatch) -> None:
    batches = ShardTransactions._batches

    def first(self: ShardTransactions, shard: int, number: int, transaction: TransactionRecord) -> list[Any]:
        return batches(self, shard, number, transaction)[:1]

    patch.setattr(ShardTransactions, "_batches", first)


def positions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sequences.Sequences, "position", lambda self, producer_id: -1)


def those_before_go_on(patch: pytest.MonkeyPatch) -> None:
    is_next = sequences._is_next

    def of_any_epoch(key: BatchKey, head: Head | None) -> bool:
        return True if head is not None and key.epoch < head.epoch else is_next(key, head)

    patch.setattr(sequences, "_is_next", of_any_epoch)


def sequences_are_anybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBook, "_check_sequence", lambda self, transaction, epoch: None)


def sequences_stand_still(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionBook.decide

    def still(self: TransactionBook, *given: Any) -> BookChange:
        plan = decide(self, *given)
        plan.sequences.clear()
        return plan

    patch.setattr(TransactionBook, "decide", still)


def the_next_reply_is_anybodys(patch: pytest.MonkeyPatch) -> None:
    def take(self: Requests, message: Message) -> None:
        for reply in self._waiting.values():
            if not reply.done():
                return reply.set_result(message)

    patch.setattr(Requests, "_take", take)


def who_takes_over_begins_anew(patch: pytest.MonkeyPatch) -> None:
    fence = Group.fence

    async def nothing_committed(self: Group, *given: Any, **named: Any) -> dict[int, int]:
        await fence(self, *given, **named)
        return {}

    patch.setattr(Group, "fence", nothing_committed)


def ids_are_remembered_for_ever(patch: pytest.MonkeyPatch) -> None:
    find = DedupeIds.find
    patch.setattr(DedupeIds, "find", lambda self, ids, since_ms: find(self, ids, 0))


def nothing_ages(patch: pytest.MonkeyPatch) -> None:
    place = TenantTurns._place

    def by_level(self: TenantTurns, level: int) -> int:
        return min(place(self, level), -level)

    patch.setattr(TenantTurns, "_place", by_level)


def deadlines_are_priorities(patch: pytest.MonkeyPatch) -> None:
    ranked = evictions._ranked
    patch.setattr(evictions, "_ranked", lambda *given, by_priority: ranked(*given, by_priority=True))


def what_makes_room_is_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lapses, "held_back", lambda self, topic_id, queues, offsets, why: (queues, offsets, True))


def as_great_a_part_of_the_bytes_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Extent, "time_of_oldest_part", lambda self, part: self.time_of_oldest(part * self.size_bytes))
    patch.setattr(Retention, "_cut_to", lambda self, cut, starts, before, count: None)


def one_has_a_slot_more(patch: pytest.MonkeyPatch) -> None:
    quotas = _Odd.quotas

    def uneven(self: _Odd) -> dict[str, int]:
        found = quotas(self)
        if len(found) > 1:
            found[min(found)] += 1
            found[max(found)] -= 1
        return found

    patch.setattr(_Odd, "quotas", uneven)


def nobody_looks_for_what_rests_and_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DepartedLook, "due", lambda self, now_s: False)


def what_is_gone_holds_its_key(patch: pytest.MonkeyPatch) -> None:
    gone = WorkLedger.gone

    def holds(self: WorkLedger, tasks: Iterable[OpenMessage], now: int) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(WorkLedger, "_free", lambda self, queue, key, now: None)
            gone(self, tasks, now)

    patch.setattr(WorkLedger, "gone", holds)


def nothing_done_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_work, "delete_settled", lambda work, queues, cursors: None)


def what_is_new_has_an_even_part(patch: pytest.MonkeyPatch) -> None:
    """Of the room there is, as where it is refused."""
    measured = Quota.measured

    def evenly(self: Quota, own: Any, appended_bytes: int, rest: Any, options: Any) -> None:
        measured(self, own, appended_bytes, rest, replace(options, overflow="refuse"))

    patch.setattr(Quota, "measured", evenly)


def a_moment_is_eight(patch: pytest.MonkeyPatch) -> None:
    expired_before = ShardTime.expired_before
    patch.setattr(ShardTime, "expired_before", lambda self, age_ms: expired_before(self, age_ms // 8))


def queues_have_no_limits_of_their_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(own_limits, "own", lambda limit, of_topic: of_topic)


def shards_do_not_hear_of_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitSharing, "_tell", lambda self, port, holders: None)


def groups_hold_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupPatterns, "of", lambda self, group, topic_id: None)


def members_read_all_of_their_slots(patch: pytest.MonkeyPatch) -> None:
    selection_of = selecting.selection_of

    def of_slots(document: dict[str, Any]) -> selection.Selection:
        return selection_of(
            {field: given for field, given in document.items() if field != "pattern" or "slots" not in document}
        )

    patch.setattr(selecting, "selection_of", of_slots)


def members_read_all_that_matches(patch: pytest.MonkeyPatch) -> None:
    keep = selection.ByPattern.__init__
    patch.setattr(selection.ByPattern, "__init__", lambda self, pattern, slots=None: keep(self, pattern))


def schedules_are_listed_and_sent_though_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSchedules, "_drop", lambda self, key: None)


#: What is broken, and in which area that shows.
BROKEN: tuple[tuple[str, Callable[[pytest.MonkeyPatch], None]], ...] = (
    ("ageing", nothing_ages),
    ("ageing", test_uses.priorities_are_one),
    ("asked", test_uses.ids_are_forgotten),
    ("asked", the_next_reply_is_anybodys),
    ("billed", only_the_first_part_is_delivered),
    ("billed", rolling_back_commits),
    ("billed", test_uses.deleted_queues_stay),
    ("billed", test_uses.idle_queues_are_forgotten),
    ("briefly", ids_are_remembered_for_ever),
    ("briefly", test_uses.ids_are_forgotten),
    ("consumed", nothing_done_goes),
    ("consumed", test_uses.the_fastest_group_counts),
    ("copied", sequences_are_anybodys),
    ("copied", sequences_stand_still),
    ("customers", a_turn_never_ends),
    ("doomed", the_dead_are_not_put_away),
    ("eaten", what_all_have_read_stays),
    ("keyed", keys_hold_nothing),
    ("keyed", receipts_end_with_their_leader),
    ("keyed", the_dead_are_not_put_away),
    ("keyed", the_last_of_a_key_comes_first),
    ("later", test_uses.due_too_early),
    ("limited", what_comes_again_is_over_the_limit),
    ("limited", what_waits_for_its_turn_is_done),
    ("log", pages_leave_one_out),
    ("log", test_uses.everything_is_picked),
    ("log", test_uses.ids_are_forgotten),
    ("log", test_uses.nothing_expires),
    ("log", test_uses.trims_leave_a_message),
    ("mailed", groups_hold_all),
    ("mailed", test_uses.the_fastest_group_counts),
    ("members", test_uses.everything_is_picked),
    ("members", who_takes_over_begins_anew),
    ("moved", test_uses.what_makes_room_just_goes),
    ("named", parts_of_names_are_any_rest),
    ("named", test_uses.deleted_queues_stay),
    ("outbox", positions_are_forgotten),
    ("outbox", those_before_go_on),
    ("paced", a_rate_is_of_all_together),
    ("paced", rates_are_doubled),
    ("quotas", as_great_a_part_of_the_bytes_goes),
    ("quotas", deadlines_are_priorities),
    ("quotas", what_makes_room_is_not_moved),
    ("retained", a_moment_is_eight),
    ("retained", queues_have_no_limits_of_their_own),
    ("retained", shards_do_not_hear_of_each_other),
    ("retained", test_uses.nothing_expires),
    ("scheduled", schedules_are_listed_and_sent_though_deleted),
    ("scheduled", test_uses.the_first_time_comes_twice),
    ("shared", a_turn_never_ends),
    ("sized", test_uses.queues_hold_twice_their_bytes),
    ("sized", test_uses.what_a_queue_had_counts_for_nothing),
    ("subscribed", members_read_all_of_their_slots),
    ("subscribed", members_read_all_that_matches),
    ("subscribed", one_has_a_slot_more),
    ("subscribed", parts_of_names_are_any_rest),
    ("subscribed", test_uses.deleted_queues_stay),
    ("tables", test_uses.nothing_expires),
    ("tables", test_uses.superseded_is_the_one_behind),
    ("transactions", only_the_first_part_is_delivered),
    ("transactions", rolling_back_commits),
    ("urgent", test_uses.priorities_are_one),
    ("weighed", shards_do_not_hear_of_each_other),
    ("weighed", what_is_new_has_an_even_part),
)

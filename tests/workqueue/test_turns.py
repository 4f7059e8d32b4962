"""Whose turn it is, as a model on virtual time: shares follow weights, and a backlog is nobody else's wait."""

from __future__ import annotations

import sys
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq.messages import priority_rank, priority_value
from lsmq_node.workqueue import open_messages, waiting_queues
from lsmq_node.workqueue.chunks import SettledChunk
from lsmq_node.workqueue.ledger import WorkLedger
from lsmq_node.workqueue.pace import TenantPace
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.settings import FairBy, Order, WorkSettings
from lsmq_node.workqueue.turns import TenantTurns
from lsmq_node.workqueue.waiting_queues import WaitingQueues, quotas
from support.counted_lines import counted_lines

TENANTS = st.integers(0, 5)
MESSAGES = st.lists(st.tuples(TENANTS, st.integers(0, 3)), max_size=60)
POPS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def taken(turns: TenantTurns, limit: int) -> list[tuple[int, int, int]]:
    """Level, tenant and number of messages that are places."""
    found = []
    for level, tenant, item, _ in turns.take(limit):
        assert isinstance(item, tuple)
        found.append((level, tenant, item[1]))
    return found


@given(st.dictionaries(TENANTS, st.integers(1, 7)), st.lists(st.integers(1, 60), min_size=6, max_size=6), POPS)
def test_shares_follow_weights_however_large_requests_are(
    weights: dict[int, int], backlogs: list[int], pops: list[int]
) -> None:
    """In any stretch in which all have messages, nobody is further from its share than one turn."""
    turns = TenantTurns(weights)
    for tenant, backlog in enumerate(backlogs):
        for number in range(backlog):
            turns.add(0, tenant, 0, number)
    left, got = Counter(dict(enumerate(backlogs))), Counter[int]()
    for limit in pops:
        for _, tenant, number in taken(turns, limit):
            assert number == got[tenant], "first in, first out"
            got[tenant] += 1
            left[tenant] -= 1
            if min(left.values()) > 0:
                rounds = [got[each] / weights.get(each, 1) for each in range(6)]
                assert max(rounds) - min(rounds) <= 1


@given(MESSAGES, POPS)
def test_the_highest_comes_first_and_of_one_level_whoever_waits(
    messages: list[tuple[int, int]], pops: list[int]
) -> None:
    turns = TenantTurns({})
    model: dict[tuple[int, int], deque[int]] = {}
    for number, (tenant, level) in enumerate(messages):
        turns.add(level, tenant, 0, number)
        model.setdefault((level, tenant), deque()).append(number)
    count = 0
    for limit in pops:
        for level, tenant, number in taken(turns, limit):
            assert level == max(level for (level, _), waiting in model.items() if waiting)
            assert number == model[level, tenant].popleft()
            count += 1
    assert count == min(sum(pops), len(messages))
    assert bool(turns) or count == len(messages)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), min_size=8, max_size=8),
    st.integers(1, 60),
)
def test_quotas_are_the_turns_one_by_one(backlogs: list[int], weights: list[int], room: int) -> None:
    weights = weights[: len(backlogs)]
    given_, at, owed = quotas(backlogs, weights, weights, room)
    expected, left, place, credit = [0] * len(backlogs), room, 0, 0
    while left and expected != backlogs:
        credit = credit or weights[place]
        if expected[place] < backlogs[place]:
            expected[place], left, credit = expected[place] + 1, left - 1, credit - 1
        else:
            credit = 0
        if not credit:
            place = (place + 1) % len(backlogs)
    assert given_ == expected
    if owed:
        assert 0 < owed <= weights[at] and given_[at] < backlogs[at]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50)), min_size=1, max_size=30), POPS)
def test_a_newcomer_waits_for_one_turn_of_each_not_for_their_backlogs(
    sends: list[tuple[int, int]], pops: list[int]
) -> None:
    """Virtual time: a message of a tenant that had none is delivered after at most one turn of every other."""
    waiting, backlog = WaitingQueues(), Counter[int]()
    since: dict[int, int] = {}
    served = 0
    for (tenant, count), limit in zip(sends * len(pops), pops * len(sends), strict=False):
        if not backlog[tenant]:
            since[tenant] = served
        backlog[tenant] += count
        waiting.add(tenant)
        picked: list[int] = []
        while len(picked) < limit and (queue := waiting.next()) is not None:
            if queue not in picked:
                picked.append(queue)
        counts, last, owed = quotas([backlog[each] for each in picked], [1] * len(picked), [1] * len(picked), limit)
        for each, given_ in zip(picked, counts, strict=True):
            if given_ and each in since:
                assert served - since.pop(each) <= 2 * 5 + limit
            backlog[each] -= given_
            served += given_
        if owed and backlog[picked[last]]:
            waiting.put_back([picked[last]], owed)
        for each in [*picked[last:], *picked[:last]]:
            if backlog[each]:
                waiting.add(each)


def test_a_million_waiting_queues_take_eight_bytes_each() -> None:
    waiting = WaitingQueues()
    waiting.compare()
    waiting.found(np.arange(1_000_000))
    for queue in range(1_000_000):
        waiting.add(queue)
    assert len(waiting._known) == len(waiting._ring) == 65_536
    assert sys.getsizeof(waiting._found) <= 8 * 1_000_000 + 200
    assert [waiting.next() for _ in range(1_000_001)] == [*range(1_000_000), None]
    assert waiting.needs_look and waiting, "more came one by one than are remembered"


def test_what_comes_while_all_are_compared_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_queues, "MAX_KNOWN", 4)
    waiting = WaitingQueues(unknown=True)
    waiting.add(1)
    assert waiting.needs_look
    waiting.compare()
    assert waiting.needs_look and waiting, "nothing was found out yet, nor would be if this failed"
    waiting.add(7)
    waiting.found(np.array([1, 2]))
    assert [waiting.next() for _ in range(4)] == [1, 2, 7, None]
    waiting.compare()
    for queue in range(5):
        waiting.add(queue)
    waiting.found(np.array([8]))
    assert waiting.next() == 8
    assert waiting.needs_look, "more came meanwhile than are remembered"


def test_however_few_are_remembered_all_have_their_turns_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_queues, "MAX_KNOWN", 4)
    waiting, served = WaitingQueues(), Counter[int]()
    for queue in range(10):
        waiting.add(queue)
    while served.total() < 1_000:
        if waiting.needs_look:
            waiting.compare()
            waiting.found(np.arange(10))
        queue = waiting.next()
        if queue is not None:
            served[queue] += 1
            waiting.add(queue)
    assert max(served.values()) - min(served.values()) <= 2


def a_ledger(keys: list[int], levels: list[int] | None = None, **given_: object) -> WorkLedger:
    ledger = WorkLedger(WorkSettings(**given_), 1, lambda queue: 0, lambda queue: len(keys))  # type: ignore[arg-type]
    ledger.look_at(0, range(len(keys)), keys, levels or [0] * len(keys), len(keys), 0)
    return ledger


def pop(ledger: WorkLedger, limit: int) -> list[DeliveryReceipt]:
    found = [ledger.deliver(task, 0, 60_000) for task in ledger.take_ready(limit)]
    return [receipt for receipt in found if receipt is not None]


def test_tenants_of_one_queue_take_turns_and_a_backlog_delays_nobody() -> None:
    ledger = a_ledger([7] * 10_000 + [8, 9, 8], fair_by=FairBy.KEY)
    assert [receipt.offset for receipt in pop(ledger, 6)] == [0, 10_000, 10_001, 1, 10_002, 2]
    assert (ledger.open_count, ledger.lined) == (6, 9_997)


@pytest.mark.part(2)
def test_a_flood_of_tenants_is_bounded_and_goes_on_when_some_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_messages, "MAX_BLOCKED", 30_000)
    keys = list(range(1, 20_000))
    ledger = a_ledger(keys, fair_by=FairBy.KEY)
    assert ledger.is_stalled(0) and ledger.lined == ledger._turns.lane_count == 10_000
    for receipt in pop(ledger, 1_000):
        assert ledger.ack(receipt, 0) is None
    assert ledger.take_resumed() == [0]
    first = ledger.next_of(0)
    ledger.look_at(0, range(first, len(keys)), keys[first:], [0] * len(keys), len(keys), 0)
    assert first < ledger.next_of(0) <= first + 1_000
    while pop(ledger, 10_000):
        pass
    assert ledger.lined == ledger._turns.lane_count == 0


def test_who_has_as_many_in_flight_as_it_may_waits_and_others_go_on() -> None:
    ledger = a_ledger([1] * 100 + [2] * 3, fair_by=FairBy.KEY, max_in_flight_per=2)
    first = pop(ledger, 50)
    assert sorted(receipt.offset for receipt in first) == [0, 1, 100, 101]
    assert not ledger.has_ready
    assert ledger.ack(first[0], 0) is None
    assert ledger.has_ready
    assert [receipt.offset for receipt in pop(ledger, 50)] == [2]
    assert ledger.nack(first[1], 0, delay_ms=0) is None  # of the other: it is in flight no more
    assert [receipt.offset for receipt in pop(ledger, 50)] in ([101], [102], [100])
    assert ledger._turns.lane_count == 2


def test_who_is_in_flight_as_a_ledger_begins_anew_counts_before_anybody_has_looked() -> None:
    before = a_ledger([1, 2], fair_by=FairBy.KEY, max_in_flight_per=1)
    receipts = pop(before, 5)
    ledger = WorkLedger(before.settings, 2, lambda queue: 0, lambda queue: 2)
    ledger.carry_over(before.deliveries(), 0)
    ledger.look_at(1, [0, 1], [2, 3], [0, 0], 2, 0)
    assert [receipt.offset for receipt in pop(ledger, 5)] == [1]
    ledger.look_at(0, [0, 1], [1, 2], [0, 0], 2, 0)
    assert pop(ledger, 5) == []
    assert ledger.ack(receipts[1], 0) is None
    assert [(receipt.queue, receipt.offset) for receipt in pop(ledger, 5)] == [(1, 0)]


@pytest.mark.parametrize("how", ["ack", "nack", "release", "extend"])
@pytest.mark.parametrize("given_", [{"fair_by": FairBy.KEY, "max_in_flight_per": 2}, {"order": Order.PRIORITY}])
def test_receipts_of_an_earlier_leader_count_for_messages_whose_turn_has_not_come(
    how: str, given_: dict[str, object]
) -> None:
    """Who leads now has looked at all, and nobody has got the last two since."""
    settings_ = WorkSettings(**given_)  # type: ignore[arg-type]
    ledger = WorkLedger(settings_, 2, lambda queue: 0, lambda queue: 6)
    ledger.look_at(0, range(6), [7] * 6, [0] * 6, 6, 0)
    receipts = [DeliveryReceipt(0, offset, 1, 60_000, 1 << 32 | offset) for offset in (4, 5)]
    hidden = [offset for offset in range(6) if offset not in (4, 5)]
    for receipt in receipts:
        match how:
            case "ack":
                assert ledger.ack(receipt, 0) is None and ledger.ack(receipt, 0) is None
            case "nack":
                assert ledger.nack(receipt, 0, delay_ms=1_000) is None and ledger.nack(receipt, 0) is None
            case "release":
                assert ledger.release(receipt, 0) is None
            case _:
                assert ledger.extend(receipt, 0, 30_000) is None
    assert ledger.lined == 4
    came = []
    while found := pop(ledger, 2):
        for receipt in found:
            came.append(receipt.offset)
            assert ledger.ack(receipt, 0) is None
        ledger.stored(ledger.take_changes(), 0)
    assert sorted(came) == (list(range(6)) if how == "release" else hidden)
    ledger.advance(29_999)
    assert [receipt.offset for receipt in pop(ledger, 9)] == ([4, 5] if how == "nack" else [])
    if how in ("ack", "release"):
        assert (ledger.windows(), ledger.open_count, ledger.lined) == ([], 0, 0)


@pytest.mark.parametrize("looked", [False, True])
def test_what_comes_again_under_another_leader_goes_by_the_limit_of_its_tenant(looked: bool) -> None:
    """Whose it is that leader learns as it looks at it, or as its turn comes."""
    settings_ = WorkSettings(fair_by=FairBy.KEY, max_in_flight_per=1)
    ledger = WorkLedger(settings_, 2, lambda queue: 0, lambda queue: 3)
    if looked:
        ledger.look_at(0, range(3), [7] * 3, [0] * 3, 3, 0)
    for offset in (1, 2):
        assert ledger.nack(DeliveryReceipt(0, offset, 1, 60_000, 1 << 32 | offset), 0, delay_ms=0) is None
    if not looked:
        ledger.look_at(0, range(3), [7] * 3, [0] * 3, 3, 0)
    came = []
    while found := pop(ledger, 10):
        (receipt,) = found
        came.append(receipt.offset)
        assert ledger.ack(receipt, 0) is None
    assert sorted(came) == [0, 1, 2]


@given(st.sampled_from([0.1, 1, 2.5, 30]), st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 60)), min_size=2))
def test_nobody_goes_faster_than_it_may_and_nobody_waits_for_longer(rate: float, pops: list[tuple[int, int]]) -> None:
    ledger = a_ledger([1] * 3_000, fair_by=FairBy.KEY, max_rate_per=rate)
    burst, now, times = max(1, int(rate)), 0, list[int]()
    for passed_ms, limit in pops:
        now += passed_ms
        ledger.advance(now)
        times += [now] * len(pop(ledger, limit))
    for first in range(len(times)):
        for count in (1, 5, 20):
            if first + count < len(times):
                took_s = (times[first + count] - times[first]) / 1_000
                assert count + 1 <= took_s * rate + burst + 1e-6
    while not pop(ledger, 1):  # it is told when it may go on, and may then
        at_ms = ledger.next_at_ms
        assert at_ms is not None and now < at_ms <= now + 1_000 / rate + 1
        now = at_ms
        ledger.advance(now)


def test_what_a_tenant_has_left_of_its_turn_as_it_is_parked_is_nobody_elses() -> None:
    room = {1: 2, 2: 100, 3: 100}
    turns = TenantTurns({1: 5}, room.__getitem__)
    for number in range(20):
        for tenant in room:
            turns.add(0, tenant, 0, number)

    def take(limit: int) -> list[int]:
        tenants = []
        for turn in turns.take(limit):
            room[turn.tenant] -= 1
            tenants.append(turn.tenant)
        return tenants

    assert take(2) == [1, 1]
    assert take(4) == [2, 3, 2, 3]
    assert turns.parked_count == 1
    room[1] = 100
    turns.unpark(1)
    assert take(9) == [2, 3, 1, 1, 1, 1, 1, 2, 3]
    assert turns.parked_count == 0


@pytest.mark.parametrize("in_ring", [False, True])
def test_each_delivery_of_a_key_counts_once_for_the_rate(in_ring: bool) -> None:
    """What is released by the one before it is taken twice: when its turn comes, and when it is asked for."""
    ledger = WorkLedger(WorkSettings(order=Order.KEY, max_rate_per=10), 1, lambda queue: 0, lambda queue: 1_000)
    key = 7 if in_ring else 0
    delivered = 0
    for now in range(1_000_000, 1_020_000, 20):
        ledger.advance(now)
        tasks = ledger.take_ready(1)
        if not tasks and ledger.room_of(0) > 0:
            first = ledger.next_of(0)
            keys = [key] * (1_000 - first)
            tasks = [task for task in ledger.line_up(0, range(first, 1_000), keys, 1_000, 1, now) if task]
        for task in tasks:
            receipt = ledger.deliver(task, now, 30_000)
            assert receipt is not None and ledger.ack(receipt, now) is None
            ledger.stored(ledger.take_changes(), now)
            delivered += 1
    assert delivered == pytest.approx(210, abs=1), "ten a second, and a second's worth at once"


def test_messages_that_are_gone_count_for_no_rate() -> None:
    ledger = a_ledger([1] * 100, fair_by=FairBy.KEY, max_rate_per=1)
    for _ in range(50):  # each is looked for and not there
        tasks = ledger.take_ready(1)
        assert len(tasks) == 1
        ledger.gone(tasks, 0)
    assert len(pop(ledger, 5)) == 1


def test_pace_is_kept_of_those_only_that_went_lately() -> None:
    pace = TenantPace(10)
    for tenant in range(100_000):
        pace.spend(tenant, tenant)
    assert len(pace._full_at) < 2_100


def test_a_million_of_low_priority_cost_a_high_one_nothing() -> None:
    """Counted in lines of the interpreter."""
    costs = []
    for count in (1_000, 200_000):
        keys = [0] * count
        ledger = a_ledger(keys, [1] * count, order=Order.PRIORITY)
        pop(ledger, 10)
        keys += [0, 0]
        with counted_lines() as lines:
            ledger.look_at(0, [count, count + 1], [0, 0], [9, 200], count + 2, 0)
            offsets = [receipt.offset for receipt in pop(ledger, 3)]
        assert offsets == [count + 1, count, 10]
        costs.append(lines.count)
    assert costs[1] <= costs[0] + 20


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 400)), max_size=60),
    st.sampled_from([1, 50, 1_000]),
    POPS,
)
def test_what_waits_long_passes_what_is_higher(
    sent: list[tuple[int, int, int]], ageing_ms: int, pops: list[int]
) -> None:
    """Of one tenant, exactly by when it was stored, less its priority times ageing; subpriorities are 256ths."""
    keys, levels = [1] * len(sent), [priority_rank(priority_value(first, second)) for second, first, _ in sent]
    times, now = list[int](), 0
    for _, _, passed_ms in sent:
        now += passed_ms
        times.append(now)
    ledger = WorkLedger(
        WorkSettings(order=Order.PRIORITY, priority_ageing_ms=ageing_ms), 1, lambda queue: 0, lambda queue: len(keys)
    )
    ledger.look_at(0, range(len(keys)), keys, levels, len(keys), 0, times)
    found = [receipt.offset for limit in pops for receipt in pop(ledger, limit)]
    expected = sorted(range(len(keys)), key=lambda at: (256 * times[at] - levels[at] * ageing_ms, -levels[at], at))
    assert found == expected[: len(found)] and len(found) == min(sum(pops), len(keys))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 2)),
            st.tuples(st.just("pop"), st.integers(1, 4), st.just(0)),
            st.tuples(st.just("give back"), st.integers(0, 9), st.just(0)),
        ),
        max_size=80,
    ),
    st.sampled_from([None, 3]),
)
def test_what_comes_back_is_ranked_among_what_waits(deeds: list[tuple[str, int, int]], ageing_ms: int | None) -> None:
    """Each pop takes what ranks first of all that wait, whatever came, went and came back; with ageing, all comes."""
    ranks: list[int] = []
    settings_ = WorkSettings(order=Order.PRIORITY, priority_ageing_ms=ageing_ms, max_deliveries=1_000)
    ledger = WorkLedger(settings_, 1, lambda queue: 0, lambda queue: len(ranks))
    held: list[DeliveryReceipt] = []
    waiting: set[int] = set()

    def place(at: int) -> int:
        return 256 * at - ranks[at] * ageing_ms if ageing_ms is not None else -ranks[at]

    for what, number, second in deeds:
        if what == "send":
            ranks.append(priority_rank(priority_value(number, second)))
            waiting.add(at := len(ranks) - 1)
            ledger.look_at(0, [at], [1], [ranks[at]], at + 1, 0, None if ageing_ms is None else [at])
        elif what == "pop":
            for receipt in pop(ledger, number):
                assert ageing_ms is not None or place(receipt.offset) == min(map(place, waiting))
                waiting.discard(receipt.offset)
                held.append(receipt)
        elif held:
            receipt = held.pop(number % len(held))
            assert ledger.nack(receipt, 0, delay_ms=0) is None
            waiting.add(receipt.offset)
    while found := pop(ledger, 100):
        waiting -= {receipt.offset for receipt in found}
    assert not waiting


def test_fifty_thousand_ranks_cost_a_pop_no_look_at_each() -> None:
    costs = []
    for count in (16, 50_000):
        ledger = WorkLedger(
            WorkSettings(order=Order.PRIORITY, priority_ageing_ms=1_000), 1, lambda queue: 0, lambda queue: 1 << 20
        )
        ledger.look_at(0, range(count), [1] * count, range(count), count, 0, [7] * count)
        pop(ledger, 1)  # which learns of all
        with counted_lines() as lines:
            (found,) = pop(ledger, 1)
        assert found.offset == count - 2
        costs.append(lines.count)
    assert costs[1] <= costs[0] + 20


def test_after_a_change_of_leaders_priorities_are_known_again_and_receipts_count() -> None:
    keys, levels = [5] * 6, [0, 3, 0, 2, 0, 1]
    first = a_ledger(keys, levels, order=Order.PRIORITY)
    one, two = pop(first, 2)
    assert [one.offset, two.offset] == [1, 3]
    assert first.nack(one, 0, delay_ms=0) is None
    changes = first.take_changes()
    chunks = {number: SettledChunk.decode(body, number, "c") for (_, number), body in changes.documents.items() if body}
    second = WorkLedger(WorkSettings(order=Order.PRIORITY), 2, lambda queue: 0, lambda queue: len(keys))
    second.load(0, 0, chunks, 0)
    assert second.ack(two, 0) is None
    second.look_at(0, range(6), keys, levels, 6, 0)
    assert [receipt.offset for receipt in pop(second, 10)] == [1, 5, 0, 2, 4]

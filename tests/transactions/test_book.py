"""Decisions of a coordinator, one by one; and documents, which say all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lsmq.errors import (
    CorruptFile,
    DocumentsFull,
    SequenceTakenOver,
    TooManyGroups,
    TooManyMembers,
    TooManyTransactions,
    TransactionDecided,
    UnknownProducerMember,
    UnknownTransaction,
    UnsupportedFormat,
)
from lsmq.record_batch import BatchBuilder, Column, RecordBatch
from lsmq_node.machines import with_producer
from lsmq_node.storage.documents import encode_changes
from lsmq_node.storage.shard_time import ShardTime
from lsmq_node.transactions import TransactionPart, TransactionRecord, TransactionState
from lsmq_node.transactions import book as limits
from lsmq_node.transactions.book import TransactionBook
from lsmq_node.transactions.lanes import last_numbers, producer_of
from lsmq_node.transactions.records import BookChange, ProducerMember, split_key
from support.clock import SimClock


class Played:
    """A book whose plans are all durable at once."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.book = TransactionBook()
        self.now = 0.0
        self.now_ms = 1_000_000
        self.old_before_ms = 0

    def put(self, plan: BookChange) -> BookChange:
        lanes = {shard: lane.next for shard, lane in self.book.lanes.items()}
        for key, value in plan.documents(lanes).items():
            if value is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = value
        self.book.apply(plan, self.now)
        return plan

    def join(self, *members: str, checks: bool = True, session_ms: int = 10_000) -> None:
        for member in members:
            self.put(self.book.join(("g", member), session_ms, "", checks=checks, now=self.now))

    def begin(
        self,
        member: str = "m",
        number: int = 1,
        shards: tuple[int, ...] = (0,),
        sequence: int = 0,
        position: str | None = None,
    ) -> str:
        position = f"{number}" if position is None else position
        name = "s" if sequence else ""
        transaction = TransactionRecord(
            "g", f"{member}-{number}", member, "", name, position, self.now_ms, 30_000, 30_000, 2
        )
        part = TransactionPart(b"part", {"t": len(shards)}, dict.fromkeys(shards, 1))
        self.put(self.book.begin(transaction, number, part, sequence))
        return transaction.id

    def decide(self, id: str, state: TransactionState, by: str = "m") -> None:
        self.put(self.book.decide(("g", id), state, by, self.now_ms))

    def state(self, id: str) -> str:
        return self.book.transactions["g", id].state

    def asked(self) -> dict[str, list[str]]:
        self.put(self.book.checks(self.now, self.now_ms, self.old_before_ms))
        return {
            member: [each.id for each in self.book.take_asked(("g", member))] for _, member in list(self.book.asked)
        }

    def again(self) -> TransactionBook:
        """What another leader reads."""
        book = TransactionBook()
        book.load(sorted(self.documents.items()), self.now)
        book.loaded(self.now, self.now_ms)
        return book


@pytest.fixture
def played() -> Played:
    made = Played()
    made.join("m", "n")
    return made


def test_documents_say_everything(played: Played) -> None:
    opened, committed = played.begin(), played.begin(number=2, shards=(0, 3))
    played.decide(committed, TransactionState.COMMITTED)
    played.put(played.book.take("g", "s", "m", 0))
    again = played.again()
    for name in ("transactions", "members", "sequences"):
        assert getattr(again, name) == getattr(played.book, name)
    assert {shard: dict(lane.waiting) for shard, lane in again.lanes.items()} == {
        0: {1: ("g", committed)},
        3: {1: ("g", committed)},
    }
    assert again.transactions["g", opened].is_open


def test_a_damaged_document_is_named(played: Played) -> None:
    for body, error in ((b"\x93\x02aa", UnsupportedFormat), (b"\x93\x01aa", CorruptFile), (b"\x93", CorruptFile)):
        played.documents["transaction/g/x"] = body
        with pytest.raises(error, match="transaction/g/x"):
            played.again()
    assert split_key("transaction/g/x", "transaction/") == ("g", "x")


def test_a_plan_that_was_not_put_has_changed_nothing(played: Played) -> None:
    id = played.begin()
    before = played.again()
    played.book.decide(("g", id), TransactionState.COMMITTED, "m", 0)
    played.book.take("g", "s", "m", 0)
    played.book.leave(("g", "m"))
    assert played.book.transactions == before.transactions and played.book.members == before.members
    assert played.state(id) == "open"


def test_numbers_of_deliveries_follow_decisions(played: Played) -> None:
    first, second = played.begin(number=1, shards=(0, 1)), played.begin(number=2, shards=(1, 2))
    played.decide(second, TransactionState.COMMITTED)
    played.decide(first, TransactionState.COMMITTED)
    assert [each.id for _, each in played.book.to_deliver(1, 10, 1_000)] == [second, first]
    played.put(played.book.delivered(1, [("g", second)]))
    assert played.book.transactions["g", second].waiting == {2: 1}
    assert "transaction-part/g/m-2/0" in played.documents
    played.put(played.book.delivered(2, [("g", second)]))
    assert played.book.transactions["g", second].is_finished
    assert "transaction-part/g/m-2/0" not in played.documents
    assert [first_number for first_number, _ in played.book.to_deliver(1, 10, 1_000)] == [2]


def test_a_request_holds_what_fits_and_at_least_one(played: Played) -> None:
    for number in range(1, 6):
        played.decide(played.begin(number=number), TransactionState.COMMITTED)
    assert [first for first, _ in played.book.to_deliver(0, 3, 1_000)] == [1, 2, 3]
    assert [first for first, _ in played.book.to_deliver(0, 3, 1)] == [1]


def test_a_rollback_drops_its_messages(played: Played) -> None:
    id = played.begin()
    played.decide(id, TransactionState.ROLLED_BACK)
    assert not [key for key in played.documents if key.startswith("transaction-part/")]
    with pytest.raises(TransactionDecided):
        played.decide(id, TransactionState.COMMITTED)


def test_silence_is_asked_about_and_ends(played: Played) -> None:
    id = played.begin()
    played.now = 29
    assert played.asked() == {}
    for at in (30, 60):
        played.now = at
        assert played.asked() == {"m": [id]}
        assert played.asked() == {}
    played.now = 90
    assert played.asked() == {}
    assert played.state(id) == "rolled_back"
    assert played.book.transactions["g", id].decided_by == "broker"


def test_more_messages_are_no_silence(played: Played) -> None:
    id = played.begin()
    played.now = 20
    played.put(played.book.add(("g", id), 1, TransactionPart(b"", {"t": 1}, {0: 1})))
    played.now = 40
    assert played.asked() == {}


def test_another_leader_waits_on_as_long_as_is_left_and_keeps_the_count(played: Played) -> None:
    def passes(seconds: int) -> None:
        played.now += seconds
        played.now_ms += 1_000 * seconds

    id = played.begin()
    for _ in range(2):  # However often the leader changes.
        passes(14)
        played.book = played.again()
        assert played.asked() == {}
    passes(2)
    assert played.asked() == {"m": [id]}
    played.book = played.again()
    assert played.book.transactions["g", id].checks == 1
    assert played.asked() == {}
    passes(30)
    assert played.asked() == {"m": [id]}
    passes(30)
    played.asked()
    assert played.state(id) == "rolled_back"


def test_another_leader_asks_at_once_about_what_a_member_left_that_is_gone(played: Played) -> None:
    id = played.begin()
    played.put(played.book.leave(("g", "m")))
    played.book = played.again()
    assert played.asked() == {"n": [id]}
    played.book = played.again()
    assert played.asked() == {}, "it was asked about before"


def test_another_leader_gives_time_again_where_it_does_not_know_when_the_last_messages_came(played: Played) -> None:
    id = played.begin()
    played.now, played.now_ms = 29, played.now_ms + 29_000
    played.put(played.book.add(("g", id), 1, TransactionPart(b"part", {"t": 1}, {0: 1})))
    played.book = played.again()
    played.now, played.now_ms = 58, played.now_ms + 29_000
    assert played.asked() == {}
    played.now = 59
    assert played.asked() == {"m": [id]}


def test_a_clock_that_was_ahead_or_is_makes_another_leader_wait_no_longer(played: Played) -> None:
    id = played.begin()
    played.now_ms -= 3_600_000
    played.book = played.again()
    played.now = 29
    assert played.asked() == {}
    played.now = 30
    assert played.asked() == {"m": [id]}


def test_whoever_is_asked_and_dies_is_followed_by_another(played: Played) -> None:
    played.join("o")
    id = played.begin()
    played.put(played.book.leave(("g", "m")))
    played.put(played.book.checks(played.now, 0, 0))
    (first,) = [member for _, member in played.book.asked]
    played.put(played.book.leave(("g", first)))
    assert played.asked() == {({"n", "o"} - {first}).pop(): [id]}


def test_of_those_who_can_tell_each_is_asked_in_turn_and_of_what_is_decided_nobody(played: Played) -> None:
    id = played.begin()
    played.join("o", session_ms=1_000_000)
    played.put(played.book.leave(("g", "m")))
    asked = []
    for _ in range(2):
        played.now += 31
        played.book.hear(("g", "n"), played.now)
        asked += played.asked().items()
    assert sorted(asked) == [("n", [id]), ("o", [id])]
    another = played.begin("n")
    played.now += 31
    played.put(played.book.checks(played.now, played.now_ms, played.old_before_ms))
    played.decide(another, TransactionState.COMMITTED, "n")
    assert played.book.take_asked(("g", "n")) == []


def test_messages_that_come_again_are_known_though_all_is_decided(played: Played) -> None:
    id, part = played.begin(), TransactionPart(b"part", {"t": 1}, {0: 1})
    played.decide(id, TransactionState.COMMITTED)
    assert not played.book.add(("g", id), 0, part).transactions
    with pytest.raises(TransactionDecided):
        played.book.add(("g", id), 1, part)


def test_nobody_is_asked_who_cannot_tell(played: Played) -> None:
    played.put(played.book.leave(("g", "n")))
    played.join("blind", checks=False)
    id = played.begin()
    played.put(played.book.leave(("g", "m")))
    played.now = 1_000
    assert played.asked() == {} and played.state(id) == "open"
    played.old_before_ms = played.now_ms + 1
    played.now += limits.BELIEVED_S
    played.asked()
    assert played.state(id) == "rolled_back", "it does not wait for ever"


def test_a_session_ends_in_silence(played: Played) -> None:
    played.now = 9
    played.book.hear(("g", "n"), played.now)
    played.now = 11
    played.put(played.book.expire(played.now))
    assert played.book.members_of("g") == ["n"]
    with pytest.raises(UnknownProducerMember):
        played.begin()


def test_members_that_fall_silent_together_go_in_changes_that_can_be_stored() -> None:
    """As after an outage that their clients did not outlive."""
    played, long = Played(), "n" * 240
    keys = [(f"{long}{group}", f"{long}{number}") for group in range(40) for number in range(limits.MAX_MEMBERS)]
    played.put(BookChange(members=dict.fromkeys(keys, ProducerMember(0, (), 10_000, "", checks=True))))
    played.now = 11.0
    gone = 0
    while plan := played.put(played.book.expire(played.now)):
        encode_changes(plan.documents({}))  # raises
        gone += len(plan.members)
    assert gone == len(keys) and not played.book.members and not played.documents


def test_finished_ones_that_grow_old_together_go_in_changes_that_can_be_stored() -> None:
    played, long = Played(), "n" * 240
    done = {
        (each.group, each.id): each
        for each in (
            TransactionRecord(long, f"{long}{number}", "m", "", "", "", 0, 1, 1, 1, TransactionState.ROLLED_BACK.value)
            for number in range(limits.MAX_REMEMBERED + 5_000)
        )
    }
    played.put(BookChange(transactions=dict(done)))
    played.now += limits.REMEMBER_S
    while plan := played.put(played.book.forget(played.now)):
        encode_changes(plan.documents({}))  # raises
    assert not played.book.transactions and not played.documents


def test_a_number_begins_once(played: Played) -> None:
    played.decide(played.begin(number=3), TransactionState.ROLLED_BACK)
    played.now += limits.REMEMBER_S
    played.put(played.book.forget(played.now))
    with pytest.raises(UnknownTransaction):
        played.begin(number=3)
    played.begin(number=2)
    played.book = played.again()
    with pytest.raises(UnknownTransaction):
        played.begin(number=3)
    played.begin(number=1)
    assert played.book.members["g", "m"].missing == ()


def test_a_number_that_others_have_passed_begins_late_as_long_as_it_is_remembered(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_MISSING", 3)
    played.begin(number=6)
    assert played.book.members["g", "m"].missing == (3, 4, 5)
    played.begin(number=4)
    played.begin(number=8)
    assert played.book.members["g", "m"].missing == (3, 5, 7)
    played.begin(number=10)
    assert played.book.members["g", "m"].missing == (5, 7, 9), "the latest ones"
    with pytest.raises(UnknownTransaction):
        played.begin(number=3)
    played.begin(number=7)


def test_a_member_that_joins_again_is_heard(played: Played) -> None:
    played.now = 8.0
    played.join("m")
    played.now = 12.0
    assert list(played.book.expire(played.now).members) == [("g", "n")]


def test_groups_that_have_members_get_more_where_there_may_be_no_other_group(played: Played) -> None:
    played.book.max_groups = 1
    played.join("o")
    with pytest.raises(TooManyGroups):
        played.book.join(("another", "m"), 10_000, "", checks=True, now=0.0)


def test_finished_ones_are_forgotten_in_time(played: Played) -> None:
    ids = [played.begin(number=number) for number in range(1, 5)]
    for id in ids[:3]:
        played.decide(id, TransactionState.ROLLED_BACK)
        played.now += 60
    assert not played.book.forget(played.now)
    played.put(played.book.forget(played.now + limits.REMEMBER_S - 2 * 60))
    assert {id for _, id in played.book.transactions} == {ids[2], ids[3]}
    played.book.max_remembered = 0
    played.put(played.book.forget(played.now))
    assert [id for _, id in played.book.transactions] == [ids[3]]


def test_what_is_remembered_of_finished_ones_leaves_room_for_those_that_are_not(played: Played) -> None:
    """However much each record takes: the oldest go before their time."""
    played.book.max_held_bytes = 1 << 20
    ids = [played.begin(number=number, position="\U0001f600" * 1_024) for number in range(1, 201)]
    for id in ids:
        played.decide(id, TransactionState.ROLLED_BACK)
    again = played.again()
    for book in (played.book, again):
        book.max_held_bytes = 1 << 20
        book.apply(book.forget(played.now), played.now)
        left = [each for each in book.transactions.values() if each.is_finished]
        assert 0 < sum(len(each.encode()) for each in left) <= book.max_held_bytes // 4
    assert (("g", ids[-1]) in played.book.transactions) and ("g", ids[0]) not in played.book.transactions


def test_another_leader_forgets_the_oldest_first_too(played: Played) -> None:
    """Whatever order documents have, and in however many parts they are read."""
    ids = [played.begin(number=number) for number in range(1, 5)]
    for id in reversed(ids):
        played.now_ms += 1
        played.decide(id, TransactionState.ROLLED_BACK)
    again = TransactionBook()
    for document in sorted(played.documents.items()):
        again.load([document], played.now)
    again.loaded(played.now, played.now_ms)
    again.max_remembered = 1
    again.apply(again.forget(played.now), played.now)
    assert [id for _, id in again.transactions] == [ids[0]]


def test_limits(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMBERS", 2)
    with pytest.raises(TooManyMembers):
        played.join("one more")
    monkeypatch.setattr(limits, "MAX_UNFINISHED", 1)
    played.begin()
    with pytest.raises(TooManyTransactions) as raised:
        played.begin(number=2)
    assert raised.value.retriable
    played.decide("m-1", TransactionState.COMMITTED)
    with pytest.raises(TooManyTransactions):
        played.begin(number=2)
    played.put(played.book.delivered(0, [("g", "m-1")]))
    played.begin(number=2)
    assert played.book.held_bytes == played.again().held_bytes == len(b"part")
    played.book.max_held_bytes = 7
    with pytest.raises(DocumentsFull) as full:
        played.book.add(("g", "m-2"), 1, TransactionPart(b"part", {"t": 1}, {0: 1}))
    assert full.value.retriable
    played.decide("m-2", TransactionState.ROLLED_BACK)
    assert played.book.held_bytes == 0
    monkeypatch.setattr(limits, "MAX_SEQUENCES", 1)
    played.put(played.book.take("g", "one", "m", 0))
    played.put(played.book.take("g", "one", "m", 0))
    with pytest.raises(TooManyTransactions):
        played.book.take("g", "two", "m", 0)


def test_a_sequence_moves_with_commits_whoever_makes_them(played: Played) -> None:
    played.put(played.book.take("g", "s", "m", 0))
    id = played.begin(number=1, sequence=1)
    played.decide(id, TransactionState.COMMITTED, by="n")
    assert played.book.sequences["g", "s"].position == "1"
    half = played.begin(number=2, sequence=1)
    plan = played.put(played.book.take("g", "s", "n", 0))
    assert plan.sequences["g", "s"] == replace(played.book.sequences["g", "s"], epoch=2, position="1", member="n")
    assert played.state(half) == "rolled_back"
    with pytest.raises(SequenceTakenOver):
        played.begin(number=3, sequence=1)


def test_taking_a_sequence_once_more_and_late_takes_it_from_nobody(played: Played) -> None:
    played.put(played.book.take("g", "s", "m", 0, 1))
    id = played.begin(number=1, sequence=1)
    with pytest.raises(SequenceTakenOver) as late:
        played.book.take("g", "s", "m", 0, 1)
    assert late.value.details["epoch"] == 1 and played.state(id) == "open"
    played.put(played.book.take("g", "s", "m", 0, 2))
    assert played.state(id) == "rolled_back" and played.book.sequences["g", "s"].epoch == 2


def test_nobody_goes_on_with_an_epoch_that_was_not_given(played: Played) -> None:
    played.put(played.book.take("g", "s", "m", 0))
    with pytest.raises(SequenceTakenOver):
        played.begin(sequence=2)
    played.begin(sequence=1)


def test_one_transaction_of_a_sequence_is_open_at_a_time(played: Played) -> None:
    """The other one, committed later, would set the position back."""
    played.put(played.book.take("g", "s", "m", 0))
    first = played.begin(number=1, sequence=1)
    assert played.begin(number=1, sequence=1) == first, "as after a lost answer"
    for book in (played.book, played.again()):
        played.book = book
        with pytest.raises(TooManyTransactions, match="take the sequence again") as refused:
            played.begin(number=2, sequence=1)
        assert (refused.value.details["transaction"], refused.value.details["sequence"]) == (first, "s")
    played.begin(number=2)
    played.decide(first, TransactionState.COMMITTED)
    second = played.begin(number=3, sequence=1)
    played.put(played.book.take("g", "s", "m", 0))
    assert played.state(second) == "rolled_back"
    played.begin(number=4, sequence=2)


def test_a_batch_gets_a_producer_and_keeps_its_bytes() -> None:
    builder = BatchBuilder()
    builder.add(3, b"body", key="k", properties={"a": "b"})
    batch = builder.build()
    found = RecordBatch(with_producer(batch, *producer_of(5, 7)), source="test")
    assert (found.producer_id, found.producer_epoch, found.sequence) == ((1 << 63) | (5 << 40), 7, 0)
    assert bytes(found.payload) == bytes(RecordBatch(batch).payload) and list(found.column(Column.QUEUE)) == [3]


def test_numbers_go_on_beyond_what_an_epoch_holds() -> None:
    number = (1 << 32) + 5
    assert producer_of(1, number)[0] != producer_of(1, number - 10)[0]
    producers = dict([producer_of(1, number)])
    last, behind = last_numbers([("transaction-lane/1", b"%d" % (number - 7))], 3, producers.get)
    assert last == {1: number} and behind == {"transaction-lane/1": b"%d" % number}


def test_what_waits_is_numbered_anew_in_changes_that_can_be_stored_and_a_part_of_them_is_no_harm() -> None:
    played, long = Played(), "n" * 240
    keys = [(f"{long}{group}", f"{long}{number}") for group in range(5) for number in range(5_000)]
    waiting = {
        key: TransactionRecord(
            *key, "m", "", "", "", 0, 1, 1, 1, TransactionState.COMMITTED.value, batches={7: 2}, waiting={7: 1 + 2 * at}
        )
        for at, key in enumerate(keys)
    }
    for at in range(0, len(keys), 5_000):
        played.put(BookChange(transactions=dict(list(waiting.items())[at : at + 5_000])))
    played.put(BookChange(lanes={7: 2 * len(keys) + 1}))
    last = 3 * len(keys)

    def numbers(book: TransactionBook) -> list[int]:
        assert list(book.lanes[7].waiting.values()) == keys, "in the order in which they were decided"
        return list(book.lanes[7].waiting)

    wanted = [last + 1 + 2 * at for at in range(len(keys))]
    first, *others = played.book.renumber(7, last)
    assert others, "they are more than one change takes"
    played.put(first)
    half = played.again()
    assert half.lanes[7].limit < last, "the shard refuses the next delivery"
    numbers(half)
    played.book = half
    for plan in half.renumber(7, last):
        encode_changes(plan.documents({}))  # raises
        played.put(plan)
    for book in (played.book, played.again()):
        assert numbers(book) == wanted and book.lanes[7].next == wanted[-1] + 2
        assert book.lanes[7].limit >= last


def test_a_clock_that_jumps_rolls_nothing_back_and_forgets_nothing(played: Played) -> None:
    """Its member is asked, as ever; and whose answer to a decision was lost gets the same one again."""
    done, open_ = played.begin(number=1), played.begin(number=2)
    played.decide(done, TransactionState.ROLLED_BACK)
    played.now, played.old_before_ms = 31.0, played.now_ms + 1
    assert played.asked() == {"m": [open_]} and played.state(open_) == "open"
    assert not played.book.forget(played.now)


def test_a_clock_that_is_two_days_ahead_rolls_back_nothing_that_is_young(played: Played) -> None:
    clock = SimClock()
    time = ShardTime(clock, "a test")
    time.opened(clock.time_ms)

    def hours_pass(hours: int) -> str:
        clock.time_ms += hours * 3_600_000
        played.now += hours * 3_600
        played.now_ms, played.old_before_ms = time.present_ms, time.expired_before(limits.MAX_OPEN_MS)
        played.asked()
        return played.state(id)

    played.now_ms = time.now_ms()
    played.put(played.book.leave(("g", "n")))
    played.put(played.book.leave(("g", "m")))
    played.join("blind", checks=False)  # Nobody can tell.
    id = played.begin("blind")
    clock.wrong_ms = 2 * limits.MAX_OPEN_MS
    assert hours_pass(2) == "open" and hours_pass(21) == "open"
    assert hours_pass(2) == "rolled_back"


def test_a_transaction_of_a_clock_that_was_ahead_ends_all_the_same(played: Played) -> None:
    id = played.begin()
    played.put(played.book.leave(("g", "n")))
    played.put(played.book.leave(("g", "m")))
    played.now += limits.MAX_OPEN_MS / 1000 - 1
    played.asked()
    assert played.state(id) == "open"
    played.now += 1
    played.asked()
    assert played.state(id) == "rolled_back"


def test_what_is_due_at_once_is_asked_about_in_changes_that_a_log_takes(played: Played) -> None:
    """As where a coordinator has just begun to lead: all that is open is due in one moment."""
    ids = [played.begin(number=number, position="\U0001f600" * 1_024) for number in range(1, 4_501)]
    played.now = 30.0
    asked: list[str] = []
    while len(asked) < len(ids):
        plan = played.book.checks(played.now, played.now_ms, 0)
        encode_changes(plan.documents({}))
        played.put(plan)
        asked += [each.id for each in played.book.take_asked(("g", "m"))]
    assert asked == ids

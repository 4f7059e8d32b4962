"""What leaders send is merged within one credit: never more is out, nobody starves, no batch is waited for in vain."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.push.ledger import CreditLedger
from lsmq_node.push.merge import AHEAD_BYTES, Arrival, StreamMerge
from support.extent import part_in_number


class Leader:
    """Sends what it has by its own count of its credit, as a stream does."""

    def __init__(self, merge: StreamMerge[str], name: str, sizes: list[int]) -> None:
        self.merge = merge
        self.name = name
        self.waiting = deque(Arrival(ord(name), offset, size, f"{name}{offset}") for offset, size in enumerate(sizes))
        self.ledger = CreditLedger(*merge.first_grant)
        self.sent_bytes = 0
        merge.begin(name)

    def send(self) -> bool:
        count, size = self.ledger.room()
        chunk: list[Arrival] = []
        while self.waiting and len(chunk) < count and (not chunk or self.waiting[0].size <= size):
            chunk.append(self.waiting.popleft())
            size -= chunk[-1].size
        self.ledger.sent((message.queue, message.offset, message.size) for message in chunk)
        self.merge.arrived(self.name, chunk)
        return bool(chunk)

    def hear(self) -> bool:
        granted = self.merge.grant(self.name)
        if granted is not None:
            self.ledger.set_credit(*granted)
        return granted is not None


sizes = st.lists(st.sampled_from((1, 100, 5_000, 60_000, 300_000)), max_size=25)


@given(
    st.lists(sizes, min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from((1, 200, 10_000, 1 << 20, 8 << 20)),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
@settings(max_examples=part_in_number(200, 3))
def test_everything_comes_within_the_credit_whatever_batches_are_acknowledged(
    by_leader: list[list[int]], credit: int, credit_bytes: int, part: float, chance: object
) -> None:
    merge: StreamMerge[str] = StreamMerge(credit, credit_bytes)
    leaders = [Leader(merge, "abcd"[number], some) for number, some in enumerate(by_leader)]
    by_name = {leader.name: leader for leader in leaders}
    batch = max(1, round(part * credit))  # messages that the subscriber waits for before it acknowledges any
    has: list[Arrival] = []
    got: list[str] = []

    def acknowledge() -> None:
        for message in has:
            found = merge.acknowledge(message.queue, message.offset)
            assert found == (chr(message.queue), message.offset)
        for leader in leaders:
            leader.hear()  # It is told of credit before it is told of acknowledgements.
        for message in has:
            by_name[chr(message.queue)].ledger.acknowledge(message.queue, message.offset)
        has.clear()

    while True:
        moved = False
        for leader in leaders:
            moved |= leader.send()
        taken = merge.take(1_000, 64 * 1024)
        has += taken
        got += [message.fields for message in taken]
        assert len(has) == merge.ledger.open_count <= credit
        assert merge.ledger.open_bytes <= credit_bytes + max([message.size for message in has], default=0)
        for leader in leaders:
            moved |= leader.hear()
            held = sum(message.size for message in merge._sources[leader.name].held)
            assert held <= 2 * AHEAD_BYTES + max(by_leader[leaders.index(leader)], default=0)
        if len(has) >= batch or merge.ledger.open_bytes >= credit_bytes / 2:
            acknowledge()
        elif not (moved or taken):
            if not has:
                break
            left = sum(len(leader.waiting) for leader in leaders) + sum(len(merge._sources[n].held) for n in by_name)
            assert not left, f"{len(has)} of {batch} have come, {left} wait, and nobody sends"
            acknowledge()
    for leader in leaders:
        mine = [name for name in got if name[0] == leader.name]
        assert mine == [f"{leader.name}{offset}" for offset in range(len(by_leader[leaders.index(leader)]))]
    assert (merge.ledger.open_count, merge.held_bytes) == (0, 0)


def many(queue: int, count: int, first: int = 0) -> list[Arrival]:
    return [Arrival(queue, offset, 10, (queue, offset)) for offset in range(first, first + count)]


def test_leaders_that_have_something_share_the_room_and_take_turns() -> None:
    merge: StreamMerge[str] = StreamMerge(9, 10_000)
    for queue, name in enumerate("abc"):
        merge.begin(name)
        merge.arrived(name, many(queue, 9))
    taken = [[message.queue for message in merge.take(100, 10_000)] for _ in range(6)]
    assert taken == [[0] * 3, [1] * 2, [2] * 2, [0], [1], []]
    one: StreamMerge[str] = StreamMerge(1, 10_000)
    for queue, name in enumerate("abc"):
        one.begin(name)
        one.arrived(name, many(queue, 2))
    order = []
    while taken := one.take(100, 10_000):
        (message,) = taken
        assert one.take(100, 10_000) == []
        order.append(message.queue)
        one.acknowledge(message.queue, message.offset)
    assert order == [0, 1, 2, 0, 1, 2]


def test_what_is_lost_is_neither_passed_on_nor_acknowledged_and_comes_again() -> None:
    merge: StreamMerge[str] = StreamMerge(3, 10_000)
    merge.begin("a")
    merge.arrived("a", [*many(1, 4), *many(2, 1)])
    assert [message.offset for message in merge.take(100, 10_000)] == [0, 1, 2]
    merge.forget(1, 2)
    assert merge.ledger.open_count == 0
    assert merge.acknowledge(1, 2) is None
    assert merge.ledger.is_late(1, 2)
    assert not merge.ledger.is_late(1, 2), "it is told once"
    assert [message.queue for message in merge.take(100, 10_000)] == [2]
    merge.end("a")
    assert (merge.ledger.open_count, merge.held_bytes, merge.sources) == (0, 0, [])
    merge.begin("b")
    merge.arrived("b", many(1, 3))
    assert [message.offset for message in merge.take(100, 10_000)] == [0, 1, 2]
    assert merge.acknowledge(1, 2) == ("b", 2), "what is sent again is acknowledged like any other"


def test_a_queue_that_another_leader_sends_by_now_is_that_ones() -> None:
    merge: StreamMerge[str] = StreamMerge(10, 10_000)
    for name in "ab":
        merge.begin(name)
    merge.arrived("a", many(1, 4))
    merge.take(2, 10_000)
    merge.arrived("b", many(1, 4, first=1))
    assert merge.ledger.open_count == 0
    assert [message.offset for message in merge.take(100, 10_000)] == [1, 2, 3, 4]
    assert merge.acknowledge(1, 4) == ("b", 4)
    merge.end("a")


def test_a_pause_is_told_to_all_and_to_those_that_come_later() -> None:
    merge: StreamMerge[str] = StreamMerge(10, 10_000)
    merge.begin("a")
    merge.set_credit(0, 10_000)
    merge.begin("b")
    assert [merge.grant(name) for name in "ab"] == [(0, 10_000)] * 2
    assert [merge.grant(name) for name in "ab"] == [None] * 2
    merge.arrived("a", many(1, 1))
    assert merge.take(100, 10_000) == []
    merge.set_credit(5, 10_000)
    assert len(merge.take(100, 10_000)) == 1


def test_who_has_used_up_all_bytes_and_is_given_more_is_sent_more() -> None:
    merge: StreamMerge[str] = StreamMerge(100, 1_000)
    leader = Leader(merge, "a", [100] * 30)
    while leader.send() or merge.take(100, 10_000) or leader.hear():
        pass
    assert merge.ledger.open_bytes == 1_000 and not merge.held_bytes
    merge.set_credit(100, 2_000)
    while leader.hear() or leader.send() or merge.take(100, 10_000):
        pass
    assert merge.ledger.open_bytes == 2_000

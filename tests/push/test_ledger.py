"""Credit: what may be sent, against a model that keeps every message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.push.ledger import CreditLedger

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 50)),
        st.tuples(st.just("ack"), st.integers(0, 2), st.integers(-1, 40)),
        st.tuples(st.just("forget"), st.integers(0, 2), st.just(0)),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(credit=st.integers(1, 8), credit_bytes=st.integers(1, 200), steps=_STEPS)
def test_never_more_is_open_than_credit_was_given_for(
    credit: int, credit_bytes: int, steps: list[tuple[str, int, int]]
) -> None:
    ledger = CreditLedger(credit, credit_bytes)
    model: dict[int, list[tuple[int, int]]] = {}
    following: dict[int, int] = {}
    for kind, queue, number in steps:
        waiting = model.setdefault(queue, [])
        if kind == "send":
            count, size = ledger.room()
            open_bytes = sum(size for messages in model.values() for _, size in messages)
            assert (count, size) == (0, 0) or (count > 0 and open_bytes < credit_bytes)
            if count and (number <= size or open_bytes == 0):
                offset = following.get(queue, 0)
                following[queue] = offset + 1
                ledger.sent([(queue, offset, number)])
                waiting.append((offset, number))
        elif kind == "ack":
            gone = [message for message in waiting if message[0] <= number]
            assert ledger.acknowledge(queue, number) == (gone[-1][0] + 1 if gone else None)
            model[queue] = [message for message in waiting if message[0] > number]
        else:
            ledger.forget(queue, queue + 1)
            model[queue] = []
        messages = [message for queue in model.values() for message in queue]
        assert ledger.open_count == len(messages) <= credit
        assert ledger.open_bytes == sum(size for _, size in messages)
        assert dict(ledger.firsts()) == {queue: waiting[0][0] for queue, waiting in model.items() if waiting}
    for queue in model:
        ledger.acknowledge(queue, 10_000)
    assert ledger.room() == (credit, credit_bytes)


def test_sending_begins_again_when_half_of_the_credit_is_free() -> None:
    ledger = CreditLedger(10, 1_000)
    ledger.sent([(0, offset, 1) for offset in range(10)])
    assert ledger.room() == (0, 0)
    ledger.acknowledge(0, 3)
    assert ledger.room() == (0, 0)
    ledger.acknowledge(0, 4)
    assert ledger.room() == (5, 995)


def test_a_message_larger_than_all_credit_goes_alone() -> None:
    ledger = CreditLedger(10, 100)
    ledger.sent([(0, 0, 5_000)])
    assert ledger.room() == (0, 0)
    ledger.acknowledge(0, 0)
    assert ledger.room() == (10, 100)


def test_no_credit_is_a_pause() -> None:
    ledger = CreditLedger(10, 100)
    ledger.set_credit(0, 100)
    assert ledger.room() == (0, 0)
    ledger.set_credit(2, 100)
    assert ledger.room() == (2, 100)


def test_an_acknowledgement_that_comes_again_is_no_news_and_one_of_what_was_forgotten_is_late_once() -> None:
    ledger = CreditLedger(10, 1_000)
    ledger.sent([(0, offset, 1) for offset in range(4)])
    assert ledger.acknowledge(0, 1) == 2
    assert ledger.acknowledge(0, 1) is None
    ledger.forget(0, 1)
    assert ledger.acknowledge(0, 3) is None
    assert not ledger.is_late(0, 1), "that counted"
    assert [ledger.is_late(0, 3), ledger.is_late(0, 3)] == [True, False]
    ledger.sent([(0, 2, 1)])
    ledger.forget(0, 1)
    ledger.sent([(0, 2, 1)])
    assert not ledger.is_late(0, 2), "it was sent again"
    assert ledger.acknowledge(0, 2) == 3

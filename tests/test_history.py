"""The checker finds every kind of damage done to a good history, and nothing in a good one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_lab.history import AnomalyKind, History, Verdict

SOME_HASH = 2**63 + 11  # does not fit a signed 64-bit integer


@dataclass(frozen=True)
class Row:
    queue: int
    offset: int
    key: str | None
    sequence: int
    digest: int = SOME_HASH
    consumer: int = 0


def row(queue: int, offset: int, key: str | None, sequence: int) -> Row:
    return Row(queue, offset, key, sequence, SOME_HASH + sequence, consumer=queue % 2)


# Two queues, three keys, one message without a key; queue 0 goes to consumer 0 and queue 1 to consumer 1.
SENT = [
    row(0, 0, "a", 1),
    row(1, 0, "b", 2),
    row(0, 1, "c", 3),
    row(0, 2, "a", 4),
    row(1, 1, "b", 5),
    row(1, 2, None, 6),
    row(0, 3, "a", 7),
]


def verdict_of(
    sent: list[Row], *readings: list[Row], unknown: tuple[int, ...] = (), redelivery: bool = False
) -> Verdict:
    history = History()
    for entry in sent:
        if entry.sequence in unknown:
            history.unknown([entry.key], [entry.sequence], digests=[entry.digest])
        else:
            history.acknowledged([entry.queue], [entry.offset], [entry.key], [entry.sequence], digests=[entry.digest])
    for number, rows in enumerate(readings):
        reading = history.reading(f"reading {number}")
        for entry in rows:
            reading.received(
                [entry.queue],
                [entry.offset],
                [entry.key],
                [entry.sequence],
                digests=[entry.digest],
                consumer=entry.consumer,
            )
    return history.check(redelivery=redelivery)


def kinds(verdict: Verdict) -> set[AnomalyKind]:
    return {anomaly.kind for anomaly in verdict.anomalies}


def test_a_good_history_has_no_anomalies_and_counts_what_there_was() -> None:
    verdict = verdict_of(SENT, SENT, SENT)
    assert verdict.ok
    assert verdict.acknowledged == 7
    assert verdict.keys == 3
    assert verdict.received == {"reading 0": 7, "reading 1": 7}


def test_an_empty_history_is_good() -> None:
    assert verdict_of([], []).ok
    assert verdict_of([]).ok


def test_an_acknowledged_message_that_never_arrives_is_lost_and_named() -> None:
    verdict = verdict_of(SENT, SENT[:-1])
    assert kinds(verdict) == {AnomalyKind.LOST}
    assert str(verdict.anomalies[0]) == ("reading 0: 1 lost, such as sequence 7 (key a) at queue 0 offset 3")


def test_a_message_is_lost_only_for_the_reading_that_misses_it() -> None:
    verdict = verdict_of(SENT, SENT, SENT[:-2])
    assert [(a.reading, a.kind, a.count) for a in verdict.anomalies] == [("reading 1", AnomalyKind.LOST, 2)]


def test_everything_is_lost_when_nothing_was_received() -> None:
    verdict = verdict_of(SENT, [])
    assert verdict.count(AnomalyKind.LOST) == 7
    assert len(verdict.anomalies[0].examples) == 3


def test_a_message_nobody_sent_is_reported() -> None:
    assert kinds(verdict_of(SENT, [*SENT, row(0, 4, "a", 99)])) == {AnomalyKind.UNSENT}
    assert kinds(verdict_of([], [row(0, 0, "a", 1)])) == {AnomalyKind.UNSENT}


def test_a_message_stored_in_two_places_is_stored_twice() -> None:
    again = replace(SENT[-1], offset=4)
    assert kinds(verdict_of(SENT, [*SENT, again])) == {AnomalyKind.STORED_TWICE, AnomalyKind.MISPLACED}


def test_an_offset_handed_out_twice_is_received_twice_unless_redelivery_is_allowed() -> None:
    rows = [*SENT, SENT[-1]]
    assert kinds(verdict_of(SENT, rows)) == {AnomalyKind.RECEIVED_TWICE}
    assert verdict_of(SENT, rows, redelivery=True).ok


def test_two_acknowledgements_of_one_place_are_an_overwrite() -> None:
    sent = [*SENT, row(0, 3, "c", 8)]
    assert AnomalyKind.OVERWRITTEN in kinds(verdict_of(sent, SENT))


def test_a_message_at_another_place_than_acknowledged_is_misplaced() -> None:
    sent = [replace(SENT[0], offset=5), *SENT[1:]]
    assert kinds(verdict_of(sent, SENT)) == {AnomalyKind.MISPLACED}


def test_another_body_or_another_key_is_an_altered_message() -> None:
    body = replace(SENT[1], digest=5)
    assert kinds(verdict_of(SENT, [SENT[0], body, *SENT[2:]])) == {AnomalyKind.ALTERED}
    key = replace(SENT[1], key="z")
    assert kinds(verdict_of(SENT, [SENT[0], key, *SENT[2:]])) == {AnomalyKind.ALTERED}


def test_readers_that_see_different_messages_at_one_place_diverge() -> None:
    sent = [*SENT, row(0, 4, "c", 8), row(0, 5, "c", 9)]
    one = [*SENT, row(0, 4, "c", 8)]
    other = [*SENT, row(0, 4, "c", 9)]
    assert AnomalyKind.DIVERGED in kinds(verdict_of(sent, one, other))


def test_offsets_that_go_back_are_reported() -> None:
    rows = [SENT[0], SENT[3], SENT[2], *SENT[4:], SENT[1]]
    found = kinds(verdict_of(SENT, rows))
    assert AnomalyKind.WENT_BACK in found
    assert AnomalyKind.LOST not in found


def test_an_offset_passed_over_is_reported() -> None:
    assert kinds(verdict_of(SENT, [*SENT[:2], *SENT[3:]])) == {AnomalyKind.SKIPPED, AnomalyKind.LOST}


def test_a_key_in_another_order_than_sent_is_reported_from_the_log_and_from_the_arrival() -> None:
    swapped = [replace(SENT[0], offset=2), *SENT[1:3], replace(SENT[3], offset=0), *SENT[4:]]
    arrival = sorted(swapped, key=lambda entry: (entry.queue, entry.offset))
    found = kinds(verdict_of(swapped, arrival))
    assert found == {AnomalyKind.STORED_OUT_OF_ORDER, AnomalyKind.OUT_OF_ORDER}


def test_messages_without_a_key_have_no_order() -> None:
    sent = [row(0, 0, None, 2), row(0, 1, None, 1)]
    assert verdict_of(sent, sent).ok


def test_a_key_that_moves_to_another_queue_must_still_arrive_in_order() -> None:
    first, second = row(0, 0, "a", 1), replace(row(1, 0, "a", 2), consumer=0)
    assert verdict_of([first, second], [first, second]).ok
    assert kinds(verdict_of([first, second], [second, first])) == {AnomalyKind.OUT_OF_ORDER}


def test_a_send_without_an_answer_may_be_stored_or_not_but_not_twice() -> None:
    unknown = (7,)
    assert verdict_of(SENT, SENT[:-1], unknown=unknown).unknown_stored == 0
    there = verdict_of(SENT, SENT, unknown=unknown)
    assert there.ok
    assert (there.unknown, there.unknown_stored) == (1, 1)
    twice = verdict_of(SENT, [*SENT, replace(SENT[-1], offset=4)], unknown=unknown)
    assert kinds(twice) == {AnomalyKind.STORED_TWICE}


def test_two_sends_with_one_sequence_are_refused() -> None:
    with pytest.raises(ValueError, match="same sequence"):
        verdict_of([SENT[0], SENT[0]])


def test_columns_of_different_lengths_are_refused() -> None:
    history = History()
    with pytest.raises(ValueError, match="different lengths"):
        history.acknowledged([0, 0], [0, 1], ["a"], [1, 2])


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Sends to a few queues, and one complete reading of them by consumers that interleave at random."""
    queue_count = draw(st.integers(1, 4))
    placed = draw(st.lists(st.tuples(st.integers(0, queue_count - 1), st.integers(0, 3)), min_size=1, max_size=40))
    lengths = [0] * queue_count
    sent = []
    for sequence, (queue, key) in enumerate(placed):
        sent.append(row(queue, lengths[queue], f"{queue}-{key}" if key else None, sequence))
        lengths[queue] += 1
    turns = [entry.queue for entry in sent]
    random.Random(draw(st.integers(0, 99))).shuffle(turns)
    pending = {queue: [entry for entry in sent if entry.queue == queue] for queue in range(queue_count)}
    return sent, [pending[queue].pop(0) for queue in turns]


@given(runs())
def test_any_complete_reading_in_queue_order_is_good(run: tuple[list[Row], list[Row]]) -> None:
    sent, received = run
    assert verdict_of(sent, received).anomalies == ()


@given(runs(), st.data())
def test_any_single_damage_is_found(run: tuple[list[Row], list[Row]], data: st.DataObject) -> None:
    sent, received = run
    victim = data.draw(st.integers(0, len(received) - 1))
    entry = received[victim]
    before, after = received[:victim], received[victim + 1 :]
    damaged, expected = data.draw(
        st.sampled_from(
            [
                (before + after, AnomalyKind.LOST),
                ([*received, entry], AnomalyKind.RECEIVED_TWICE),
                ([*received, replace(entry, offset=1000)], AnomalyKind.STORED_TWICE),
                ([*before, replace(entry, digest=1), *after], AnomalyKind.ALTERED),
                ([*before, replace(entry, offset=1000), *after], AnomalyKind.MISPLACED),
                ([*before, replace(entry, sequence=5000), *after], AnomalyKind.UNSENT),
            ]
        )
    )
    assert expected in kinds(verdict_of(sent, damaged))


@given(runs(), st.data())
def test_any_swap_within_a_queue_is_found(run: tuple[list[Row], list[Row]], data: st.DataObject) -> None:
    sent, received = run
    pairs = [
        (i, j)
        for i in range(len(received))
        for j in range(i + 1, len(received))
        if received[i].queue == received[j].queue
    ]
    if not pairs:
        return
    i, j = data.draw(st.sampled_from(pairs))
    swapped = list(received)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    assert AnomalyKind.WENT_BACK in kinds(verdict_of(sent, swapped))

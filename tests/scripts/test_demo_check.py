"""The demo's figures and verdict, from columns made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from _demo.check import checks, judge, latency, pause_s, receive_rate, refused_s, send_rate
from _demo.flights import Flights, digest_of
from _demo.workers import Receipts, Sends

MS = 1_000_000
BODIES = [b"0,a", b"1,b", b"2,c", b"3,d"]
FLIGHTS = Flights(keys=["N1", None, "N1", "N2"], tags=["AA"] * 4, bodies=BODIES)


def sends(acknowledged_ms: list[int]) -> Sends:
    return Sends(
        queue=np.array([0, 1, 0, 1]),
        offset=np.array([0, 0, 1, 1]),
        sent_ns=np.arange(4) * MS,
        acknowledged_ns=np.array(acknowledged_ms) * MS,
    )


def receipts(rows: list[int], received_ms: list[int]) -> Receipts:
    sent = sends([1, 1, 1, 1])
    return Receipts(
        queue=sent.queue[rows],
        offset=sent.offset[rows],
        key=[FLIGHTS.keys[row] for row in rows],
        sequence=np.array(rows),
        digest=np.array([digest_of(BODIES[row]) for row in rows], np.uint64),
        received_ns=np.array(received_ms) * MS,
    )


CONSUMERS = [receipts([0, 2], [10, 22]), receipts([1, 3], [11, 43])]


def test_a_complete_reading_passes_every_check() -> None:
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), {"by the consumers": CONSUMERS})
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [True, True, True]


def test_a_lost_flight_fails_and_is_named() -> None:
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), {"by the consumers": [CONSUMERS[0], receipts([1], [11])]})
    acknowledged, content, order = checks(FLIGHTS, verdict)
    assert (acknowledged.ok, content.ok, order.ok) == (True, False, True)
    assert "1 lost, such as sequence 3 (key N2) at queue 1 offset 1" in content.text


def test_a_doubled_flight_fails() -> None:
    doubled = receipts([1, 3, 3], [11, 43, 44])
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), {"by the consumers": [CONSUMERS[0], doubled]})
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [True, False, True]


def test_an_altered_body_fails() -> None:
    altered = replace(CONSUMERS[1], digest=np.array([1, 2], np.uint64))
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), {"by the consumers": [CONSUMERS[0], altered]})
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [True, False, True]


def test_flights_out_of_order_fail() -> None:
    backwards = receipts([2, 0], [10, 22])
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), {"by the consumers": [backwards, CONSUMERS[1]]})
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [True, True, False]


def test_a_send_without_an_answer_fails_though_the_flight_arrived() -> None:
    unanswered = replace(sends([5, 5, 6, 0]), queue=np.array([0, 1, 0, -1]))
    verdict = judge(FLIGHTS, unanswered, {"by the consumers": CONSUMERS})
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [False, True, True]
    assert verdict.unknown_stored == 1


def test_a_second_reading_is_held_to_the_same() -> None:
    readings = {"first": CONSUMERS, "again": [CONSUMERS[0]]}
    verdict = judge(FLIGHTS, sends([5, 5, 6, 7]), readings)
    assert [check.ok for check in checks(FLIGHTS, verdict)] == [True, False, True]


def test_rates_count_from_the_first_to_the_last_event() -> None:
    assert send_rate(sends([500, 600, 800, 1000]), 0, 4) == pytest.approx(4.0)
    assert send_rate(sends([500, 600, 800, 0]), 0, 4) == pytest.approx(3 / 0.8)
    assert receive_rate(CONSUMERS, 3 * MS, 4) == pytest.approx(4 / 0.040)
    assert receive_rate(CONSUMERS, 0, 2) == pytest.approx(2 / 0.011)


def test_latency_runs_from_due_to_received_for_the_paced_rows_alone() -> None:
    found = latency(sends([5, 5, 6, 7]), CONSUMERS, 2)
    assert found.p50_ms == pytest.approx(30)
    assert found.greatest_ms == pytest.approx(40)


ALL_QUEUES = [(0, 1 << 32)]


def test_refusal_is_the_longest_silence_although_the_old_leaders_answers_come_in_late() -> None:
    assert refused_s(sends([90, 101, 103, 900]), 100 * MS, 2000 * MS, ALL_QUEUES) == pytest.approx(0.797)


def test_refusal_begins_with_the_last_answer_of_the_old_leader() -> None:
    assert refused_s(sends([10, 90, 300, 310]), 100 * MS, 2000 * MS, ALL_QUEUES) == pytest.approx(0.21)


def test_a_longer_pause_after_the_node_came_back_is_not_called_refusal() -> None:
    answers = sends([90, 240, 260, 900])
    assert refused_s(answers, 100 * MS, 250 * MS, ALL_QUEUES) == pytest.approx(0.15)
    assert pause_s(answers, 250 * MS, ALL_QUEUES) == pytest.approx(0.64)


def test_other_shards_do_not_shorten_the_refusal() -> None:
    assert refused_s(sends([90, 200, 900, 300]), 100 * MS, 2000 * MS, [(0, 1)]) == pytest.approx(0.81)


def test_refusal_is_not_a_number_when_nothing_was_acknowledged_after_the_kill() -> None:
    assert np.isnan(refused_s(sends([1, 2, 3, 4]), 100 * MS, 200 * MS, ALL_QUEUES))

"""Whether what came back is what was sent, and what it took: pure functions over the workers' columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsmq_lab.history import Anomaly, AnomalyKind, History, Verdict

from .flights import Flights
from .workers import Receipts, Sends

ORDER = frozenset(
    {AnomalyKind.OUT_OF_ORDER, AnomalyKind.STORED_OUT_OF_ORDER, AnomalyKind.WENT_BACK, AnomalyKind.SKIPPED}
)
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Check:
    """One statement that must hold for the demo to succeed."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the moment a message was due to be sent to the moment a consumer held it."""

    p50_ms: float
    p99_ms: float
    greatest_ms: float


def judge(flights: Flights, sends: Sends, readings: Mapping[str, Sequence[Receipts]]) -> Verdict:
    """Compare the sends with one or several complete readings, each shared by several consumers."""
    history = History()
    digests = np.array(flights.digests(), np.uint64)
    for known in (True, False):
        rows = np.flatnonzero((sends.queue >= 0) == known)
        keys = [flights.keys[row] for row in rows.tolist()]
        if known:
            history.acknowledged(sends.queue[rows], sends.offset[rows], keys, rows, digests=digests[rows])
        else:
            history.unknown(keys, rows, digests=digests[rows])
    for name, consumers in readings.items():
        reading = history.reading(name)
        for consumer, receipts in enumerate(consumers):
            reading.received(
                receipts.queue,
                receipts.offset,
                receipts.key,
                receipts.sequence,
                digests=receipts.digest,
                consumer=consumer,
            )
    return history.check()


def checks(flights: Flights, verdict: Verdict) -> list[Check]:
    """The verdict as statements for people."""
    count = len(flights)
    content = [anomaly for anomaly in verdict.anomalies if anomaly.kind not in ORDER]
    order = [anomaly for anomaly in verdict.anomalies if anomaly.kind in ORDER]
    received = ", ".join(f"{number:,} {name}" for name, number in verdict.received.items())
    return [
        Check(verdict.unknown == 0, f"{verdict.acknowledged:,} of {count:,} flights acknowledged"),
        Check(
            not content and set(verdict.received.values()) == {count},
            f"received: {received}; " + (_listed(content) or "none lost, none doubled, none altered"),
        ),
        Check(
            not order,
            f"{verdict.keys:,} aircraft: "
            + (_listed(order) or "the flights of each in the order sent, offsets without gaps"),
        ),
    ]


def _listed(anomalies: Sequence[Anomaly]) -> str:
    """One line an anomaly, below the statement they refute."""
    return "".join(f"\n          {anomaly}" for anomaly in anomalies)


def send_rate(sends: Sends, first: int, end: int) -> float:
    """Acknowledged messages a second, from the first send of rows ``[first, end)`` to their last answer."""
    answered = sends.acknowledged_ns[first:end]
    answered = answered[answered > 0]
    if not len(answered):
        return 0.0
    return float(len(answered) * _NS / max(1, answered.max() - sends.sent_ns[first]))


def receive_rate(consumers: Sequence[Receipts], began_ns: int, end: int) -> float:
    """Messages a second over all consumers: rows below ``end``, from ``began_ns`` to the last of them."""
    received = np.concatenate([each.received_ns[each.sequence < end] for each in consumers])
    return float(len(received) * _NS / max(1, received.max() - began_ns)) if len(received) else 0.0


def latency(sends: Sends, consumers: Sequence[Receipts], first: int) -> Latency:
    """From due to received, of rows from ``first`` on. NaN when there were none."""
    waits: list[NDArray[np.int64]] = []
    for each in consumers:
        rows = each.sequence >= first
        waits.append(each.received_ns[rows] - sends.sent_ns[each.sequence[rows]])
    waited_ms = np.concatenate(waits) / 1e6
    if not len(waited_ms):
        return Latency(float("nan"), float("nan"), float("nan"))
    p50, p99, greatest = np.percentile(waited_ms, (50, 99, 100))
    return Latency(float(p50), float(p99), float(greatest))


def refused_s(sends: Sends, killed_ns: int, back_ns: int, queues: Sequence[tuple[int, int]]) -> float:
    """Seconds for which no write to these queues was acknowledged, between the kill and the node's return.

    ``queues`` are ranges ``[first, end)``. It is the longest time between two neighbouring answers, from the last one
    before the kill to the first one after ``back_ns``, when the node was started again: the failover, or a longer pause
    if there was one. Answers of the old leader that are read just after the kill so do not end it. NaN without any
    answer after the kill.
    """
    answered = _answers(sends, queues)
    first = int(np.searchsorted(answered, killed_ns))
    last = int(np.searchsorted(answered, back_ns, side="right"))
    if first == len(answered):
        return float("nan")
    return _longest_gap_s(answered[max(0, first - 1) : last + 1])


def pause_s(sends: Sends, since_ns: int, queues: Sequence[tuple[int, int]]) -> float:
    """The longest time in seconds between two answers for these queues from ``since_ns`` on. NaN without two."""
    answered = _answers(sends, queues)
    return _longest_gap_s(answered[max(0, int(np.searchsorted(answered, since_ns)) - 1) :])


def _answers(sends: Sends, queues: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """When writes to these queues were acknowledged, in order."""
    ours = np.zeros(len(sends.queue), np.bool_)
    for first, end in queues:
        ours |= (sends.queue >= first) & (sends.queue < end)
    return np.sort(sends.acknowledged_ns[ours])


def _longest_gap_s(answered: NDArray[np.int64]) -> float:
    return float(np.diff(answered).max() / _NS) if len(answered) > 1 else float("nan")

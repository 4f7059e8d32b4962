"""What was sent, what was received, and whether the two agree: the verdict of demos, drills and tests.

A :class:`History` holds the sends of one topic and any number of :class:`Reading`, each of which is meant to
hold every message once (one reader, or several that share the queues). :meth:`History.check` compares them
and names what it finds in the terms of Jepsen's queue and Kafka workloads.

Every message carries a *sequence*: a number that no other message of the run has and that grows in the order
in which the messages of one key were sent. The receiver must take key, sequence and digest from what it was
handed (the body), not from what it was told was sent. A *digest* is any 64-bit hash of the body; 0 everywhere
when bodies are not compared.

The check is pure: no clocks, no sockets, no files. It works on columns, a few arrays a reading, and takes
about a second a million messages.

Messages of transactions are sends when they are committed, and were never sent when they are not.

Not supported: messages that were meant to expire.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Digests: TypeAlias = Sequence[int] | Integers | NDArray[np.uint64] | int

EXAMPLES = 3


class AnomalyKind(Enum):
    """What can be wrong with a history. The value is the name in reports."""

    LOST = "lost"  # acknowledged, and this reading never got it
    UNSENT = "unsent"  # received, and never sent
    STORED_TWICE = "stored twice"  # one send, two places in the log
    RECEIVED_TWICE = "received twice"  # one place in the log, handed out twice
    OVERWRITTEN = "overwritten"  # two sends, both acknowledged for one queue and offset
    MISPLACED = "misplaced"  # not at the queue and offset that were acknowledged
    ALTERED = "altered"  # another key or another body than was sent
    DIVERGED = "diverged"  # one queue and offset, different messages for different receivers
    WENT_BACK = "went back"  # a consumer was handed a smaller offset of a queue after a greater one
    SKIPPED = "skipped"  # a consumer was handed an offset of a queue without the one before it
    STORED_OUT_OF_ORDER = "stored out of order"  # a key's messages lie in another order than sent
    OUT_OF_ORDER = "out of order"  # a consumer got a key's messages in another order than sent


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of disagreement in one reading (``reading`` is empty when it lies in the sends alone)."""

    kind: AnomalyKind
    reading: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.reading}: " if self.reading else ""
        return f"{where}{self.count:,} {self.kind.value}, such as {'; '.join(self.examples)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. ``received`` counts by reading, every delivery included.

    ``unknown`` sends got no answer: each may be stored once or not at all, and ``unknown_stored`` of them
    were seen by some reading.
    """

    acknowledged: int
    unknown: int
    unknown_stored: int
    keys: int
    received: dict[str, int]
    anomalies: tuple[Anomaly, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing disagrees."""
        return not self.anomalies

    def count(self, kind: AnomalyKind) -> int:
        """How many anomalies of one kind there are, in all readings together."""
        return sum(anomaly.count for anomaly in self.anomalies if anomaly.kind is kind)


class _Columns:
    """Chunks of equally long integer columns that are joined when they are asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._chunks: dict[str, list[Integers]] = {name: [] for name in names}

    def add(self, **columns: Sequence[int] | Integers | int) -> None:
        sizes = {np.size(values) for values in columns.values() if not isinstance(values, int)}
        if len(sizes) > 1:
            raise ValueError(f"columns of different lengths: {sorted(sizes)}")
        size = sizes.pop() if sizes else 1
        for name, values in columns.items():
            chunk = np.full(size, values) if isinstance(values, int) else np.asarray(values)
            self._chunks[name].append(chunk.astype(np.int64))

    def joined(self) -> dict[str, Integers]:
        for name, chunks in self._chunks.items():
            self._chunks[name] = [np.concatenate(chunks)] if chunks else [np.empty(0, np.int64)]
        return {name: chunks[0] for name, chunks in self._chunks.items()}


@dataclass(slots=True)
class _Keys:
    """Gives every key a small number; ``None`` (no key, no order promised) is -1."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    names: list[Hashable] = field(default_factory=list)

    def encode(self, keys: Sequence[Hashable | None]) -> Integers:
        numbers = self.numbers
        for key in keys:
            if key is not None and key not in numbers:
                numbers[key] = len(numbers)
                self.names.append(key)
        return np.array([-1 if key is None else numbers[key] for key in keys], np.int64)

    def name(self, number: int) -> str:
        return "no key" if number < 0 else f"key {self.names[number]}"


class Reading:
    """The messages that one reader, or several that share the queues, were handed. Made by a history."""

    def __init__(self, name: str, keys: _Keys) -> None:
        self.name = name
        self._keys = keys
        self._columns = _Columns(("consumer", "queue", "offset", "key", "sequence", "digest"))

    def received(
        self,
        queues: Sequence[int] | Integers,
        offsets: Sequence[int] | Integers,
        keys: Sequence[Hashable | None],
        sequences: Sequence[int] | Integers,
        *,
        digests: Digests = 0,
        consumer: int = 0,
    ) -> None:
        """Add messages in the order in which ``consumer`` was handed them, after those added before.

        Raises ``ValueError`` when the columns differ in length.
        """
        self._columns.add(
            consumer=consumer,
            queue=queues,
            offset=offsets,
            key=self._keys.encode(keys),
            sequence=sequences,
            digest=_signed(digests),
        )

    def columns(self) -> dict[str, Integers]:
        """All rows so far, as one array a column."""
        return self._columns.joined()


class History:
    """The sends of one topic, and the readings of it. Not thread-safe."""

    def __init__(self) -> None:
        self._keys = _Keys()
        self._sent = _Columns(("queue", "offset", "key", "sequence", "digest", "known"))
        self._readings: list[Reading] = []

    def acknowledged(
        self,
        queues: Sequence[int] | Integers,
        offsets: Sequence[int] | Integers,
        keys: Sequence[Hashable | None],
        sequences: Sequence[int] | Integers,
        *,
        digests: Digests = 0,
    ) -> None:
        """Add sends that were acknowledged at these places. Raises ``ValueError`` on uneven columns."""
        self._sent.add(
            queue=queues,
            offset=offsets,
            key=self._keys.encode(keys),
            sequence=sequences,
            digest=_signed(digests),
            known=1,
        )

    def unknown(
        self,
        keys: Sequence[Hashable | None],
        sequences: Sequence[int] | Integers,
        *,
        digests: Digests = 0,
    ) -> None:
        """Add sends whose answer never came: each may be stored once, or not at all."""
        encoded = self._keys.encode(keys)
        self._sent.add(
            queue=np.full(len(encoded), -1),
            offset=np.full(len(encoded), -1),
            key=encoded,
            sequence=sequences,
            digest=_signed(digests),
            known=0,
        )

    def reading(self, name: str) -> Reading:
        """A new, empty reading that is expected to get every message once."""
        reading = Reading(name, self._keys)
        self._readings.append(reading)
        return reading

    def check(self, *, redelivery: bool = False) -> Verdict:
        """Compare every reading with the sends and with the other readings.

        ``redelivery`` allows a message to be handed out again (at-least-once delivery after a failure), and
        then offsets that go back, gaps and the order of arrival are not held against the receivers; the
        order in the log is.

        Raises ``ValueError`` when two sends have one sequence: then nothing can be told apart.
        """
        sent = self._sent.joined()
        known = sent["known"].astype(np.bool_)
        ordered = np.sort(sent["sequence"])
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise ValueError("two sends have the same sequence; give each message of a run its own")
        anomalies = list(self._check_sends(sent, known))
        seen: list[Integers] = []
        for reading in self._readings:
            rows = reading.columns()
            anomalies += self._check_content(reading.name, sent, known, rows)
            anomalies += self._check_places(reading.name, rows, redelivery)
            anomalies += self._check_order(reading.name, rows, redelivery)
            seen.append(rows["sequence"])
        anomalies += self._check_divergence()
        stored = np.isin(sent["sequence"][~known], np.concatenate(seen)) if seen else np.zeros(0, np.bool_)
        return Verdict(
            acknowledged=int(known.sum()),
            unknown=int((~known).sum()),
            unknown_stored=int(stored.sum()),
            keys=len(self._keys.names),
            received={reading.name: len(reading.columns()["queue"]) for reading in self._readings},
            anomalies=tuple(anomalies),
        )

    def _check_sends(self, sent: dict[str, Integers], known: Mask) -> Iterator[Anomaly]:
        rows = {name: values[known] for name, values in sent.items()}
        order = np.lexsort((rows["sequence"], rows["offset"], rows["queue"]))
        queue, offset = rows["queue"][order], rows["offset"][order]
        same = (queue[1:] == queue[:-1]) & (offset[1:] == offset[:-1])
        yield from self._report(AnomalyKind.OVERWRITTEN, "", rows, order[1:][same])

    def _check_content(
        self, name: str, sent: dict[str, Integers], known: Mask, rows: dict[str, Integers]
    ) -> Iterator[Anomaly]:
        missing = known & ~np.isin(sent["sequence"], rows["sequence"])
        yield from self._report(AnomalyKind.LOST, name, sent, np.flatnonzero(missing))

        by_sequence = np.argsort(sent["sequence"])
        place = np.searchsorted(sent["sequence"], rows["sequence"], sorter=by_sequence)
        found = place < len(by_sequence)
        match = by_sequence[np.where(found, place, 0)] if len(by_sequence) else np.zeros(len(place), np.int64)
        if len(by_sequence):
            found &= sent["sequence"][match] == rows["sequence"]
        yield from self._report(AnomalyKind.UNSENT, name, rows, np.flatnonzero(~found))

        got = np.flatnonzero(found)
        of = match[got]
        altered = (sent["key"][of] != rows["key"][got]) | (sent["digest"][of] != rows["digest"][got])
        yield from self._report(AnomalyKind.ALTERED, name, rows, got[altered])

        elsewhere = (sent["queue"][of] != rows["queue"][got]) | (sent["offset"][of] != rows["offset"][got])
        yield from self._report(AnomalyKind.MISPLACED, name, rows, got[elsewhere & known[of]])

    def _check_places(self, name: str, rows: dict[str, Integers], redelivery: bool) -> Iterator[Anomaly]:
        order = np.lexsort((rows["offset"], rows["queue"], rows["sequence"]))
        sequence = rows["sequence"][order]
        queue, offset = rows["queue"][order], rows["offset"][order]
        again = sequence[1:] == sequence[:-1]
        elsewhere = (queue[1:] != queue[:-1]) | (offset[1:] != offset[:-1])
        yield from self._report(AnomalyKind.STORED_TWICE, name, rows, order[1:][again & elsewhere])
        if redelivery:
            return
        yield from self._report(AnomalyKind.RECEIVED_TWICE, name, rows, order[1:][again & ~elsewhere])

        # lexsort is stable: within a consumer and a queue the rows stay in the order of arrival.
        order = np.lexsort((rows["queue"], rows["consumer"]))
        step, together = self._steps(rows, order, ("consumer", "queue"), "offset")
        yield from self._report(AnomalyKind.WENT_BACK, name, rows, order[1:][together & (step < 0)])
        yield from self._report(AnomalyKind.SKIPPED, name, rows, order[1:][together & (step > 1)])

    def _check_order(self, name: str, rows: dict[str, Integers], redelivery: bool) -> Iterator[Anomaly]:
        keyed = np.flatnonzero(rows["key"] >= 0)
        rows = {column: values[keyed] for column, values in rows.items()}
        order = np.lexsort((rows["offset"], rows["key"], rows["queue"]))
        step, together = self._steps(rows, order, ("queue", "key"), "sequence")
        yield from self._report(AnomalyKind.STORED_OUT_OF_ORDER, name, rows, order[1:][together & (step < 0)])
        if redelivery:
            return
        order = np.lexsort((rows["key"], rows["consumer"]))
        step, together = self._steps(rows, order, ("consumer", "key"), "sequence")
        yield from self._report(AnomalyKind.OUT_OF_ORDER, name, rows, order[1:][together & (step < 0)])

    def _check_divergence(self) -> Iterator[Anomaly]:
        """One place in the log must hold the same message for everyone who reads it, at any time."""
        tables = [reading.columns() for reading in self._readings]
        if not tables:
            return
        rows = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        order = np.lexsort((rows["digest"], rows["sequence"], rows["offset"], rows["queue"]))
        queue, offset, sequence = (rows[name][order] for name in ("queue", "offset", "sequence"))
        same = (queue[1:] == queue[:-1]) & (offset[1:] == offset[:-1])
        yield from self._report(AnomalyKind.DIVERGED, "", rows, order[1:][same & (sequence[1:] != sequence[:-1])])

    @staticmethod
    def _steps(
        rows: dict[str, Integers], order: Integers, group: tuple[str, str], column: str
    ) -> tuple[Integers, Mask]:
        """Differences of ``column`` along ``order``, and where both neighbours are of one group."""
        first, second = (rows[name][order] for name in group)
        together = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        return np.diff(rows[column][order]), together

    def _report(self, kind: AnomalyKind, name: str, rows: dict[str, Integers], found: Integers) -> Iterator[Anomaly]:
        if len(found):
            examples = tuple(self._describe(rows, int(row)) for row in found[:EXAMPLES])
            yield Anomaly(kind, name, len(found), examples)

    def _describe(self, rows: dict[str, Integers], row: int) -> str:
        queue, offset = int(rows["queue"][row]), int(rows["offset"][row])
        place = f" at queue {queue} offset {offset}" if queue >= 0 else ""
        return f"sequence {int(rows['sequence'][row])} ({self._keys.name(int(rows['key'][row]))}){place}"


def _signed(digests: Digests) -> Integers | int:
    """Digests as int64. Unsigned 64-bit hashes keep their bits; a sequence may hold no negative number."""
    if isinstance(digests, int):
        return digests
    if isinstance(digests, np.ndarray) and digests.dtype.kind == "i":
        return digests.astype(np.int64)
    return np.asarray(digests, np.uint64).view(np.int64)

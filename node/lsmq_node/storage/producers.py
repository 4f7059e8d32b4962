"""Idempotent producers: which of their batches are stored, and the answers to the last of them.

A producer numbers its batches for each shard: (id, epoch, sequence). The next sequence is stored; one that was stored
is answered with the offsets of then, if it is the very same batch, which its *fingerprint* says; a newer epoch, in line
or stored, fences the older ones. A shard knows any number of producers up to ``max_producers``: what came since the
last flush is in memory, in *layers*, one a memtable; the rest is in the keyed files of the checkpoint. Each holds of a
producer where it has come to, and the answers to the batches that came in its time, so that noting a batch reads
nothing, and a producer that is idle costs two bytes of memory.

A producer that nothing came from for ``producer_expiry_ms``, by the times its batches were stored at, is *unknown*: it
is told so when it goes on, and merges of checkpoints drop what is kept of it.

The value of a producer in a keyed file; all integers are little-endian::

    width field
     4    epoch
     4    next      sequence of the batch to come; so the last one that a batch may have is ``LAST_SEQUENCE``
     8    last_ms   STORED_MS of the last batch
     1    count     answers that follow, at most ``WINDOW``, the oldest first; the last is of ``next - 1``. The high bit
                    says that a position comes behind them
    each of them:
     8    lsn       behind the batch's log entry
     8    stored_ms
     4    fingerprint
     4    length    of the offsets
     n    offsets   see :func:`pack_offsets`
    and at the end, where a batch had one:
     8    position  how far the producer's application is

Not supported: telling the first batch of a producer from the repeat of one that was forgotten. No retry may outlive
``producer_expiry_ms``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import crc32c
import numpy as np
import zstandard

from lsmq import runtime
from lsmq.record_batch import HEADER_BYTES, Codec, RecordBatch

from .columns import I64, WIDTH_DTYPES, width_of
from .failures import disappeared
from .keyed_file import KeyedFile

#: Producers from this id on are the broker's own: deliveries of transactions, and of delayed messages.
BROKER_PRODUCERS: Final = 1 << 63
#: Of a producer's last batches the answers are remembered.
WINDOW = 8
#: What has four bytes in a file: an epoch, and the sequence of the batch to come.
LAST_EPOCH: Final = (1 << 32) - 1
LAST_SEQUENCE: Final = (1 << 32) - 2
KIND = b"p"
_HEAD = struct.Struct("<IIqB")
_ANSWER = struct.Struct("<QqII")
_OFFSETS = struct.Struct("<IqqB")
_COMPRESSED = _POSITION = 0x80
#: Memory of a producer, and of an answer, of a layer; about.
_PRODUCER_BYTES, _ANSWER_BYTES = 330, 330


class StoredBatch(NamedTuple):
    """The answer to a producer's batch. ``offsets`` as :meth:`.Repeats.marked` makes them."""

    epoch: int
    sequence: int
    fingerprint: int
    lsn: int
    stored_ms: int
    offsets: I64
    position: int = -1  # of the producer's application; -1: it says none


class BatchKey(NamedTuple):
    """What tells batches of producers apart."""

    producer_id: int
    epoch: int
    sequence: int
    fingerprint: int
    position: int = -1

    def stored(self, lsn: int, stored_ms: int, offsets: I64) -> StoredBatch:
        """The answer to it."""
        return StoredBatch(self.epoch, self.sequence, self.fingerprint, lsn, stored_ms, offsets, self.position)


class Head(NamedTuple):
    """Where a producer has come to."""

    epoch: int
    next_sequence: int
    last_ms: int
    position: int = -1


def fingerprint(topic_id: int, batch: RecordBatch) -> int:
    """CRC32C over topic, number of records, columns and payload, however that is compressed."""
    crc = crc32c.crc32c(struct.pack("<II", topic_id, batch.record_count))
    if batch.codec is Codec.NONE:
        return crc32c.crc32c(batch.buffer[HEADER_BYTES : batch.total_bytes], crc)
    columns_end = batch.total_bytes - int.from_bytes(batch.buffer[16:20], "little")  # less payload_bytes
    return crc32c.crc32c(batch.payload, crc32c.crc32c(batch.buffer[HEADER_BYTES:columns_end], crc))


# -- what is kept in files -------------------------------------------------------------------------------


def producer_key(producer_id: int) -> bytes:
    return KIND + producer_id.to_bytes(8, "big")


def pack_offsets(offsets: I64) -> bytes:
    """How many (4), the first (8), and the steps from each to the next: the least (8), and what each is above it in
    ``width`` bytes (1; the high bit says that they are compressed). Width 0: all steps are the same.

    A batch of one queue takes 21 bytes, whatever its size.
    """
    count = len(offsets)
    if not count:
        return _OFFSETS.pack(0, 0, 0, 0)
    first = int(offsets[0])
    steps = np.diff(offsets)
    low, high = (int(steps.min()), int(steps.max())) if count > 1 else (0, 0)
    if low == high:
        return _OFFSETS.pack(count, first, low, 0)
    width = width_of(high - low)
    narrow = (steps - low).astype(WIDTH_DTYPES[width]).tobytes()
    compressed = zstandard.compress(narrow, 1)
    if len(compressed) < len(narrow):
        return _OFFSETS.pack(count, first, low, width | _COMPRESSED) + compressed
    return _OFFSETS.pack(count, first, low, width) + narrow


def unpack_offsets(packed: bytes) -> I64:
    count, first, low, coding = _OFFSETS.unpack_from(packed)
    offsets = np.full(count, low, np.int64)
    if not count:
        return offsets
    width, raw = coding & ~_COMPRESSED, packed[_OFFSETS.size :]
    if width:
        steps = zstandard.decompress(raw) if coding & _COMPRESSED else raw
        offsets[1:] += np.frombuffer(steps, WIDTH_DTYPES[width]).astype(np.int64)
    offsets[0] = first
    return np.cumsum(offsets)


def encode_producer(head: Head, answers: Sequence[StoredBatch]) -> bytes:
    marked = 0 if head.position < 0 else _POSITION
    parts = [_HEAD.pack(head.epoch, head.next_sequence, head.last_ms, len(answers) | marked)]
    for answer in answers:
        packed = pack_offsets(answer.offsets)
        parts += (_ANSWER.pack(answer.lsn, answer.stored_ms, answer.fingerprint, len(packed)), packed)
    if marked:
        parts.append(head.position.to_bytes(8, "little"))
    return b"".join(parts)


def decode_head(value: bytes) -> Head:
    epoch, following, last_ms, count = _HEAD.unpack_from(value)
    position = int.from_bytes(value[-8:], "little") if count & _POSITION else -1
    return Head(epoch, following, last_ms, position)


def _answers(value: bytes) -> list[bytes]:
    """The encoded answers, the oldest first."""
    count = value[_HEAD.size - 1] & ~_POSITION
    found, at = [], _HEAD.size
    for _ in range(count):
        end = at + _ANSWER.size + int.from_bytes(value[at + _ANSWER.size - 4 : at + _ANSWER.size], "little")
        found.append(value[at:end])
        at = end
    return found


def decode_answers(value: bytes) -> list[StoredBatch]:
    """The oldest first."""
    head, found = decode_head(value), _answers(value)
    answers = []
    for sequence, raw in enumerate(found, head.next_sequence - len(found)):
        lsn, stored_ms, mark, _ = _ANSWER.unpack_from(raw)
        answers.append(StoredBatch(head.epoch, sequence, mark, lsn, stored_ms, unpack_offsets(raw[_ANSWER.size :])))
    return answers


def merge_values(values: Iterable[bytes]) -> bytes:
    """What several files hold of one producer, the newest first, as one of them would."""
    newest, *older = values
    head = decode_head(newest)
    said = next((value[-8:] for value in (newest, *older) if value[_HEAD.size - 1] & _POSITION), b"")
    answers = _answers(newest)
    for value in older:
        missing = min(WINDOW, head.next_sequence) - len(answers)
        before = decode_head(value)
        if missing <= 0 or before.epoch != head.epoch:
            break
        assert before.next_sequence == head.next_sequence - len(answers), "a producer's batches follow one another"
        answers = _answers(value)[-missing:] + answers
    marked = _POSITION if said else 0
    return newest[: _HEAD.size - 1] + bytes((len(answers) | marked,)) + b"".join(answers) + said


# -- where they are --------------------------------------------------------------------------------------


class Layer:
    """Producers that wrote to one memtable. One thread notes; any may look."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Head, tuple[StoredBatch, ...]]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def note(self, producer_id: int, stored: StoredBatch) -> None:
        found = self._known.get(producer_id)
        answers: tuple[StoredBatch, ...] = ()
        if found is None:
            self.size_bytes += _PRODUCER_BYTES
        else:
            if found[0].epoch == stored.epoch and stored.sequence > 0:  # else it begins, or begins anew where forgotten
                assert stored.sequence == found[0].next_sequence, "a producer's batches follow one another"
                answers = found[1][1 - WINDOW :]
            for gone in found[1][: len(found[1]) - len(answers)]:
                self.size_bytes -= _memory_of(gone)
        position = stored.position
        if position < 0 and found is not None:
            position = found[0].position
        head = Head(stored.epoch, stored.sequence + 1, stored.stored_ms, position)
        if stored.sequence >= 0:  # else an epoch begins, with nothing yet
            self.size_bytes += _memory_of(stored)
            answers = (*answers, stored)
        self._known[producer_id] = head, answers

    def head(self, producer_id: int) -> Head | None:
        found = self._known.get(producer_id)
        return None if found is None else found[0]

    def answer(self, producer_id: int, epoch: int, sequence: int) -> StoredBatch | None:
        found = self._known.get(producer_id)
        if found is None:
            return None
        return next((each for each in found[1] if (each.epoch, each.sequence) == (epoch, sequence)), None)

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Ids, ascending, and values as a file holds them. Nothing is noted any more."""
        for producer_id in sorted(self._known):
            yield producer_id, encode_producer(*self._known[producer_id])


def _memory_of(stored: StoredBatch) -> int:
    return _ANSWER_BYTES + stored.offsets.nbytes


class ProducerFile:
    """Producers in a keyed file."""

    def __init__(self, file: KeyedFile) -> None:
        self.file = file
        self._count: int = file.properties["producers"]

    def __len__(self) -> int:
        return self._count

    def _value(self, producer_id: int) -> bytes | None:
        return self.file.get(producer_key(producer_id)) if self.file.may_have(producer_id) else None

    def head(self, producer_id: int) -> Head | None:
        value = self._value(producer_id)
        return None if value is None else decode_head(value)

    def answer(self, producer_id: int, epoch: int, sequence: int) -> StoredBatch | None:
        value = self._value(producer_id)
        if value is None:
            return None
        return next((each for each in decode_answers(value) if (each.epoch, each.sequence) == (epoch, sequence)), None)


ProducerSource = Layer | ProducerFile
Found = TypeVar("Found")


class Producers:
    """Idempotent producers of a shard, as of the last applied entry.

    One thread applies (``record``, ``freeze``), others look, flush and merge.
    """

    def __init__(self) -> None:
        self._layer = Layer()
        self._sources: tuple[ProducerSource, ...] = (self._layer,)  # newest first; replaced as a whole
        self._lock = runtime.Lock()  # of who replaces it

    @property
    def count(self) -> int:
        """Producers that are kept, at most: one that wrote before and after a flush may count twice until a merge."""
        return sum(map(len, self._sources))

    @property
    def unflushed_bytes(self) -> int:
        """Memory of what came since the last freeze, about."""
        return self._layer.size_bytes

    # Asking

    def head(self, producer_id: int) -> Head | None:
        """Where a producer has come to; None where nothing is kept of it. May read the disk. Raises ``CorruptFile``."""
        return self._look(lambda source: source.head(producer_id))

    def position(self, producer_id: int) -> int:
        """Of the last batch that said one; -1 where none did. May read the disk. Raises as :meth:`head`."""

        def said(source: ProducerSource) -> int | None:
            head = source.head(producer_id)
            return None if head is None or head.position < 0 else head.position

        found = self._look(said)
        return -1 if found is None else found

    def answer(self, producer_id: int, epoch: int, sequence: int) -> StoredBatch | None:
        """The answer to a batch; None where it is too old, or of another epoch. Raises as :meth:`head`."""
        head = self.head(producer_id)
        if head is None or epoch != head.epoch or not head.next_sequence - WINDOW <= sequence < head.next_sequence:
            return None
        return self._look(lambda source: source.answer(producer_id, epoch, sequence))

    def _look(self, find: Callable[[ProducerSource], Found | None]) -> Found | None:
        """What the newest source has that has it."""
        while True:
            sources = self._sources
            try:
                return next((found for source in sources if (found := find(source)) is not None), None)
            except FileNotFoundError as error:
                if sources is self._sources:  # else a merge has removed it meanwhile
                    raise disappeared("a checkpoint", error) from error

    # Changing

    def record(self, producer_id: int, stored: StoredBatch) -> None:
        """A batch is stored."""
        self._layer.note(producer_id, stored)

    def freeze(self) -> Layer:
        """What came since the last time. It is looked at until :meth:`replace` is told where it went."""
        frozen = self._layer
        with self._lock:
            self._layer = Layer()
            self._sources = (self._layer, *self._sources)
        return frozen

    def open(self, files: Iterable[KeyedFile]) -> None:
        """Look into these too, which are older than all there is; the newest first."""
        with self._lock:
            self._sources = (*self._sources, *(ProducerFile(file) for file in files))

    def replace(self, gone: Collection[Layer | KeyedFile], file: KeyedFile) -> None:
        """What is ``gone``, sources that follow one another, is in ``file`` now."""
        with self._lock:
            kept = [source for source in self._sources if _origin(source) not in gone]
            at = next(place for place, source in enumerate(self._sources) if _origin(source) in gone)
            self._sources = (*kept[:at], ProducerFile(file), *kept[at:])


def _origin(source: ProducerSource) -> Layer | KeyedFile:
    return source if isinstance(source, Layer) else source.file

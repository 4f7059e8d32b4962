"""The hot path: integer columns and byte arenas, a whole batch at a time.

Everything done once per message in the engine is done here, by numpy over columns: assigning offsets, sorting
by queue, moving payload bytes, packing blocks. No function takes or makes an object per message. The module
depends on numpy and the record batch layout alone, so that it can be compiled without the rest.

``gather`` is the trick worth knowing: numpy moves rows of one length at memory speed when the source is
viewed as overlapping fixed-size void items, so records are moved length by length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import crc32c
import numpy as np
import numpy.ma
import zstandard
from numpy.typing import NDArray

from lsmq.record_batch import COLUMN, COLUMN_BYTES, HEADER, HEADER_BYTES, VERSION, Codec, Column

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Columns = dict[int, NDArray[Any]]

#: dtype of each record column in memory.
DTYPES: dict[int, np.dtype[Any]] = {
    Column.TOPIC: np.dtype(np.uint32),
    Column.QUEUE: np.dtype(np.uint32),
    Column.OFFSET: np.dtype(np.int64),
    Column.LENGTH: np.dtype(np.uint32),
    Column.HEADER_LENGTH: np.dtype(np.uint32),
    Column.STORED_MS: np.dtype(np.int64),
    Column.KEY_HASH: np.dtype(np.uint64),
    Column.TAG_HASH: np.dtype(np.uint32),
    Column.TYPE_HASH: np.dtype(np.uint32),
    Column.PRIORITY: np.dtype(np.uint16),
    Column.DUE_MS: np.dtype(np.int64),
    Column.EXPIRES_MS: np.dtype(np.int64),
    Column.FLAGS: np.dtype(np.uint8),
    Column.TRANSACTION: np.dtype(np.uint64),
    Column.TARGET: np.dtype(np.uint64),
    Column.DEDUPE_HIGH: np.dtype(np.uint64),
    Column.DEDUPE_LOW: np.dtype(np.uint64),
    Column.PRODUCER_POSITION: np.dtype(np.int64),
}

#: Columns that are mostly absent, and absent means zero.
OPTIONAL = (
    Column.HEADER_LENGTH,
    Column.KEY_HASH,
    Column.TAG_HASH,
    Column.TYPE_HASH,
    Column.PRIORITY,
    Column.DUE_MS,
    Column.EXPIRES_MS,
    Column.FLAGS,
    Column.TRANSACTION,
    Column.TARGET,
)

WIDTH_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
#: An entry of a batch's directory, as ``COLUMN`` packs it.
_ENTRY = np.dtype([("column", "u1"), ("width", "u1"), ("base", "<u8")])
_WIDTHS = np.array(list(WIDTH_DTYPES), np.uint8)
_WIDTH_LIMITS = np.array([1 << 8, 1 << 16, 1 << 32], np.uint64)  # the spans from which each but the first is wanted
_MASK64 = (1 << 64) - 1
_ROW_LIMIT_BYTES = 4096
_FEW = 8
_FEW_KEYS = 512
_WORD_BITS = 64
_RADIX_BITS = 16  # of the integers that numpy sorts by their digits
_SPARSE = 8


def queue_key(topic_id: int, queue: int) -> int:
    """The first half of a record's key in memory and in tables; the second is its offset."""
    return topic_id << 32 | queue


def queue_keys(topic_id: int, queues: NDArray[Any]) -> U64:
    """:func:`queue_key` of many queues of one topic."""
    return queues.astype(np.uint64) | np.uint64(topic_id << 32)


def decode_column(
    buffer: bytes | memoryview, entry: tuple[int, int, int] | None, count: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """A batch's column (``entry`` is its position, width and base) as an array of ``dtype``; zeros if None."""
    if entry is None:
        return np.zeros(count, dtype)
    position, width, base = entry
    if width == 0:
        return np.full(count, np.uint64(base).astype(dtype), dtype)
    deltas: NDArray[Any] = np.frombuffer(buffer, WIDTH_DTYPES[width], count, position)
    values: NDArray[Any] = deltas.astype(dtype)
    if base:
        values += np.uint64(base).astype(dtype)
    return values


def gather(arena: U8, starts: NDArray[Any], lengths: NDArray[Any]) -> U8:
    """The slices ``arena[starts[i]:starts[i]+lengths[i]]`` joined, in order.

    Costs about 0.05 us for a slice of 58 bytes when all lengths are alike, and not much more when there are
    only a few different lengths.
    """
    if len(starts) == 0:
        return np.empty(0, np.uint8)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest == 0:
        return np.empty(0, np.uint8)
    if shortest == longest <= _ROW_LIMIT_BYTES:
        return windows(arena, starts, longest)
    ends = np.cumsum(lengths, dtype=np.int64)
    out = np.empty(int(ends[-1]), np.uint8)
    copy_slices(out, ends - lengths, arena, starts, lengths)
    return out


def copy_slices(out: U8, targets: NDArray[Any], arena: U8, starts: NDArray[Any], lengths: NDArray[Any]) -> None:
    """``out[targets[i]:targets[i]+lengths[i]] = arena[starts[i]:starts[i]+lengths[i]]``. Costs as :func:`gather`."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    order: I64 = np.arange(len(lengths))
    groups = [order]
    if shortest != longest:
        order = np.argsort(lengths.astype(np.uint16) if longest < 1 << 16 else lengths, kind="stable")
        ordered = lengths[order]
        groups = np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    for group in groups:
        length = int(lengths[group[0]])
        if length == 0:
            continue
        if length > _ROW_LIMIT_BYTES or len(group) < _FEW:
            for start, target in zip(starts[group].tolist(), targets[group].tolist(), strict=True):
                out[target : target + length] = arena[start : start + length]
        else:
            _rows(out, length)[targets[group]] = _rows(arena, length)[starts[group]]


def windows(arena: U8, starts: NDArray[Any], length: int) -> U8:
    """The ``length`` bytes from each start on, joined; they may overlap."""
    moved: U8 = _rows(arena, length)[starts].view(np.uint8)
    return moved


def _rows(arena: U8, length: int) -> NDArray[np.void]:
    """Every run of ``length`` bytes of the arena as one item: overlapping, a view, nothing is copied."""
    return np.ndarray((arena.size - length + 1,), np.dtype((np.void, length)), arena, strides=(1,))


def stable_sort(keys: NDArray[Any]) -> tuple[I64, NDArray[Any]]:
    """Positions that sort unsigned ``keys``, equal ones in their order of arrival; and the keys in that order.

    Numpy sorts integers of 64 bits by vector instructions, in a small part of the time that finding an order takes: so
    the position goes into the lower bits of what is sorted. Where there is no room for it, or little to sort by,
    sixteen bits after sixteen bits, the lowest first: for these numpy has a radix sort.
    """
    count = len(keys)
    low, high = int(keys.min()), int(keys.max())
    if low == high:
        return np.arange(count, dtype=np.int64), keys.copy()
    if count < _FEW_KEYS:
        order: I64 = np.argsort(keys, kind="stable")
        return order, keys[order]
    key_bits, place_bits = (high - low).bit_length(), (count - 1).bit_length()
    if _RADIX_BITS < key_bits <= _WORD_BITS - place_bits:
        packed = keys.astype(np.uint64)
        packed -= np.uint64(low)
        packed <<= np.uint64(place_bits)
        packed |= np.arange(count, dtype=np.uint64)
        packed.sort()
        ordered = packed >> np.uint64(place_bits)
        ordered += np.uint64(low)
        packed &= np.uint64((1 << place_bits) - 1)
        return packed.view(np.int64), ordered.astype(keys.dtype, copy=False)
    left = (keys - keys.dtype.type(low)).astype(np.uint64)
    order = np.argsort(left.astype(np.uint16), kind="stable")
    for shift in range(_RADIX_BITS, key_bits, _RADIX_BITS):
        digits = (left >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order, keys[order]


def group_starts(ordered: NDArray[Any]) -> I64:
    """Where each run of equal values of a sorted array begins."""
    fresh = np.empty(len(ordered), np.bool_)
    fresh[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def spread(starts: I64, counts: I64) -> I64:
    """The ranges ``[starts[i], starts[i] + counts[i])`` one after another, number by number."""
    ends = np.cumsum(counts)
    numbers: I64 = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
    return numbers


def assign_offsets(queues: U32, next_offset: I64, scratch: I64) -> tuple[I64, NDArray[Any], I64]:
    """Give each record of a batch the next offset of its queue, and advance ``next_offset`` in place.

    Args:
        queues: index into ``next_offset`` for each record, in arrival order.
        scratch: as long as ``next_offset``; what is in it means nothing.

    Returns:
        The offsets, the queues met, and the next offset of each of those. A queue may be there more than once, with
        the same next offset.
    """
    count = len(queues)
    if count == 1:
        queue = int(queues[0])
        offset = int(next_offset[queue])
        next_offset[queue] = offset + 1
        return np.array((offset,), np.int64), queues, np.array((offset + 1,), np.int64)
    is_sorted = bool((queues[1:] > queues[:-1]).all())
    if not is_sorted and int(queues.max()) - int(queues.min()) < _SPARSE * count:
        return _assign_sorted(queues, next_offset)
    lost = np.empty(0, np.int64)
    index = queues.astype(np.intp)  # once, and not at each of the looks below: those take half as long
    if not is_sorted:
        # So many queues that hardly any is met twice: sorting all of them to find those few is a waste.
        positions = np.arange(count)
        scratch[index] = positions
        lost = np.flatnonzero(scratch[index] != positions)
        if len(lost) * 4 > count:
            return _assign_sorted(queues, next_offset)
    offsets: I64 = next_offset[index]
    ends = offsets + 1
    if len(lost):
        scratch[index[lost]] = -1
        several = np.flatnonzero(scratch[index] < 0)
        offsets[several], of_several, their_ends = _assign_sorted(queues[several], next_offset)
        ends[several] = their_ends[of_several.searchsorted(queues[several])]
    next_offset[index] = ends
    return offsets, index, ends


def _assign_sorted(queues: U32, next_offset: I64) -> tuple[I64, I64, I64]:
    """:func:`assign_offsets` by sorting; the queues it returns are sorted and distinct."""
    count = len(queues)
    order, ordered = stable_sort(queues)
    starts = group_starts(ordered)
    counts = np.diff(starts, append=count)
    touched: I64 = ordered[starts].astype(np.int64)
    base = next_offset[touched]
    ends = base + counts
    next_offset[touched] = ends
    offsets = np.empty(count, np.int64)
    offsets[order] = np.arange(count, dtype=np.int64) - np.repeat(starts - base, counts)
    return offsets, touched, ends


def width_of(span: int) -> int:
    """Bytes that the deltas of a column need, whose largest is ``span``."""
    return 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8


def encode_columns(record_count: int, columns: Mapping[int, NDArray[Any] | int]) -> bytes:
    """A batch of columns without payload: offsets of stored records, positions of queues.

    Values are 0 or more. A column that is one int is the same for all records.
    """
    directory: list[bytes] = []
    deltas: list[bytes] = []
    for column in sorted(columns):
        values = columns[column]
        if isinstance(values, int):
            directory.append(COLUMN.pack(column, 0, values))
        else:
            _pack_column(column, values, directory, deltas)
    return _sealed(Codec.NONE, record_count, len(directory), b"".join((*directory, *deltas)), b"", 0)


def encode_one(columns: Mapping[int, NDArray[Any]], payload: U8, codec: Codec = Codec.NONE) -> bytes:
    """Pack records into a single record batch: as :func:`encode_batches` does, with less to do for each column."""
    directory: list[bytes] = []
    deltas: list[bytes] = []
    for column in sorted(columns):
        values = columns[column]
        if column not in OPTIONAL or values.any():
            _pack_column(column, values, directory, deltas)
    rest = b"".join((*directory, *deltas))
    return _sealed(codec, len(columns[Column.LENGTH]), len(directory), rest, payload.data, len(payload))


def _pack_column(column: int, values: NDArray[Any], directory: list[bytes], deltas: list[bytes]) -> None:
    low, high = int(values.min()), int(values.max())
    if low == high and column != Column.DUE_MS:
        directory.append(COLUMN.pack(column, 0, low & _MASK64))
        return
    width = width_of(high - low)
    directory.append(COLUMN.pack(column, width, low & _MASK64))
    deltas.append((values - values.dtype.type(low)).astype(WIDTH_DTYPES[width]).tobytes())


def encode_batches(columns: Mapping[int, NDArray[Any]], payload: U8, cuts: I64, codec: Codec) -> list[bytes]:
    """Pack sorted records into record batches, one for each ``[cuts[i], cuts[i+1])``.

    Columns are made for all batches at once, and cut by slices of bytes: a table has thousands of blocks.

    Args:
        columns: the records' columns, all of one length; ``LENGTH`` among them.
        payload: the records' bytes, in the same order.
        cuts: first record of each batch, and the number of records as the last item.
    """
    firsts, counts = cuts[:-1], np.diff(cuts)
    present = [column for column in sorted(columns) if column not in OPTIONAL or columns[column].any()]
    directories = np.zeros((len(firsts), len(present)), _ENTRY)
    packed: list[tuple[list[int], dict[int, memoryview]]] = []
    for place, column in enumerate(present):
        values = columns[column]
        lows = np.minimum.reduceat(values, firsts)
        spans = np.maximum.reduceat(values, firsts) - lows
        if spans.dtype == np.int64:
            spans = spans.view(np.uint64)  # the whole range of int64 is wider than int64
        widths = _WIDTHS[_WIDTH_LIMITS.searchsorted(spans, "right")]
        if column != Column.DUE_MS:
            widths[spans == 0] = 0
        entries = directories[:, place]
        entries["column"], entries["width"], entries["base"] = column, widths, lows.astype(np.uint64)
        if widths.any():
            packed.append((widths.tolist(), _deltas_by_width(values - np.repeat(lows, counts), widths)))
    bounds = np.zeros(int(cuts[-1]) + 1, np.int64)
    np.cumsum(columns[Column.LENGTH], out=bounds[1:])
    byte_cuts, record_cuts = bounds[cuts].tolist(), cuts.tolist()
    directory, directory_bytes = directories.tobytes(), len(present) * COLUMN_BYTES
    whole = payload.data
    batches: list[bytes] = []
    for index, first in enumerate(record_cuts[:-1]):
        end = record_cuts[index + 1]
        parts: list[bytes | memoryview] = [directory[index * directory_bytes : (index + 1) * directory_bytes]]
        for each_width, deltas in packed:
            width = each_width[index]
            if width:
                parts.append(deltas[width][first * width : end * width])
        body = whole[byte_cuts[index] : byte_cuts[index + 1]]
        batches.append(_sealed(codec, end - first, len(present), b"".join(parts), body, len(body)))
    return batches


def _deltas_by_width(values: NDArray[Any], widths: NDArray[np.uint8]) -> dict[int, memoryview]:
    """The bytes of values in each width that a batch needs; those of batches that need another say nothing."""
    return {
        width: values.astype(WIDTH_DTYPES[width]).data.cast("B") for width in WIDTH_DTYPES if (widths == width).any()
    }


def _sealed(
    codec: Codec, record_count: int, column_count: int, rest: bytes, body: bytes | memoryview, body_bytes: int
) -> bytes:
    """A record batch: its header, directory and deltas (``rest``), and the payload, compressed where that helps."""
    used = Codec.NONE
    if codec is Codec.ZSTD and body_bytes:
        packed = zstandard.compress(body, 1)
        if len(packed) < body_bytes:
            body, used = packed, Codec.ZSTD
    total = HEADER_BYTES + len(rest) + len(body)
    head = HEADER.pack(0, total, VERSION, used, column_count, record_count, len(body), body_bytes, 0, 0, 0)[4:]
    crc = crc32c.crc32c(body, crc32c.crc32c(rest, crc32c.crc32c(head)))
    return b"".join((crc.to_bytes(4, "little"), head, rest, body))


def block_cuts(weights: I64, starts: I64, block_bytes: int) -> I64:
    """Where to cut sorted records into blocks of about ``block_bytes`` of payload and columns.

    A queue that fills a block or more gets blocks of its own, so that a backlog read can send whole blocks
    of one queue straight from the file.

    Args:
        weights: what the records up to and with each one count for, in bytes.
        starts: the first record of each queue.
    """
    count = len(weights)
    block = weights // block_bytes
    cut = np.empty(count, np.bool_)
    cut[0] = True
    np.not_equal(block[1:], block[:-1], out=cut[1:])
    ends = np.append(starts[1:], count)
    before = np.where(starts > 0, weights[starts - 1], 0)
    large = (weights[ends - 1] - before) >= block_bytes
    cut[starts[large]] = True
    cut[ends[large & (ends < count)]] = True
    return np.append(np.flatnonzero(cut), count)


def mix(keys: U64) -> U64:
    """A 64-bit finalizer (splitmix64) that spreads queue keys for the bloom filter."""
    with np.errstate(over="ignore"):
        mixed = keys + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def mix_one(key: int) -> int:
    """:func:`mix` of one."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK64
    return mixed ^ mixed >> 31


def wrap64(value: int) -> int:
    """An integer reduced modulo 2**64."""
    return value & _MASK64


def wrap_signed(value: int) -> int:
    """An unsigned integer of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value

"""Table files: sorted, immutable records on disk.

A table holds records sorted by (queue key, offset), where the queue key is ``topic_id << 32 | queue``. The
messages of one queue therefore lie together. All integers are little-endian::

    blocks      record batches (see lsmq.record_batch) with the columns TOPIC, QUEUE, OFFSET, LENGTH,
                STORED_MS and whatever else the records have; about ``block_bytes`` each. Frame of reference
                is the prefix compression of sorted keys, in columns: the base is what the keys of a block
                share, the deltas are what they do not.
    keys        where messages have keys: which blocks have which (see :mod:`.key_index`)
    pages       the index's pages and then its root (see :mod:`.index`)
    properties  crc u32, then a msgpack map of what :class:`TableMeta` keeps, and a ``sample`` (see :mod:`.sample`)
    footer      48 bytes:
                 0  8  end of the blocks     8  4  root bytes
                12  4  pages                16  4  properties bytes
                20  4  version (2)          24  8  records
                32  4  reserved (0)         36  4  crc of bytes [0, 36)
                40  8  magic ``LSMQTBL1``

A cold point read costs three reads of the file: the root, one page, the block; and two where the root is in the cache,
or the index so small that all of it is read at once. Every checksum is verified on every read from disk.

Not supported: changing a table; tables larger than 2**63 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidBatch
from lsmq.record_batch import HEADER_BYTES, Codec, Column, RecordBatch
from lsmq.record_batch import VERSION as BATCH_VERSION

from .columns import (
    I64,
    U64,
    block_cuts,
    encode_batches,
    group_starts,
)
from .disk import Disk, File
from .failures import damaged, newer
from .index import IndexColumn, encode_index
from .key_index import KeyIndexWriter
from .sample import Sample, Sampler
from .sorted_records import SortedRecords
from .word_filters import WordCollector

MAGIC = b"LSMQTBL1"
VERSION = 2
FOOTER = struct.Struct("<QIIIIQII8s")
FOOTER_BYTES = FOOTER.size  # 8 + 4 + 4 + 4 + 4 + 8 + 4 + 4 + 8 = 48
#: What a record counts for beside its bytes, where blocks are cut and their bytes are shared out.
RECORD_BYTES = 12


@dataclass(frozen=True, slots=True)
class TableMeta:
    """What the manifest keeps of a table, so that opening a store opens no table.

    Attributes:
        index_position: where the blocks end, and the keys or the index begin.
        first_key, first_offset: records before it are not part of the shard any more, though they are in the file: a
            merge that is under way has them elsewhere.
        topics: ids; tombstones count as records of their shadow topic.
        topic_records, topic_bytes: of each of them, and what they take of the blocks.
        clean_lsn: no record here has a tombstone that came before this LSN.
    """

    number: int
    size_bytes: int
    record_count: int
    tombstone_count: int
    first_key: int
    first_offset: int
    last_key: int
    last_offset: int
    min_ms: int
    max_ms: int
    first_lsn: int
    end_lsn: int
    index_position: int
    root_position: int
    root_bytes: int
    topics: tuple[int, ...]
    topic_records: tuple[int, ...]
    topic_bytes: tuple[int, ...]
    clean_lsn: int

    @property
    def name(self) -> str:
        return table_name(self.number)


def table_name(number: int) -> str:
    return f"{number:012d}.tbl"


class TableWriter:
    """Writes one table from sorted runs of records, handed over in key order."""

    def __init__(self, disk: Disk, path: Path, number: int, *, block_bytes: int, codec: Codec) -> None:
        self.number = number
        self._block_bytes = block_bytes
        self._codec = codec
        self._file = disk.create(path)
        self.size_bytes = 0
        self._index: list[list[NDArray[Any]]] = []  # for each piece added, the columns of the index
        self._keys: list[U64] = []  # each queue's once, ascending
        self._message_keys = KeyIndexWriter()
        self._sampler = Sampler()
        self._words = WordCollector()
        self._blocks = 0
        self._topics: dict[int, tuple[int, int]] = {}  # records and bytes
        self.record_count = 0
        self._tombstones = 0
        self._min_ms, self._max_ms = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self._last = (-1, -1)  # key and offset

    def add(self, records: SortedRecords) -> None:
        """Append records, all of which sort after those added before."""
        if len(records) == 0:
            return
        keys, lengths, columns = records.keys, records.lengths, records.all_columns()
        offsets, stored = records.offsets, columns[Column.STORED_MS]
        ascending = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (offsets[1:] >= offsets[:-1]))
        assert self._last <= (keys.item(0), offsets.item(0)) and ascending.all(), "a table's records are in key order"
        starts, weights = group_starts(keys), np.cumsum(lengths + np.int64(RECORD_BYTES))
        cuts = block_cuts(weights, starts, self._block_bytes)
        firsts, lasts = cuts[:-1], cuts[1:] - 1
        blocks = encode_batches(columns, records.payload, cuts, self._codec)
        sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
        positions = np.cumsum(sizes) - sizes + self.size_bytes
        self._file.pwrite_many(blocks, self.size_bytes)
        self.size_bytes += int(sizes.sum())
        self._index.append(
            [keys[firsts], offsets[firsts], keys[lasts], offsets[lasts], positions, sizes, np.diff(cuts)]
        )
        self._words.add(columns, cuts, keys[firsts] == keys[lasts], self._blocks)
        self._blocks += len(blocks)
        if Column.KEY_HASH in columns:
            self._message_keys.add(columns[Column.TOPIC], columns[Column.KEY_HASH], stored, cuts, positions)
        self._min_ms = min(self._min_ms, int(stored.min()))
        self._max_ms = max(self._max_ms, int(stored.max()))
        goes_on = self._last[0] == keys.item(0)  # the queue that the records before ended with: it is here once
        self._keys.append(keys[starts[goes_on:]])
        self._last = keys.item(-1), offsets.item(-1)
        self.record_count += len(keys)
        self._sampler.add(keys, columns, weights)
        self._bill(columns[Column.TOPIC], weights, int(sizes.sum()))
        if Column.FLAGS in columns:
            self._tombstones += int(np.count_nonzero(columns[Column.FLAGS] & 1))

    def _bill(self, topics: NDArray[np.uint32], weights: I64, size_bytes: int) -> None:
        """Charge each topic with its part of the blocks."""
        if topics[0] == topics[-1]:
            records, charged = self._topics.get(topics.item(0), (0, 0))
            self._topics[topics.item(0)] = records + len(topics), charged + size_bytes
            return
        starts = group_starts(topics)
        counts = np.diff(starts, append=len(topics))
        charges = np.diff(weights[starts + counts - 1] * size_bytes // int(weights[-1]), prepend=0)
        for topic, count, charge in zip(topics[starts].tolist(), counts.tolist(), charges.tolist(), strict=True):
            records, charged = self._topics.get(topic, (0, 0))
            self._topics[topic] = records + count, charged + charge

    def finish(self, first_lsn: int, end_lsn: int, clean_lsn: int) -> TableMeta:
        """Write index, properties and footer; durable (but for its name) on return."""
        columns = [np.concatenate(values) for values in zip(*self._index, strict=True)]
        columns += self._words.filters(self._blocks)
        index_position = self.size_bytes
        message_keys = self._message_keys.finish()
        pages_position = index_position + len(message_keys)
        pages, root = encode_index(columns, np.concatenate(self._keys), pages_position)
        meta = TableMeta(
            number=self.number,
            size_bytes=0,
            record_count=self.record_count,
            tombstone_count=self._tombstones,
            first_key=int(columns[IndexColumn.FIRST_KEY][0]),
            first_offset=int(columns[IndexColumn.FIRST_OFFSET][0]),
            last_key=int(columns[IndexColumn.LAST_KEY][-1]),
            last_offset=int(columns[IndexColumn.LAST_OFFSET][-1]),
            min_ms=self._min_ms,
            max_ms=self._max_ms,
            first_lsn=first_lsn,
            end_lsn=end_lsn,
            index_position=index_position,
            root_position=pages_position + sum(map(len, pages)),
            root_bytes=len(root),
            topics=tuple(sorted(self._topics)),
            topic_records=tuple(self._topics[topic][0] for topic in sorted(self._topics)),
            topic_bytes=tuple(self._topics[topic][1] for topic in sorted(self._topics)),
            clean_lsn=clean_lsn,
        )
        properties = encode_properties(meta, self._sampler.finish(index_position))
        footer = encode_footer(index_position, len(root), len(pages), len(properties), self.record_count)
        tail = b"".join((message_keys, *pages, root, properties, footer))
        self._file.pwrite(tail, self.size_bytes)
        self.size_bytes += len(tail)
        self._file.sync()
        self._file.close()
        return replace(meta, size_bytes=self.size_bytes)

    def abandon(self) -> None:
        """Close the unfinished file; the caller removes it."""
        self._file.close()


def stored_batch(raw: bytes | memoryview, source: str, position: int, what: str) -> RecordBatch:
    """A record batch that was read from a file. Raises ``CorruptFile``, or ``UnsupportedFormat`` for a newer one."""
    try:
        return RecordBatch(raw, source=source)
    except InvalidBatch as error:
        total = int.from_bytes(raw[4:8], "little")
        intact = HEADER_BYTES <= total <= len(raw) and crc32c.crc32c(raw[4:total]) == int.from_bytes(raw[:4], "little")
        if intact and raw[8] != BATCH_VERSION:
            raise newer(source, f"the {what} at byte {position} has version", raw[8], BATCH_VERSION) from error
        raise damaged(source, f"the {what} at byte {position} is damaged: {error.message}", position) from error


def encode_properties(meta: TableMeta, sample: Sample) -> bytes:
    """All that the manifest keeps of a table, but for its size; and the sample."""
    fields = {field: getattr(meta, field) for field in TableMeta.__slots__ if field != "size_bytes"}
    body: bytes = msgpack.packb({**fields, "sample": sample.encode()})
    return crc32c.crc32c(body).to_bytes(4, "little") + body


def check_properties(raw: bytes, source: str, position: int) -> dict[str, Any]:
    """A table's properties. Raises ``CorruptFile``."""
    if len(raw) < 4 or crc32c.crc32c(raw[4:]) != int.from_bytes(raw[:4], "little"):
        raise damaged(source, f"the properties at byte {position} are damaged", position)
    return dict(msgpack.unpackb(raw[4:]))


def encode_footer(index_position: int, root_bytes: int, pages: int, properties_bytes: int, records: int) -> bytes:
    """The last 48 bytes of a table."""
    fields = (index_position, root_bytes, pages, properties_bytes, VERSION, records, 0, 0, MAGIC)
    head = FOOTER.pack(*fields)[:36]
    return head + crc32c.crc32c(head).to_bytes(4, "little") + MAGIC


def read_footer(file: File, source: str) -> dict[str, int]:
    """Positions and sizes of a table's parts. Raises ``CorruptFile`` or ``UnsupportedFormat``."""
    size = file.size()
    raw = file.pread(FOOTER_BYTES, size - FOOTER_BYTES) if size >= FOOTER_BYTES else b""
    return decode_footer(raw, size, source)


def decode_footer(raw: bytes, size: int, source: str) -> dict[str, int]:
    """Positions and sizes of the parts of a table of ``size`` bytes, of which ``raw`` are the last."""
    if len(raw) < FOOTER_BYTES or raw[40:] != MAGIC or crc32c.crc32c(raw[:36]) != int.from_bytes(raw[36:40], "little"):
        raise damaged(source, f"no intact table footer at its end ({size} bytes)", max(0, size - 48))
    index_position, root_bytes, pages, properties_bytes, version, records, _, _, _ = FOOTER.unpack(raw)
    if version != VERSION:
        raise newer(source, "table version", version, VERSION)
    return {
        "size_bytes": size,
        "index_position": index_position,
        "root_position": size - FOOTER_BYTES - properties_bytes - root_bytes,
        "root_bytes": root_bytes,
        "pages": pages,
        "properties_bytes": properties_bytes,
        "record_count": records,
    }

"""A shard of a terabyte that takes 60 MB: its tables are sparse files, real where a chosen few queues lie.

Every table has its root, properties and footer, and is listed in the manifest. Of pages and blocks those of the chosen
queues are written; the others are holes, and reading one fails a checksum. So whatever a store answers of the chosen
queues is what it would answer of the whole shard, at the same cost, and whatever else it reads makes it fail.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lsmq.record_batch import Column
from lsmq_node.storage import ShardStore, StoreOptions
from lsmq_node.storage.columns import block_cuts, encode_one, group_starts, queue_keys
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.index import MAX_PAGES, PAGE_HEAD_BYTES, ROW_COLUMNS, encode_page
from lsmq_node.storage.manifest import TABLE_DIRECTORY, load_manifest, store_manifest
from lsmq_node.storage.sample import Sample
from lsmq_node.storage.sstable import FOOTER_BYTES, TableMeta, encode_footer, encode_properties

from .harness import put

GENERATIONS = 64
TABLES = 16  # of each generation
QUEUES = 1 << 20
TABLE_QUEUES = QUEUES // TABLES
BLOCK_QUEUES = 2
RUN_RECORDS = 16  # that a generation has of each queue
BODY_BYTES = 1024
PAGE_ROWS = 138
TIME_MS = 1_700_000_000_000
OFFSETS = GENERATIONS * RUN_RECORDS


def message(queue: int, offset: int) -> bytes:
    return (b"%d/%d/" % (queue, offset)).ljust(BODY_BYTES, b".")


def block(topic: int, generation: int, first_queue: int) -> bytes:
    """All that a generation has of two queues."""
    queues = np.repeat(np.arange(first_queue, first_queue + BLOCK_QUEUES, dtype=np.uint32), RUN_RECORDS)
    offsets = np.tile(np.arange(RUN_RECORDS) + generation * RUN_RECORDS, BLOCK_QUEUES)
    bodies = b"".join(message(queue, offset) for queue, offset in zip(queues.tolist(), offsets.tolist(), strict=True))
    lengths = np.full(len(queues), BODY_BYTES, np.uint32)
    assert len(block_cuts(np.cumsum(lengths + np.int64(12)), group_starts(queue_keys(topic, queues)), 1 << 20)) == 2
    return encode_one(
        {
            Column.TOPIC: np.full(len(queues), topic, np.uint32),
            Column.QUEUE: queues,
            Column.OFFSET: offsets,
            Column.LENGTH: lengths,
            Column.STORED_MS: TIME_MS + offsets,
        },
        np.frombuffer(bodies, np.uint8),
    )


class SparseTable:
    """One table: where everything lies follows from a block's size alone."""

    def __init__(self, directory: Path, topic: int, generation: int, table: int, block_bytes: int) -> None:
        self.number = 1_000_000 + generation * TABLES + table
        self.path = directory / f"{self.number:012d}.tbl"
        self.topic, self.generation, self.block_bytes = topic, generation, block_bytes
        self.first_queue = table * TABLE_QUEUES
        self.blocks = TABLE_QUEUES // BLOCK_QUEUES
        self.index_position = self.blocks * block_bytes

    def _rows(self, first: int, end: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The index's columns for the blocks ``[first, end)``."""
        numbers = np.arange(first, end)
        begins = queue_keys(self.topic, (self.first_queue + numbers * BLOCK_QUEUES).astype(np.uint32)).astype(np.int64)
        low = np.full(len(numbers), self.generation * RUN_RECORDS)
        return [
            *(begins, low, begins + BLOCK_QUEUES - 1, low + RUN_RECORDS - 1),
            *(numbers * self.block_bytes, np.full(len(numbers), self.block_bytes)),
            np.full(len(numbers), BLOCK_QUEUES * RUN_RECORDS),
        ]

    def _page(self, number: int) -> bytes:
        first = number * PAGE_ROWS
        end = min(first + PAGE_ROWS, self.blocks)
        queues = np.arange(self.first_queue + first * BLOCK_QUEUES, self.first_queue + end * BLOCK_QUEUES)
        return encode_page(self._rows(first, end), queue_keys(self.topic, queues.astype(np.uint32)))

    def write(self, queues: Sequence[int]) -> TableMeta:
        """Write what stands for all of it, and all that there is of these queues."""
        firsts = np.arange(0, self.blocks, PAGE_ROWS)
        counts = np.minimum(PAGE_ROWS, self.blocks - firsts)
        words = (counts * BLOCK_QUEUES * 12 + 63) // 64
        sizes = PAGE_HEAD_BYTES + 8 * ROW_COLUMNS * counts + 8 * words
        positions = self.index_position + np.cumsum(sizes) - sizes
        rows = self._rows(0, self.blocks)
        lasts = firsts + counts - 1
        records = counts * BLOCK_QUEUES * RUN_RECORDS
        ends = [*(rows[at][firsts] for at in (0, 1)), *(rows[at][lasts] for at in (2, 3))]
        root = encode_page([*ends, positions, sizes, records, rows[4][firsts]], None)
        assert len(firsts) <= MAX_PAGES
        meta = TableMeta(
            number=self.number,
            size_bytes=0,
            record_count=self.blocks * BLOCK_QUEUES * RUN_RECORDS,
            tombstone_count=0,
            first_key=int(rows[0][0]),
            first_offset=int(rows[1][0]),
            last_key=int(rows[2][-1]),
            last_offset=int(rows[3][-1]),
            min_ms=TIME_MS + int(rows[1][0]),
            max_ms=TIME_MS + int(rows[3][-1]),
            first_lsn=0,
            end_lsn=1,
            index_position=self.index_position,
            root_position=self.index_position + int(sizes.sum()),
            root_bytes=len(root),
            topics=(self.topic,),
            topic_records=(self.blocks * BLOCK_QUEUES * RUN_RECORDS,),
            topic_bytes=(self.index_position,),
            clean_lsn=1,
        )
        some = Sample(rows[0][:8].astype(np.uint64), rows[1][:8], TIME_MS + rows[1][:8], np.zeros(8, np.uint64))
        properties = encode_properties(meta, some)
        footer = encode_footer(self.index_position, len(root), len(firsts), len(properties), meta.record_count)
        with self.path.open("wb") as file:
            for queue in queues:
                at = (queue - self.first_queue) // BLOCK_QUEUES
                raw = block(self.topic, self.generation, self.first_queue + at * BLOCK_QUEUES)
                assert len(raw) == self.block_bytes
                os.pwrite(file.fileno(), raw, at * self.block_bytes)
                page = self._page(at // PAGE_ROWS)
                assert len(page) == sizes[at // PAGE_ROWS]
                os.pwrite(file.fileno(), page, int(positions[at // PAGE_ROWS]))
            os.pwrite(file.fileno(), root + properties + footer, meta.root_position)
        return replace(meta, size_bytes=meta.root_position + len(root) + len(properties) + FOOTER_BYTES)


def build(path: Path, options: StoreOptions, queues: Sequence[int]) -> int:
    """Make the shard; ``queues`` are real. Returns its bytes. Each queue has ``OFFSETS`` messages, and one more."""
    with ShardStore.open(path, options) as store:
        topic = store.create_topic("t", QUEUES).id
        state = store._state.topics[topic]
        state.next[:] = OFFSETS
        store._state.land(state, np.arange(QUEUES), state.next)
        for queue in queues:
            put(store, topic, (queue, message(queue, OFFSETS)))
        store.flush()
    disk, directory = OsDisk(), path / TABLE_DIRECTORY
    block_bytes = len(block(topic, 0, 0))
    generations = []
    for generation in range(GENERATIONS):
        tables = [SparseTable(directory, topic, generation, table, block_bytes) for table in range(TABLES)]
        generations.append(
            tuple(
                table.write([queue for queue in queues if 0 <= queue - table.first_queue < TABLE_QUEUES])
                for table in tables
            )
        )
    manifest = load_manifest(disk, path)
    assert manifest is not None
    manifest = manifest.with_changes(generations=tuple(generations), next_number=2_000_000)
    store_manifest(disk, path, manifest)
    return sum(meta.size_bytes for meta in manifest.tables())

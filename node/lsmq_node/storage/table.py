"""Reading table files (see :mod:`.sstable` and :mod:`.index` for the format)."""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import CorruptFile
from lsmq.record_batch import HEADER_BYTES

from .block import Block
from .bloom import Probe, bloom_probes
from .cache import BlockCache
from .columns import I64, U64, group_starts
from .disk import Disk, File, read_back
from .failures import damaged
from .index import ROW_COLUMNS, IndexColumn, IndexPage, PageRows, encode_page, encode_root
from .key_index import PAGE_BYTES as KEY_PAGE_BYTES
from .key_index import KeyDirectory, KeyPage, NoKeys
from .open_tables import OpenTables
from .sample import Sample
from .sstable import FOOTER_BYTES, TableMeta, check_properties, decode_footer, stored_batch
from .stats import Counters

_log = logging.getLogger("lsmq.storage")
#: An index of so many bytes is read together with its root.
SMALL_INDEX_BYTES = 32 * 1024
#: Numbers in the cache: blocks go by their position, the root and the pages have these.
_ROOT = -1
_FIRST_PAGE = -2
#: The directory of the keys, and below it their pages: further than any index goes.
_KEYS = -(1 << 32)
#: So much of the keys is read to have their directory, at once where it is small.
DIRECTORY_GUESS_BYTES = 4 * 1024
#: Blocks in a page that is made again for a table whose root is damaged.
_REBUILT_ROWS = 128


def _unknown() -> None:
    return None


class Table:
    """A table. Thread-safe. Its file is opened when it is read, and again when it was closed meanwhile."""

    __slots__ = (
        "__weakref__",
        "_cache",
        "_counters",
        "_disk",
        "_files",
        "_known_root",
        "_rebuild_lock",
        "_rebuilt_pages",
        "_rebuilt_root",
        "damage",
        "meta",
        "number",
        "opened",
        "path",
        "used",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        meta: TableMeta,
        cache: BlockCache,
        files: OpenTables,
        counters: Counters | None = None,
    ) -> None:
        self.meta = meta
        self.number = meta.number
        self.path = directory / meta.name
        self._disk = disk
        self._cache = cache
        self._files = files
        self._counters = counters
        self.opened: File | None = None  # set by OpenTables, under its lock
        self.used = False  # set by any reader, taken back by OpenTables
        #: The last damage that was found in its blocks, by whichever reader.
        self.damage: CorruptFile | None = None
        self._known_root: Callable[[], IndexPage | None] = _unknown
        self._rebuild_lock = runtime.Lock()  # guards what follows
        self._rebuilt_root: IndexPage | None = None
        self._rebuilt_pages: set[int] = set()

    # -- the file ----------------------------------------------------------------------------------------

    def file(self) -> File:
        """Its file, open for as long as the caller holds it. Raises ``OSError``."""
        file = self.opened
        if file is None:
            return self._files.open(self)
        self.used = True
        return file

    def open_file(self) -> File:
        # What is read ahead of a block makes fsyncs of the log wait, by megabytes on some systems.
        return self._disk.open(self.path, random=True)

    def _read(self, length: int, position: int) -> bytes:
        """Fewer bytes than that where there are none, or the disk cannot read them. Raises ``OSError``."""
        return read_back(self.file(), length, position)

    def may_lend(self) -> bool:
        """Whether a range of its file may leave the store."""
        return self._files.may_lend()

    def lend(self, loan: object) -> None:
        """``loan`` is a range of its file that leaves the store."""
        self._files.lend(loan)

    # -- the index ---------------------------------------------------------------------------------------

    def root(self) -> IndexPage:
        """The root of the index. Made again from the blocks where the file's own is damaged.

        Raises ``CorruptFile`` when a block is damaged too, ``UnsupportedFormat`` for a table of a newer version.
        """
        root = self._known_root()  # for as long as the cache keeps it
        if root is not None:
            root.recent = root.CHANCES
            return root
        root = self._rebuilt_root
        if root is None:
            root = self._cache.get(self.number, _ROOT, self._load_root)
        self._known_root = weakref.ref(root)
        return root

    def page(self, number: int) -> IndexPage:
        """A page of the index. Made again from its blocks where the file's own is damaged. Raises as :meth:`root`."""
        return self._cache.get(self.number, _FIRST_PAGE - number, self._load_page, number)

    def pages(self) -> Iterator[IndexPage]:
        """All pages in order."""
        for number in range(self.root().count):
            yield self.page(number)

    def _load_root(self) -> IndexPage:
        """Root, properties and footer are neighbours and read at once; with them the pages, where they are few."""
        meta, source = self.meta, str(self.path)
        small = meta.root_position - meta.index_position <= SMALL_INDEX_BYTES
        begin = meta.index_position if small else meta.root_position
        raw = self._read(meta.size_bytes - begin, begin)
        root_at = meta.root_position - begin
        root_end = root_at + meta.root_bytes
        try:
            decode_footer(raw[-FOOTER_BYTES:], meta.size_bytes, source)
            check_properties(raw[root_end:-FOOTER_BYTES], source, begin + root_end)
        except CorruptFile as damage:  # the manifest knows all that they say
            _log.warning("%s: read without it, from what the manifest knows", damage.message)
        try:
            root = IndexPage.parse(raw[root_at:root_end], source, meta.root_position, root=True)
        except CorruptFile as damage:
            return self._rebuild_root(damage)
        if small:
            for number, (position, size) in enumerate(zip(root.positions, root.sizes, strict=True)):
                with suppress(CorruptFile):  # who asks for it is told
                    page = IndexPage.parse(raw[position - begin : position - begin + size], source, position)
                    self._cache.keep(meta.number, _FIRST_PAGE - number, page)
        return root

    def _load_page(self, number: int) -> IndexPage:
        root = self.root()
        position, size = root.positions[number], root.sizes[number]
        if size == 0:  # the root was made again, and knows no pages, only their blocks
            return self._rebuild_page(number, root, None)
        raw = self._read(size, position)
        try:
            return IndexPage.parse(raw, str(self.path), position)
        except CorruptFile as damage:
            return self._rebuild_page(number, root, damage)

    def may_have_many(self, keys: U64, offsets: I64) -> NDArray[np.bool_]:
        """False only for records, sorted by queue, that the table has nothing of. Raises as :meth:`root`."""
        meta = self.meta
        inside = (keys >= meta.first_key) & (keys <= meta.last_key)
        inside &= (keys > meta.first_key) | (offsets >= meta.first_offset)
        left = np.flatnonzero(inside)
        if len(left) == 0:
            return inside
        inside[left] = False
        root = self.root()
        numbers = root.seek_many(keys[left], offsets[left])
        for number in np.unique(numbers[numbers < root.count]).tolist():
            mine = left[numbers == number]
            page = self.page(number)
            mine = mine[PageRows([page]).may_contain_many(bloom_probes(keys[mine]), np.zeros(len(mine), np.int64))]
            inside[mine] = page.covers(keys[mine], offsets[mine])
        return inside

    def begins(self, key: int) -> int:
        """Records of the queue below this offset are not of the shard any more, though the file may have them."""
        return self.meta.first_offset if key == self.meta.first_key else 0

    def seek(
        self, key: int, probe: Probe, offset: int, end: int, behind: int | None = None
    ) -> tuple[int, IndexPage, int] | None:
        """The first block that may hold records ``[offset, end)`` of the queue: a page's number, the page, and the row.

        ``probe`` is that of ``key``; ``behind``: the number of a page with the queue, to go on in the next. None where
        no block has any of them, as the index says. Raises as :meth:`root`.
        """
        root = self.root()
        number = root.seek(key, offset) if behind is None else behind + 1
        if number == root.count:
            return None
        first_key = root.first_keys[number]
        if first_key > key or (first_key == key and root.first_offsets[number] >= end):
            return None
        page = self.page(number)
        if not page.may_contain(key, probe):
            return None
        row = page.seek(key, offset)
        return None if page.first_keys[row] > key else (number, page, row)

    def first_behind(self, key: int, offset: int) -> tuple[int, int]:
        """Key and offset of the first record behind a place; there must be one. Raises as :meth:`root`."""
        root = self.root()
        number = root.seek(key, offset + 1)
        assert number < root.count, "the last record lies behind the place"
        page = self.page(number)
        row = page.seek(key, offset + 1)
        if (page.first_keys[row], page.first_offsets[row]) > (key, offset):
            return page.first_keys[row], page.first_offsets[row]
        block = self.block_of(page, row)
        at = block.place(key, offset + 1)
        return block.keys.item(at), block.offset(at)

    def sample(self) -> Sample:
        """A few of its records, each of which stands for as many bytes. Raises ``CorruptFile``."""
        meta, source = self.meta, str(self.path)
        position = meta.root_position + meta.root_bytes
        raw = self._read(meta.size_bytes - FOOTER_BYTES - position, position)
        packed = check_properties(raw, source, position)["sample"]
        return Sample.decode(stored_batch(packed, source, position, "sample"))

    def clipped(self, meta: TableMeta) -> Table:
        """The same file, of which the shard has less by now: ``meta`` says from where on."""
        twin = Table(self._disk, self.path.parent, meta, self._cache, self._files, self._counters)
        twin.damage, twin._rebuilt_root, twin._rebuilt_pages = self.damage, self._rebuilt_root, self._rebuilt_pages
        return twin

    # -- the keys of messages ----------------------------------------------------------------------------

    def key_entries(self, digest: int, from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
        """Blocks that may hold messages of a key stored in ``[from_ms, to_ms]``: the latest time of one, and position.

        One for each message, newest first; pages are read as it goes on. ``digest`` is of
        :func:`.key_index.entry_hashes`. Raises ``NoKeys`` where nothing says, or no more, which blocks may hold some.
        """
        first_page, begins = self.root().positions[0], self.meta.index_position
        if first_page <= begins:  # an older table, or one without keys, or the root was made again
            raise NoKeys
        directory = self._cache.get(self.number, _KEYS, self._load_keys, begins, first_page)
        begin, end = directory.bounds(digest, from_ms, to_ms)
        number = directory.first_page(begin)
        while directory.begins_before(number, end):
            page = self._cache.get(self.number, _KEYS - 1 - number, self._load_key_page, number, directory)
            for entry, position in page.within(begin, end):
                yield directory.latest_ms(entry), position
            number += 1

    def _load_keys(self, begin: int, end: int) -> KeyDirectory:
        raw = self._read(min(DIRECTORY_GUESS_BYTES, end - begin), begin)
        size = min(int.from_bytes(raw[4:8], "little"), end - begin)
        if size > len(raw):
            raw += self._read(size - len(raw), begin + len(raw))
        try:
            return KeyDirectory(raw[:size])
        except NoKeys as damage:
            _log.warning("%s: %s; its blocks are looked through", self.path, damage)
            raise

    def _load_key_page(self, number: int, directory: KeyDirectory) -> KeyPage:
        position = self.meta.index_position + directory.size_bytes + number * KEY_PAGE_BYTES
        try:
            return KeyPage(self._read(directory.page_bytes(number), position))
        except NoKeys as damage:
            _log.warning("%s: %s, at byte %d; its blocks are looked through", self.path, damage, position)
            raise

    def block_at(self, position: int) -> Block:
        """The block at a position, through the cache. Raises ``CorruptFile``."""
        root = self.root()
        page = self.page(int(root.column(IndexColumn.BLOCKS).searchsorted(position, "right")) - 1)
        return self.block_of(page, bisect_left(page.positions, position))

    def blocks_of_topic(self, topic_id: int) -> Iterator[tuple[int, Block]]:
        """All blocks that may hold messages of a topic, and their positions, through the cache."""
        root = self.root()
        first_key, end_key = topic_id << 32, (topic_id + 1) << 32
        for number in range(root.count):
            if root.last_keys[number] < first_key or root.first_keys[number] >= end_key:
                continue
            page = self.page(number)
            for row in range(page.count):
                if page.last_keys[row] >= first_key and page.first_keys[row] < end_key:
                    yield page.positions[row], self.block_of(page, row)

    # -- an index that is damaged ------------------------------------------------------------------------

    def _rebuild_root(self, damage: CorruptFile) -> IndexPage:
        """The root over pages that are not on the disk: each is made of its blocks when it is asked for."""
        with self._rebuild_lock:
            if self._rebuilt_root is None:
                columns = self._rows(0, self.meta.index_position)
                if int(columns[IndexColumn.RECORDS].sum()) != self.meta.record_count:
                    raise self._damaged(damage)
                firsts = np.arange(0, len(columns[0]), _REBUILT_ROWS)
                nowhere = np.zeros(len(firsts), np.int64)
                raw = encode_root(columns, firsts, nowhere, nowhere)
                self._rebuilt_root = IndexPage.parse(raw, str(self.path), self.meta.root_position, root=True)
                self._count_rebuilt(damage, len(columns[0]))
            return self._rebuilt_root

    def _rebuild_page(self, number: int, root: IndexPage, damage: CorruptFile | None) -> IndexPage:
        """``damage`` is what was found where the page should be."""
        blocks = root.column(IndexColumn.BLOCKS)
        begin = int(blocks[number])
        end = int(blocks[number + 1]) if number + 1 < root.count else self.meta.index_position
        keys: list[Any] = []
        columns = self._rows(begin, end, keys)
        whole = np.concatenate(keys)
        page = IndexPage.parse(encode_page(columns, whole[group_starts(whole)]), str(self.path), root.positions[number])
        if damage is not None:
            if sum(page.records) != root.records[number]:
                raise self._damaged(damage)
            with self._rebuild_lock:
                if number not in self._rebuilt_pages:
                    self._rebuilt_pages.add(number)
                    self._count_rebuilt(damage, page.count)
        return page

    def _count_rebuilt(self, damage: CorruptFile, blocks: int) -> None:
        if self._counters is not None:
            self._counters.rebuilt_indexes += 1
        _log.warning("%s: made again in memory from %d blocks", damage.message, blocks)

    def _rows(self, begin: int, end: int, keys: list[Any] | None = None) -> list[Any]:
        """The index's columns for the blocks in ``[begin, end)``; the queues of each are added to ``keys``."""
        rows = []
        for position, block in self._walk(begin, end):
            own, offsets = block.keys, block.offsets
            rows.append((own[0], offsets[0], own[-1], offsets[-1], position, len(block.raw), block.count))
            if keys is not None:
                keys.append(own[group_starts(own)])
        return [np.array(values) for values in zip(*rows, strict=True)] or [np.zeros(0)] * ROW_COLUMNS

    def _walk(self, position: int, end: int) -> Iterator[tuple[int, Block]]:
        """The blocks and their positions, without the index: each block says how long it is."""
        while position < end:
            head = self._read(HEADER_BYTES, position)
            size = int.from_bytes(head[4:8], "little")
            if len(head) < HEADER_BYTES or not HEADER_BYTES <= size <= end - position:
                raise self._damaged(
                    damaged(self.path, f"the block at byte {position} is damaged, and so is the index", position)
                )
            yield position, self._read_block(position, size)
            position += size

    # -- blocks ------------------------------------------------------------------------------------------

    def block(self, position: int, size: int) -> Block:
        """The block of ``size`` bytes at ``position``, through the cache. Raises ``CorruptFile``."""
        return self._cache.get(self.number, position, self._read_block, position, size)

    def block_of(self, page: IndexPage, row: int) -> Block:
        """The block that a row of the index is of, through the cache. Raises ``CorruptFile``."""
        position = page.positions[row]
        return self._cache.get(self.number, position, self._read_block, position, page.sizes[row])

    def _read_block(self, position: int, size: int) -> Block:
        raw = self._read(size, position)
        if len(raw) != size or size < HEADER_BYTES:
            raise self._damaged(
                damaged(self.path, f"the block at byte {position} cannot be read, or is cut off", position)
            )
        return self.parse(raw, position)

    def parse(self, raw: bytes, position: int) -> Block:
        """The block that was read at ``position``. Raises ``CorruptFile``."""
        try:
            return Block(raw, str(self.path), position)
        except CorruptFile as damage:
            raise self._damaged(damage) from damage.__cause__

    def blocks(self, position: int, sizes: Sequence[int]) -> Iterator[Block]:
        """Neighbouring blocks from ``position`` on, read at once and past the cache. Raises ``CorruptFile``."""
        raw = self._read(sum(sizes), position)
        at = 0
        for size in sizes:
            whole = at + size <= len(raw)  # Else one of them is cut off, or cannot be read: which one is seen alone.
            yield self.parse(raw[at : at + size], position + at) if whole else self._read_block(position + at, size)
            at += size

    def _damaged(self, damage: CorruptFile) -> CorruptFile:
        self.damage = damage
        return damage

    def scan(self) -> Iterator[Block]:
        """All blocks in order, past the cache."""
        for page in self.pages():
            for position, size in zip(page.positions, page.sizes, strict=True):
                yield from self.blocks(position, (size,))

"""The checkpoint of a damaged store: which of its files there are, and the state that is left in them.

A key that is lost with a block has the value that an older file gives it, if one does: queues are then as long as they
were, which tables and log correct, and documents as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import zstandard

from lsmq.errors import CorruptFile

from ..checkpoint import CATALOG, DOCUMENT, OFFSETS, IncrementMeta, erase, page_key, page_size, restore_item, topic_of
from ..disk import Disk, File
from ..epochs import StoredEpochStart
from ..keyed_file import BLOCK, FOOTER, HEAD, MAGIC, KeyedFile, KeyedItem
from ..pages import PAGE_BITS
from ..producers import KIND as PRODUCER
from .findings import FindingsBook, Unknown
from .known import KnownShard

_FRAME = b"\x28\xb5\x2f\xfd"  # what a zstd frame begins with
_MAX_BLOCK_BYTES = 64 << 20
_KINDS = {
    CATALOG: "topics, the ends and starts of queues, what is deleted of them",
    DOCUMENT: "documents (groups, transactions, retries)",
    OFFSETS: "committed offsets",
    PRODUCER: "idempotent producers",
}


@dataclass(frozen=True, slots=True)
class LostKeys:
    """Nothing is known of the keys in ``[first, end)``; to the last one where ``end`` is None."""

    first: bytes
    end: bytes | None

    def __contains__(self, key: bytes) -> bool:
        return self.first <= key and (self.end is None or key < self.end)

    def kinds(self) -> list[bytes]:
        """Kinds of keys that may be among them."""
        return [kind for kind in _KINDS if (self.end is None or kind < self.end) and self.first[:1] <= kind]


@dataclass(slots=True)
class Increment:
    """A file of the checkpoint, whatever is left of it."""

    path: Path
    first_lsn: int
    end_lsn: int
    file: KeyedFile | None
    lost: list[LostKeys] = field(default_factory=list)

    @property
    def properties(self) -> dict[str, Any]:
        return {} if self.file is None else self.file.properties

    @property
    def whole(self) -> bool:
        """Whether nothing but producers is lost."""
        return self.file is not None and all(lost.kinds() == [PRODUCER] for lost in self.lost)


class Chain:
    """The files of a checkpoint, the oldest first."""

    def __init__(
        self, disk: Disk, directory: Path, metas: tuple[IncrementMeta, ...] | None, book: FindingsBook
    ) -> None:
        """``metas``: as the manifest has them; without it what lies in the directory is put together."""
        self._disk = disk
        self._book = book
        self.increments: list[Increment] = []
        if metas is None:
            self.increments = self._found(directory)
        else:
            for meta in metas:
                self.increments.append(self._opened(directory / meta.name, meta))
        for increment in self.increments:
            self._verify(increment)

    @property
    def end_lsn(self) -> int:
        return self.increments[-1].end_lsn if self.increments else 0

    def whole_until(self) -> int:
        """How many of the oldest files are whole."""
        return next((at for at, found in enumerate(self.increments) if not found.whole), len(self.increments))

    # -- files -------------------------------------------------------------------------------------------

    def _opened(self, path: Path, meta: IncrementMeta) -> Increment:
        increment = Increment(path, meta.first_lsn, meta.end_lsn, None)
        try:
            file = KeyedFile(self._disk, path, meta.number)
            if (file.properties["first_lsn"], file.properties["end_lsn"]) == (meta.first_lsn, meta.end_lsn):
                increment.file = file
            else:
                self._book.damage(path, 0, file.size_bytes, "misplaced", "file of the checkpoint", _all_kinds())
                increment.lost = [LostKeys(b"", None)]
        except FileNotFoundError:
            self._book.damage(path, 0, meta.size_bytes, "missing", "file of the checkpoint", _all_kinds())
            increment.lost = [LostKeys(b"", None)]
        except CorruptFile:
            pass  # it is walked without its index
        return increment

    def _found(self, directory: Path) -> list[Increment]:
        """The longest chain that begins with the log, of files that lie in the directory."""
        files: list[Increment] = []
        for name in self._disk.list(directory):
            path = directory / name
            if path.suffix == ".ckp":
                try:
                    file = KeyedFile(self._disk, path, 0)
                    files.append(Increment(path, file.properties["first_lsn"], file.properties["end_lsn"], file))
                except CorruptFile as damage:
                    size = int(damage.details["position"])
                    self._book.damage(path, 0, size, "damaged", "index of a file of the checkpoint", _all_kinds())
        chain: list[Increment] = []
        lsn = 0
        while candidates := [found for found in files if found.first_lsn == lsn and found.end_lsn > lsn]:
            chain.append(max(candidates, key=lambda found: found.end_lsn))
            lsn = chain[-1].end_lsn
        return chain

    # -- what is in them ---------------------------------------------------------------------------------

    def _verify(self, increment: Increment) -> None:
        if increment.lost:
            return
        for found in self._blocks(increment):
            if isinstance(found, LostKeys):
                increment.lost.append(found)

    def _blocks(self, increment: Increment) -> Iterator[list[KeyedItem] | LostKeys]:
        if increment.lost == [LostKeys(b"", None)]:
            return
        if increment.file is None:
            yield from self._walk(increment.path)
            return
        lost: tuple[int, int, bytes] | None = None
        for begin, end, first, block in increment.file.blocks():
            if block is None:
                lost = (begin, end, first) if lost is None else (lost[0], end, lost[2])
                continue
            if lost is not None:
                yield self._lost(increment.path, lost[0], lost[1], LostKeys(lost[2], first))
                lost = None
            yield list(zip(block.keys, block.values, strict=True))
        if lost is not None:
            yield self._lost(increment.path, lost[0], lost[1], LostKeys(lost[2], None))

    def _lost(self, path: Path, begin: int, end: int, lost: LostKeys) -> LostKeys:
        kinds = "; ".join(_KINDS[kind] for kind in lost.kinds())
        self._book.damage(path, begin, end, "damaged", "blocks of the checkpoint", f"as of an earlier moment: {kinds}")
        return lost

    def _walk(self, path: Path) -> Iterator[list[KeyedItem] | LostKeys]:
        """Blocks of a file whose index is damaged: each says how long it is."""
        with closing(self._disk.open(path)) as file:
            size, last = file.size(), b""
            position = min(HEAD.size, size)
            if file.pread(8, 0) != MAGIC:
                self._book.damage(path, 0, HEAD.size, "damaged", "head of a file of the checkpoint", "none")
            while True:
                items = _block_at(file, position, size)
                if items is None:
                    if _is_tail(file, position, size):
                        self._book.damage(
                            path, position, size, "damaged", "index of a file of the checkpoint", _erased_unknown()
                        )
                        return
                    begin, position = position, next(_search(file, position + 1, size), size)
                    items = _block_at(file, position, size)
                    first = items[0][0] if items else None
                    yield self._lost(path, begin, position, LostKeys(last + b"\0" if last else b"", first))
                    if items is None:
                        return
                yield items
                last = items[-1][0]
                position += BLOCK.size + int.from_bytes(file.pread(4, position + 4), "little")

    def items(self, increment: Increment, first: bytes, end: bytes | None) -> Iterator[KeyedItem]:
        """Keys in ``[first, end)`` that are left, in order."""
        for found in self._blocks(increment):
            if not isinstance(found, LostKeys):
                for key, value in found:
                    if first <= key and (end is None or key < end):
                        yield key, value

    # -- the state ---------------------------------------------------------------------------------------

    def load(self, known: KnownShard, count: int) -> None:
        """Put what the ``count`` oldest files say into ``known``, all but the producers."""
        state = known.state
        newest: dict[bytes, int] = {}  # of each page of queues, the newest file that has it
        for at, increment in enumerate(self.increments[:count]):
            for prefix in increment.properties.get("erased", ()):
                erase(state, prefix)
            for key, value in self.items(increment, b"", PRODUCER):
                self._restore(known, key, value)
                if key[:1] == CATALOG and len(key) > 5:
                    newest[key] = at
            properties = increment.properties
            if properties:
                state.epochs = [StoredEpochStart(*epoch) for epoch in properties["epochs"]]
                state.next_topic_id = max(state.next_topic_id, properties["next_topic_id"])
                state.time_ms = max(state.time_ms, properties["time_ms"])
        lost = [(at, keys) for at, found in enumerate(self.increments[:count]) for keys in found.lost]
        lost += [(at, LostKeys(b"", None)) for at, found in enumerate(self.increments[:count]) if found.file is None]
        self._doubt(known, [(at, keys) for at, keys in lost if CATALOG in keys.kinds()], newest)
        state.restored(self.increments[count - 1].end_lsn if count else 0, state.time_ms)

    def _restore(self, known: KnownShard, key: bytes, value: bytes | None) -> None:
        topic_id = topic_of(key)
        if topic_id is not None:
            if topic_id not in known.state.topics:
                known.catalog_whole = False
            item = known.adopt(topic_id)
            if key[:1] == CATALOG and value is not None:
                page = int.from_bytes(key[5:], "big")
                known.cover(item, item.first + (page << PAGE_BITS) + page_size(value))
        restore_item(known.state, key, value)
        if key[:1] == CATALOG and len(key) == 5:
            known.learned(int.from_bytes(key[1:5], "big"))

    def _doubt(self, known: KnownShard, lost: list[tuple[int, LostKeys]], newest: dict[bytes, int]) -> None:
        """Of pages that may have been in a file in which they are lost, nothing is sure."""
        if not lost:
            return
        known.whole = known.catalog_whole = False
        for topic_id, item in known.state.topics.items():
            for page in range((len(item.next) - 1 >> PAGE_BITS) + 1):
                key = page_key(topic_id, page)
                if any(at > newest.get(key, -1) and key in keys for at, keys in lost):
                    known.set_unsure(topic_id, page << PAGE_BITS, page + 1 << PAGE_BITS)

    def tell(self, count: int) -> None:
        """Say what is only known as of an earlier moment, or not at all, when the ``count`` oldest files are used."""
        for increment in self.increments[:count]:
            if increment.file is None:
                self._book.add(Unknown(f"{self._book.name(increment.path)}: {_erased_unknown()}"))
        kinds = {kind for found in self.increments[:count] for lost in found.lost for kind in lost.kinds()}
        for kind in sorted(kinds):
            self._book.add(Unknown(f"{_KINDS[kind]}: some are lost, or as they were earlier"))


def _erased_unknown() -> str:
    return "which topics were deleted, and which groups, in its time: they may be back"


def _all_kinds() -> str:
    return "as of an earlier moment: " + "; ".join(_KINDS.values())


def _block_at(file: File, position: int, size: int) -> list[KeyedItem] | None:
    """The items of the block at a position, or None where none is, or one that is damaged."""
    head = file.pread(BLOCK.size, position)
    if len(head) < BLOCK.size:
        return None
    crc, length, count = BLOCK.unpack(head)
    if not 0 < length <= min(_MAX_BLOCK_BYTES, size - position - BLOCK.size):
        return None
    body = file.pread(length, position + BLOCK.size)
    if crc32c.crc32c(body, crc32c.crc32c(head[4:])) != crc:
        return None
    flat: list[Any] = msgpack.unpackb(zstandard.decompress(body))
    return list(zip(flat[::2], flat[1::2], strict=True)) if len(flat) == 2 * count else None


def _search(file: File, position: int, size: int) -> Iterator[int]:
    """Where whole blocks begin from a position on."""
    while position < size:
        raw = file.pread(_MAX_BLOCK_BYTES, position)
        at = raw.find(_FRAME, BLOCK.size)
        while at >= 0:
            if _block_at(file, position + at - BLOCK.size, size) is not None:
                yield position + at - BLOCK.size
            at = raw.find(_FRAME, at + 1)
        position += max(1, len(raw) - BLOCK.size - len(_FRAME)) if len(raw) == _MAX_BLOCK_BYTES else len(raw) + 1


def _is_tail(file: File, position: int, size: int) -> bool:
    """Whether the index begins here: then no block is missing before it."""
    raw = file.pread(size - position, position)
    if len(raw) > FOOTER.size and raw[-FOOTER.size :][:8] == position.to_bytes(8, "little"):
        return True
    try:
        found = msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress(raw))
    except (zstandard.ZstdError, ValueError, msgpack.UnpackException):
        return False
    return isinstance(found, dict) and "index" in found

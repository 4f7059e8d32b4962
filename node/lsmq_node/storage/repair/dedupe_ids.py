"""Deduplication ids: what is left of them in a damaged store, joined with what the log has beyond."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import crc32c
import numpy as np

from lsmq.errors import CorruptFile

from ..dedupe_chain import joined
from ..dedupe_file import BLOCK_BYTES, HEAD, MAGIC, VERSION, IdFile, IdFileMeta
from ..dedupe_layer import ROW, IdLayer, IdRows
from ..disk import Disk
from .findings import FindingsBook, Unknown

_LOST = "deduplication ids: messages that are sent again may be stored twice"


class LeftIds:
    """The ids of one shard. ``metas`` None: the manifest is lost, and whatever files there are count."""

    def __init__(self, disk: Disk, directory: Path, metas: tuple[IdFileMeta, ...] | None, book: FindingsBook) -> None:
        self._disk = disk
        self._directory = directory
        self._book = book
        names = set(disk.list(directory))
        if metas is None:
            wanted = sorted(name for name in names if name.endswith(".ids"))
        else:
            wanted = [meta.name for meta in metas]
        self._paths: list[Path] = []
        for name in wanted:  # the oldest first
            if name in names:
                self._paths.append(directory / name)
            else:
                self._lost(directory / name, 0, 0, "missing")

    def _lost(self, path: Path, begin: int, end: int, kind: str) -> None:
        self._book.damage(path, begin, end, kind, "deduplication ids", _LOST)
        self._book.add(Unknown(f"which messages were stored under ids of {path.name}, in part"))

    def count(self, layer: IdLayer) -> int:
        """About."""
        sizes = 0
        for path in self._paths:
            file = self._disk.open(path)
            sizes += file.size()
            file.close()
        return layer.count + sizes // ROW.itemsize

    def rows(self, layer: IdLayer) -> Iterator[IdRows]:
        """In order, of each id the newest; ``layer`` has those of the log."""
        scans = [layer.kept(), *(self._scan(path) for path in reversed(self._paths))]
        return joined(scans, self.count(layer))

    def _scan(self, path: Path) -> Iterator[IdRows]:
        try:
            blocks = IdFile(self._disk, path).whole_blocks()
        except CorruptFile:
            blocks = self._without_filter(path)
        for number, rows in enumerate(blocks):
            if rows is None:
                begin = HEAD.size + number * BLOCK_BYTES
                self._lost(path, begin, begin + BLOCK_BYTES, "damaged")
            else:
                yield rows

    def _without_filter(self, path: Path) -> Iterator[IdRows | None]:
        """Of a file whose end is damaged the whole blocks; it ends where there is none."""
        raw = memoryview(self._disk.read_all(path))
        if raw[: HEAD.size] != HEAD.pack(MAGIC, VERSION):
            self._lost(path, 0, len(raw), "damaged")
            return
        at = HEAD.size
        while at + BLOCK_BYTES <= len(raw):
            block = raw[at : at + BLOCK_BYTES]
            if crc32c.crc32c(block[:-4]) != int.from_bytes(block[-4:], "little"):
                break
            yield np.frombuffer(block[:-4], ROW)
            at += BLOCK_BYTES
        self._lost(path, at, len(raw), "damaged")

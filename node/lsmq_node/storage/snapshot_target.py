"""The taking side of snapshots: files gathered beside a store, which may be open, until they are complete.

They lie in the directory ``incoming`` under the names they have at the source. What has come is kept across
restarts, without any notes: a file as long as it is. Whether it is the beginning of the file that the source has
now is for the downloader to find out, by comparing checksums. When all files are complete, each verified by its
own checksums and synced, ``finish`` writes ``incoming/SNAPSHOT``: from then on it can be installed.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import crc32c

from lsmq.errors import CorruptFile, DiskFull, InvalidRequest

from .checkpoint import IncrementMeta, check_increment
from .dedupe_file import IdFile, IdFileMeta
from .disk import Buffer, Disk, File, OsDisk, replace_file
from .failures import damaged
from .index import IndexColumn, IndexPage
from .key_index import KeyDirectory, KeyPage, NoKeys
from .keyed_file import KeyedFile
from .snapshot import INCOMING_DIRECTORY, NAME, SnapshotFile, SnapshotManifest, encode_snapshot
from .sstable import TableMeta, check_properties, read_footer, stored_batch

#: So much is written between two syncs of a file, so that syncing it does not hold up others for long.
SYNC_BYTES = 16 << 20
_READ_BYTES = 1 << 20


class SnapshotTarget:
    """A snapshot being gathered in ``path / "incoming"``. One thread at a time; one target a directory."""

    def __init__(self, path: Path, snapshot: SnapshotManifest, *, disk: Disk | None = None) -> None:
        """Keeps what is there of files of the same name, and removes the rest. Raises ``OSError``."""
        self.snapshot = snapshot
        self._disk = disk or OsDisk()
        self._directory = path / INCOMING_DIRECTORY
        self._files = {file.name: file for file in snapshot.files}
        self._verifier = FileVerifier(snapshot, self._disk)
        self._complete: set[str] = set()
        self._held: dict[str, int] = {}
        self._open: tuple[str, File] | None = None
        self._unsynced = 0
        self._disk.make_directory(self._directory)
        names = self._disk.list(self._directory)
        if NAME in names:  # what it says is complete will not be, from here on
            self._disk.remove(self._directory / NAME)
            self._disk.sync_directory(self._directory)
        for name in names:
            if name not in self._files:
                self._disk.remove(self._directory / name)
        for name, entry in self._files.items():
            self._held[name] = min(self._size(name), entry.size_bytes) if name in names else 0
        self._disk.sync_directory(path)

    def _size(self, name: str) -> int:
        with closing(self._disk.open(self._directory / name)) as file:
            return file.size()

    @property
    def total_bytes(self) -> int:
        return self.snapshot.total_bytes

    @property
    def held_bytes(self) -> int:
        """How much is here of all files; of what was here before, some may turn out to be something else."""
        return sum(self._held.values())

    def missing(self) -> list[SnapshotFile]:
        """Files that are not complete and verified."""
        return [file for file in self._files.values() if file.name not in self._complete]

    def is_complete(self, name: str) -> bool:
        """Whether the file is all here, verified and synced."""
        return name in self._complete

    def held(self, name: str) -> int:
        """So many bytes of the file are here, from its beginning on."""
        return self._held[name]

    def keep(self, name: str, length: int) -> None:
        """Only the first ``length`` bytes of the file are the source's."""
        self._held[name] = min(length, self._held[name])
        self._complete.discard(name)

    def checksum(self, name: str, offset: int, length: int) -> int:
        """CRC32C of a range that is here, to compare it with the source's."""
        file, crc, end = self._file(name), 0, offset + length
        while offset < end:
            piece = file.pread(min(_READ_BYTES, end - offset), offset)
            if not piece:
                break
            crc = crc32c.crc32c(piece, crc)
            offset += len(piece)
        return crc

    def check_space(self, min_free_bytes: int) -> None:
        """Raises ``DiskFull`` unless what is missing fits, and ``min_free_bytes`` are left then."""
        free, wanted = self._disk.free_bytes(self._directory), self.total_bytes - self.held_bytes
        if free < wanted + min_free_bytes:
            raise DiskFull(
                f"the snapshot needs {wanted >> 20} MiB more in {self._directory}; {free >> 20} MiB are free, of which "
                f"{min_free_bytes >> 20} MiB are kept free. Free some space or add a disk.",
                path=str(self._directory),
                free_bytes=free,
            )

    def write(self, name: str, offset: int, piece: Buffer) -> None:
        """Add the next bytes of a file. Raises ``InvalidRequest`` for any others, ``OSError``."""
        if offset != self._held[name] or offset + len(piece) > self._files[name].size_bytes:
            raise InvalidRequest(f"{self._directory / name} ends at {self._held[name]}; bytes came for {offset}")
        file = self._file(name)
        file.pwrite(piece, offset)
        self._held[name] = offset + len(piece)
        self._unsynced += len(piece)
        if self._unsynced >= SYNC_BYTES:
            self._sync(file)

    def complete(self, name: str) -> None:
        """All of a file is here: verify and sync it.

        Raises ``CorruptFile`` when it is not what it should be; it must then be fetched again from its beginning.
        """
        path, size = self._directory / name, self._files[name].size_bytes
        try:
            if self._held[name] != size:
                raise InvalidRequest(f"{path} has {self._held[name]} bytes of {size}")
            if self._size(name) > size:  # it held another, longer one before
                raise damaged(path, f"longer than {size} bytes", size)
            self._sync(self._file(name))
            self._verifier.verify(path, name)
        except CorruptFile:
            self._shut()
            self._disk.remove(path)
            self._held[name] = 0
            raise
        self._shut()
        self._complete.add(name)

    def finish(self) -> None:
        """All files are complete: make the snapshot ready to be installed. Durable on return. Raises ``OSError``."""
        if missing := self.missing():
            raise InvalidRequest(f"{len(missing)} files of the snapshot are not complete, one is {missing[0].name}")
        self._disk.sync_directory(self._directory)
        replace_file(self._disk, self._directory / NAME, encode_snapshot(self.snapshot))

    def close(self) -> None:
        """Close what is open; what is here stays."""
        self._shut()

    def _file(self, name: str) -> File:
        if self._open is None or self._open[0] != name:
            self._shut()
            path = self._directory / name
            there = name in self._disk.list(self._directory)
            self._open = name, self._disk.open(path, write=True) if there else self._disk.create(path)
        return self._open[1]

    def _sync(self, file: File) -> None:
        file.sync()
        self._unsynced = 0

    def _shut(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


class FileVerifier:
    """Reads files of a snapshot, wherever they lie, and holds every byte against what the snapshot says of them."""

    def __init__(self, snapshot: SnapshotManifest, disk: Disk) -> None:
        self._disk = disk
        self._epochs = snapshot.epochs
        self._metas = {meta.name: meta for meta in snapshot.manifest.files()}

    def verify(self, path: Path, name: str) -> None:
        """The file ``name`` of the snapshot, which lies at ``path``. Raises ``CorruptFile``, ``UnsupportedFormat``."""
        meta = self._metas[name]
        match meta:
            case IncrementMeta():
                self._verify_increment(path, meta)
            case IdFileMeta():
                IdFile(self._disk, path, meta).verify()
            case TableMeta():
                verify_table(self._disk, path, meta)

    def _verify_increment(self, path: Path, meta: IncrementMeta) -> None:
        file = KeyedFile(self._disk, path, meta.number)
        check_increment(file, meta)
        file.verify()
        begun = [list(start) for start in self._epochs if start.lsn < meta.end_lsn]
        if begun and file.properties["epochs"][-1:] != begun[-1:]:
            raise damaged(path, "the checkpoint is of another snapshot")


def let_go(path: Path, *, disk: Disk | None = None) -> None:
    """Remove what has come of a snapshot that is not wanted any more. Raises ``OSError``."""
    disk, directory = disk or OsDisk(), path / INCOMING_DIRECTORY
    if names := disk.list(directory):
        for name in sorted(names, key=lambda name: name != NAME):  # first what says that the others are complete
            disk.remove(directory / name)
        disk.sync_directory(directory)


def verify_table(disk: Disk, path: Path, meta: TableMeta) -> None:
    """Read a whole table and check every byte of it. Raises ``CorruptFile`` or ``UnsupportedFormat``.

    Unlike reading, which makes a damaged index again from the blocks, this forgives nothing.
    """
    source = str(path)
    with closing(disk.open(path)) as file:
        parts = read_footer(file, source)
        _expect(source, "footer", parts["size_bytes"], meta.size_bytes)
        _expect(source, "footer", parts["record_count"], meta.record_count)
        _expect(source, "index", parts["index_position"], meta.index_position)
        root_at, root_end = parts["root_position"], parts["root_position"] + parts["root_bytes"]
        _expect(source, "footer", root_at, meta.root_position)
        _expect(source, "footer", parts["root_bytes"], meta.root_bytes)
        root = IndexPage.parse(file.pread(parts["root_bytes"], root_at), source, root_at, root=True)
        _expect(source, "index", root.count, parts["pages"])
        check_properties(file.pread(parts["properties_bytes"], root_end), source, root_end)
        end = records = 0
        page_end = min(root.positions)
        verify_keys(file, source, meta.index_position, page_end)
        for page_at, page_bytes, blocks in zip(
            root.positions, root.sizes, root.column(IndexColumn.BLOCKS).tolist(), strict=True
        ):
            _expect(source, "index", page_at, page_end)
            page_end += page_bytes
            page = IndexPage.parse(file.pread(page_bytes, page_at), source, page_at)
            _expect(source, "index", blocks, end)
            for begin, size in zip(page.positions, page.sizes, strict=True):
                _expect(source, "index", begin, end)
                batch = stored_batch(file.pread(size, begin), source, begin, "block")
                _expect(source, "block", batch.total_bytes, size)
                records += batch.record_count
                end = begin + size
        _expect(source, "index", page_end, meta.root_position)
        _expect(source, "index", end, meta.index_position)
        _expect(source, "index", records, meta.record_count)


def verify_keys(file: File, source: str, begin: int, end: int) -> None:
    """Check the section of the keys, if there is one. Raises ``CorruptFile``."""
    if begin == end:
        return
    try:
        size = int.from_bytes(file.pread(8, begin)[4:], "little")
        directory, at = KeyDirectory(file.pread(min(size, end - begin), begin)), begin + size
        for number in range(directory.page_count):
            KeyPage(file.pread(directory.page_bytes(number), at))
            at += directory.page_bytes(number)
    except NoKeys as error:
        raise damaged(source, f"{error} (from byte {begin} on)", begin) from error
    _expect(source, "keys", at, end)


def _expect(source: str, part: str, found: int, expected: int) -> None:
    if found != expected:
        raise damaged(source, f"its {part} says {found} where the manifest says {expected}")

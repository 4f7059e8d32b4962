"""Putting a snapshot in a store's place, in one step that survives a crash.

The files of the snapshot get new numbers, which the old store does not use, and second names (hard links) among its
tables. What counts is one replacement of the manifest: before it the old store is there, untouched; after it the
new one. The new manifest says ``installing``, and that means: of what else is there nothing belongs to it, neither
the log nor its mark, nor the note of the high watermark. Whoever meets it, the installer itself or the next start,
removes those and then takes the word out (``settle``); nothing is read or written before that.

The log of the new store is empty and begins at the snapshot's LSN (``log_start_lsn``), as a rule in the middle of a
segment: what lies before it in the first segment file was never written here.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lsmq.errors import CorruptFile, InvalidRequest, UnsupportedFormat

from .checkpoint import IncrementMeta
from .dedupe_file import IdFileMeta
from .disk import Disk, OsDisk
from .failures import damaged
from .lock import DirectoryLock
from .log_mark import NAME as LOG_MARK
from .manifest import (
    HIGH_WATERMARK,
    TABLE_DIRECTORY,
    WAL_DIRECTORY,
    Manifest,
    load_manifest,
    store_manifest,
)
from .snapshot import INCOMING_DIRECTORY, NAME, SnapshotManifest, decode_snapshot
from .sstable import TableMeta

Numbered = TypeVar("Numbered", TableMeta, IncrementMeta, IdFileMeta)


def install(path: Path, *, disk: Disk | None = None) -> SnapshotManifest:
    """Replace a closed store by the snapshot in its directory ``incoming``, which is complete. Durable on return.

    A store opened there afterwards, as ``replicated``, has applied everything before the snapshot's ``applied_lsn``,
    and its log begins and ends there. A crash leaves the old store, with the snapshot still ready, or the new one.

    Raises ``InvalidRequest`` when no complete snapshot is there, ``DataDirectoryLocked`` when the store is open,
    ``CorruptFile``, ``OSError``. When it has raised, the store is the old one or the new one.
    """
    disk = disk or OsDisk()
    lock = DirectoryLock(path)
    try:
        incoming = path / INCOMING_DIRECTORY
        if NAME not in disk.list(incoming):
            raise InvalidRequest(f"{incoming}: no complete snapshot is there; download it first")
        snapshot = decode_snapshot(disk.read_all(incoming / NAME), str(incoming / NAME))
        disk.make_directory(path / WAL_DIRECTORY)
        disk.make_directory(path / TABLE_DIRECTORY)
        manifest = _link(disk, path, snapshot)
        for directory in (path / TABLE_DIRECTORY, path, path.parent):
            disk.sync_directory(directory)
        store_manifest(disk, path, manifest)
        settle(disk, path, manifest)
        return snapshot
    finally:
        lock.release()


def settle(disk: Disk, path: Path, manifest: Manifest) -> Manifest:
    """Finish an installation that the manifest says is under way, if one is. Returns the manifest as it is then.

    Tables of the old store are left to recovery, which removes whatever is in no manifest.
    """
    if not manifest.extra.get("installing"):
        return manifest
    # Always synced, even when empty: a killed process may have removed names that a loss of power would bring back.
    for directory in (path / WAL_DIRECTORY, path / INCOMING_DIRECTORY):
        with contextlib.suppress(FileNotFoundError):
            for name in disk.list(directory):
                disk.remove(directory / name)
            disk.sync_directory(directory)
    for name in (HIGH_WATERMARK, LOG_MARK):
        disk.remove(path / name)
    disk.sync_directory(path)
    extra = {name: value for name, value in manifest.extra.items() if name != "installing"}
    manifest = manifest.with_changes(extra=extra)
    store_manifest(disk, path, manifest)
    return manifest


def _link(disk: Disk, path: Path, snapshot: SnapshotManifest) -> Manifest:
    """Give the files names among the tables; returns the manifest that names them."""
    incoming, tables = path / INCOMING_DIRECTORY, path / TABLE_DIRECTORY
    source = snapshot.manifest
    number = _free_number(disk, path)
    numbers: dict[int, int] = {}
    for old in sorted(source.numbers()):
        numbers[old], number = number, number + 1

    def renumbered(meta: Numbered) -> Numbered:
        return replace(meta, number=numbers[meta.number])

    for meta in dict.fromkeys(source.files()):
        target = tables / replace(meta, number=numbers[meta.number]).name
        _check_size(disk, incoming / meta.name, meta.size_bytes)
        disk.remove(target)
        disk.link(incoming / meta.name, target)

    return source.with_changes(
        next_number=number,
        checkpoint=tuple(map(renumbered, source.checkpoint)),
        ids=tuple(map(renumbered, source.ids)),
        level0=tuple(map(renumbered, source.level0)),
        generations=tuple(tuple(map(renumbered, run)) for run in source.generations),
        extra={"log_start_lsn": snapshot.applied_lsn, "installing": True},
    )


def _check_size(disk: Disk, path: Path, size_bytes: int) -> None:
    with closing(disk.open(path)) as file:
        if file.size() != size_bytes:
            raise damaged(path, f"{file.size()} bytes, {size_bytes} were verified")


def _free_number(disk: Disk, path: Path) -> int:
    """Above all numbers that the old store uses, even where its manifest is damaged."""
    stems = [name.partition(".")[0] for name in disk.list(path / TABLE_DIRECTORY)]
    used = [int(stem) for stem in stems if stem.isdigit()]
    try:
        manifest = load_manifest(disk, path)
        if manifest is not None:
            used += [manifest.next_number - 1, *manifest.numbers()]
    except (CorruptFile, UnsupportedFormat):
        pass  # it is being replaced
    return max(used, default=0) + 1

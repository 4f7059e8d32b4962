"""Snapshots taken from one directory to another, as a replica does it over the network."""

from __future__ import annotations

from pathlib import Path

from lsmq_node.storage import ShardStore
from lsmq_node.storage.disk import Disk
from lsmq_node.storage.snapshot import SnapshotManifest
from lsmq_node.storage.snapshot_source import SnapshotSource
from lsmq_node.storage.snapshot_target import SnapshotTarget


def copy(source: SnapshotSource, target: SnapshotTarget, piece_bytes: int = 10_000) -> None:
    """All that is missing, and the end of it."""
    for file in target.missing():
        while (at := target.held(file.name)) < file.size_bytes:
            target.write(file.name, at, source.read(file.name, at, piece_bytes))
        target.complete(file.name)
    target.finish()
    target.close()


def take(source: ShardStore, path: Path, disk: Disk | None = None) -> SnapshotManifest:
    """A snapshot of ``source``, ready in ``path``."""
    with source.export_snapshot() as export:
        copy(export, SnapshotTarget(path, export.snapshot, disk=disk))
        return export.snapshot

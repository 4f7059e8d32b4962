"""Snapshots: a shard's tables and state as of one LSN, from which a replica is made.

A snapshot is what a flush leaves: the tables and the checkpoint that one manifest names. This module is its
description, the *snapshot manifest*; :mod:`.snapshot_source` holds the files on the one side,
:mod:`.snapshot_target` takes them in on the other, :mod:`.snapshot_install` puts them in a store's place.

The description travels first, and lies beside the files (``incoming/SNAPSHOT``) once all of them are there and
verified. All integers are little-endian::

    offset width field
     0      8    magic ``LSMQSNP1``
     8      4    version (3)
    12      4    length of the body
    16      4    crc       CRC32C of version, length and body
    20      n    body      a msgpack map: epochs, and the source's manifest as it lies in its file

The tables carry their own checksums, every byte of them under one, and so do the files of the checkpoint; the manifest
says what each holds. So nothing is summed up again for a snapshot, however large.
"""

from __future__ import annotations

from dataclasses import dataclass

from .epochs import StoredEpochStart
from .framed import decode_framed, encode_framed
from .manifest import Manifest, decode_manifest, encode_manifest

NAME = "SNAPSHOT"
MAGIC = b"LSMQSNP1"
VERSION = 3
INCOMING_DIRECTORY = "incoming"


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a snapshot, by the name it has at the source."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """What a snapshot is made of.

    Attributes:
        manifest: of the source, as of the flush.
        epochs: leader epochs that begin before ``applied_lsn``, as far as the source needs them.
    """

    manifest: Manifest
    epochs: tuple[StoredEpochStart, ...]

    @property
    def applied_lsn(self) -> int:
        """The snapshot holds all that was logged before it, and nothing else."""
        return self.manifest.flushed_lsn

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        """Those of the checkpoint, of the ids, then the tables, oldest first."""
        return tuple(SnapshotFile(meta.name, meta.size_bytes) for meta in self.manifest.files())

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def encode_snapshot(snapshot: SnapshotManifest) -> bytes:
    values = {"epochs": snapshot.epochs, "manifest": encode_manifest(snapshot.manifest)}
    return encode_framed(MAGIC, VERSION, values)


def decode_snapshot(raw: bytes, source: str) -> SnapshotManifest:
    """Raises ``CorruptFile`` or ``UnsupportedFormat``."""
    values = decode_framed(raw, MAGIC, VERSION, source, "snapshot manifest")
    return SnapshotManifest(
        decode_manifest(values["manifest"], source),
        tuple(StoredEpochStart(*epoch) for epoch in values["epochs"]),
    )

"""What a backup is made of: shards, their files, and the topics there were. See docs/formats/backup.md.

Text, so that a person can read it, written once and never changed::

    lsmq-backup 1 89b4b024
    {"cluster": null, "created_ms": 1764000000000, "id": "20251124T160000.000Z", "product": "0.9", "shards": [...], ...}

The first line names the format and its version, and ends in the CRC32C of the second, newline included, in hex.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import crc32c

from lsmq.errors import LsmqError, UnsupportedFormat
from lsmq_node.storage import StoredTopic, TopicOptions
from lsmq_node.storage.failures import damaged
from lsmq_node.storage.snapshot import SnapshotManifest, decode_snapshot

MAGIC = "lsmq-backup"
VERSION = 2
#: Of one whose shards are all from the founding: earlier releases read it.
_VERSION_OF_FOUNDED = 1
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a shard by the ``name`` it has there; ``sha256`` of its content, in hex, is its name in the backup."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardBackup:
    """A shard as of ``lsn``: all that it had logged before. ``snapshot`` is its snapshot manifest as it came."""

    shard: int
    lsn: int
    taken_ms: int
    snapshot: bytes
    files: tuple[StoredFile, ...]

    def decoded(self, source: str) -> SnapshotManifest:
        """Raises ``CorruptFile`` or ``UnsupportedFormat``."""
        try:
            found = decode_snapshot(self.snapshot, source)
            names = {file.name for file in found.files}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise damaged(source, f"the snapshot manifest is none: {type(error).__name__}: {error}") from error
        if names != {file.name for file in self.files}:
            raise damaged(source, "the files that the backup has of the shard are not those of its snapshot")
        return found

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "snapshot": base64.b64encode(self.snapshot).decode()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ShardBackup:
        files = tuple(StoredFile(**file) for file in fields["files"])
        return cls(
            fields["shard"],
            fields["lsn"],
            fields["taken_ms"],
            base64.b64decode(fields["snapshot"], validate=True),
            files,
        )


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """A backup. ``cluster`` is None where a node of its own was backed up; ``product`` is the release that did it.

    ``topics`` are those there were after the last shard was taken, with their ranges where they have grown.
    ``grown_from`` is how many shards there were at first, where there are more by now.
    ``made_ms`` is when the backup began, ``created_ms`` when all of it was there; both by the clock of its maker.
    """

    id: str
    cluster: str | None
    product: str
    made_ms: int
    created_ms: int
    shards: tuple[ShardBackup, ...]
    topics: tuple[StoredTopic, ...]
    grown_from: int | None = None

    @property
    def home_shards(self) -> int:
        """Shards there were at first: groups are coordinated in these, and topics without ranges lie on them."""
        return self.grown_from or len(self.shards)

    def files(self) -> Iterator[StoredFile]:
        return (file for shard in self.shards for file in shard.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files())

    def encode(self) -> bytes:
        fields = {
            "id": self.id,
            "cluster": self.cluster,
            "product": self.product,
            "made_ms": self.made_ms,
            "created_ms": self.created_ms,
            "shards": [shard.to_dict() for shard in self.shards],
            "topics": [_topic_dict(topic) for topic in self.topics],
        }
        version = _VERSION_OF_FOUNDED
        if self.grown_from is not None:
            fields["grown_from"], version = self.grown_from, VERSION
        body = json.dumps(fields, sort_keys=True).encode() + b"\n"
        return f"{MAGIC} {version} {crc32c.crc32c(body):08x}\n".encode() + body

    @classmethod
    def decode(cls, raw: bytes, source: str) -> BackupManifest:
        """Raises ``CorruptFile``; ``UnsupportedFormat`` for another version."""
        head, _, body = raw.partition(b"\n")
        words = head.decode("ascii", "replace").split(" ")
        if len(words) != 3 or words[0] != MAGIC or words[2] != f"{crc32c.crc32c(body):08x}":
            raise damaged(source, "the manifest of the backup is damaged")
        if words[1] not in (str(_VERSION_OF_FOUNDED), str(VERSION)):
            raise UnsupportedFormat(
                f"{source} is a backup of version {words[1]}; this release reads {_VERSION_OF_FOUNDED} and {VERSION}. "
                "Use the one that made it."
            )
        try:
            found = cls._of(json.loads(body))
        except (KeyError, TypeError, ValueError, RecursionError, LsmqError) as error:
            raise damaged(source, f"the manifest of the backup is none: {type(error).__name__}: {error}") from error
        found._check(source)
        return found

    def _check(self, source: str) -> None:
        """Paths are made of numbers of shards and names of files: who made the manifest chooses none. Raises
        ``CorruptFile``."""
        numbers = [shard.shard for shard in self.shards]
        if not numbers or {type(number) for number in numbers} != {int} or sorted(numbers) != [*range(len(numbers))]:
            raise damaged(source, f"the manifest of the backup has the shards {str(numbers)[:200]}, and not all from 0")
        if self.grown_from is not None and (type(self.grown_from) is not int or not 0 < self.grown_from < len(numbers)):
            raise damaged(source, f"the manifest of the backup says that its shards grew from {self.grown_from!r}")
        for file in self.files():
            name = file.sha256
            if type(file.size_bytes) is not int or type(name) is not str or not _SHA256.fullmatch(name):
                raise damaged(source, f"the manifest of the backup has a file {str(name)[:200]!r}, which is no SHA-256")

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> BackupManifest:
        return cls(
            fields["id"],
            fields["cluster"],
            fields["product"],
            fields["made_ms"],
            fields["created_ms"],
            tuple(ShardBackup.from_dict(shard) for shard in fields["shards"]),
            tuple(_topic(topic) for topic in fields["topics"]),
            fields.get("grown_from"),
        )


def _topic_dict(topic: StoredTopic) -> dict[str, Any]:
    return {
        "id": topic.id,
        "name": topic.name,
        "queues": topic.queues,
        "options": topic.options.to_dict(),
        "created_ms": topic.created_ms,
        "ranges": [list(found) for found in topic.ranges],
    }


def _topic(fields: dict[str, Any]) -> StoredTopic:
    ranges = tuple((first, end, shard) for first, end, shard in fields["ranges"])
    options = TopicOptions.from_dict(fields["options"])
    numbers = [fields["id"], fields["queues"], fields["created_ms"], *chain.from_iterable(ranges)]
    if type(fields["name"]) is not str or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"of a topic it says {str(fields)[:200]}")
    return StoredTopic(fields["id"], fields["name"], fields["queues"], options, fields["created_ms"], ranges)

"""Whose a data directory is, and which disks are the node's: the file ``node.json`` of the first of them.

::

    {"format": 1, "shards": 1}                                       a node of its own
    {"format": 1, "shards": 3, "cluster": "lsmq", "node": "n1"}      a member of a cluster
    {"format": 2, "shards": 2, "processes": 2}                       a node in several processes
    {"format": 3, ..., "grown": 4}                                   shards have come
    {"format": 4, ..., "token": "6f..", "disks": {"c1..": "/d2"},
     "starts": {"c1..": [7]}}                                        there are further disks

A format is written where it is needed, so that a release before reads what it can, and refuses what it would lose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from lsmq.errors import CorruptFile, DataDirectoryUnusable, DiskFull, UnsupportedFormat
from lsmq_node.storage.failures import FULL

FORMAT = 4
#: Of a node that is one process, and of one of several.
_FORMAT_OF_ONE, _FORMAT_OF_SEVERAL = 1, 2
#: Once shards have come, and while there are further disks.
_FORMAT_OF_GROWN, _FORMAT_OF_DISKS = 3, 4
NODE_FILE = "node.json"
#: What a restore that is under way, or was cut short, has made so far (``lsmq_node.backups.restore``).
RESTORING = ".restoring"


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What ``node.json`` says: whose the directory is. ``cluster`` and ``node`` are None for a node of its own,
    ``processes`` is what it was founded with where they are several, ``shards`` how many shards, and ``grown`` how many
    there are, once there are more. ``disks`` are those beside the first, by id, with where they were seen last; each
    bears the node's ``token``, which it has from its second disk on. ``starts``: the number of the last start that used
    each, one of these (starts.py)."""

    shards: int
    cluster: str | None = None
    node: str | None = None
    processes: int | None = None
    grown: int | None = None
    token: str | None = None
    disks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def count(self) -> int:
        """Shards there are by now."""
        return self.grown or self.shards

    def __str__(self) -> str:
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        if self.processes is not None:
            return f"a node of its own in {self.processes} processes, with {shards}"
        if self.cluster is None:
            return f"a node of its own with {shards}"
        return f"node {self.node!r} of cluster {self.cluster!r} with {shards}"

    @classmethod
    def load(cls, data: Path) -> NodeFile | None:
        """None when there is none. Raises ``CorruptFile``, ``UnsupportedFormat``, ``DataDirectoryUnusable``."""
        file = data / NODE_FILE
        if (data / RESTORING).exists():
            raise DataDirectoryUnusable(
                f"{data}: a backup is being restored there, or that was cut short; wait until it is done, or do it "
                "again (lsmq backup restore)",
                directory=str(data),
            )
        try:
            text = file.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataDirectoryUnusable(f"{file} cannot be read: {error.strerror}", file=str(file)) from error
        try:
            stored = json.loads(text)
            found_format, found_shards = int(stored["format"]), int(stored["shards"])
            found = cls(
                found_shards,
                stored.get("cluster"),
                stored.get("node"),
                stored.get("processes"),
                stored.get("grown"),
                stored.get("token"),
                MappingProxyType({str(id): str(path) for id, path in stored.get("disks", {}).items()}),
                MappingProxyType({str(id): tuple(map(int, all)) for id, all in stored.get("starts", {}).items()}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(
                f"{file} is damaged; restore it as {{'format': 1, 'shards': n}} with n the number of shards it was "
                "made with, in a cluster its 'cluster' and 'node' as well, and where shards were added to a node of "
                "its own 'format': 3 and 'grown', the number of shard-* directories beside it; what else it had of "
                "several disks is in their disk.json",
                file=str(file),
                position=0,
            ) from error
        if found_format > FORMAT:
            raise UnsupportedFormat(
                f"{file} has format {found_format}, this release knows up to {FORMAT}; upgrade lsmq, or start "
                "with an empty data directory",
                file=str(file),
            )
        return found

    def store(self, data: Path) -> NodeFile:
        """Write it, durably. Raises ``DataDirectoryUnusable``, ``DiskFull``."""
        format = _FORMAT_OF_ONE if self.processes is None else _FORMAT_OF_SEVERAL
        if self.grown is not None:
            format = _FORMAT_OF_GROWN
        if self.disks:
            format = _FORMAT_OF_DISKS
        fields = {
            "format": format,
            "shards": self.shards,
            "cluster": self.cluster,
            "node": self.node,
            "processes": self.processes,
            "grown": self.grown,
            "token": self.token,
            "disks": dict(self.disks) or None,
            "starts": {id: self.starts[id] for id in self.disks if id in self.starts} or None,
        }
        content = {name: value for name, value in fields.items() if value is not None}
        write_durably(data / NODE_FILE, json.dumps(content) + "\n")
        return self


def write_durably(file: Path, text: str) -> None:
    """Replace a small file in one step. Raises ``DataDirectoryUnusable``, ``DiskFull``; it is what it was then."""
    temporary = file.with_suffix(".tmp")
    try:
        with temporary.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(file)
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"no space is left for {file}; free some, and start again", path=str(file)) from error
        raise DataDirectoryUnusable(f"{file} cannot be written: {error.strerror}", file=str(file)) from error

"""What a further disk of a node bears: the file ``disk.json``.

::

    {"format": 1, "node": "6f...", "disk": "c1...", "start": 7}

``node`` is the token of the node's ``node.json``, which no other node has; ``disk`` is the disk's id there. ``start``
is the last start of the node that used the disk, where starts are counted (starts.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import CorruptFile, DataDirectoryUnusable, UnsupportedFormat

from .node_file import write_durably

MARK_FILE = "disk.json"
_FORMAT = 1


def is_marked(path: Path, node: str | None, disk: str | None) -> bool:
    """Whether a directory is there, and is that disk of that node."""
    try:
        mark = DiskMark.load(path)
    except (CorruptFile, DataDirectoryUnusable, UnsupportedFormat):
        return False
    return mark is not None and mark.is_of(node, disk)


@dataclass(frozen=True, slots=True)
class DiskMark:
    """Which node a disk is of, and its id. ``start`` is 0 where starts are not counted."""

    node: str
    disk: str
    start: int = 0

    def is_of(self, node: str | None, disk: str | None) -> bool:
        """Whether it is the mark of that disk of that node, whenever this was used last."""
        return (self.node, self.disk) == (node, disk)

    @classmethod
    def load(cls, path: Path) -> DiskMark | None:
        """None where there is none. Raises ``CorruptFile``, ``UnsupportedFormat``, ``DataDirectoryUnusable``."""
        file = path / MARK_FILE
        try:
            stored = json.loads(file.read_text())
            found_format, found = (
                int(stored["format"]),
                cls(str(stored["node"]), str(stored["disk"]), int(stored.get("start", 0))),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataDirectoryUnusable(f"{file} cannot be read: {error.strerror}", file=str(file)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(
                f"{file} is damaged; write it anew as {{'format': 1, 'node': ..., 'disk': ...}} with the 'token' of "
                "node.json of the first directory, and the id that 'disks' has there for this one",
                file=str(file),
                position=0,
            ) from error
        if found_format > _FORMAT:
            raise UnsupportedFormat(
                f"{file} has format {found_format}, this release knows up to {_FORMAT}; upgrade lsmq", file=str(file)
            )
        return found

    def store(self, path: Path) -> None:
        """Write it, durably. Raises ``DataDirectoryUnusable``, ``DiskFull``."""
        content = {"format": _FORMAT, "node": self.node, "disk": self.disk, "start": self.start}
        write_durably(path / MARK_FILE, json.dumps(content) + "\n")

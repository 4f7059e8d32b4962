"""``REPLICA`` in a shard's directory: what a replica keeps of itself beside its log (see ``ReplicaRecord``).

Text, so that an operator can read it; replaced as a whole, by write, fsync, rename, fsync of the directory::

    lsmq-replica 1 89b4b024
    {"epoch": 8, "floor_lsn": 52301, "incarnation": 4503599627370497, "leader": "n2", "leading": [4503599627370411, 5],
     "registered": 3, "starts": [[2, 9007199254740992], [3, 1125899906842624]], "went_back": false}

The first line names the format and its version, and ends in the CRC32C of the second, newline included, in hex. A
record that cannot be read counts as none: then the replica is another incarnation than it was.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import crc32c

from lsmq.errors import UnsupportedFormat
from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import DiskStart, ReplicaRecord
from lsmq_node.storage.disk import Disk, replace_file

NAME = "REPLICA"
_MAGIC = "lsmq-replica"
_VERSION = 2
_log = logging.getLogger("lsmq.cluster")


def encode_record(record: ReplicaRecord) -> bytes:
    body = json.dumps(asdict(record), sort_keys=True).encode() + b"\n"
    return f"{_MAGIC} {_VERSION} {crc32c.crc32c(body):08x}\n".encode() + body


def decode_record(raw: bytes, source: str) -> ReplicaRecord | None:
    """None for what is damaged. Raises ``UnsupportedFormat`` for a newer version."""
    head, _, body = raw.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != _MAGIC or words[2] != f"{crc32c.crc32c(body):08x}":
        return None
    if words[1] != str(_VERSION):
        raise UnsupportedFormat(f"{source} has version {words[1]}; this release reads {_VERSION}. Upgrade lsmq.")
    fields = json.loads(body)
    starts, leading = fields.pop("starts"), fields.pop("leading")
    return ReplicaRecord(
        **fields,
        starts=tuple(DiskStart(*start) for start in starts),
        leading=None if leading is None else LifeId(*leading),
    )


def save_record(disk: Disk, directory: Path, record: ReplicaRecord) -> None:
    """Durable on return. Raises ``OSError``."""
    replace_file(disk, directory / NAME, encode_record(record))


def load_record(disk: Disk, directory: Path) -> ReplicaRecord | None:
    """Raises ``OSError``, ``UnsupportedFormat``."""
    if NAME not in disk.list(directory):
        return None
    file = directory / NAME
    record = decode_record(disk.read_all(file), str(file))
    if record is None:
        _log.error("%s is damaged: this replica begins anew under another incarnation", file)
    return record

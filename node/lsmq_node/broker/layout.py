"""The data directory of a node: one directory a shard, and a file that says how many there are.

::

    DIR/node.json      {"format": 1, "shards": 1}
    DIR/shard-0/       a shard's store, which holds the lock

Of a node in several processes it has format 2 and their number, and the directories are theirs (``processes``).

The number of shards decides where groups are coordinated, and which queue of a topic lies where unless the topic says
so itself. So it never changes once the directory exists. That there are more by now is said beside it, in format 3,
which earlier releases refuse.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import CorruptFile, DataDirectoryUnusable, UnsupportedFormat
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.storage import ShardStore, StoreOptions

FORMAT = 3
#: Of a node that is one process.
_FORMAT_OF_ONE = 1
#: Of one of several.
_FORMAT_OF_SEVERAL = 2
NODE_FILE = "node.json"
#: What a restore that is under way, or was cut short, has made so far (``lsmq_node.backups.restore``).
RESTORING = ".restoring"


def shard_directory(data: Path, shard: int) -> Path:
    return data / f"shard-{shard}"


def store_options(config: NodeConfig) -> StoreOptions:
    """What the configuration says of every store of the node."""
    return StoreOptions(
        flush_mode=config.flush_mode,
        flush_interval_ms=config.flush_interval_ms,
        flush_bytes=config.flush_bytes,
        memtable_bytes=config.memtable_bytes,
        memtable_age_ms=config.memtable_age_ms,
        max_documents_bytes=config.max_documents_bytes,
        max_delayed=config.max_delayed,
        producer_expiry_ms=config.producer_expiry_ms,
        max_producers=config.max_producers,
        cache_bytes=config.cache_bytes,
        max_open_tables=config.max_open_tables,
        max_message_bytes=config.max_message_bytes,
        segment_bytes=config.segment_bytes,
        max_waiting_bytes=config.max_waiting_bytes,
        wal_keep_bytes=config.wal_keep_bytes,
        min_free_bytes=config.min_free_bytes,
        compression=config.compression.value,
        retention_interval_ms=config.retention_interval_ms,
    )


def open_shards(config: NodeConfig) -> list[ShardStore]:
    """Open all shards of the data directory, recovering what a crash left. Blocking, may take seconds.

    Raises what ``ShardStore.open`` raises (locked, unusable, newer format, corrupt), and
    :class:`InvalidConfig` when the directory was made with another number of shards. What was opened by
    then is closed again.
    """
    options = store_options(config)
    found = NodeFile.load(config.data)
    _check_owner(config.data, found)  # Before anything is made in it.
    with ExitStack() as opened:
        stores: list[ShardStore] = []
        for shard in range(config.shards if found is None else found.count):
            store = ShardStore.open(shard_directory(config.data, shard), options)
            opened.callback(store.close)
            stores.append(store)
            if shard == 0:
                _check_node_file(config.data, config.shards)  # Under the first shard's lock.
        opened.pop_all()
    return stores


def add_shards(config: NodeConfig, there: int, shards: int) -> list[ShardStore]:
    """Make the stores of shards ``there`` to ``shards`` of a directory that is open; it has them when this returns.

    What one that was cut short has left is taken. Blocking. Raises what ``ShardStore.open`` raises, and
    ``DataDirectoryUnusable``; nothing has changed then.
    """
    options = store_options(config)
    with ExitStack() as opened:
        stores = []
        for shard in range(there, shards):
            stores.append(ShardStore.open(shard_directory(config.data, shard), options))
            opened.callback(stores[-1].close)
        NodeFile(config.shards, grown=shards).store(config.data)
        opened.pop_all()
    return stores


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What ``node.json`` says: whose the directory is. ``cluster`` and ``node`` are None for a node of its own,
    ``processes`` is what it was founded with where they are several, ``shards`` how many shards, and ``grown`` how many
    there are, once there are more."""

    shards: int
    cluster: str | None = None
    node: str | None = None
    processes: int | None = None
    grown: int | None = None

    @property
    def count(self) -> int:
        """Shards there are by now."""
        return self.grown or self.shards

    def __str__(self) -> str:
        if self.processes is not None:
            return f"a node of its own in {self.processes} processes, with {self.shards} shards"
        if self.cluster is None:
            return f"a node of its own with {self.shards} shards"
        return f"node {self.node!r} of cluster {self.cluster!r} with {self.shards} shards"

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
                found_shards, stored.get("cluster"), stored.get("node"), stored.get("processes"), stored.get("grown")
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(
                f"{file} is damaged; restore it as {{'format': 1, 'shards': n}} with n the number of shards it was "
                "made with, in a cluster its 'cluster' and 'node' as well, and where shards were added to a node of "
                "its own 'format': 3 and 'grown', the number of shard-* directories beside it",
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
        """Write it, durably. Raises ``DataDirectoryUnusable``."""
        of_one = _FORMAT_OF_ONE if self.processes is None else _FORMAT_OF_SEVERAL
        fields = {
            "format": of_one if self.grown is None else FORMAT,
            "shards": self.shards,
            "cluster": self.cluster,
            "node": self.node,
            "processes": self.processes,
            "grown": self.grown,
        }
        content = {name: value for name, value in fields.items() if value is not None}
        _write_durably(data / NODE_FILE, json.dumps(content) + "\n")
        return self


def _check_owner(data: Path, found: NodeFile | None) -> None:
    if found is None:
        return
    if found.processes is not None:
        raise InvalidConfig(
            f"{data} belongs to {found}; start it with --processes {found.processes}", setting="processes"
        )
    if found.cluster is not None:
        raise InvalidConfig(f"{data} belongs to {found}; start it with its own configuration file", setting="data")


def _check_node_file(data: Path, shards: int) -> None:
    wanted = NodeFile(shards)
    found = NodeFile.load(data) or wanted.store(data)
    _check_owner(data, found)
    if found.shards != shards:
        raise InvalidConfig(
            f"shards is {shards}, but {data} was made with {found.shards}; start with shards={found.shards}, "
            "or with an empty data directory",
            setting="shards",
        )


def _write_durably(file: Path, text: str) -> None:
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
        raise DataDirectoryUnusable(f"{file} cannot be written: {error.strerror}", file=str(file)) from error

"""The shards of a node of its own: one directory each, on its disks (:mod:`lsmq_node.disks`).

The number of shards decides where groups are coordinated, and which queue of a topic lies where unless the topic says
so itself. So it never changes once the directory exists; that there are more by now is said beside it. The first shard,
which has the topics and the rights of the whole node, lies on the first disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from lsmq.errors import CorruptFile, DataDirectoryUnusable, ShardStopped
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.disks import NodeDisks, NodeFile, held_disks
from lsmq_node.storage import ShardStore, StoreOptions

_log = structlog.get_logger("lsmq.node")


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


def new_shard_bytes(config: NodeConfig) -> int:
    """What a disk must have free to be given another shard while others have more room."""
    return config.min_free_bytes + config.segment_bytes + config.memtable_bytes


@contextmanager
def own_disks(config: NodeConfig) -> Iterator[NodeDisks]:
    """The disks of a node of its own. Raises what :func:`held_disks` raises, and :class:`InvalidConfig` when the first
    was made with another number of shards, or is of another kind of node."""
    data, shards = config.data, config.shards

    def check(found: NodeFile) -> None:
        _check_owner(data, found)
        if found.shards != shards:
            raise InvalidConfig(
                f"shards is {shards}, but {data} was made with {found.shards}; start with --shards {found.shards}, "
                "or with an empty data directory",
                setting="shards",
            )

    with held_disks(config.disks, NodeFile(shards), check, needed_bytes=new_shard_bytes(config)) as disks:
        yield disks


@dataclass(frozen=True, slots=True)
class OpenShards:
    """The ``stores`` of a node of its own, by number, and why others could not be opened: the node goes on without."""

    stores: dict[int, ShardStore]
    missing: dict[int, ShardStopped]


def open_shards(config: NodeConfig, disks: NodeDisks) -> OpenShards:
    """Open all shards, recovering what a crash left. Blocking, may take seconds.

    What lies on a further disk that fails, or is damaged there, is left out; all else raises what ``ShardStore.open``
    raises (locked, unusable, newer format, corrupt). What was opened by then is closed again.
    """
    options, file = store_options(config), NodeFile.load(disks.first)
    assert file is not None, "the disks are held"
    if file.count < len(disks.all):
        _log.warning("disks_without_shards", disks=len(disks.all), shards=file.count, more="lsmq shard grow")
    with ExitStack() as opened:
        shards = OpenShards({}, {})
        for shard in range(file.count):
            found = _open(disks, shard, options)
            if isinstance(found, ShardStopped):
                shards.missing[shard] = found
                _log.error("shard_not_opened", shard=shard, code=found.code, message=found.message)
            else:
                shards.stores[shard] = found
                opened.callback(found.close)
        opened.pop_all()
    return shards


def _open(disks: NodeDisks, shard: int, options: StoreOptions) -> ShardStore | ShardStopped:
    """The store, or why there is none that the node can go on without."""
    directory = disks.find(shard)
    if directory is None and shard > 0 and disks.unusable():
        return disks.on_lost_disk(shard)
    directory = directory or disks.place(shard, on_first=shard == 0)
    try:
        return ShardStore.open(directory, options)
    except (DataDirectoryUnusable, CorruptFile) as error:
        if directory.parent == disks.first:
            raise
        return ShardStopped(error.message, **error.details)


def add_shards(config: NodeConfig, disks: NodeDisks, there: int, shards: int) -> list[ShardStore]:
    """Make the stores of shards ``there`` to ``shards`` of a node that runs; it has them when this returns.

    What one that was cut short has left is taken. Blocking. Raises what ``ShardStore.open`` raises, and
    ``DataDirectoryUnusable``; nothing has changed then.
    """
    options = store_options(config)
    with ExitStack() as opened:
        stores = []
        for shard in range(there, shards):
            stores.append(ShardStore.open(disks.find(shard) or disks.place(shard), options))
            opened.callback(stores[-1].close)
        disks.note_growth(shards)
        opened.pop_all()
    return stores


def _check_owner(data: Path, found: NodeFile) -> None:
    if found.processes is not None:
        raise InvalidConfig(
            f"{data} belongs to {found}; start it with --processes {found.processes}", setting="processes"
        )
    if found.cluster is not None:
        raise InvalidConfig(f"{data} belongs to {found}; start it with its own configuration file", setting="data")

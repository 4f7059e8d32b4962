"""The data directory of a node of a new cluster, made of a backup: run on each of its nodes, by its configuration.

What the nodes have to agree on follows from the backup and from what the configuration says of the cluster, so they
need not be asked, and the directories are made in any order, one by one, each as a whole or not at all. A node gets the
replicas that the cluster is founded with on it, which are equal and in sync from the first start on, and a voter the
control state with the topics and with who these replicas are (:mod:`lsmq_coordinator.restored`).

So a replica that is not what was restored is told from it: a node that begins with an empty directory has its replicas
filled by the others, and one that was restored again, after the cluster had begun, is found to be an older copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq_coordinator.restored import RestoredShard, restored_state, write_restored
from lsmq_coordinator.state import ClusterState, TopicRecord
from lsmq_node.broker.placement import queue_ranges
from lsmq_node.cluster.founding import founding_of
from lsmq_node.cluster.record import save_record
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.config import NodeConfig
from lsmq_node.disks import NodeFile
from lsmq_node.replication import ReplicaRecord
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.repair import Advance

from .manifest import BackupManifest
from .new_directories import new_directories
from .repository import Repository
from .restore import next_topic_id, place_shard

_INCARNATION_BITS = 52
#: More than a shard is led anew between a backup and its cluster's loss; there are epochs for 4,000 restores, one of
#: another.
_EPOCHS_LEFT_OUT = 1 << 20


@dataclass(frozen=True, slots=True)
class RestoredNode:
    """What became of a node: ``shards`` that it has replicas of, of the whole ``state``, whose mark is the same on all
    nodes that were restored from the same backup by the same configuration of the cluster."""

    backup: BackupManifest
    node: str
    data: str
    voter: bool
    shards: tuple[int, ...]
    state: ClusterState


def restore_member(
    repository: Repository,
    config: NodeConfig,
    id: str | None = None,
    *,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> RestoredNode:
    """Make the data directory of the node that ``config`` is of, new or empty; durable on return, else nothing of it.

    Raises ``InvalidRequest`` where that cannot be, and says what would; ``CorruptFile`` where the backup is damaged,
    ``DiskFull``, ``DataDirectoryUnusable``.
    """
    settings = _settings(config)
    backup = repository.load(id)
    segment_bytes = _check(backup, settings)
    repository.check_there(backup)
    founding = founding_of(settings, segment_bytes)
    state = _state(repository, backup, founding)
    own = [shard for shard in backup.shards if settings.node in state.shards[shard.shard].replicas]
    size_bytes = sum(file.size_bytes for shard in own for file in shard.files)
    with new_directories(config.disks) as building:
        places = building.place(own, first_on_first=False)
        advance = begin(size_bytes)
        for shard in own:
            path = places[shard.shard]
            place_shard(repository, shard, path, advance)
            incarnation = state.shards[shard.shard].listed(settings.node)
            assert incarnation is not None, "replicas are in sync when a cluster begins"
            save_record(OsDisk(), path, ReplicaRecord(incarnation, floor_lsn=shard.lsn))
        if settings.is_voter:
            write_restored(building.building[0] / "raft", state)
        grown = None if backup.grown_from is None else len(backup.shards)
        building.finish(NodeFile(settings.shards, settings.name, settings.node, grown=grown))
    numbers = tuple(shard.shard for shard in own)
    return RestoredNode(backup, settings.node, config.data_text, settings.is_voter, numbers, state)


def _settings(config: NodeConfig) -> ClusterConfig:
    settings = config.cluster
    if settings is None:
        raise InvalidRequest(
            "the configuration is of a node of its own: it has no table [cluster]. Give that of a node of the new "
            "cluster (--config, or LSMQ_CLUSTER_... in the environment), or leave out --cluster"
        )
    if config.processes != 1:
        raise InvalidRequest(
            f"processes is {config.processes}, and what is restored is a node of one process; found the cluster with "
            "processes = 1, or send topics to it by `lsmq backup extract`",
            setting="processes",
        )
    if settings.node not in {**settings.voters, **settings.founders}:
        raise InvalidRequest(
            f"node {settings.node!r} is none that the cluster is founded with ({', '.join(sorted(settings.holders))}): "
            "it joins with an empty directory, and is given replicas by the others",
            setting="cluster.node",
        )
    return settings


def _check(backup: BackupManifest, settings: ClusterConfig) -> int:
    """Where the segments of its logs end, which is the same for all."""
    if settings.shards != backup.home_shards:
        raise InvalidRequest(
            f"what the backup {backup.id} is of was made with {backup.home_shards} shards, and cluster.shards is "
            f"{settings.shards}: where a queue lies follows from it. Set cluster.shards to {backup.home_shards}; "
            "`lsmq shard grow` adds more once it runs. To a cluster with fewer, send topics by `lsmq backup extract`",
            setting="cluster.shards",
        )
    sizes = {shard.decoded(f"shard {shard.shard}").manifest.segment_bytes for shard in backup.shards}
    if len(sizes) > 1:
        raise InvalidRequest(
            f"the shards of the backup {backup.id} have logs of different segment_bytes ({sorted(sizes)}), and a "
            "cluster has one: send its topics to the cluster by `lsmq backup extract`"
        )
    return sizes.pop()


def _identity(backup: BackupManifest, founding: Mapping[str, Any]) -> bytes:
    """Of what is restored, and to what."""
    digest = hashlib.blake2b(backup.encode(), digest_size=16)
    digest.update(json.dumps(founding, sort_keys=True).encode())
    return digest.digest()


def _state(repository: Repository, backup: BackupManifest, founding: Mapping[str, Any]) -> ClusterState:
    """Its shards are led in epochs above those that were begun after the backup was made: a client that has heard of
    these and lives on takes nobody's word of a lower one.
    """
    identity = _identity(backup, founding)
    shards = {
        shard.shard: RestoredShard(
            _EPOCHS_LEFT_OUT + max((start.epoch for start in shard.decoded(f"shard {shard.shard}").epochs), default=0),
            {node: _incarnation(identity, shard.shard, node) for node in founding["nodes"]},
        )
        for shard in backup.shards
    }
    topics = [
        TopicRecord(
            topic.id,
            topic.name,
            topic.queues,
            MappingProxyType(topic.options.to_dict()),
            topic.created_ms,
            tuple(queue_ranges(topic, backup.home_shards)),
        )
        for topic in backup.topics
    ]
    try:
        return restored_state(founding, shards, topics, next_topic_id(repository, backup), identity)
    except ValueError as error:
        raise InvalidRequest(f"no cluster can be founded so: {error}") from error


def _incarnation(identity: bytes, shard: int, node: str) -> int:
    digest = hashlib.blake2b(identity + f"{shard}/{node}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) & (1 << _INCARNATION_BITS) - 1) + 1

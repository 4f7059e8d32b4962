"""What the cluster agrees on: nodes, shards with leaders and in-sync sets, topics. Immutable values.

A :class:`ClusterState` is only ever changed by :func:`lsmq_coordinator.commands.apply`, which gives a new one;
the old one stays valid for whoever holds it. Equal commands in equal order give equal bytes
(:meth:`ClusterState.encode`) on every node.

Invariants, kept by the commands and checked by :meth:`ClusterState.check`:

- a shard's epoch only grows; a shard has at most one leader, which is in its in-sync set;
- the in-sync set is never empty and holds replicas only, each once; ``adding`` holds replicas that are not in sync;
- a ``target`` names known nodes, each once, and is not what the shard already has;
- a topic's ranges cover its queues exactly once, in order; a topic id is given once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack

from .lives import InSyncMember, LifeId, RegisteredStart
from .pieces import NamedPieces, Pieces
from .raft_membership import Electorate

#: With those that were removed, of which one is forgotten where there is no room for another one.
MAX_NODES = 1_000
MAX_SHARDS = 1_024
MAX_REPLICAS = 7
MAX_SEGMENT_BYTES = 1 << 30
MAX_TOPICS = 100_000
#: The form in which :meth:`ClusterState.encode_changes` writes. Whoever asks for changes says which one it reads.
CHANGES = 2
MAX_QUEUES = 16_000_000
MAX_RANGES = 16_384
MAX_NAME_BYTES = 255
MAX_URL_BYTES = 1_024
MAX_LABEL_BYTES = 255
MAX_OPTIONS_BYTES = 16_384
REMEMBERED_RESULTS = 1_000
MAX_RIGHT_KEY_BYTES = 512
MAX_RIGHT_BYTES = 64 * 1024
#: Keys and values together: every node is sent all of it with each new state.
MAX_RIGHTS_BYTES = 1024 * 1024
#: Of a shard that was revived more often the latest times are remembered.
MAX_REVIVALS = 8


_FORMAT = 4
#: Until shards come that the cluster was not founded with, which earlier releases know nothing of.
_FORMAT_AS_FOUNDED = 3


class NodeState(StrEnum):
    """Where a node stands. Names reach disk and wire: never renamed."""

    ACTIVE = "active"
    DRAINING = "draining"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A process that may hold replicas. ``url`` is for clients, ``internal_url`` for other nodes.

    ``life`` is the start of the process that registered last, empty before the first: it alone may hold a lease.
    ``host`` and ``rack`` are labels, empty where there are none: see :mod:`~.placement`.
    """

    id: str
    url: str
    internal_url: str
    voter: bool
    state: NodeState = NodeState.ACTIVE
    life: str = ""
    host: str = ""
    rack: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Labels stand there where there are any: without, the bytes are those of releases that know of none."""
        labels = {name: label for name, label in (("host", self.host), ("rack", self.rack)) if label}
        return {
            "url": self.url,
            "internal_url": self.internal_url,
            "voter": self.voter,
            "state": self.state.value,
            "life": self.life,
            **labels,
        }

    @classmethod
    def from_dict(cls, id: str, fields: Mapping[str, Any]) -> NodeRecord:
        state = NodeState(fields["state"])
        labels = fields.get("host", ""), fields.get("rack", "")
        return cls(id, fields["url"], fields["internal_url"], fields["voter"], state, fields["life"], *labels)


class Revival(NamedTuple):
    """A leader that an operator chose although acknowledged messages may be lost: in which epoch, which replica, up to
    where members of the in-sync set were known to have held the log, and when."""

    epoch: int
    node: str
    incarnation: int
    known_lsn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's replica set. ``version`` grows with each change of it, ``epoch`` with each election.

    ``leading`` is the life of the leader that was elected: after a restart it is another leader. ``distrusted`` are
    replicas whose disks went back; their promises count nothing until the in-sync set has taken them in, or the control
    plane is known to have forgotten nothing.

    ``target``: the replicas it should have, the first the preferred leader; empty when it has what it should have.
    ``pinned``: people said where; the cluster moves it only away from nodes that are gone or draining.
    """

    id: int
    replicas: tuple[str, ...]
    leader: str | None
    epoch: int
    in_sync: tuple[InSyncMember, ...]
    version: int
    adding: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    leading: LifeId | None = None
    starts: tuple[RegisteredStart, ...] = ()
    distrusted: tuple[str, ...] = ()
    revivals: tuple[Revival, ...] = ()
    pinned: bool = False

    @property
    def in_sync_nodes(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.in_sync)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The replicas it should have; the first is the preferred leader."""
        return self.target or self.replicas

    def listed(self, node: str) -> int | None:
        """The incarnation under which the in-sync set lists a node; None when it does not."""
        return next((member.incarnation for member in self.in_sync if member.node == node), None)

    def start_of(self, node: str) -> RegisteredStart | None:
        """The latest start of the node's disk that was registered."""
        return next((start for start in self.starts if start.node == node), None)

    @property
    def revived_epoch(self) -> int:
        """The latest epoch that began without regard to what may be lost; 0 when there was none."""
        return self.revivals[-1].epoch if self.revivals else 0

    def is_revived_from(self, node: str) -> bool:
        """Whether what the node's disk has was gone on with last, and nobody was elected since."""
        start, last = self.start_of(node), self.revivals[-1] if self.revivals else None
        if start is None or last is None or last.epoch != self.epoch:
            return False
        return (last.node, last.incarnation) == (node, start.incarnation)

    def to_dict(self) -> dict[str, Any]:
        return {
            "replicas": list(self.replicas),
            "leader": self.leader,
            "epoch": self.epoch,
            "in_sync": [list(member) for member in self.in_sync],
            "version": self.version,
            "adding": list(self.adding),
            "target": list(self.target),
            "leading": None if self.leading is None else list(self.leading),
            "starts": [list(start) for start in self.starts],
            "distrusted": list(self.distrusted),
            "revivals": [list(revival) for revival in self.revivals],
            **({"pinned": True} if self.pinned else {}),
        }

    @classmethod
    def from_dict(cls, id: int, fields: Mapping[str, Any]) -> Shard:
        return cls(
            id,
            tuple(fields["replicas"]),
            fields["leader"],
            fields["epoch"],
            tuple(InSyncMember(*member) for member in fields["in_sync"]),
            fields["version"],
            tuple(fields["adding"]),
            tuple(fields["target"]),
            None if fields["leading"] is None else LifeId(*fields["leading"]),
            tuple(RegisteredStart(*start) for start in fields["starts"]),
            tuple(fields["distrusted"]),
            tuple(Revival(*revival) for revival in fields["revivals"]),
            fields.get("pinned", False),
        )


class QueueRange(NamedTuple):
    """The queues ``[first, end)`` of a topic, and the shard that holds them."""

    first: int
    end: int
    shard: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic and where its queues lie. A queue never changes its shard: growing adds ranges at the end."""

    id: int
    name: str
    queues: int
    options: Mapping[str, Any]
    created_ms: int
    ranges: tuple[QueueRange, ...]

    @property
    def named(self) -> bool:
        """Whether queues have names; then ``queues`` and ``ranges`` are of the slots that names lie in."""
        return bool(self.options.get("named"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "queues": self.queues,
            "options": dict(self.options),
            "created_ms": self.created_ms,
            "ranges": [[run.first, run.end, run.shard] for run in self.ranges],
        }

    @classmethod
    def from_dict(cls, name: str, fields: Mapping[str, Any]) -> TopicRecord:
        return cls(
            fields["id"],
            name,
            fields["queues"],
            MappingProxyType(dict(fields["options"])),
            fields["created_ms"],
            tuple(QueueRange(*run) for run in fields["ranges"]),
        )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a cluster was founded with. Groups are coordinated in these ``shards``; there may be more by now.

    ``segment_bytes`` says where the segments of every shard's log end. Replicas hold the same bytes at the same places,
    so it is one for all of them, also for those that are made later.
    """

    cluster: str = ""
    shards: int = 0
    replicas: int = 0
    min_in_sync: int = 0
    segment_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "shards": self.shards,
            "replicas": self.replicas,
            "min_in_sync": self.min_in_sync,
            "segment_bytes": self.segment_bytes,
        }


def _nothing() -> MappingProxyType[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that the cluster agrees on. ``version`` grows by one with each change; 0 is before the bootstrap."""

    version: int = 0
    settings: ClusterSettings = ClusterSettings()
    nodes: MappingProxyType[str, NodeRecord] = field(default_factory=_nothing)
    shards: Mapping[int, Shard] = field(default_factory=Pieces)
    topics: NamedPieces[TopicRecord] = field(default_factory=NamedPieces)
    next_topic_id: int = 1
    #: The version with which ``topics`` changed last: who knows the topics of that version knows these.
    topics_version: int = 0
    #: Who may do what, as documents that the nodes understand. They are encoded where there are any.
    rights: MappingProxyType[str, bytes] = field(default_factory=_nothing)
    #: The version with which ``rights`` changed last.
    rights_version: int = 0
    #: No replica is added anywhere until this ends: see :mod:`~.reassignment`.
    moves_paused: bool = False
    #: Who votes, once that was changed; None: as the configuration says. Encoded where there is one.
    membership: Electorate | None = None
    #: What the cluster was restored from, and to (:mod:`~.restored`); empty where it was founded. Never changes.
    mark: str = ""
    #: Results of the latest commands by request id, oldest first: a repeated command gets its first answer.
    results: MappingProxyType[str, Mapping[str, Any]] = field(default_factory=_nothing)

    @property
    def bootstrapped(self) -> bool:
        return self.version > 0

    @property
    def has_grown(self) -> bool:
        """Whether there are shards that it was not founded with."""
        return len(self.shards) > self.settings.shards

    def active_nodes(self) -> list[str]:
        """Ids of the nodes that may be given replicas, sorted."""
        return sorted(node.id for node in self.nodes.values() if node.state is NodeState.ACTIVE)

    def replicas_on(self, node: str) -> list[Shard]:
        """The shards that have a replica on the node, in order."""
        return [self.shards[id] for id in sorted(self.shards) if node in self.shards[id].replicas]

    def encode(self, *, topics: bool = True) -> bytes:
        """The state as bytes, the same for equal states: maps are sorted, results in order of arrival.

        Topics are most of it and change least: without them, :meth:`decode` must be given them.
        """
        content = {
            "format": _FORMAT if self.has_grown else _FORMAT_AS_FOUNDED,
            "version": self.version,
            "settings": self.settings.to_dict(),
            "nodes": {id: self.nodes[id].to_dict() for id in sorted(self.nodes)},
            "shards": {id: self.shards[id].to_dict() for id in sorted(self.shards)},
            "topics": {name: self.topics[name].to_dict() for name in sorted(self.topics)} if topics else None,
            "next_topic_id": self.next_topic_id,
            "topics_version": self.topics_version,
            "results": [[id, dict(result)] for id, result in self.results.items()],
        }
        if self.rights_version:
            content["rights"] = [self.rights_version, {key: self.rights[key] for key in sorted(self.rights)}]
        if self.moves_paused:
            content["moves_paused"] = True
        if self.membership is not None:
            content["membership"] = self.membership.to_dict()
        if self.mark:
            content["mark"] = self.mark
        packed: bytes = msgpack.packb(content)
        return packed

    @classmethod
    def decode(cls, packed: bytes, topics: NamedPieces[TopicRecord] | None = None) -> ClusterState:
        """The inverse of :meth:`encode`. Raises ``ValueError`` for another format, or when topics are missing."""
        content = msgpack.unpackb(packed, strict_map_key=False)
        if content["format"] not in (_FORMAT_AS_FOUNDED, _FORMAT):
            raise ValueError(
                f"the cluster state has format {content['format']}; this release reads {_FORMAT_AS_FOUNDED}, {_FORMAT}"
            )
        if content["topics"] is not None:
            topics = _topics(content["topics"])
        elif topics is None:
            raise ValueError("the cluster state came without its topics")
        rights_version, rights = content.get("rights", (0, {}))
        membership = content.get("membership")
        return cls(
            content["version"],
            ClusterSettings(**content["settings"]),
            MappingProxyType({id: NodeRecord.from_dict(id, fields) for id, fields in content["nodes"].items()}),
            Pieces({id: Shard.from_dict(id, fields) for id, fields in content["shards"].items()}),
            topics,
            content["next_topic_id"],
            content["topics_version"],
            MappingProxyType(rights),
            rights_version,
            content.get("moves_paused", False),
            None if membership is None else Electorate.from_dict(membership),
            content.get("mark", ""),
            MappingProxyType(dict(content["results"])),
        )

    def encode_changes(self, former: ClusterState) -> bytes:
        """What became of ``former``, an earlier state of the same cluster, without results: what :meth:`changed` takes.

        What is the same is left out, so that a change of one node, shard or topic costs the same however many there
        are.
        """
        nodes = {id: node for id, node in self.nodes.items() if former.nodes.get(id) != node}
        shards = Pieces.of(self.shards).changed_since(Pieces.of(former.shards))
        some = replace(self.without_results(), nodes=MappingProxyType(nodes), shards=shards)
        altered = {name: topic.to_dict() for name, topic in self.topics.changed_since(former.topics).items()}
        gone = list(self.topics.gone_since(former.topics)), sorted(former.nodes.keys() - self.nodes.keys())
        packed: bytes = msgpack.packb([former.version, some.encode(topics=False), altered, *gone])
        return packed

    def changed(self, packed: bytes) -> ClusterState:
        """The state that this one became. Raises ``ValueError`` for changes of another one."""
        since, content, altered, gone, forgotten = msgpack.unpackb(packed)
        if since != self.version:
            raise ValueError(f"changes of state {since} came for state {self.version}")
        topics = self.topics.changed(_topics(altered), gone) if altered or gone else self.topics
        some = ClusterState.decode(content, topics)
        nodes = {id: node for id, node in (self.nodes | some.nodes).items() if id not in forgotten}
        return replace(some, nodes=MappingProxyType(nodes), shards=Pieces.of(self.shards).changed(some.shards))

    def without_results(self) -> ClusterState:
        """The same state without the answers to past commands, which only voters need."""
        return replace(self, results=_nothing())

    def check(self) -> None:
        """Raises ``AssertionError`` naming the invariant that does not hold."""
        problems = [*self._shard_problems(), *self._topic_problems()]
        assert not problems, "; ".join(problems)

    def _shard_problems(self) -> Iterator[str]:
        for shard in self.shards.values():
            replicas, in_sync = set(shard.replicas), set(shard.in_sync_nodes)
            if len(replicas) != len(shard.replicas) or not replicas:
                yield f"shard {shard.id} has replicas {shard.replicas}"
            if not replicas <= set(self.nodes):
                yield f"shard {shard.id} has a replica on an unknown node: {shard.replicas}"
            if not in_sync or not in_sync <= replicas or len(in_sync) != len(shard.in_sync):
                yield f"shard {shard.id} has in-sync set {shard.in_sync} of replicas {shard.replicas}"
            if shard.leader is not None and shard.leader not in in_sync:
                yield f"shard {shard.id} has leader {shard.leader} outside its in-sync set {shard.in_sync}"
            if not set(shard.adding) <= replicas - in_sync:
                yield f"shard {shard.id} adds {shard.adding}, which are no replicas or in sync"
            nodes = [start.node for start in shard.starts]
            if nodes != sorted(set(nodes)) or not set(nodes) <= replicas:
                yield f"shard {shard.id} has starts of {nodes}, replicas being {shard.replicas}"
            if len(set(shard.distrusted)) != len(shard.distrusted) or not set(shard.distrusted) <= replicas:
                yield f"shard {shard.id} distrusts {shard.distrusted}, replicas being {shard.replicas}"
            target = set(shard.target)
            if len(target) != len(shard.target) or not target <= set(self.nodes):
                yield f"shard {shard.id} has target {shard.target}"
            if shard.target == shard.replicas and not shard.adding:
                yield f"shard {shard.id} has the target {shard.target} and all of it"
            if shard.epoch < 1 or shard.version < 1:
                yield f"shard {shard.id} has epoch {shard.epoch} and version {shard.version}"

    def _topic_problems(self) -> Iterator[str]:
        ids = [topic.id for topic in self.topics.values()]
        if len(set(ids)) != len(ids) or any(id >= self.next_topic_id for id in ids):
            yield f"topic ids {sorted(ids)}, the next being {self.next_topic_id}"
        for topic in self.topics.values():
            ends = [0, *(run.end for run in topic.ranges)]
            if [run.first for run in topic.ranges] != ends[:-1] or ends[-1] != topic.queues:
                yield f"topic {topic.name} has {topic.queues} queues in ranges {topic.ranges}"
            if any(first >= end for first, end in pairwise(ends)):
                yield f"topic {topic.name} has an empty range"
            if any(run.shard not in self.shards for run in topic.ranges):
                yield f"topic {topic.name} lies on an unknown shard"


EMPTY = ClusterState()


def _topics(entries: Mapping[str, Any]) -> NamedPieces[TopicRecord]:
    return NamedPieces({name: TopicRecord.from_dict(name, entry) for name, entry in entries.items()})


def spread_queues(first: int, end: int, shards: int) -> tuple[QueueRange, ...]:
    """Cut the queues ``[first, end)`` into one run a shard, as even as it goes; no run is empty."""
    count = end - first
    cuts = [first + shard * count // shards for shard in range(shards + 1)]
    return tuple(QueueRange(low, high, shard) for shard, (low, high) in enumerate(pairwise(cuts)) if low < high)


def grown_ranges(ranges: tuple[QueueRange, ...], queues: int, shards: int) -> tuple[QueueRange, ...]:
    """``ranges`` with more queues at the end; what lies on one shard side by side becomes one range."""
    return _merged((*ranges, *spread_queues(ranges[-1].end if ranges else 0, queues, shards)))


def leveled_ranges(ranges: tuple[QueueRange, ...], shards: int) -> tuple[QueueRange, ...]:
    """``ranges`` with more queues at the end, for shards that hold fewer than those do, on average, that hold any."""
    held = dict.fromkeys(range(shards), 0)
    for run in ranges:
        held[run.shard] += run.end - run.first
    end = ranges[-1].end
    wanted = end // sum(count > 0 for count in held.values())
    added = []
    for shard, count in held.items():
        if count < wanted:
            added.append(QueueRange(end, end + wanted - count, shard))
            end = added[-1].end
    return _merged((*ranges, *added))


def _merged(runs: tuple[QueueRange, ...]) -> tuple[QueueRange, ...]:
    merged: list[QueueRange] = []
    for run in runs:
        if merged and merged[-1].shard == run.shard:
            merged[-1] = QueueRange(merged[-1].first, run.end, run.shard)
        else:
            merged.append(run)
    return tuple(merged)

"""A cluster that begins with what a backup holds: the state that its voters begin with, in place of a founding.

Each voter writes the state into its own journal, as the snapshot of the first entry. So nothing has to be agreed on at
the first start, and a voter that begins with nothing is brought up to date by the others. The term of that snapshot is
made of what was restored: voters that were restored from something else, or founded a cluster of their own meanwhile,
are found out by it (:class:`~.raft_following.Diverged`), and stop, where one would take the other's state for its own.
The state says the same as its mark, for one that is sent as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .commands import apply
from .growth import GROW_SHARDS, growth_plan
from .journal import OS_DISK, Journal, JournalDisk, JournalFailed
from .lives import InSyncMember
from .pieces import NamedPieces, Pieces
from .raft_outbox import SaveSnapshot
from .raft_terms import HardState, Snapshot
from .state import EMPTY, ClusterState, TopicRecord

_INDEX = 1
#: Terms of elections count up from 1 and never come here; what is restored has a term from here on.
_FIRST_TERM = 1 << 31
_MARK_BYTES = 4


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """``epoch``: of the first leader, above all that the log has seen. ``incarnations``: of replicas, by node."""

    epoch: int
    incarnations: Mapping[str, int]


def restored_state(
    founding: Mapping[str, Any],
    shards: Mapping[int, RestoredShard],
    topics: Iterable[TopicRecord],
    next_topic_id: int,
    identity: bytes,
) -> ClusterState:
    """The state of a cluster founded by the ``bootstrap`` command ``founding``, whose replicas hold ``shards`` already.

    There may be more shards than it is founded with: these came later, where the backup is of.

    ``identity``: a digest of what is restored, and to what. The same from the same, on all nodes. Raises ``ValueError``
    for a founding that cannot be.
    """
    founded, result = apply(EMPTY, {**founding, "request_id": "restored"})
    if not result["ok"]:
        raise ValueError(result["message"])
    there = len(founded.shards)
    if len(shards) > there:
        planned = growth_plan(founded, len(shards), founded.nodes.keys())
        command = {"op": GROW_SHARDS, "expected_shards": there, "replicas": planned, "request_id": "grown"}
        founded, result = apply(founded, command)
        assert result["ok"], result["message"]
    holding = {}
    for id, shard in founded.shards.items():
        restored = shards[id]
        in_sync = tuple(InSyncMember(node, restored.incarnations[node]) for node in shard.replicas)
        holding[id] = replace(shard, epoch=restored.epoch, in_sync=in_sync)
    state = replace(
        founded.without_results(),
        shards=Pieces(holding),
        topics=NamedPieces({topic.name: topic for topic in topics}),
        topics_version=founded.version,
        next_topic_id=next_topic_id,
        mark=identity[:_MARK_BYTES].hex(),
    )
    state.check()
    return state


def write_restored(directory: Path, state: ClusterState, disk: JournalDisk = OS_DISK) -> None:
    """Make the journal of a voter in ``directory``, which is new. Durable on return, but for the directory's name.

    Raises ``OSError``, and what opening a :class:`~.journal.Journal` raises.
    """
    term = _FIRST_TERM | int(state.mark, 16) % _FIRST_TERM
    journal = Journal(directory, disk)
    try:
        journal.take_loaded()
        journal.write([SaveSnapshot(Snapshot(_INDEX, term, state.encode), HardState(term), ())], _INDEX)
        journal.rest()
    except JournalFailed as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
    finally:
        journal.close()

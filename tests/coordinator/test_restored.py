"""What a cluster that was restored begins with: the same on all voters, and in their journals."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.commands import apply
from lsmq_coordinator.founding import founding_command
from lsmq_coordinator.journal import Journal
from lsmq_coordinator.lives import InSyncMember
from lsmq_coordinator.raft_control import RaftConfig, RaftControl, _Crossing
from lsmq_coordinator.raft_following import Diverged
from lsmq_coordinator.restored import RestoredShard, restored_state, write_restored
from lsmq_coordinator.state import EMPTY, ClusterState, QueueRange, TopicRecord

NODES = {id: {"url": f"http://{id}", "internal_url": f"http://{id}:1"} for id in ("n1", "n2", "n3")}
INCARNATIONS = {"n1": 11, "n2": 12, "n3": 13}


def restored(**changes: Any) -> ClusterState:
    founding = founding_command("c", 2, changes.pop("replicas", 2), 1, 1 << 20, NODES)
    topic = TopicRecord(7, "t", 4, MappingProxyType({"revision": 3}), 1, (QueueRange(0, 2, 0), QueueRange(2, 4, 1)))
    shards = {number: RestoredShard(5 + number, INCARNATIONS) for number in range(2)}
    identity = changes.pop("identity", b"abcdefgh")
    return restored_state(founding, shards, [topic], changes.pop("next_topic_id", 12), identity)


def test_all_replicas_are_in_sync_as_what_they_are_above_all_epochs_there_were() -> None:
    state = restored()
    assert state.bootstrapped and state.next_topic_id == 12 and state.topics["t"].id == 7
    for number, shard in state.shards.items():
        assert shard.epoch == 5 + number and shard.leader == shard.replicas[0] and shard.leading is None
        assert shard.in_sync == tuple(InSyncMember(node, INCARNATIONS[node]) for node in shard.replicas)
    assert not state.results and restored().encode() == state.encode()


def test_what_cannot_be_founded_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas"):
        restored(replicas=4)
    with pytest.raises(AssertionError, match="the next being 7"):
        restored(next_topic_id=7)


def test_a_voter_begins_with_it_in_a_term_that_says_what_it_is_of(tmp_path: Path) -> None:
    found = []
    for place, identity in enumerate((b"abcd1", b"abcd2", b"abce", b"\xff" * 8)):
        state = restored(identity=identity)
        write_restored(tmp_path / str(place), state)
        journal = Journal(tmp_path / str(place))
        loaded = journal.take_loaded()
        journal.close()
        assert loaded.snapshot is not None and ClusterState.decode(loaded.snapshot) == state
        assert (loaded.snapshot_index, loaded.commit, loaded.entries) == (1, 1, ())
        assert loaded.snapshot_term == loaded.state.term and not loaded.state.whole
        found.append(loaded)
    terms = [loaded.snapshot_term for loaded in found]
    assert terms[0] == terms[1] != terms[2] and all(1 << 31 <= term < 1 << 32 for term in terms)


@pytest.mark.parametrize("own", ["restored", "founded"])
def test_no_state_of_another_cluster_is_taken_over_as_a_whole(tmp_path: Path, own: str) -> None:
    restored_one, other = restored(), restored(identity=b"else")
    founding = founding_command("c", 2, 2, 1, 1 << 20, NODES)
    founded, _ = apply(EMPTY, {**founding, "request_id": "1"})
    secret = ClusterSecret.create(tmp_path / "secret")
    crossing = _Crossing(RaftControl(RaftConfig("n1", {"n1": "127.0.0.1:1"}, tmp_path, secret)))
    crossing.restore((restored_one if own == "restored" else founded).encode())
    crossing.restore((restored_one if own == "restored" else founded).encode())
    for state in (other, founded if own == "restored" else restored_one):
        with pytest.raises(Diverged, match="different clusters"):
            crossing.restore(state.encode())


class FullDisk:
    """Has room for an empty journal."""

    syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.syncs > 5:  # Each file that takes the place of another one, its directory, and that of its directory.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as failed:
        write_restored(tmp_path / "raft", restored(), FullDisk())
    assert failed.value.errno == errno.ENOSPC

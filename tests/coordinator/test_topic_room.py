"""Topics take no more of the agreed state than nodes can be told and voters can keep."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from lsmq.errors import TooManyTopics
from lsmq_coordinator import topic_room
from lsmq_coordinator.control_http import MAX_ANSWER_BYTES
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.raft_terms import MAX_SNAPSHOT_BYTES
from lsmq_coordinator.state import MAX_QUEUES, MAX_RIGHTS_BYTES, ClusterState

from .test_overseer import FakeRaft
from .test_state import founded, run

LIMIT = 20_000


def submit(raft: FakeRaft, **command: Any) -> dict[str, Any]:
    """Raises ``TooManyTopics``."""
    raft.state, result = run(raft.state, **raft.testify(command))
    return result


def packed_bytes(state: ClusterState) -> int:
    return len(msgpack.packb({name: topic.to_dict() for name, topic in state.topics.items()}))


def create(number: int, queues: int = MAX_QUEUES) -> dict[str, Any]:
    return {"op": "create_topic", "name": f"topic-{number}", "queues": queues, "created_ms": 1 << 61}


def test_what_makes_topics_take_more_is_refused_before_nobody_could_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_room, "MAX_TOPICS_BYTES", LIMIT)
    raft = FakeRaft(founded(shards=100))
    Overseer(raft)  # type: ignore[arg-type]
    made = 0
    with pytest.raises(TooManyTopics, match=r"of 20000; delete some"):
        while packed_bytes(raft.state) <= LIMIT:
            assert submit(raft, **create(made))["created"]
            made += 1
    assert 0.8 * LIMIT < packed_bytes(raft.state) <= LIMIT
    assert not submit(raft, **create(0))["created"], "who asks for one that there is gets it"
    assert submit(raft, **create(made, queues=1))["ok"], "a small one has room"
    with pytest.raises(TooManyTopics):
        for queues in range(1, 1_000, 200):
            submit(raft, op="grow_topic", name=f"topic-{made}", queues=queues + 200, expected_queues=queues)
    options = {"x": "y" * 10_000}
    with pytest.raises(TooManyTopics):
        submit(raft, op="alter_topic", name="topic-0", options=options, expected_revision=0)
    shard = raft.state.shards[0]
    assert submit(raft, op="elect", shard=0, candidate=shard.replicas[1], expected_epoch=shard.epoch)["ok"]
    assert submit(raft, op="delete_topic", name="topic-0")["ok"]
    assert submit(raft, **create(made + 1))["created"]


def test_topics_that_took_more_before_can_be_altered_to_less_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    raft = FakeRaft(founded())
    Overseer(raft)  # type: ignore[arg-type]
    assert submit(raft, **create(0), options={"x": "y" * 1_000})["ok"]
    monkeypatch.setattr(topic_room, "MAX_TOPICS_BYTES", 500)
    assert submit(raft, op="alter_topic", name="topic-0", options={}, expected_revision=0)["ok"]
    assert submit(raft, op="delete_topic", name="topic-0")["ok"]


def test_there_is_room_for_the_rest_in_an_answer_and_in_a_snapshot() -> None:
    assert topic_room.MAX_TOPICS_BYTES + MAX_RIGHTS_BYTES + (8 << 20) < MAX_ANSWER_BYTES < MAX_SNAPSHOT_BYTES

"""Topics of the control plane as a member follows them: told when they go, looked through only where some changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.pieces import NamedPieces
from lsmq_coordinator.state import ClusterState, QueueRange, TopicRecord
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.topics import ClusterTopics
from lsmq_node.storage.state import StoredTopic, TopicOptions

from .replica_group import QUEUES, group, run


def agreed(version: int, *topics: TopicRecord, next_id: int = 10) -> ClusterState:
    """A control state that has these topics since this version."""
    by_name = NamedPieces({topic.name: topic for topic in topics})
    return ClusterState(version=version, topics=by_name, next_topic_id=next_id, topics_version=version)


def record(id: int, name: str, **options: object) -> TopicRecord:
    return TopicRecord(id, name, QUEUES, MappingProxyType(options), 1, (QueueRange(0, QUEUES, 0),))


def test_whoever_is_told_of_a_state_is_told_which_topics_went_with_it() -> None:
    async def test() -> None:
        control = ControlClient("n", {"n": "http://127.0.0.1:1"}, ClusterSecret(b"a secret of sixteen bytes"))
        topics = ClusterTopics(control)
        told: list[set[int]] = []
        control.on_change(lambda state: told.append(topics.take_deleted()))
        one, two = record(1, "one"), record(2, "two")
        control._take(agreed(1, one, two))
        kept = topics.find("one")
        control._take(replace(agreed(1, one, two), version=2))
        control._take(agreed(3, one, record(3, "two")))
        assert topics.find("one") is kept, "it is made once"
        assert topics.queue_count() == 2 * QUEUES
        grown = replace(record(1, "one", retention_ms=5, revision=1), queues=QUEUES + 3)
        control._take(agreed(4, grown, record(4, "named", named=True)))
        assert topics.queue_count() == QUEUES + 3
        control._take(agreed(5, grown))
        assert told == [set(), set(), {2}, {3}, {4}]
        assert topics.queue_count() == QUEUES + 3
        found = topics.find("one")
        assert found is not None and found.options.retention_ms == 5

    run(test)


def test_a_leader_looks_through_its_topics_only_where_there_are_others_since(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            asked: list[str] = []
            known = [StoredTopic(1, "t", QUEUES, TopicOptions(), 1)]

            def find(name: str) -> StoredTopic | None:
                asked.append(name)
                return known[0] if name == "t" else None

            async def put(topic: StoredTopic) -> None:
                leader.check_writable(Ack.QUORUM)
                await leader.wait(leader.store.put_topic(topic, 0, QUEUES), Ack.QUORUM)

            async def looks(state: ClusterState) -> list[bool]:
                return [await leader.topics.follow(state, find) for _ in range(3)]

            there = record(1, "t")
            await put(known[0])
            state = agreed(1, there, record(2, "u"))
            assert await looks(state) == [True, False, False]
            assert await looks(replace(state, version=2)) == [False] * 3, "the state is another, its topics are not"
            await put(StoredTopic(2, "u", QUEUES, TopicOptions(), 1))
            assert await looks(state) == [True, False, False]
            assert await looks(agreed(3, there)) == [True, True, False], "once more behind its own entry"
            assert [topic.name for topic in leader.store.topics()] == ["t"]
            await put(StoredTopic(2, "u", QUEUES, TopicOptions(), 1))
            assert await looks(agreed(3, there)) == [True, True, False], "of a leader that knew less"
            assert [topic.name for topic in leader.store.topics()] == ["t"]
            assert asked == ["t", "u", "u", "u"], "only what may be another one is looked at"

    run(test)

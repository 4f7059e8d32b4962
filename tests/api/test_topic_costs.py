"""What it costs to make, change and delete a topic beside many others, and that what is cut short is completed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from lsmq.errors import DiskFull
from lsmq.queue_names import SLOTS
from lsmq_node.broker import Broker
from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.storage import ShardStore, StoredTopic, TopicOptions
from storage.harness import small
from support.counted_lines import counted_lines

from .in_process import Session, with_node

SHARDS = 3
MANY = 400


def catalog(path: Path, opened: ExitStack) -> tuple[NodeCatalog, dict[int, ShardStore]]:
    stores = {n: opened.enter_context(ShardStore.open(path / f"{n}", small())) for n in range(SHARDS)}
    return NodeCatalog(stores, SHARDS, SHARDS), stores


def names(store: ShardStore) -> set[str]:
    return {topic.name for topic in store.topics()}


def test_a_topic_costs_the_same_beside_many_others(tmp_path: Path) -> None:
    with ExitStack() as opened:
        topics, stores = catalog(tmp_path, opened)

        def cost() -> int:
            with counted_lines() as lines:
                topics.create("new", 6, TopicOptions())
                topics.alter("new", {"retention_ms": 5}, lambda topic, options: None)
                topics.grow("new", 9)
                topics.delete("new")
            return lines.count

        topics.create("first", 6, TopicOptions())
        few = cost()
        for store in stores.values():
            for number in range(MANY):
                store.put_topic(StoredTopic(100 + number, f"t{number}", 6), 0, 2)
            store.commit()
        topics.complete()
        assert cost() < few + MANY
        assert [len(names(store)) for store in stores.values()] == [MANY + 1] * SHARDS


def test_whether_there_may_be_another_topic_costs_the_same_beside_many_others(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        topics = broker.topology.topics

        def counted() -> int:
            return sum(topic.queues for topic in topics.all() if not topic.named)

        def cost() -> int:
            with counted_lines() as lines:
                broker.admission.create_topic(1, TopicOptions(), is_new=True)
            return lines.count

        few = cost()
        for number in range(20):
            await broker.create_topic(f"t{number}", 1 + number, TopicOptions())
        await broker.create_topic("named", SLOTS, TopicOptions(named=True))
        assert topics.queue_count() == counted() and cost() == few
        await broker.grow_topic("t3", 70)
        await broker.alter_topic("t4", {"retention_ms": 5})
        await broker.delete_topic("t5")
        assert topics.queue_count() == counted()

    with_node(tmp_path, test, shards=SHARDS)


def test_what_was_cut_short_in_one_shard_is_completed_with_the_next_change(tmp_path: Path) -> None:
    def full(*given: object, **named: object) -> None:
        raise DiskFull("no room")

    with ExitStack() as opened:
        topics, stores = catalog(tmp_path, opened)
        topics.create("kept", 6, TopicOptions())
        with patch.object(stores[2], "create_topic", full), pytest.raises(DiskFull):
            topics.create("half", 6, TopicOptions())
        assert names(stores[0]) == {"kept"}, "nobody sees what is not everywhere"
        with patch.object(stores[2], "grow_topic", full), pytest.raises(DiskFull):
            topics.grow("kept", 9)
        assert names(stores[1]) == {"kept"}, "what was cut short is taken back before the next change"
        assert [store.topic("kept").queues for store in stores.values()] == [6, 6, 6]
        half = topics.create("half", 6, TopicOptions())
        assert half.id == topics.topic("kept").id + 2, "no id is given twice"
        with patch.object(stores[1], "delete_topic", full), pytest.raises(DiskFull):
            topics.delete("half")
        assert [store.topic("kept").queues for store in stores.values()] == [9, 9, 9]
        topics.alter("kept", {"retention_ms": 5}, lambda topic, options: None)
        assert [names(store) for store in stores.values()] == [{"kept"}] * 3


def test_whose_turn_it_is_in_topics_that_others_deleted_is_not_kept_for_ever(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        topic, most = await broker.topic("t"), broker.config.max_topics
        turns = [broker.next_queue(replace(topic, id=id, name=f"t{id}")) for id in range(10, most + 60)]
        assert set(turns) == {0} and len(broker._next_queue) == most
        latest = replace(topic, id=most + 59)
        assert [broker.next_queue(latest) for _ in range(2)] == [1, 0], "t has two queues"

    with_node(tmp_path, test)

"""Changed options hold in every shard of a node, and after its restart, also where a crash came between two shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.broker.layout import open_shards, own_disks
from lsmq_node.broker.placement import queue_ranges, stored_range
from lsmq_node.config import NodeConfig
from lsmq_node.node import running_node
from lsmq_node.storage import ShardStore, StoredTopic, TopicOptions
from storage.harness import Put, batch_of


def config(path: Path) -> NodeConfig:
    return NodeConfig(data=path, shards=3)


@contextmanager
def opened(path: Path) -> Iterator[dict[int, ShardStore]]:
    """The shards of a node that does not run."""
    with own_disks(config(path)) as disks, ExitStack() as closing:
        stores = open_shards(config(path), disks).stores
        for store in stores.values():
            closing.callback(store.close)
        yield stores


def test_a_change_holds_in_all_shards_and_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(config(tmp_path)) as node:
            await node.broker.create_topic("t", 7, TopicOptions(retention_ms=5))
            await node.broker.alter_topic("t", {"retention_ms": None, "retention_bytes": 1_000})
            await node.broker.grow_topic("t", 9)
        async with running_node(config(tmp_path)) as node:
            found = await node.broker.topic("t")
            assert found.options == TopicOptions(retention_bytes=1_000, revision=1)
            for port in node.broker.topology.ports():
                assert port.store.topic("t").options == found.options

    asyncio.run(run())


def test_what_a_crash_left_undone_is_done_at_the_next_start(tmp_path: Path) -> None:
    with opened(tmp_path) as stores:
        NodeCatalog(stores, 3, 3).create("t", 7, TopicOptions())
        stores[0].alter_topic("t", TopicOptions(retention_ms=5, revision=1))

    def allow(topic: StoredTopic, options: TopicOptions) -> None:
        pass

    with opened(tmp_path) as stores:
        catalog = NodeCatalog(stores, 3, 3)
        catalog.complete()
        wanted = TopicOptions(retention_ms=5, revision=1)
        assert [store.topic("t").options for store in stores.values()] == [wanted] * 3
        assert catalog.alter("t", {"ack": "leader"}, allow).options == TopicOptions(
            retention_ms=5, ack="leader", revision=2
        )


def test_a_shard_that_has_heard_of_a_topic_and_of_the_one_made_anew_keeps_what_that_has(tmp_path: Path) -> None:
    """So it may be in a cluster's backup, where both came to its shard at the same time."""
    with opened(tmp_path) as stores:
        created = NodeCatalog(stores, 3, 3).create("t", 3, TopicOptions())
        store = stores[1]
        former = StoredTopic(created.id + 7, "t", 3, TopicOptions())
        anew = StoredTopic(created.id + 8, "t", 3, TopicOptions())
        first, end = stored_range(anew, 1, 3)
        store.put_topic(former, first, end)
        store.wait(store.put_topic(anew, first, end))
        store.wait(store.append(anew.id, batch_of([Put(first, b"0")])))
        stores[0].wait(stores[0].put_topic(anew, *stored_range(anew, 0, 3)))
        NodeCatalog(stores, 3, 3).complete()
        assert [topic.id for topic in store.topics()] == [anew.id] == [store.topic("t").id]
        assert store.latest_offsets(anew.id).tolist() == [1]


def test_a_topic_is_seen_once_it_is_in_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are made in a thread: who looks meanwhile may write to any of its queues at once."""
    lacking: list[int] = []
    create = ShardStore.create_topic

    def looked_at(store: ShardStore, name: str, *values: Any, **ids: Any) -> StoredTopic:
        for step in (lambda: None, lambda: create(store, name, *values, **ids)):
            made = step()
            if (topic := catalog.find(name)) is not None:
                lacking.extend(shard for shard, each in stores.items() if not each.has_topic(topic.id))
        assert made is not None
        return made

    with opened(tmp_path) as stores:
        catalog = NodeCatalog(stores, 3, 3)
        monkeypatch.setattr(ShardStore, "create_topic", looked_at)
        catalog.create("t", 7, TopicOptions())
        assert lacking == []


def test_a_topic_that_grows_lies_nowhere_that_it_does_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks between two steps of it finds the places of the queues that there are."""
    seen: list[StoredTopic] = []
    grow = ShardStore.grow_topic

    def looked_at(store: ShardStore, name: str, queues: int, end: int | None = None) -> StoredTopic:
        seen.append(catalog.topic(name))
        return grow(store, name, queues, end)

    with opened(tmp_path) as stores:
        catalog = NodeCatalog(stores, 3, 3)
        catalog.create("t", 7, TopicOptions())
        monkeypatch.setattr(ShardStore, "grow_topic", looked_at)
        catalog.grow("t", 12)
        seen.append(catalog.topic("t"))
        assert [topic.queues for topic in seen] == [7, 7, 7, 12]
        assert [queue_ranges(topic, 3)[-1].end for topic in seen] == [7, 7, 7, 12]

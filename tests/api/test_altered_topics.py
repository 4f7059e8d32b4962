"""Changed options hold in every shard of a node, and after its restart, also where a crash came between two shards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.broker.layout import open_shards
from lsmq_node.config import NodeConfig
from lsmq_node.node import running_node
from lsmq_node.storage import StoredTopic, TopicOptions


def config(path: Path) -> NodeConfig:
    return NodeConfig(data=path, shards=3)


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
    stores = open_shards(config(tmp_path))
    NodeCatalog(stores, len(stores)).create("t", 7, TopicOptions())
    stores[0].alter_topic("t", TopicOptions(retention_ms=5, revision=1))
    for store in stores:
        store.close()

    def allow(topic: StoredTopic, options: TopicOptions) -> None:
        pass

    stores = open_shards(config(tmp_path))
    catalog = NodeCatalog(stores, len(stores))
    catalog.complete()
    assert [store.topic("t").options for store in stores] == [TopicOptions(retention_ms=5, revision=1)] * 3
    assert catalog.alter("t", {"ack": "leader"}, allow).options == TopicOptions(
        retention_ms=5, ack="leader", revision=2
    )
    for store in stores:
        store.close()

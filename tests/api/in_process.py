"""A node in the test's own process, for tests that reach into its insides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer

from lsmq_coordinator.parts import Parts
from lsmq_node.api.app import NODE, make_app
from lsmq_node.broker import Broker, WaiterTable
from lsmq_node.broker.layout import OpenShards, own_disks
from lsmq_node.cluster.single import SingleNode
from lsmq_node.config import NodeConfig
from lsmq_node.node import Node
from lsmq_node.storage import ShardStore, StoreOptions
from lsmq_node.storage.disk import OsDisk

SMALL = StoreOptions(segment_bytes=1024 * 1024, memtable_bytes=4 * 1024 * 1024)
Session = TestClient[aiohttp.web.Request, aiohttp.web.Application]


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[Session]:
    """A client of the node, which runs and is stopped as the daemon does it."""
    async with node.running():
        server = TestServer(make_app(node))
        await server.start_server(auto_decompress=False)
        async with TestClient(server) as client:
            yield client
            await node.begin_stop()


def node_of(client: Session) -> Node:
    """The node that a client is connected to."""
    assert client.app is not None
    return client.app[NODE]


def with_node(
    tmp_path: Path,
    test: Callable[[Session, Broker], Awaitable[None]],
    disk: OsDisk | None = None,
    **settings: Any,
) -> None:
    """Run the test against a node of this process, whose insides can be reached."""

    async def run() -> None:
        config = NodeConfig(data=tmp_path, slow_write_delay_ms=1, **settings)
        with own_disks(config) as disks:
            numbers = range(config.shards)
            stores = {number: ShardStore.open(tmp_path / f"shard-{number}", SMALL, disk=disk) for number in numbers}
            shards = OpenShards(stores, {})
            waiters = WaiterTable(config.max_waiters)
            parts = Parts()
            broker = Broker(config, SingleNode(config, disks, shards, waiters.wake, parts), waiters, parts)
            async with serving(Node(broker)) as client:
                await client.put("/v1/topics/t", json={"queues": 2})
                await test(client, broker)
            await broker.close()

    asyncio.run(run())

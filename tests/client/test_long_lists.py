"""Lists of very many pages: each page has the time that a request has."""

from __future__ import annotations

import pytest

from lsmq import Client, _single_queues, runtime
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess


async def test_a_list_takes_as_long_as_its_pages_do(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pages = runtime.monotonic, 5
    monkeypatch.setattr(_single_queues, "_LISTED_A_REQUEST", 1)
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url, deadline_ms=30_000) as client:
        await client.create_topic(topic_name, queues="named")
        for number in range(pages):
            await client.declare_queue(topic_name, f"queue-{number}")
        proxy.delay("queues", 0, times=pages - 1)
        proxy.cut("queues")  # The last page has to be asked for once more.
        # As if each page so far had taken twenty seconds.
        monkeypatch.setattr(runtime, "monotonic", lambda: clock() + 20 * proxy.requests["queues"])
        assert len(await client.queues(topic_name)) == pages

"""Lists of very many pages: each page has the time that a request has."""

from __future__ import annotations

import pytest

from lsmq import Client, Schedules, _single_queues, runtime
from lsmq.schedules import list_schedules
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


async def test_schedules_of_all_topics_cost_no_request_for_each_topic(
    shared_node: NodeProcess, topic_name: str
) -> None:
    topics = [f"{topic_name}-{number}" for number in range(5)]
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        for name in topics:
            await client.create_topic(name)
        await Schedules(client, topics[2]).put("s", "@yearly", "x")
        before = proxy.requests["schedules"]
        listed, not_readable = await list_schedules(client)
        assert [each.message.topic for each in listed if each.message.topic in topics] == [topics[2]]
        assert not_readable == [] and proxy.requests["schedules"] == before + 1

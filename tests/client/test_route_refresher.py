"""Routes of topics are looked at again as time goes by, many topics in one request."""

from __future__ import annotations

from typing import Any

import pytest

from lsmq import Client, InvalidRequest
from lsmq._transport import Response
from support.node_process import NodeProcess
from support.waiting import comes_true


@pytest.mark.parametrize("older", [False, True])
async def test_routes_of_many_topics_are_looked_at_together(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """``older``: by a node that does not take names there, which is asked for one after the other."""
    names, asked = [f"{topic_name}-{number}" for number in range(60)], list[str]()
    async with Client(shared_node.url) as other, Client(shared_node.url, refresh_s=0.05) as client:
        for name in names:
            await other.create_topic(name, queues=1)
            await client.topic(name)
            client._router.follow(name)
        request = client._transport.request

        async def counted(method: str, url: str, **how: Any) -> Response:
            asked.append(url)
            if older and "names=" in url:
                raise InvalidRequest("there is no parameter names")
            return await request(method, url, **how)

        monkeypatch.setattr(client._transport, "request", counted)
        for name in names:
            await other.grow_topic(name, 2)
        table = client._router.table

        def all_grew() -> bool:
            found = map(table.topic, names)
            return all(topic is not None and topic.queues == 2 for topic in found)

        await comes_true(all_grew, "each topic has its new queue")
        assert any("names=" in url for url in asked)
        assert older == any(url.endswith(f"/{names[0]}") for url in asked)

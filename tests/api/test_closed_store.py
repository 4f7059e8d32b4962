"""A store that is closed while it is read: a replica that goes elsewhere, or takes over a snapshot."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from lsmq_node.broker import Broker

from .in_process import Session, with_node


def test_whoever_reads_of_it_is_told_to_come_again(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        store = broker.topology.port(0).store
        assert (await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}]})).ok
        await asyncio.to_thread(store.flush)
        read = store.read

        def overtaken(*place: int, **limits: Any) -> Any:
            store.close()
            shutil.rmtree(store.path)
            return read(*place, **limits)

        with mock.patch.object(store, "read", overtaken):
            answer = await client.get("/v1/topics/t/queues/0/messages?offset=0")
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "unavailable")

    with_node(tmp_path, test)

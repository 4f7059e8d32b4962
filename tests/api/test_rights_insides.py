"""Rights in a node of the test's own process: what is revoked while a request is on its way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aiohttp import WSMsgType

from lsmq_node.broker import Broker
from lsmq_node.config import Auth
from lsmq_node.push import HeldStream, PushService
from lsmq_node.rights import Binding
from lsmq_node.rights.model import ADMIN
from support.waiting import PATIENCE_S

from .in_process import Session, node_of, with_node


def test_a_stream_ends_whose_token_was_revoked_while_it_was_opened(tmp_path: Path) -> None:
    opens = PushService.open

    async def test(session: Session, broker: Broker) -> None:
        rights = node_of(session).rights
        _, secret = await rights.create_token("alice", None, [Binding(ADMIN)], "a test")
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await session.put("/v1/topics/t", json={"queues": 1}, headers=headers)).status == 201

        async def opens_late(self: PushService, *given: Any) -> HeldStream:
            stream = await opens(self, *given)
            await rights.revoke_tokens("alice", None)
            return stream

        with patch.object(PushService, "open", opens_late):
            async with session.ws_connect("/v1/groups/g/push?topic=t", headers=headers) as stream:
                async with asyncio.timeout(PATIENCE_S):
                    told = [json.loads(frame.data) async for frame in stream if frame.type is WSMsgType.TEXT]
        assert told[-1]["end"]["code"] == "unauthenticated", told

    with_node(tmp_path, test, auth=Auth.TOKEN)

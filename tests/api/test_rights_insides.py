"""Rights in a node of the test's own process: what is changed while a request, or another change, is on its way."""

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
from lsmq_node.workqueue import WorkService
from lsmq_node.workqueue.shard_work import WorkDelivery
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


def test_many_who_change_rights_at_once_wait_for_each_other(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        rights = node_of(session).rights
        names = [f"role-{number}" for number in range(64)]
        await asyncio.gather(*(rights.put_role(name, ()) for name in names))
        assert {*names} <= rights.book.own_roles.keys()

    with_node(tmp_path, test, auth=Auth.TOKEN)


def test_what_was_popped_by_whom_it_is_refused_to_meanwhile_comes_again_at_once(tmp_path: Path) -> None:
    pops = WorkService.pop

    async def test(session: Session, broker: Broker) -> None:
        rights = node_of(session).rights
        secrets = [(await rights.create_token(name, None, [Binding(ADMIN)], "a test"))[1] for name in ("alice", "bob")]
        alice, bob = ({"Authorization": f"Bearer {secret}"} for secret in secrets)
        assert (await session.put("/v1/topics/t", json={"queues": 1}, headers=bob)).status == 201
        document = {"messages": [{"queue": 0, "body": "x"}]}
        assert (await session.post("/v1/topics/t/messages", json=document, headers=bob)).status == 200

        async def pops_late(self: WorkService, *given: Any, **more: Any) -> list[WorkDelivery]:
            found = await pops(self, *given, **more)
            await rights.revoke_tokens("alice", None)
            return found

        with patch.object(WorkService, "pop", pops_late):
            assert (await session.post("/v1/groups/g/pop", json={"topic": "t"}, headers=alice)).status == 401
        answer = await session.post("/v1/groups/g/pop", json={"topic": "t"}, headers=bob)
        (message,) = (await answer.json())["messages"]
        assert (message["body"], message["deliveries"]) == ("x", 1)

    with_node(tmp_path, test, auth=Auth.TOKEN)

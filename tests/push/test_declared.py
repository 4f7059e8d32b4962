"""Held streams whose group is deleted under them: it is made again, or their name is another group's by then."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from api.in_process import Session, with_node
from lsmq_node.broker import Broker
from lsmq_node.groups import declared
from support.waiting import comes_true

from .streams import HeldStream


def test_the_group_of_a_held_stream_that_is_deleted_is_made_again_unless_another_one_took_its_name(
    tmp_path: Path,
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def is_push() -> bool:
            answer = await session.get("/v1/groups/g")
            return answer.status == 200 and (await answer.json())["mode"] == "push"

        async with session.ws_connect("/v1/groups/g/push", params={"topic": "t"}, protocols=("lsmq.json",)) as socket:
            stream = HeldStream(socket)
            await stream.owns([0, 2])
            assert (await session.delete("/v1/groups/g")).status == 204
            with patch.object(declared, "AGAIN_S", 0.0):
                await comes_true(is_push, "it is made again")
            assert (await session.delete("/v1/groups/g")).status == 204
            assert (await session.put("/v1/groups/g", json={"mode": "clustered"})).status == 200
            with patch.object(declared, "AGAIN_S", 0.0):
                assert (await stream.until("end"))["code"] == "group_mode_mismatch"

    with_node(tmp_path, test)

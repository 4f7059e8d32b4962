"""Messages of a key that rest, and are not there any more: the next of the key comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lsmq_node.broker import Broker
from lsmq_node.workqueue import departed
from support.waiting import comes_true

from .in_process import Session, with_node
from .test_work_queue_insides import pop, settle

HOUR_MS = 3_600_000


@pytest.mark.parametrize("how", ["deleted", "trimmed", "expired"])
def test_a_message_that_rests_and_goes_holds_its_key_no_longer(tmp_path: Path, how: str) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def send(body: str, key: str, **more: Any) -> None:
            message = {"queue": 0, "key": key, "body": body, **more}
            assert (await session.post("/v1/topics/t/messages", json={"messages": [message]})).status == 200

        settings = {"topic": "t", "order": "key"}
        assert (await session.put("/v1/groups/g/work-queue", json=settings)).status == 200
        for key in ("a", "b"):
            await send(f"{key}1", key, **({"ttl_ms": 3_000} if how == "expired" and key == "a" else {}))
        for key in ("a", "b"):
            await send(f"{key}2", key)
        first = await pop(session, max=10)
        assert [message["body"] for message in first] == ["a1", "b1"]
        assert await settle(session, "nack", first, delay_ms=HOUR_MS) == 200
        if how == "deleted":
            answer = await session.post("/v1/topics/t/delete", json={"queues": [0], "offsets": [0]})
            assert answer.status == 200, await answer.text()
        elif how == "trimmed":
            assert (await session.post("/v1/topics/t/trim", json={"queues": "0", "offset": 1})).status == 200
        came: list[str] = []

        async def comes() -> bool:
            came.extend(message["body"] for message in await pop(session, max=10))
            return bool(came)

        await comes_true(comes, "the next of the key comes")
        assert came == ["a2"], "the others rest"

    with patch.object(departed, "_EACH_S", 0.05):
        with_node(tmp_path, test)

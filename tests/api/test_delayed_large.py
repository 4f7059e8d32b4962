"""What is due and no store takes at once: much of one moment comes in pieces, and what is refused is told once."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from lsmq import runtime
from lsmq.errors import DiskFull
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import Broker
from lsmq_node.storage import HAND, Hand, ShardStore
from lsmq_node.storage.delayed import BEGIN
from support.waiting import comes_true

from .in_process import SMALL, Session, with_node

MESSAGES = 20
BODY_BYTES = 480 * 1024


async def check_come(client: Session, topic: str) -> None:
    found: list[str] = []
    while len(found) < MESSAGES:
        answer = await client.get(f"/v1/topics/{topic}/queues/0/messages?offset={len(found)}&wait_ms=5000")
        messages = (await answer.json())["messages"]
        assert messages, "what is due comes"
        found += [each["body"] for each in messages]
    assert [int(body.split()[0]) for body in found] == list(range(MESSAGES))


@pytest.mark.part(2)
def test_more_than_a_batch_may_have_is_due_at_one_moment_and_comes(tmp_path: Path) -> None:
    assert 2 * SMALL.memtable_bytes < MESSAGES * BODY_BYTES, "in several tables, and a memtable"

    async def check(client: Session, broker: Broker) -> None:
        due_ms = runtime.wall_ms() + 3000
        for number in range(MESSAGES):
            message = {"queue": 0, "body": f"{number} " + "x" * BODY_BYTES, "deliver_at_ms": due_ms}
            sent = await client.post("/v1/topics/t/messages", json={"messages": [message]})
            assert (await sent.json())["results"][0]["offset"] is None, "too slow"
        await check_come(client, "t")

    with_node(tmp_path, check)


def test_what_was_planned_and_no_store_takes_is_planned_anew(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "shard-0", SMALL)
    topic_id = store.create_topic("a", 1).id
    for number in range(MESSAGES):
        builder = BatchBuilder()
        builder.add(0, b"%d " % number + bytes(BODY_BYTES), due_ms=1)
        appended = store.append(topic_id, RecordBatch(builder.build()))
        store.wait(appended)
    last = appended.stored_ms + 1, int(appended.offsets[-1])
    store.wait(store.put_documents({HAND: Hand(BEGIN, last, 1, 0, (topic_id,)).encode()}))
    store.close()

    async def check(client: Session, broker: Broker) -> None:
        await check_come(client, "a")

    with_node(tmp_path, check)


def test_what_is_due_and_refused_again_and_again_is_told_once(tmp_path: Path) -> None:
    refused: list[object] = []

    def full(*_: object) -> None:
        refused.append(None)
        raise DiskFull("no room")

    async def check(client: Session, broker: Broker) -> None:
        sent = await client.post(
            "/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x", "delay_ms": 500}]}
        )
        assert sent.status == 200
        with patch.object(type(broker.topology.port(0)), "check_writable", full), capture_logs() as logs:
            await comes_true(lambda: len(refused) > 3, "it is tried again")
        assert [line["event"] for line in logs].count("delayed_not_delivered") == 1
        answer = await client.get("/v1/topics/t/queues/0/messages?offset=0&wait_ms=20000")
        assert [each["body"] for each in (await answer.json())["messages"]] == ["x"]

    with_node(tmp_path, check)

"""Moments that users give are to come, or over, by the time of the shard that stores the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsmq import runtime
from lsmq.record_batch import MAX_TTL_MS, BatchBuilder
from lsmq_node.broker import Broker

from .in_process import Session, with_node

HOUR_MS = 3_600_000
AHEAD_MS = 90 * 24 * HOUR_MS
PACKED = {"Content-Type": "application/vnd.lsmq.batch"}


def stamp_ahead(broker: Broker) -> int:
    """The shard's time, which is ahead of the machine's clock from now on, as it was stored by one that was ahead."""
    time = broker.topology.port(0).store.time
    time.saw(runtime.wall_ms() + AHEAD_MS)
    return time.present_ms


def test_a_moment_to_expire_at_is_judged_by_the_shards_time(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        shard_ms = stamp_ahead(broker)

        async def as_json(moment: int) -> int:
            message = {"queue": 0, "body": "x", "expires_at_ms": moment}
            return (await session.post("/v1/topics/t/messages", json={"messages": [message]})).status

        async def as_batch(moment: int) -> int:
            builder = BatchBuilder()
            builder.add(0, b"x", expires=moment)
            return (await session.post("/v1/topics/t/batches", data=builder.build(), headers=PACKED)).status

        for send in (as_json, as_batch):
            assert await send(runtime.wall_ms() + HOUR_MS) == 400, "over by the shard's time: nobody would be given it"
            assert await send(shard_ms + HOUR_MS) == 200
            assert await send(shard_ms + MAX_TTL_MS - 1) == 200, "ten years from the shard's time"

    with_node(tmp_path, test)


def test_a_moment_to_come_at_is_judged_by_the_shards_time(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        shard_ms = stamp_ahead(broker)
        messages: list[dict[str, Any]] = [
            {"queue": 0, "body": "over", "deliver_at_ms": runtime.wall_ms() + HOUR_MS},
            {
                "queue": 0,
                "body": "to come",
                "deliver_at_ms": shard_ms + HOUR_MS,
                "expires_at_ms": shard_ms + 2 * HOUR_MS,
            },
        ]
        answer = await session.post("/v1/topics/t/messages", json={"messages": messages})
        over, to_come = (await answer.json())["results"]
        assert over["offset"] == 0 and "due_ms" not in over
        assert to_come["due_ms"] == shard_ms + HOUR_MS
        moved = await session.put(f"/v1/topics/t/delayed/{to_come['id']}", json={"delay_ms": HOUR_MS + HOUR_MS // 2})
        assert (await moved.json())["due_ms"] < shard_ms + 2 * HOUR_MS
        late = await session.put(
            f"/v1/topics/t/delayed/{(await moved.json())['id']}", json={"delay_ms": 2 * HOUR_MS + 1_000}
        )
        assert late.status == 400, "it would expire before it comes"

    with_node(tmp_path, test)


def test_schedules_and_transactions_begin_by_the_shards_time(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        shard_ms = stamp_ahead(broker)
        plan = {"cron": "@hourly", "message": {"queue": 0, "body": "x"}}
        made = await (await session.put("/v1/topics/t/schedules/s", json=plan)).json()
        assert made["created_ms"] >= shard_ms and shard_ms < made["next_ms"] <= shard_ms + 2 * HOUR_MS
        own = "/v1/producer-groups/g"
        assert (await session.post(f"{own}/heartbeat", json={"member": "m", "join": True})).status == 200
        begin = {"member": "m", "number": 1, "messages": [{"topic": "t", "body": "x"}]}
        begun = await (await session.post(f"{own}/transactions", json=begin)).json()
        assert begun["begun_ms"] >= shard_ms
        decided = await session.post(f"{own}/transactions/{begun['transaction']}/commit", json={})
        assert (await decided.json())["decided_ms"] >= shard_ms

    with_node(tmp_path, test)

"""Groups whose topics were all deleted, in a node of the test's own process: they are forgotten within hours, and so is
what they worked on.

Hours are counted by the loop's time while a shard is served; here they are told to have passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsmq_node.broker import Broker
from lsmq_node.groups.coordinator import ShardGroups
from lsmq_node.machines import HOUR_S
from support.waiting import comes_true

from .in_process import Session, node_of, with_node

SHARDS = 3


async def shards_of(client: Session) -> list[ShardGroups]:
    return [await node_of(client).groups.shard(number) for number in range(SHARDS)]


async def hour(client: Session) -> None:
    shards = await shards_of(client)
    for shard in shards:
        await comes_true(lambda shard=shard: not shard._forgetting, "it has looked before")
        await shard._look_for_gone()
        shard._hour_began = shard.now - HOUR_S
        shard.tick()
    for shard in shards:
        await comes_true(lambda shard=shard: not shard._forgetting, "it has looked")
    work = node_of(client).work
    work._hour_began -= HOUR_S
    work.look()


async def groups(client: Session) -> list[str]:
    async with client.get("/v1/groups?limit=1000") as answer:
        return list((await answer.json())["groups"])


async def documents(client: Session) -> list[str]:
    """What is stored of groups."""
    found = [key for shard in await shards_of(client) for key, _ in shard.store.documents()]
    return sorted(key for key in found if key.startswith(("group/", "group-used/", "fence/", "work/")))


async def post(client: Session, path: str, document: dict[str, Any]) -> dict[str, Any]:
    async with client.post(path, json=document) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def consume(client: Session, group: str, topic: str) -> None:
    """A member comes, takes over all queues, commits where they begin, and goes."""
    beat = {"member": "m", "topics": [topic], "session_ms": 300_000}
    found = await post(client, f"/v1/groups/{group}/heartbeat", beat)
    await post(
        client,
        f"/v1/groups/{group}/fence",
        {"topic": topic, "queues": [[0, 6]], "member": "m", "epoch": found["epoch"]},
    )
    await post(
        client,
        f"/v1/groups/{group}/offsets",
        {"topic": topic, "queues": [0, 2, 4], "offsets": [0, 0, 0], "member": "m", "epoch": found["epoch"]},
    )
    await post(client, f"/v1/groups/{group}/heartbeat", {**beat, "leave": True})


def test_a_topic_and_a_group_for_each_run_leave_nothing(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        for run in range(200):
            await client.put(f"/v1/topics/run{run}", json={"queues": 6})
            await consume(client, f"run{run}", f"run{run}")
            await client.delete(f"/v1/topics/run{run}")
            if run % 10 == 9:  # Some forty live for these two hours; else the limit is met soon.
                await hour(client)
        for _ in range(3):
            await hour(client)
        assert await groups(client) == [] and await documents(client) == []
        assert not any(shard._made._maker for shard in await shards_of(client))

    with_node(tmp_path, test, shards=SHARDS, max_groups=30)


def test_a_group_is_kept_for_an_hour_at_least_and_by_any_topic_that_is_there(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        for topic in ("old", "there"):
            await client.put(f"/v1/topics/{topic}", json={"queues": 6})
        for group in ("gone", "back", "elsewhere"):
            await consume(client, group, "old")
        await post(client, "/v1/groups/elsewhere/offsets", {"topic": "there", "queues": [5], "offsets": [0]})
        quiet = {"member": "m", "topics": ["there"], "session_ms": 300_000}
        await post(client, "/v1/groups/quiet/heartbeat", quiet)
        await post(client, "/v1/groups/quiet/heartbeat", {**quiet, "leave": True})
        await post(client, "/v1/groups/living/heartbeat", {**quiet, "topics": ["old"]})
        await post(client, "/v1/groups/stranger/offsets", {"topic": "old", "queues": [0], "offsets": [0]})
        await client.delete("/v1/topics/old")

        kept = ["elsewhere", "living", "quiet"]
        await hour(client)
        assert await groups(client) == sorted([*kept, "back", "gone"])
        await client.put("/v1/topics/old", json={"queues": 6})
        await consume(client, "back", "old")
        await hour(client)
        await hour(client)
        assert await groups(client) == sorted([*kept, "back"])
        used = [key for key in await documents(client) if not key.startswith("fence/")]
        assert {key.partition("/")[2] for key in used} == {*kept, "back"}
        await consume(client, "gone", "old")  # anew

    with_node(tmp_path, test, shards=SHARDS)


async def work(client: Session, group: str, topic: str) -> None:
    """One message is acknowledged, one fails, one is left in flight; some more are not delivered."""
    messages = [{"queue": queue, "body": "x"} for queue in range(6)]
    await post(client, f"/v1/topics/{topic}/messages", {"messages": messages})
    popped = await post(client, f"/v1/groups/{group}/pop", {"topic": topic, "max": 3, "visibility_ms": 300_000})
    done, failed, _ = (message["receipt"] for message in popped["messages"])
    await post(client, f"/v1/groups/{group}/ack", {"topic": topic, "receipts": [done]})
    await post(client, f"/v1/groups/{group}/nack", {"topic": topic, "receipts": [failed], "delay_ms": 300_000})


async def push(client: Session, group: str, topic: str) -> None:
    """A subscriber is sent a message of each queue, acknowledges them, and goes."""
    await post(client, f"/v1/topics/{topic}/messages", {"messages": [{"queue": q, "body": "x"} for q in range(6)]})
    stream = f"/v1/groups/{group}/push?topic={topic}"
    async with client.ws_connect(stream, protocols=("lsmq.json",)) as socket:
        await socket.receive_json()
        got = 0
        while got < 6:
            frame = await socket.receive_json()
            for message in frame.get("messages", ()):
                got += 1
                await socket.send_json({"ack": [[message["queue"], message["offset"]]]})
        await socket.close()


async def figure(client: Session, name: str) -> float:
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def test_work_queues_and_subscriptions_of_deleted_topics_leave_nothing(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        for topic in ("old", "there"):
            await client.put(f"/v1/topics/{topic}", json={"queues": 6})
        for topic, group in (("old", "worked"), ("old", "worked-both"), ("there", "worked-both")):
            await work(client, group, topic)
        for topic, group in (("old", "pushed"), ("old", "pushed-both"), ("there", "pushed-both")):
            await push(client, group, topic)
        async with client.put("/v1/groups/set-up/work-queue", json={"topic": "there", "max_deliveries": 3}) as answer:
            assert answer.status == 200, await answer.text()
        assert await figure(client, "lsmq_work_in_flight") == 3
        await client.delete("/v1/topics/old")
        for _ in range(3):
            await hour(client)
        kept = ["pushed-both", "set-up", "worked-both"]
        assert await groups(client) == kept
        there = broker.topology.topics.find("there")
        assert there is not None
        stored = [key.split("/") for key in await documents(client)]
        assert {name for kind, name, *_ in stored if kind == "group"} == set(kept)
        assert {(name, rest[0]) for kind, name, *rest in stored if kind == "work"} == {
            ("worked-both", str(there.id)),
            ("set-up", str(there.id)),
        }
        assert await figure(client, "lsmq_work_in_flight") == 1
        assert {group for group, _ in node_of(client).push._feeds} == set()
        await client.put("/v1/topics/old", json={"queues": 6})
        async with client.get("/v1/topics/old/usage?groups=10") as answer:
            assert (await answer.json())["group_count"] == 0

    with_node(tmp_path, test, shards=SHARDS)


def test_a_subscription_that_is_held_stays_though_nothing_was_read(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/there", json={"queues": 6})
        async with client.ws_connect("/v1/groups/g/push?topic=there", protocols=("lsmq.json",)) as socket:
            await socket.receive_json()
            for _ in range(3):
                await hour(client)
                service = node_of(client).push
                service._declared._told.clear()  # as it is each minute
                await service._declare_again(list(service._feeds.values()))
            assert await groups(client) == ["g"]
            await socket.close()
        for _ in range(3):
            await hour(client)
        assert await groups(client) == []

    with_node(tmp_path, test, shards=SHARDS)


def test_nobody_is_asked_about_groups_that_have_offsets(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/there", json={"queues": 6})
        for number in range(3):
            await consume(client, f"g{number}", "there")
        asked: list[str] = []

        async def has_topics(name: str) -> bool:
            asked.append(name)
            return True

        for shard in await shards_of(client):
            shard._has_topics = has_topics
        await hour(client)
        assert asked == []

    with_node(tmp_path, test, shards=SHARDS)


def test_groups_of_deleted_topics_stay_where_none_are_forgotten(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/old", json={"queues": 6})
        await consume(client, "g", "old")
        await client.delete("/v1/topics/old")
        for _ in range(3):
            await hour(client)
        assert await groups(client) == ["g"]

    with_node(tmp_path, test, shards=SHARDS, group_retention_hours=0)

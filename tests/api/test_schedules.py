"""Schedules over HTTP: kept, listed, deleted; each time's message comes once, whoever leads, whatever was cut off."""

from __future__ import annotations

import asyncio
import struct
import time
import zoneinfo
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lsmq.client import Client
from lsmq.errors import Unavailable
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq.schedules import Schedules
from lsmq_node.broker import Broker
from lsmq_node.schedules import Schedule, shard_schedules
from lsmq_node.schedules.shard_schedules import ShardSchedules
from lsmq_node.storage import ShardStore, StoredTopic
from support.waiting import comes_true

from . import in_process
from .calls import Api
from .in_process import SMALL, Session, node_of, with_node

#: A time zone as the system has it, of one time: RFC 9636, version 1.
_ZONE = b"TZif" + bytes(16) + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
DAILY = {"cron": "0 9 * * 1-5", "tz": "Europe/Berlin", "message": {"body": "x", "key": "k"}}


def path(topic: str, name: str = "") -> str:
    return f"/v1/topics/{topic}/schedules" + (f"/{name}" if name else "")


def test_a_schedule_is_kept_as_it_was_given(api: Api, topic_name: str) -> None:
    api.create(topic_name, 8)
    message = {"body_b64": "/w==", "key": "k", "tag": "t", "properties": {"a": "b"}, "priority": 4}
    message |= {"type": "report", "ttl_ms": 5_000}
    document = {"cron": "30 4 1 * *", "tz": "Europe/Berlin", "message": {**message, "queue": 5}}
    made = api.call("PUT", path(topic_name, "report"), document, status=201).json()
    assert (made["cron"], made["tz"], made["queue"], made["count"], made["last_ms"]) == (
        ("30 4 1 * *", "Europe/Berlin", 5, 0, 0)
    )
    assert made["next_ms"] > time.time() * 1000
    assert {name: made["message"][name] for name in message} == message
    assert api.get(path(topic_name, "report")).json() == made
    again = api.call("PUT", path(topic_name, "report"), {**DAILY, "cron": "@yearly"}, status=200).json()
    assert again["cron"] == "@yearly" and again["message"]["body"] == "x"
    assert api.get(path(topic_name)).json() == {"schedules": [again], "next": None}
    api.call("DELETE", path(topic_name, "report"), status=204)
    assert api.get(path(topic_name, "report"), 404).code == "unknown_schedule"
    assert api.call("DELETE", path(topic_name, "report"), status=404).code == "unknown_schedule"


def pages(api: Api, url: str) -> Iterator[dict[str, Any]]:
    """One after another, to the last."""
    page = api.get(url).json()
    yield page
    while page["next"] is not None:
        page = api.get(f"{url}&after={page['next']}").json()
        yield page


def test_schedules_are_listed_by_name_in_pages(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    for number in range(7):
        api.call("PUT", path(topic_name, f"s{number}"), DAILY, status=201)
    names = [each["name"] for page in pages(api, f"{path(topic_name)}?max=3") for each in page["schedules"]]
    assert names == [f"s{number}" for number in range(7)]


def test_schedules_of_all_topics_are_listed_in_pages(api: Api, topic_name: str) -> None:
    topics = [f"{topic_name}-{number}" for number in range(3)]
    for topic in topics:
        api.create(topic, 4)
        for number in range(3):
            api.call("PUT", path(topic, f"s{number}"), DAILY, status=201)
    found = []
    for page in pages(api, "/v1/schedules?limit=2"):
        assert len(page["schedules"]) <= 2 and page["not_readable"] == []
        found += [(each.pop("topic"), each) for each in page["schedules"]]
    mine = sorted((topic, each["name"]) for topic, each in found if topic in topics)
    assert mine == [(topic, f"s{number}") for topic in topics for number in range(3)]
    assert api.get(path(topics[0], "s0")).json() in [each for topic, each in found if topic == topics[0]]
    assert api.get("/v1/schedules?after=x", 400).code == "invalid_request"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"tz": "Nowhere"}, "tz"),
        ({"tz": "localtime"}, "tz"),
        ({"message": {"body": "x", "delay_ms": 5}}, "message.delay_ms"),
        ({"message": {"body": "x", "dedupe_id": "a"}}, "message.dedupe_id"),
        ({"message": {"key": "k"}}, "message.body"),
        ({"more": 1}, "more"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_what_is_wrong(
    api: Api, topic_name: str, change: dict[str, Any], field: str
) -> None:
    api.create(topic_name, 1)
    refused = api.call("PUT", path(topic_name, "s"), {**DAILY, **change}, status=400)
    assert refused.error["field"] == field
    assert api.call("PUT", path(topic_name, "s" * 201), DAILY, status=400).code == "invalid_request"
    assert api.get(path(topic_name)).json()["schedules"] == []


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_mean_a_place_in_a_path_are_refused(api: Api, topic_name: str, name: str) -> None:
    """Most clients leave such parts out of a path: what is made so could not be looked at or deleted."""
    api.create(topic_name, 1)
    encoded = name.replace(".", "%2E")
    calls = [
        ("PUT", path(topic_name, encoded), DAILY),
        ("PUT", f"/v1/groups/{encoded}", {"mode": "clustered"}),
        ("POST", f"/v1/groups/{encoded}/offsets", {"topic": topic_name, "queues": [0], "offsets": [0]}),
        ("POST", f"/v1/groups/{encoded}/pop", {"topic": topic_name}),
        ("POST", f"/v1/producer-groups/{encoded}/heartbeat", {"member": "m", "join": True, "session_ms": 60_000}),
    ]
    for method, where, document in calls:
        refused = api.call(method, where, document, status=400)
        assert (refused.code, "neither '.' nor '..'" in refused.error["message"]) == ("invalid_request", True), where
    assert api.get(path(topic_name)).json()["schedules"] == []
    api.call("PUT", path(topic_name, "..."), DAILY, status=201)


def prepared(
    data: Path, next_ms: int, *, stored: bool = False, deleted: bool = False, queue: int = 0, tz: str = "UTC"
) -> Schedule:
    """A store with a schedule that is due then; ``stored``: its message is, and the leader died behind it."""
    store = ShardStore.open(data / "shard-0", SMALL)
    topic = store.create_topic("jobs", 2)
    builder = BatchBuilder()
    builder.add(queue, b"run", key="k", properties={"a": "b"}, kind="job", expires=3_600_000)
    name = "nightly" if tz == "UTC" else "elsewhere"
    schedule = Schedule(topic.id, name, "0 0 1 1 *", tz, queue, builder.build(), 1, next_ms)
    store.wait(store.put_documents({schedule.key: schedule.encode()}))
    if stored:
        store.wait(store.append(topic.id, RecordBatch(schedule.due(1))))
    if deleted:
        store.delete_topic("jobs")
    store.close()
    return schedule


@pytest.mark.parametrize("ahead_ms", [1500, -5 * 366 * 86_400_000])
@pytest.mark.parametrize("stored", [False, True])
def test_the_message_of_a_time_comes_once(tmp_path: Path, *, stored: bool, ahead_ms: int) -> None:
    """At its time; or, where nobody led at that time, at once, and of all times that were missed the first comes."""
    next_ms = time.time_ns() // 1_000_000 + ahead_ms
    prepared(tmp_path, next_ms, stored=stored)

    async def check(client: Session, broker: Broker) -> None:
        answer = await client.get("/v1/topics/jobs/queues/0/messages?wait_ms=20000")
        message = (await answer.json())["messages"][0]
        assert message["body"] == "run" and message["key"] == "k" and message["stored_ms"] >= next_ms
        assert message["type"] == "job" and message["expires_ms"] == message["stored_ms"] + 3_600_000
        assert message["properties"] == {"a": "b", "schedule": "nightly", "scheduled_ms": str(next_ms)}
        missed = stored and ahead_ms < 0  # the times behind the one that is stored
        answer = await client.get(f"/v1/topics/jobs/queues/0/messages?offset=1&wait_ms={20_000 * missed}")
        assert len((await answer.json())["messages"]) == missed
        found = await (await client.get("/v1/topics/jobs/schedules/nightly")).json()
        assert found["count"] == 1 + missed and (found["last_ms"] == next_ms) != missed
        assert found["next_ms"] > time.time() * 1000 - 1000

    with_node(tmp_path, check)


@pytest.mark.parametrize("stored", [False, True])
def test_a_schedule_of_a_time_zone_that_is_not_known_waits_and_holds_up_no_other(
    tmp_path: Path, *, stored: bool
) -> None:
    """As after a change of the node, or without a descriptor for the file of the zone."""
    next_ms = time.time_ns() // 1_000_000 - 5 * 366 * 86_400_000
    prepared(tmp_path, next_ms, stored=stored, queue=1, tz="Test/Nowhere")
    prepared(tmp_path, next_ms + 1)

    async def check(client: Session, broker: Broker) -> None:
        answer = await client.get("/v1/topics/jobs/queues/0/messages?wait_ms=20000")
        assert len((await answer.json())["messages"]) == 1
        waiting = (await (await client.get("/v1/topics/jobs/schedules/elsewhere")).json())["count"]
        assert waiting == 0
        (tmp_path / "zones" / "Test").mkdir(parents=True)
        (tmp_path / "zones" / "Test" / "Nowhere").write_bytes(_ZONE)

        async def has_come() -> bool:
            found = await (await client.get("/v1/topics/jobs/schedules/elsewhere")).json()
            return bool(found["count"] == 1 and found["next_ms"] > time.time() * 1000)

        await comes_true(has_come, "it goes on when the zone is known")
        answer = await client.get("/v1/topics/jobs/queues/1/messages?wait_ms=20000")
        assert len((await answer.json())["messages"]) == 1

    zoneinfo.ZoneInfo.clear_cache(only_keys=["Test/Nowhere"])
    zoneinfo.reset_tzpath([*zoneinfo.TZPATH, str(tmp_path / "zones")])
    try:
        with_node(tmp_path, check)
    finally:
        zoneinfo.reset_tzpath()


def test_a_schedule_that_is_refused_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where documents are full: that of a schedule which never was due grows with its first time."""
    next_ms = time.time_ns() // 1_000_000 - 5 * 366 * 86_400_000
    first = prepared(tmp_path, next_ms)
    second = replace(first, name="other", queue=1, next_ms=next_ms + 1, last_ms=next_ms - 1, count=5)
    with ShardStore.open(tmp_path / "shard-0", SMALL) as store:
        store.wait(store.put_documents({second.key: second.encode()}))
        size_bytes = store._state.documents.size_bytes
    monkeypatch.setattr(in_process, "SMALL", replace(SMALL, max_documents_bytes=size_bytes))

    async def check(client: Session, broker: Broker) -> None:
        answer = await client.get("/v1/topics/jobs/queues/1/messages?wait_ms=20000")
        assert len((await answer.json())["messages"]) == 1
        found = await (await client.get("/v1/topics/jobs/schedules/nightly")).json()
        assert found["count"] == 0, "it waits until there is room"

    with_node(tmp_path, check)


def test_many_schedules_that_are_due_together_leave_others_their_turns(tmp_path: Path) -> None:
    first = prepared(tmp_path, time.time_ns() // 1_000_000 - 5 * 366 * 86_400_000)
    with ShardStore.open(tmp_path / "shard-0", SMALL) as store:
        for number in range(300):
            each = replace(first, name=f"s{number}")
            store.wait(store.put_documents({each.key: each.encode()}))

    async def check(client: Session, broker: Broker) -> None:
        schedules = node_of(client).schedules
        fired = [0]
        while fired[-1] < 301:
            await asyncio.sleep(0)
            found = schedules.find(0)
            fired.append(0 if found is None else sum(each.count for each in found.known.values()))
        assert max(after - before for before, after in pairwise(fired)) <= 10

    with_node(tmp_path, check)


def test_a_schedule_whose_message_is_too_large_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1, max_message_bytes=200)
    for message in ({"body": "x", "properties": {"p": "v" * 200}}, {"body": "x" * 190}):
        refused = api.call("PUT", path(topic_name, "s"), {**DAILY, "message": message}, status=413)
        assert (refused.code, refused.error["limit"]) == ("message_too_large", 200)
    api.call("PUT", path(topic_name, "s"), DAILY, status=201)


def test_schedules_go_with_their_topic(tmp_path: Path) -> None:
    schedule = prepared(tmp_path, time.time_ns() // 1_000_000 + 86_400_000, deleted=True)

    async def check(client: Session, broker: Broker) -> None:
        store = broker.topology.port(0).store
        deadline = time.monotonic() + 90
        while store.document(schedule.key) is not None and time.monotonic() < deadline:
            await client.get("/healthz")
        assert store.document(schedule.key) is None

    with_node(tmp_path, check)


def test_a_schedule_that_is_replaced_again_and_again_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_schedules, "_STALE", 10)

    async def check(client: Session, broker: Broker) -> None:
        for day in range(1, 29):
            document = {"cron": f"0 0 {day} 1 *", "tz": "UTC", "message": {"body": "x", "queue": 0}}
            answer = await client.put("/v1/topics/t/schedules/yearly", json=document)
            assert answer.status in (200, 201), await answer.text()
        shard = await node_of(client).schedules.shard(0)
        assert len(shard.known) == 1 and len(shard._queue) <= 12
        [(key, schedule)] = shard.known.items()
        assert (schedule.next_ms, schedule.next_ms, key) in shard._queue

    with_node(tmp_path, check)


def test_a_schedule_has_these_bytes() -> None:
    """Written by one release, read by the next: docs/formats/documents.md."""
    schedule = Schedule(3, "nightly", "0 0 * * *", "UTC", 7, b"b", 1, 2, 3, 4)
    packed = bytes.fromhex("9901a9302030202a202a202aa355544307c4016201020304")
    assert schedule.encode() == packed
    assert Schedule.decode("schedule/3/nightly", packed) == schedule
    assert replace(schedule, created_ms=5).producer_id != schedule.producer_id


async def in_two_shards(client: Session, broker: Broker) -> tuple[StoredTopic, Schedule]:
    """A topic with a queue in each of two shards, and its schedule ``s`` as it is once it sends to the other one."""
    await broker.topology.grow_shards(2)
    assert (await client.put("/v1/topics/two", json={"queues": 2})).status == 201
    topic = await broker.topic("two")
    assert broker.shard_of(topic, 0) != broker.shard_of(topic, 1)
    document = {**DAILY, "message": {"body": "x", "queue": 0}}
    assert (await client.put(path("two", "s"), json=document)).status == 201
    return topic, replace(await node_of(client).schedules.get(topic, "s"), queue=1)


def test_a_schedule_that_cannot_be_moved_to_another_shard_stays_and_one_that_was_moved_is_gone_there(
    tmp_path: Path,
) -> None:
    async def check(client: Session, broker: Broker) -> None:
        topic, moved = await in_two_shards(client, broker)
        schedules = node_of(client).schedules
        with (
            patch.object(ShardSchedules, "keep", side_effect=Unavailable("not now")),
            pytest.raises(Unavailable, match="not now"),
        ):
            await schedules.put(topic, moved)
        assert [each.queue for each in await schedules.some(topic, "", 10)] == [0]
        assert await schedules.put(topic, moved)
        assert [each.queue for each in await schedules.some(topic, "", 10)] == [1]

    with_node(tmp_path, check)


def test_a_schedule_that_is_moved_to_another_shard_is_there_although_who_moved_it_is_gone(tmp_path: Path) -> None:
    keep = ShardSchedules.keep

    async def check(client: Session, broker: Broker) -> None:
        topic, moved = await in_two_shards(client, broker)
        schedules, kept = node_of(client).schedules, asyncio.Event()

        async def keeps(self: ShardSchedules, *given: Any) -> bool:
            known = await keep(self, *given)
            kept.set()
            await asyncio.sleep(0)
            return known

        with patch.object(ShardSchedules, "keep", keeps):
            moving = asyncio.create_task(schedules.put(topic, moved))
            await kept.wait()
            moving.cancel()
            await asyncio.wait([moving])
        assert moving.cancelled()

        async def is_there() -> bool:
            return [each.queue for each in await schedules.some(topic, "", 10)] == [1]

        await comes_true(is_there, "it is in the other shard alone")

    with_node(tmp_path, check)


def test_a_schedule_that_is_in_two_shards_since_moving_it_failed_is_deleted_from_both(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        topic, moved = await in_two_shards(client, broker)
        schedules = node_of(client).schedules
        failing = patch.object(ShardSchedules, "forget", side_effect=Unavailable("not now"))
        with failing, pytest.raises(Unavailable, match="not now"):
            await schedules.put(topic, moved)
        assert len(await schedules.some(topic, "", 10)) == 2
        assert (await client.delete(path("two", "s"))).status == 204
        assert await schedules.some(topic, "", 10) == []
        assert (await client.delete(path("two", "s"))).status == 404

    with_node(tmp_path, check)


def test_who_deletes_a_schedule_is_not_told_that_there_is_none_since_another_shard_answered_late(
    tmp_path: Path,
) -> None:
    """It is looked for in all shards of the topic: it was gone from one when another had no leader yet."""
    forget, unready = ShardSchedules.forget, [1]

    async def forgets(self: ShardSchedules, topic_id: int, name: str) -> None:
        if self.port.number in unready:
            unready.clear()
            raise Unavailable("not now", sent=False)
        await forget(self, topic_id, name)

    async def check(client: Session, broker: Broker) -> None:
        topic, moved = await in_two_shards(client, broker)
        first = next(queue for queue in (0, 1) if broker.shard_of(topic, queue) == 0)
        await node_of(client).schedules.put(topic, replace(moved, queue=first))
        with patch.object(ShardSchedules, "forget", forgets):
            async with Client(str(client.make_url("/"))) as asking:
                await Schedules(asking, "two").delete("s")
        assert not unready

    with_node(tmp_path, check)


def test_a_schedule_that_is_put_again_just_before_its_time_sends_once(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        document = {"cron": "@yearly", "message": {"body": "x", "queue": 0}}
        assert (await client.put(path("t", "s"), json=document)).status == 201
        next_ms = (await (await client.get(path("t", "s"))).json())["next_ms"]
        delayed = broker.topology.port(0).store.delayed

        async def is_stored() -> bool:
            return delayed.count == 1

        with patch.object(type(delayed), "now_ms", lambda _: next_ms - 500):
            await comes_true(is_stored, "it comes half a second later")
        for _ in range(2):
            assert (await client.put(path("t", "s"), json=document)).status == 200
        found = await (await client.get(path("t", "s"))).json()
        assert (found["last_ms"], found["next_ms"] > next_ms) == (next_ms, True)

    with_node(tmp_path, check)


def test_queues_that_schedules_make_count_for_whoever_puts_these(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await session.put("/v1/topics/n", json={"queues": "named"})
        store = broker.topology.port(0).store

        async def put(queue: str) -> str | None:
            document = {"cron": "* * * * *", "tz": "UTC", "message": {"body": "x", "queue": queue}}
            answer = await session.put("/v1/topics/n/schedules/s", json=document)
            return None if answer.status in (200, 201) else str((await answer.json())["error"]["code"])

        async def is_there(queue: str) -> bool:
            return (await session.get(f"/v1/topics/n/queues/{queue}")).status == 200

        for queue in ("a", "b"):
            assert await put(queue) is None
            assert not await is_there(queue)
            now_ms = store.delayed.now_ms() + 60_000
            with patch.object(type(store.delayed), "now_ms", lambda _, now_ms=now_ms: now_ms):
                await comes_true(partial(is_there, queue), "its minute has come")
        assert await put("c") == "too_many_queues"
        assert await put("a") is None, "it is there"

    with_node(tmp_path, test, address_share_percent=10, max_named_queues=20)

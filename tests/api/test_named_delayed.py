"""Delayed messages and schedules for queues by name: they go by the name, whatever became of the queue meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest

from lsmq.record_batch import LAST_DUE_MS, BatchBuilder, Codec, Column, RecordBatch, message_id
from lsmq_node.broker import Broker
from lsmq_node.broker.names import BrokerNames
from lsmq_node.schedules import Schedule
from lsmq_node.storage import HAND, Hand, ShardStore, Slots, TopicOptions
from lsmq_node.storage.delayed import BEGIN
from lsmq_node.storage.later_names import name_of
from support.node_process import NodeProcess

from .calls import Api
from .in_process import SMALL, Session, node_of, with_node

HOUR_MS = 3_600_000
ALL = Slots(0, 4096)


@pytest.fixture
def topic(api: Api, topic_name: str) -> str:
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named"}, status=201)
    return topic_name


def come(api: Api, topic: str, queue: str, count: int = 1) -> list[dict[str, Any]]:
    """The messages of a queue, once there are so many; it is there."""
    found: list[dict[str, Any]] = []
    path = f"/v1/topics/{topic}/queues/{quote(queue, safe='')}/messages"
    offset: int | str = "earliest"
    while len(found) < count:
        answer = api.get(f"{path}?offset={offset}&wait_ms=20000").json()
        assert answer["messages"], f"only {len(found)} of {count} came"
        found += answer["messages"]
        offset = answer["next_offset"]
    return found


def test_a_message_that_comes_later_goes_to_the_queue_of_the_name(api: Api, topic: str) -> None:
    sent = api.send(
        topic,
        {"queue": "b/ä", "body": "now"},
        {"queue": "a", "body": "later", "delay_ms": 60, "key": "k", "properties": {"p": "v"}},
        {"queue": "a", "body": "last", "delay_ms": 120, "headers": [{"name": "h", "value": "v"}], "type": "t"},
        {"queue": "b/ä", "body": "past", "deliver_at_ms": 5, "tag": "t"},
        {"queue": "c", "body": "", "delay_ms": 1},
    ).json()["results"]
    assert [each["queue"] for each in sent] == ["b/ä", "a", "a", "b/ä", "c"]
    assert [each["offset"] for each in sent] == [0, None, None, 1, None]
    assert sent[1]["due_ms"] + 60 == sent[2]["due_ms"]
    first, last = come(api, topic, "a", 2)
    assert (first["queue"], first["body"], first["key"], first["properties"]) == ("a", "later", "k", {"p": "v"})
    assert (last["body"], last["type"], last["headers"]) == ("last", "t", [{"name": "h", "value": "v"}])
    assert first["stored_ms"] >= sent[1]["due_ms"] and last["offset"] == 1
    assert [each["body"] for each in come(api, topic, "b/ä", 2)] == ["now", "past"]
    assert come(api, topic, "c")[0]["body"] == ""


def test_what_is_pending_says_its_name_and_is_cancelled_and_moved(api: Api, topic: str) -> None:
    names = ("kept", "cancelled", "moved", "at.once")
    sent = api.send(topic, *({"queue": name, "body": name, "delay_ms": HOUR_MS} for name in names)).json()["results"]
    ids = {each["queue"]: each["id"] for each in sent}
    pending = api.get(f"/v1/topics/{topic}/delayed").json()["messages"]
    assert [(each["queue"], each["body"], each["offset"]) for each in pending] == [(name, name, None) for name in names]
    path = f"/v1/topics/{topic}/delayed"
    assert api.get(f"{path}/{ids['kept']}").json()["queue"] == "kept"
    api.call("DELETE", f"{path}/{ids['cancelled']}", status=200)
    moved = api.call("PUT", f"{path}/{ids['moved']}", {"delay_ms": 2 * HOUR_MS}, status=200).json()
    assert (moved["queue"], moved["offset"]) == ("moved", None) and moved["due_ms"] > sent[2]["due_ms"]
    assert api.call("PUT", f"{path}/{ids['at.once']}", {"delay_ms": 0}, status=200).json()["queue"] == "at.once"
    assert come(api, topic, "at.once")[0]["body"] == "at.once"
    pending = api.get(path).json()["messages"]
    assert [(each["queue"], each["id"]) for each in pending] == [("kept", ids["kept"]), ("moved", moved["id"])]


def test_a_message_goes_to_a_new_queue_of_the_name_and_to_no_other_that_has_its_number(api: Api, topic: str) -> None:
    (sent,) = api.send(topic, {"queue": "mine", "body": "later", "delay_ms": HOUR_MS}).json()["results"]
    api.call("DELETE", f"/v1/topics/{topic}/queues/mine", status=204)
    api.send(topic, {"queue": "another", "body": "its own"})
    assert api.get(f"/v1/topics/{topic}/queues/another").json()["number"] == 0, "it has the number"
    moved = api.call("PUT", f"/v1/topics/{topic}/delayed/{sent['id']}", {"delay_ms": 0}, status=200).json()
    (found,) = come(api, topic, "mine")
    assert (found["body"], found["queue"], moved["queue"]) == ("later", "mine", "mine")
    assert [each["body"] for each in come(api, topic, "another")] == ["its own"]


def test_a_packed_batch_says_when_its_messages_come(api: Api, topic: str) -> None:
    builder = BatchBuilder()
    for at in range(3):
        builder.add(at % 2, b"%d" % at * 100, key=None if at else "k", due_ms=1 if at < 2 else 0)
    names = b"x\0y"
    body = len(names).to_bytes(4, "little") + names + builder.build(producer_id=77_322, codec=Codec.ZSTD)
    headers = {"Content-Type": "application/vnd.lsmq.named-batch"}
    for duplicate in (None, "1"):
        answer = api.call("POST", f"/v1/topics/{topic}/batches", body=body, headers=headers, status=200)
        assert answer.headers.get("Lsmq-Duplicate") == duplicate
    assert sorted(each["body"][0] for each in come(api, topic, "x", 2)) == ["0", "2"]
    assert come(api, topic, "y")[0]["body"] == "1" * 100


def prepared(data: Path) -> int:
    """A store with messages for two named queues, which are due; one was deleted since, and another has its number."""
    with ShardStore.open(data / "shard-0", SMALL) as store:
        topic = store.create_topic("n", 4096, TopicOptions(named=True)).id
        names = store.names(topic)
        builder = BatchBuilder()
        for at in range(10):
            builder.add(at % 2, b"%d" % at, due_ms=1)
        store.wait(names.append(b"gone\0there", RecordBatch(builder.build()), ALL)[0])
        store.wait(names.delete(("gone",))[0])
        other = BatchBuilder()
        other.add(0, b"its own")
        appended, numbers = names.append(b"other", RecordBatch(other.build()), ALL)
        assert numbers.tolist() == [0], "it has the number"
        store.wait(appended)
        store.flush()
        return topic


@pytest.mark.parametrize("begun", [False, True])
def test_what_is_due_comes_once_though_its_queue_is_gone(tmp_path: Path, *, begun: bool) -> None:
    """``begun``: somebody was about to deliver it when he died."""
    topic = prepared(tmp_path)
    if begun:
        with ShardStore.open(tmp_path / "shard-0", SMALL) as store:
            records = store.delayed.read(BEGIN, LAST_DUE_MS, 100, 1 << 20).records
            assert records is not None
            plan = Hand(BEGIN, (int(records.keys[-1]) & (1 << 44) - 1, int(records.offsets[-1])), 1, 0, (topic,))
            store.wait(store.put_documents({HAND: plan.encode()}))

    async def check(client: Session, broker: Broker) -> None:
        for name, expected in (("gone", "02468"), ("there", "13579")):
            answer = await client.get(f"/v1/topics/n/queues/{name}/messages?offset=earliest&wait_ms=20000")
            assert "".join(each["body"] for each in (await answer.json())["messages"]) == expected
        found = await (await client.get("/v1/topics/n/queues/other/messages?offset=earliest")).json()
        assert [each["body"] for each in found["messages"]] == ["its own"]

    with_node(tmp_path, check)


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_what_is_changed_while_the_queue_of_the_same_is_made_again_comes_once_or_never(
    tmp_path: Path, change: str
) -> None:
    """Two change one message at once: the second finds that the first has."""
    declare = BrokerNames.declare

    async def check(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        message = {"queue": "gone", "body": "x", "delay_ms": HOUR_MS}
        answer = await client.post("/v1/topics/n/messages", json={"messages": [message]})
        (sent,) = (await answer.json())["results"]
        assert (await client.delete("/v1/topics/n/queues/gone")).status == 204
        path, machine = f"/v1/topics/n/delayed/{sent['id']}", await node_of(client).delayed.shard(0)
        made, goes_on = asyncio.Event(), asyncio.Event()

        async def declares(self: BrokerNames, *given: Any) -> None:
            await declare(self, *given)
            made.set()
            await goes_on.wait()

        with patch.object(BrokerNames, "declare", declares):
            second = asyncio.create_task(client.put(path, json={"delay_ms": 2 * HOUR_MS}))
            await made.wait()
            first = await (client.delete(path) if change == "cancel" else client.put(path, json={"delay_ms": HOUR_MS}))
            assert first.status == 200
            await machine.barrier()
            goes_on.set()
            answer = await second
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_message")
        pending = (await (await client.get("/v1/topics/n/delayed")).json())["messages"]
        assert len(pending) == (change == "reschedule")

    with_node(tmp_path, check)


def test_the_name_stands_in_the_header_and_the_message_says_nothing_of_it(tmp_path: Path) -> None:
    prepared(tmp_path)
    with ShardStore.open(tmp_path / "shard-0", SMALL) as store:
        read = store.delayed.read(BEGIN, LAST_DUE_MS, 100, 1 << 20)
        assert read.records is not None
        header = read.records.payload[: int(read.records.columns[Column.HEADER_LENGTH][0])].tobytes()
        assert header == b"\x96\xc0\xc0\xc0\xc0\xc0\xa4gone" and name_of(header) == "gone"


@pytest.mark.parametrize("shards", [1, 3])
def test_pending_messages_come_after_a_kill(make_node: Callable[..., NodeProcess], shards: int) -> None:
    node = make_node(shards=shards).start()
    api = Api(node.url)
    api.call("PUT", "/v1/topics/n", {"queues": "named"}, status=201)
    names = [f"agents.{at}" for at in range(12)]
    due_ms = time.time_ns() // 1_000_000 + 1_500
    api.send("n", *({"queue": name, "body": name, "deliver_at_ms": due_ms} for name in names))
    node.kill9()
    node.start()
    api = Api(node.url)
    assert [come(api, "n", name)[0]["body"] for name in names] == names


def test_a_schedule_sends_to_a_queue_by_its_name(api: Api, topic: str) -> None:
    document = {"cron": "0 9 * * *", "message": {"queue": "reports", "body": "x"}}
    made = api.call("PUT", f"/v1/topics/{topic}/schedules/daily", document, status=201).json()
    assert (made["queue"], made["message"]["queue"]) == ("reports", "reports")
    assert api.get(f"/v1/topics/{topic}/schedules/daily").json() == made
    assert api.get(f"/v1/topics/{topic}/schedules").json()["schedules"] == [made]
    for queue, code in ((None, "invalid_request"), ("", "invalid_queue_name")):
        message = {"body": "x", **({} if queue is None else {"queue": queue})}
        refused = api.call("PUT", f"/v1/topics/{topic}/schedules/s", {**document, "message": message}, status=400)
        assert refused.code == code
    api.call("DELETE", f"/v1/topics/{topic}/schedules/daily", status=204)


@pytest.mark.parametrize("ahead_ms", [1_500, -5 * 366 * 86_400_000])
def test_the_message_of_a_time_goes_to_a_queue_that_is_made_again(tmp_path: Path, ahead_ms: int) -> None:
    next_ms = time.time_ns() // 1_000_000 + ahead_ms
    with ShardStore.open(tmp_path / "shard-0", SMALL) as store:
        topic = store.create_topic("jobs", 4096, TopicOptions(named=True)).id
        builder = BatchBuilder()
        builder.add(0, b"run", key="k")
        schedule = Schedule(topic, "nightly", "0 0 1 1 *", "UTC", "night", builder.build(), 1, next_ms)
        store.wait(store.put_documents({schedule.key: schedule.encode()}))

    async def check(client: Session, broker: Broker) -> None:
        answer = await client.get("/v1/topics/jobs/queues/night/messages?offset=earliest&wait_ms=20000")
        (message,) = (await answer.json())["messages"]
        assert (message["queue"], message["body"], message["key"]) == ("night", "run", "k")
        assert message["properties"] == {"schedule": "nightly", "scheduled_ms": str(next_ms)}
        assert message["id"] == message_id(topic, 0, 0)

    with_node(tmp_path, check)

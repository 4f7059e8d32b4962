"""Messages that are sent again under their id are stored once, whatever way they come, and after a failover."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from api.calls import Api
from lsmq import Client, Consumer, GroupProducer, InvalidRequest, Producer, TransactionalProducer, sync
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.python_process import run_python


@pytest.fixture
def api(shared_node: NodeProcess) -> Iterator[Api]:
    yield Api(shared_node.url)


def once(api: Api, topic: str, queues: int = 3) -> None:
    api.create(topic, queues, dedupe_window_ms="forever")


def command(node: NodeProcess, *arguments: str, given: str = "") -> str:
    ran = run_python("-m", "lsmq", *arguments, "--url", node.url, input=given, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_json_and_msgpack_say_which_messages_are_duplicates(api: Api, topic_name: str) -> None:
    once(api, topic_name)
    message = {"body": "x", "dedupe_id": "order-17"}
    (first,) = api.send(topic_name, message).json()["results"]
    assert "duplicate" not in first
    raw = msgpack.packb({"messages": [{"body": b"y"}, {"body": b"again", "dedupe_id": "order-17"}]})
    headers = {"Content-Type": "application/msgpack"}
    answer = api.call("POST", f"/v1/topics/{topic_name}/messages", body=raw, headers=headers, status=200)
    assert answer.msgpack()["results"][1] == {**first, "duplicate": True}
    keyed = [{"body": "x", "dedupe_id": "order-17", "key": key} for key in ("a", "a")]
    one, two = api.send(topic_name, *keyed).json()["results"]
    assert two == {**one, "duplicate": True}


@pytest.mark.parametrize("wrong", ["", "x" * 256, 7, "ü" * 128])
def test_an_id_that_is_none_is_refused_by_name(api: Api, topic_name: str, wrong: Any) -> None:
    once(api, topic_name)
    answer = api.call(
        "POST", f"/v1/topics/{topic_name}/messages", {"messages": [{"body": "x"}, {"body": "x", "dedupe_id": wrong}]}
    )
    assert answer.status == 400 and answer.json()["error"]["field"] == "messages[1].dedupe_id"


def test_an_id_to_a_topic_without_a_window_is_refused_with_the_remedy(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    body = {"messages": [{"body": "x", "dedupe_id": "a"}]}
    error = api.call("POST", f"/v1/topics/{topic_name}/messages", body, status=400).json()["error"]
    assert error["field"] == "messages[0].dedupe_id" and "dedupe_window_ms" in error["message"]


async def test_a_producer_is_told_where_the_first_one_is(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4, dedupe_window_ms="forever")
        async with Producer(client, topic_name) as producer:
            receipts = [await producer.send(b"x", dedupe_id=f"id {number % 50}") for number in range(200)]
            first = [await receipt for receipt in receipts]
            assert [sent.duplicate for sent in first] == [number >= 50 for number in range(200)]
            assert [sent[:3] for sent in first[:50]] * 4 == [sent[:3] for sent in first]
            assert not (await producer.send_and_wait(b"no id")).duplicate
            with pytest.raises(InvalidRequest, match="dedupe_id"):
                await producer.send(b"x", dedupe_id="")
        offsets = await client.offsets(topic_name)
        assert sum(offsets.latest) == 51


async def test_a_transaction_stores_each_id_once(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, dedupe_window_ms=60_000)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait(b"0", dedupe_id="a")
        async with (
            TransactionalProducer(client, f"g-{topic_name}") as group,
            group.transaction() as transaction,
        ):
            for name in ("a", "b", "b"):
                await transaction.send(topic_name, name.encode(), dedupe_id=name)
        async with Consumer(client, topic_name, start="earliest") as consumer:
            found = []
            while len(found) < 2:
                found += [message.body for message in await consumer.poll(10)]
            assert found == [b"0", b"b"]
        assert (await client.offsets(topic_name)).latest == [2]


def test_the_blocking_producer_and_the_command_take_ids(shared_node: NodeProcess, topic_name: str) -> None:
    command(shared_node, "topic", "create", topic_name, "--queues", "2", "--dedupe-window", "1d")
    with sync.Client(shared_node.url) as client, sync.Producer(client, topic_name) as producer:
        assert client.topic(topic_name).options["dedupe_window_ms"] == 86_400_000
        first = producer.send_and_wait(b"x", dedupe_id="a")
        assert producer.send_and_wait(b"y", dedupe_id="a") == first._replace(duplicate=True)
    shown = command(shared_node, "produce", topic_name, "--receipts", "--dedupe-id", "a", given="z\n")
    assert json.loads(shown) == {"queue": first.queue, "offset": first.offset, "id": first.id, "duplicate": True}
    lines = '{"body": "z", "dedupe_id": "a"}\n{"body": "z", "dedupe_id": "b"}\n'
    shown = command(shared_node, "produce", topic_name, "--receipts", "--json-lines", given=lines)
    assert ["duplicate" in json.loads(line) for line in shown.splitlines()] == [True, False]


@pytest.mark.slow
async def test_ids_hold_over_a_killed_leader_and_a_restart(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls) as client:
        await client.create_topic("once", queues=6, dedupe_window_ms="forever")
        places = {}
        async with Producer(client, "once") as producer:
            for number in range(300):
                places[number] = await (await producer.send(b"x", dedupe_id=f"id {number}"))
                if number == 100:
                    victim = next(shard.leader for shard in cluster.status().shards if shard.id == 0)
                    cluster.kill(victim)
            cluster.start(victim)
        async with Producer(client, "once") as producer:
            for number, first in places.items():
                again = await (await producer.send(b"y", dedupe_id=f"id {number}"))
                assert again == first._replace(duplicate=True)
        assert sum((await client.offsets("once")).latest) == 300


async def test_a_window_can_be_given_to_a_topic_and_taken_away(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await client.alter_topic(topic_name, dedupe_window_ms="forever")
        async with Producer(client, topic_name) as producer:
            assert [(await producer.send_and_wait(b"x", dedupe_id="a")).duplicate for _ in range(2)] == [False, True]
        command(shared_node, "topic", "alter", topic_name, "--unset", "dedupe-window")
        async with Producer(client, topic_name) as producer:
            with pytest.raises(InvalidRequest, match="dedupe_window_ms"):
                await producer.send_and_wait(b"x", dedupe_id="a")


async def test_where_ids_are_not_remembered_only_messages_with_ids_are_refused(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, linger_ms=1_000) as producer:
            ids = [None, "a", None, None, "b"]
            receipts = [producer.send_nowait(b"x", dedupe_id=id) for id in ids]
            with pytest.raises(InvalidRequest, match="dedupe_window_ms"):
                await producer.flush()
            for id, receipt in zip(ids, receipts, strict=True):
                if id is None:
                    await receipt
                else:
                    with pytest.raises(InvalidRequest, match="dedupe_window_ms"):
                        await receipt
        assert (await client.offsets(topic_name)).latest == [3]


async def test_an_id_of_a_message_that_comes_later_is_refused(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    once(api, topic_name)
    body = {"messages": [{"body": "x", "dedupe_id": "a", "delay_ms": 1000}]}
    error = api.call("POST", f"/v1/topics/{topic_name}/messages", body, status=400).json()["error"]
    assert error["field"] == "messages[0].dedupe_id"
    async with Client(shared_node.url) as client, Producer(client, topic_name) as producer:
        with pytest.raises(InvalidRequest, match="dedupe_id"):
            await producer.send(b"x", dedupe_id="a", delay_ms=1000)


async def test_ids_of_queues_with_names_belong_to_the_name(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named", dedupe_window_ms="forever")
        async with Producer(client, topic_name) as producer:
            first = await producer.send_and_wait(b"x", queue="ada", dedupe_id="1")
            again = await producer.send_and_wait(b"x", queue="ada", dedupe_id="1")
            assert not first.duplicate and again == first._replace(duplicate=True)
            assert not (await producer.send_and_wait(b"x", queue="bob", dedupe_id="1")).duplicate
        (result,) = api.send(topic_name, {"queue": "ada", "body": "x", "dedupe_id": "1"}).json()["results"]
        assert result["duplicate"] and result["queue"] == "ada" and result["id"] == first.id
        await client.delete_queue(topic_name, "ada")
        async with Producer(client, topic_name) as producer:
            sent = await producer.send_and_wait(b"x", queue="cyd", dedupe_id="1")
            assert not sent.duplicate, "though it may have the number that ada had"


async def test_an_id_holds_beside_whatever_else_a_message_has_and_however_it_is_sent(
    shared_node: NodeProcess, topic_name: str
) -> None:
    named = f"{topic_name}-named"
    beside: list[dict[str, Any]] = [
        {},
        {"key": "k"},
        {"key": None, "tag": "t"},
        {"key": "k", "tag": "t", "properties": {"p": "1"}},
        {"headers": (("h", b"1"),), "priority": 3},
        {"type": "made", "ttl_ms": 60_000},
        {"delay_ms": None, "priority": 0},
    ]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4, dedupe_window_ms="forever")
        await client.create_topic(named, queues="named", dedupe_window_ms="forever")
        for topic, places in ((topic_name, [{}, {"queue": 2}]), (named, [{"queue": "a"}, {"queue": "b" * 30}])):
            cases = [{**options, **place} for options in beside for place in places]
            async with Producer(client, topic) as producer:
                first = []
                for number, options in enumerate(cases):
                    id = f"id {number}"
                    first.append(await producer.send_and_wait(b"x", dedupe_id=id, **options))
                    assert not (await producer.send_nowait(b"y", **options)).duplicate, "it has no id"
                    again = [
                        await producer.send_and_wait(b"x", dedupe_id=id, **options),
                        await (await producer.send(b"x", dedupe_id=id, **options)),
                        await producer.send_nowait(b"x", dedupe_id=id, **options),
                    ]
                    assert again == [first[-1]._replace(duplicate=True)] * 3
                receipts = [producer.send_nowait(b"z", dedupe_id=f"id {at}", **case) for at, case in enumerate(cases)]
                assert [await receipt for receipt in receipts] == [sent._replace(duplicate=True) for sent in first]
            assert len({sent.id for sent in first}) == len(cases)
            if topic == topic_name:
                async with GroupProducer(client, topic, "g") as group:
                    for at, case in enumerate(cases):
                        sent = await (await group.send(b"x", position=at, dedupe_id=f"id {at}", **case))
                        assert sent == first[at]._replace(duplicate=True)

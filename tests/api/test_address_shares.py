"""What one address may take of what a node has for all, where nobody is asked who he is; others have theirs."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from lsmq.errors import TooManyTopics
from lsmq_node.broker import Maker, asked_from
from lsmq_node.broker.address_limits import AddressLimits, TopicShares
from lsmq_node.config import NodeConfig
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .calls import Answer, Api, pack

#: Of 200 things an address may have two.
ADDRESSES = (f"127.0.1.{number}" for number in itertools.count(1))
LIMITS = dict.fromkeys(("max_topics", "max_groups", "max_waiters", "max_push_streams", "max_producers"), 200)
#: And of queues 100 and 10.
LIMITS |= {"max_queues": 10_000, "max_named_queues": 1_000}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    room = {"max_inflight_bytes": 4 << 30}  # For some answers of an address at a time.
    node = NodeProcess(tmp_path_factory.mktemp("shares") / "data", address_share_percent=1, **LIMITS, **room)
    node.start()
    try:
        Api(node.url, "127.0.0.9").create("t", 2)
        yield node
    finally:
        node.stop()


@pytest.fixture
def taker(node: NodeProcess) -> Api:
    return Api(node.url, next(ADDRESSES))


@pytest.fixture
def neighbour(node: NodeProcess) -> Api:
    return Api(node.url, next(ADDRESSES))


def refused(answer: Answer, code: str, limits: str, limit: int = 2, *, has: int | None = None) -> None:
    assert (answer.status, answer.code) == (503 if code == "unavailable" else 429, code), answer.body
    message = answer.error["message"]
    assert (answer.error["setting"], answer.error["limit"]) == ("address_share_percent", limit)
    assert (
        f"your address has {limit if has is None else has} " in message
        and f"(address_share_percent of {limits})" in message
    )
    assert "; " in message, "it says what helps"


def test_topics(taker: Api, neighbour: Api) -> None:
    def put(who: Api, topic: str) -> Answer:
        return who.call("PUT", f"/v1/topics/{topic}", {"queues": 1})

    assert [put(taker, topic).status for topic in ("a", "b")] == [201, 201]
    before = neighbour.metric('lsmq_limit_refused_total{limit="address_share_percent"}')
    refused(put(taker, "c"), "too_many_topics", "max_topics")
    assert neighbour.metric('lsmq_limit_refused_total{limit="address_share_percent"}') == before + 1
    assert put(taker, "b").status == 200, "the same again is the same topic"
    assert put(neighbour, "c").status == 201
    neighbour.call("DELETE", "/v1/topics/a", status=204)
    assert put(taker, "d").status == 201
    refused(put(taker, "e"), "too_many_topics", "max_topics")


def test_groups_however_they_begin(taker: Api, neighbour: Api) -> None:
    beat = {"member": "m", "topics": ["t"], "session_ms": 60_000}

    def commit(who: Api, group: str) -> Answer:
        return who.call("POST", f"/v1/groups/{group}/offsets", {"topic": "t", "queues": [0], "offsets": [0]})

    assert taker.call("POST", "/v1/groups/g1/heartbeat", beat).status == 200
    assert commit(taker, "g2").status == 200
    refused(commit(taker, "g3"), "too_many_groups", "max_groups")
    refused(taker.call("POST", "/v1/groups/g3/heartbeat", beat), "too_many_groups", "max_groups")
    refused(taker.call("PUT", "/v1/groups/g3", {"mode": "work_queue"}), "too_many_groups", "max_groups")
    assert commit(taker, "g1").status == 200, "a group that is there is no other one"
    assert commit(neighbour, "g3").status == 200
    assert commit(taker, "g3").status == 200, "of others' groups it may have members"
    neighbour.call("DELETE", "/v1/groups/g2/offsets?shard=0")
    assert commit(taker, "g4").status == 200


def test_idempotent_producers(taker: Api, neighbour: Api) -> None:
    def send(who: Api, producer: int, sequence: int = 0) -> Answer:
        return who.send_batch("t", pack((0, b"x"), producer_id=producer, sequence=sequence), None)

    assert [send(taker, producer).status for producer in (71, 72)] == [200, 200]
    refused(send(taker, 73), "too_many_producers", "max_producers")
    refused(taker.call("POST", "/v1/topics/t/producers/73/take", {"shard": 0}), "too_many_producers", "max_producers")
    assert send(taker, 71, 1).status == 200
    taker.send("t", {"body": "without a producer's id", "queue": 0})
    assert send(neighbour, 73).status == 200


def test_producer_groups_with_members(taker: Api, neighbour: Api) -> None:
    def join(who: Api, group: str, member: str = "m") -> Answer:
        document = {"member": member, "join": True}
        return who.call("POST", f"/v1/producer-groups/{group}/heartbeat", document)

    assert [join(taker, group).status for group in ("p1", "p2")] == [200, 200]
    refused(join(taker, "p3"), "too_many_groups", "max_groups")
    assert join(taker, "p2", "another").status == 200
    assert join(neighbour, "p3").status == 200
    assert join(taker, "p3", "another").status == 200, "of others' groups it may have members"
    taker.call("POST", "/v1/producer-groups/p1/heartbeat", {"member": "m", "leave": True}, status=200)
    assert join(taker, "p4").status == 200


def test_schedules(taker: Api, neighbour: Api) -> None:
    def put(who: Api, name: str) -> Answer:
        document = {"cron": "0 9 * * *", "tz": "UTC", "message": {"body": "x", "queue": 0}}
        return who.call("PUT", f"/v1/topics/t/schedules/{name}", document)

    assert {put(taker, f"s{number}").status for number in range(100)} == {201}
    refused(put(taker, "more"), "too_many_schedules", "the 10000 that a shard may have", 100)
    assert put(taker, "s0").status == 200, "one of its name in its place is no other one"
    assert put(neighbour, "more").status == 201
    neighbour.call("DELETE", "/v1/topics/t/schedules/s0", status=204)
    assert put(taker, "another").status == 201


def test_long_polls(taker: Api, neighbour: Api) -> None:
    answers: list[Answer] = []
    path = "/v1/topics/t/queues/1/messages?offset=0&wait_ms=60000"

    def poll(who: Api) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(who.call("GET", path)))
        thread.start()
        return thread

    polls = [poll(taker), poll(taker)]
    eventually(lambda: neighbour.metric("lsmq_waiters") == 2, "both are held")
    refused(taker.call("GET", path), "unavailable", "max_waiters")
    polls.append(poll(neighbour))
    eventually(lambda: neighbour.metric("lsmq_waiters") == 3, "the neighbour's is held beside")
    neighbour.send("t", {"body": "now", "queue": 1})
    for thread in polls:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 3
    assert taker.get(path.replace("60000", "0")).status == 200


def test_streams(node: NodeProcess, taker: Api, neighbour: Api) -> None:
    asyncio.run(hold_streams(node, taker, neighbour))


async def hold_streams(node: NodeProcess, taker: Api, neighbour: Api) -> None:
    def session(who: Api) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(who.source, 0)))

    url = f"{node.url}/v1/groups/pushed/push?topic=t&mode=broadcast"
    headers = {"Accept": "text/event-stream"}

    def held(count: int) -> Callable[[], Awaitable[bool]]:
        async def so_many() -> bool:
            answer = await asyncio.to_thread(neighbour.get, "/v1/groups/pushed/streams")
            return len(answer.json()["streams"]) == count

        return so_many

    async with session(taker) as mine, session(neighbour) as other:
        first, second = [await mine.get(url, headers=headers) for _ in range(2)]
        await comes_true(held(2), "two streams are held")
        async with mine.get(url, headers=headers) as answer:  # It is told what is wrong, and is over.
            assert "its share is 2 (address_share_percent of max_push_streams)" in await answer.text()
        third = await other.get(url, headers=headers)
        await comes_true(held(3), "another address's is held beside")
        first.close()
        await comes_true(held(2), "one is over")
        fourth = await mine.get(url, headers=headers)
        await comes_true(held(3), "which makes room")
        for each in (second, third, fourth):
            each.close()


def test_queues_of_topics(node: NodeProcess, taker: Api, neighbour: Api) -> None:
    def put(who: Api, topic: str, queues: int) -> Answer:
        return who.call("PUT", f"/v1/topics/{topic}", {"queues": queues})

    def grow(who: Api, topic: str, queues: int) -> Answer:
        return who.call("PUT", f"/v1/topics/{topic}/queues", {"queues": queues})

    assert put(taker, "many", 60).status == 201
    assert put(taker, "many", 60).status == 200, "the same again is the same topic"
    answer = put(taker, "more", 41)
    assert (answer.status, answer.code, answer.error["limit"]) == (429, "too_many_queues", 100)
    assert "your address has 60 queues of topics" in answer.error["message"]
    assert "(address_share_percent of max_queues)" in answer.error["message"]
    assert grow(taker, "many", 90).status == 200
    assert put(neighbour, "theirs", 80).status == 201
    assert grow(taker, "theirs", 91).code == "too_many_queues", "what it gives to others' topics counts too"
    assert grow(taker, "theirs", 90).status == 200
    assert grow(taker, "theirs", 90).status == 200, "it has them"
    assert grow(neighbour, "theirs", 110).status == 200
    neighbour.call("DELETE", "/v1/topics/many", status=204)
    assert grow(taker, "theirs", 200).status == 200
    answer = grow(Api(node.url, next(ADDRESSES)), "theirs", 10_001)
    assert (answer.status, answer.code) == (429, "too_many_queues")
    assert (answer.error["setting"], answer.error["limit"]) == ("max_queues", 10_000), "all are counted first"
    for topic in ("more", "theirs"):
        neighbour.call("DELETE", f"/v1/topics/{topic}")


def test_queues_with_names(node: NodeProcess, taker: Api, neighbour: Api) -> None:
    def put(who: Api, *names: str) -> Answer:
        messages = [{"body": "x", "queue": name} for name in names]
        return who.call("POST", "/v1/topics/names/messages", {"messages": messages})

    def declare(who: Api, name: str) -> Answer:
        return who.call("PUT", f"/v1/topics/names/queues/{name}")

    neighbour.call("PUT", "/v1/topics/names", {"queues": "named"}, status=201)
    assert put(taker, *"abcdefgh").status == 200
    assert put(taker, *"abcdefgh").status == 200, "they are there"
    refused(put(taker, "a", "i", "j", "k"), "too_many_queues", "max_named_queues", 10, has=8)
    assert declare(taker, "i").status == 201
    later = {"messages": [{"body": "x", "queue": "j", "delay_ms": 3_600_000}]}
    assert taker.call("POST", "/v1/topics/names/messages", later).status == 200
    refused(declare(taker, "k"), "too_many_queues", "max_named_queues", 10)
    refused(put(taker, "k"), "too_many_queues", "max_named_queues", 10)
    assert put(neighbour, "k").status == 200
    assert put(taker, "k").status == 200, "of others' queues it may use all"
    neighbour.call("DELETE", "/v1/topics/names/queues/a", status=204)
    assert put(taker, "l").status == 200
    refused(put(taker, "m"), "too_many_queues", "max_named_queues", 10)
    neighbour.call("DELETE", "/v1/topics/names", status=204)
    neighbour.call("PUT", "/v1/topics/names", {"queues": "named"}, status=201)
    eventually(lambda: put(taker, *"abcdefghij").status == 200, "those of a topic that is gone count no longer")
    refused(put(taker, "k"), "too_many_queues", "max_named_queues", 10)
    full = [Api(node.url, next(ADDRESSES)) for _ in range(99)]
    assert {put(who, *(f"{at}-{n}" for n in range(10))).status for at, who in enumerate(full)} == {200}
    answer = put(Api(node.url, next(ADDRESSES)), "one more")
    assert (answer.status, answer.code) == (429, "too_many_queues")
    assert (answer.error["setting"], answer.error["limit"]) == ("max_named_queues", 1_000)
    neighbour.call("DELETE", "/v1/topics/names", status=204)


def topics(*ids: int) -> Sequence[Any]:
    return [SimpleNamespace(id=id, named=False, queues=3) for id in ids]


def test_what_is_remembered_of_topics_is_no_more_than_there_are_and_addresses_go_with_their_last() -> None:
    limits = AddressLimits(NodeConfig(data=Path("unused"), address_share_percent=50))
    shares = TopicShares(limits, most=10, most_queues=1_000)
    for number in range(1_000):
        shares.check(f"10.0.{number}", 3, partial(topics, number - 1))
        shares.made(f"10.0.{number}", topics(number)[0])
        assert sum(len(own) for kept in (shares._made, shares._queues) for own in kept.values()) <= 22
    for number in range(5):
        shares.check("10.1", 3, partial(topics, *range(number)))
        shares.made("10.1", topics(number)[0])
    with pytest.raises(TooManyTopics, match="your address has 5 topics, made by this node"):
        shares.check("10.1", 3, partial(topics, *range(5)))
    shares.check("10.1", 3, partial(topics, *range(1, 5)))
    shares.check(None, 3, partial(topics, *range(5)))
    before, after = topics(7)[0], SimpleNamespace(id=7, named=False, queues=4)
    for number in range(1_000):
        shares.grew(f"10.2.{number}", before, after)
        assert sum(len(own) for kept in (shares._made, shares._queues) for own in kept.values()) <= 22


def test_nobody_in_particular_is_counted_nowhere() -> None:
    asked_from.set(None)
    assert Maker.asking() == Maker()


def test_on_a_machine_of_ones_own_one_address_may_have_all_that_is_made_or_held_unless_told_otherwise() -> None:
    for given, made, connections in (
        ({}, 10_000, 50),
        ({"host": "0.0.0.0", "insecure": True}, 5_000, 50),
        ({"admin_port": 0, "admin_host": "0.0.0.0", "insecure": True}, 5_000, 50),
        ({"address_share_percent": 50}, 5_000, 50),
        ({"address_share_percent": 100}, 10_000, 100),
    ):
        config = NodeConfig(data=Path("unused"), **given)
        assert (config.share_of(10_000), config.share_percent) == (made, connections), given

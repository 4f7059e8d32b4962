"""The queues of a topic that stand out: the deepest, the busiest, those with the oldest messages."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lsmq import Client
from lsmq.errors import Unavailable
from lsmq_node.broker.top_queues import AT_ONCE, MOST_WAITING, RankingTurns
from support.node_process import NodeProcess
from support.waiting import clock_passes, eventually

from .calls import Api


def top(api: Api, topic: str, **query: Any) -> list[dict[str, Any]]:
    path = "&".join(f"{name}={value}" for name, value in query.items())
    found: list[dict[str, Any]] = api.get(f"/v1/topics/{topic}/top-queues?{path}").json()["queues"]
    return found


def stored_ms(api: Api, topic: str, queue: int | str, offset: int = 0) -> int:
    (message,) = api.read(topic, queue, offset=offset, max=1).json()["messages"]  # type: ignore[arg-type]
    return int(message["stored_ms"])


@pytest.mark.parametrize("named", [False, True])
def test_the_deepest_queues_come_first_by_number_or_by_name(api: Api, topic_name: str, named: bool) -> None:
    api.create(topic_name, queues="named" if named else 50)
    called = [f"agent.{number}" if named else number for number in range(50)]
    for number in (7, 3, 41):
        api.send(topic_name, *({"queue": called[number], "body": "x"} for _ in range(number)))
    found = top(api, topic_name)
    assert [(each["queue"], each["count"]) for each in found] == [(called[41], 41), (called[7], 7), (called[3], 3)]
    assert {(each["earliest"], each["in_per_s"]) for each in found} == {(0, None)}
    assert [each["oldest_ms"] for each in found] == [stored_ms(api, topic_name, called[at]) for at in (41, 7, 3)]
    assert [each["queue"] for each in top(api, topic_name, limit=2)] == [called[41], called[7]]
    assert api.get(f"/v1/topics/{topic_name}/top-queues").json()["with_messages"] == 3


def test_what_is_below_the_start_of_a_queue_or_deleted_is_not_its_oldest(api: Api, topic_name: str) -> None:
    api.create(topic_name, 3)
    for offset in range(4):
        for queue in (0, 1):
            api.send(topic_name, {"queue": queue, "body": str(offset)})
        clock_passes(stored_ms(api, topic_name, 1, offset))
    api.call("POST", f"/v1/topics/{topic_name}/delete", {"queues": [0], "offsets": [2], "before": True})
    api.call("POST", f"/v1/topics/{topic_name}/delete", {"queues": [1, 1, 1], "offsets": [0, 1, 2]})
    by_age = top(api, topic_name, by="age")
    assert [each["queue"] for each in by_age] == [0, 1]
    assert by_age[0]["oldest_ms"] == stored_ms(api, topic_name, 0, 2)
    assert by_age[1]["oldest_ms"] == stored_ms(api, topic_name, 1, 3)
    api.call("POST", f"/v1/topics/{topic_name}/delete", {"queues": [0], "offsets": [4], "before": True})
    assert [each["queue"] for each in top(api, topic_name, by="age")] == [1]


def test_what_has_expired_is_not_the_oldest_of_a_queue(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    api.send(topic_name, {"queue": 0, "body": "short", "ttl_ms": 1}, {"queue": 1, "body": "short", "ttl_ms": 1})
    clock_passes(int(time.time() * 1000) + 50)
    api.send(topic_name, {"queue": 1, "body": "lasting"})

    def oldest() -> list[tuple[int, int | None]]:
        return [(each["queue"], each["oldest_ms"]) for each in top(api, topic_name, by="age") if each["oldest_ms"]]

    eventually(lambda: oldest() == [(1, stored_ms(api, topic_name, 1, 1))], "what has expired is passed over")


def test_a_queue_that_messages_come_to_is_busy(node: NodeProcess, topic_name: str) -> None:
    api = Api(node.url)
    api.create(topic_name, 9)
    api.send(topic_name, *({"queue": 2, "body": "old"} for _ in range(100)))
    assert top(api, topic_name, by="rate") == []

    async def rates() -> list[Any]:
        async with Client(node.url) as client:
            asked = asyncio.create_task(client.top_queues(topic_name, by="rate"))
            while not asked.done():
                await asyncio.to_thread(api.send, topic_name, {"queue": 5, "body": "new"})
            return list((await asked).queues)

    (busy,) = asyncio.run(rates())
    assert busy.queue == 5 and busy.in_per_s > 0


def test_queues_of_all_shards_are_ranked_together(make_node: Any, topic_name: str) -> None:
    api = Api(make_node(shards=4).start().url)
    api.create(topic_name, 100)
    for queue in range(1, 100):
        api.send(topic_name, *({"queue": queue, "body": "x"} for _ in range((queue * 37) % 100)))
    found = top(api, topic_name, limit=100)
    assert [each["count"] for each in found] == sorted(((queue * 37) % 100 for queue in range(1, 100)), reverse=True)


def test_of_more_queues_than_are_read_the_deepest_are_ranked_by_age_and_it_is_said(
    make_node: Any, topic_name: str
) -> None:
    api = Api(make_node().start().url)
    count = 10_001
    api.create(topic_name, count)
    for begin in range(0, count, 1_000):
        api.send(topic_name, *({"queue": queue, "body": "x"} for queue in range(begin, min(begin + 1_000, count))))
    api.send(topic_name, {"queue": 17, "body": "second"})
    whole = api.get(f"/v1/topics/{topic_name}/top-queues?by=age&limit=1000").json()
    assert whole["partial"] is True and whole["with_messages"] == count and len(whole["queues"]) == 1_000
    times = [each["oldest_ms"] for each in whole["queues"]]
    assert times == sorted(times)
    assert api.get(f"/v1/topics/{topic_name}/top-queues?by=depth").json()["partial"] is False


def test_an_order_that_is_none_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    assert api.get(f"/v1/topics/{topic_name}/top-queues?by=size", 400).code == "invalid_request"
    assert api.get("/v1/topics/no-such/top-queues", 404).code == "unknown_topic"


def test_rankings_of_many_queues_are_made_one_after_another_and_few_wait() -> None:
    """Each takes memory by the queue: forty that were asked for at once of 16 million queues took four gigabytes."""
    asyncio.run(_in_turns())


async def _in_turns() -> None:
    turns, under_way, most = RankingTurns(), 0, 0
    go_on = asyncio.Event()

    async def rank(queues: int) -> None:
        nonlocal under_way, most
        async with turns.of(queues):
            under_way += queues
            most = max(most, under_way)
            try:
                await go_on.wait()
            finally:
                under_way -= queues

    large = [asyncio.create_task(rank(16 * AT_ONCE)) for _ in range(12)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in large if task.done()]
    assert len(refused) == 12 - 1 - MOST_WAITING // (16 * AT_ONCE)
    assert all(isinstance(task.exception(), Unavailable) for task in refused)
    large[1].cancel()  # One that waits gives up, and one that has begun.
    large[0].cancel()
    go_on.set()
    await asyncio.gather(*large, return_exceptions=True)
    assert (under_way, most) == (0, 16 * AT_ONCE)
    go_on.clear()
    small = [asyncio.create_task(rank(AT_ONCE // 4)) for _ in range(40)]
    await asyncio.sleep(0)
    assert under_way == AT_ONCE
    go_on.set()
    await asyncio.gather(*small)
    assert under_way == 0
    async with turns.of(1), turns.of(AT_ONCE - 1):
        pass


def test_lists_that_are_asked_for_at_once_are_all_made(make_node: Any, topic_name: str) -> None:
    api = Api(make_node(shards=4).start().url)
    api.create(topic_name, 2_000_000)
    api.send(topic_name, *({"queue": queue, "body": "x"} for queue in range(0, 2_000_000, 500_000)))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda by: top(api, topic_name, by=by), ["depth", "age"] * 4))
    assert [len(each) for each in found] == [4] * 8

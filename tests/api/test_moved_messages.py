"""What expires, or is dropped at a limit, goes to another topic where its own says so, with where it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lsmq.errors import UnknownTopic
from lsmq_node.broker import Broker
from lsmq_node.storage import ShardStore, StoreOptions, TopicOptions
from lsmq_node.storage.lapses import Lapsed, Lapses
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .calls import Api
from .in_process import Session, with_node

KEPT_MS = 3_600_000


def letters(api: Api, topic: str) -> list[dict[str, Any]]:
    if api.get(f"/v1/topics/{topic}", None).status == 404:
        return []
    queues = api.get(f"/v1/topics/{topic}").json()["queues"]
    return [message for queue in range(queues) for message in api.all_messages(topic, queue)]


def comes(api: Api, topic: str, *bodies: str) -> list[dict[str, Any]]:
    def are_there() -> bool:
        return sorted(letter["body"] for letter in letters(api, topic)) == sorted(bodies)

    eventually(are_there, f"these come to {topic}: {bodies}", 90)
    return letters(api, topic)


def come_at_least(api: Api, topic: str, count: int) -> None:
    eventually(lambda: len(letters(api, topic)) >= count, f"{count} letters come", 90)


def test_what_expires_is_moved_with_all_it_has_and_where_it_comes_from(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.create(topic, 3, expired_to=f"{topic}.late")
    own = {"key": "anna", "tag": "blue", "properties": {"n": "1"}, "priority": 3}
    api.send(topic, {"queue": 2, "body": "goes", "ttl_ms": 100, **own}, {"queue": 2, "body": "stays"})
    (letter,) = comes(api, f"{topic}.late", "goes")
    found = letter["properties"]
    assert (letter["key"], letter["tag"], letter["priority"], found["n"]) == ("anna", "blue", 3, "1")
    where = [found[f"lsmq-dlq-{name}"] for name in ("topic", "queue", "offset", "reason")]
    assert where == [topic, "2", "0", "expired"]
    assert int(found["lsmq-dlq-expired-ms"]) == int(found["lsmq-dlq-stored-ms"]) + 100
    assert api.all_bodies(topic, 2) == ["stays"]
    usage = api.get(f"/v1/topics/{topic}/usage").json()
    assert usage["dropped"]["lapsed"] == 1
    metrics = api.get("/metrics").body.decode()
    assert "lsmq_messages_moved_total" in metrics and "lsmq_moving_waits" in metrics


def test_messages_of_named_queues_say_the_name(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.call(
        "PUT", f"/v1/topics/{topic}", {"queues": "named", "ttl_ms": 100, "expired_to": f"{topic}.late"}, status=201
    )
    api.send(topic, *({"queue": f"q.{number}", "body": f"{number}"} for number in range(5)))
    found = comes(api, f"{topic}.late", *map(str, range(5)))
    assert {each["properties"]["lsmq-dlq-queue-name"]: each["body"] for each in found} == {
        f"q.{number}": f"{number}" for number in range(5)
    }


def test_an_option_that_is_set_later_holds_for_what_expires_then(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.create(topic, 1, ttl_ms=60_000)
    api.send(topic, {"body": "one", "ttl_ms": 1_500})
    altered = api.call("PATCH", f"/v1/topics/{topic}", {"expired_to": f"{topic}.late"}, status=200).json()
    assert altered["options"]["expired_to"] == f"{topic}.late"
    comes(api, f"{topic}.late", "one")
    back = api.call("PATCH", f"/v1/topics/{topic}", {"expired_to": None}, status=200).json()
    assert "expired_to" not in back["options"]


def test_a_topic_that_would_get_back_its_own_or_takes_no_letters_is_refused_by_name(api: Api, topic_name: str) -> None:
    topic = topic_name

    def refused(name: str, target: Any) -> str:
        answer = api.call("PUT", f"/v1/topics/{name}", {"queues": 1, "expired_to": target}, status=400)
        return str(answer.error["message"])

    assert "come back" in refused(topic, topic)
    api.create(f"{topic}.a", 1, expired_to=f"{topic}.b")
    api.create(f"{topic}.b", 1, expired_to=f"{topic}.c")
    circle = refused(f"{topic}.c", f"{topic}.a")
    assert f"{topic}.c to {topic}.a to {topic}.b to {topic}.c" in circle
    api.create(f"{topic}.c", 1)
    answer = api.call("PATCH", f"/v1/topics/{topic}.c", {"expired_to": f"{topic}.a"}, status=400)
    assert "come back" in answer.error["message"]
    api.call("PUT", f"/v1/topics/{topic}.named", {"queues": "named"}, status=201)
    assert "names" in refused(topic, f"{topic}.named")
    assert "name" in refused(topic, "no/such name")


def test_letters_that_the_target_has_no_room_for_wait_and_come_when_it_has(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.create(f"{topic}.late", 1, max_messages=1)
    api.create(topic, 1, expired_to=f"{topic}.late", ttl_ms=100)
    api.send(f"{topic}.late", {"body": "in the way"})
    api.send(topic, {"body": "a"}, {"body": "b"})
    eventually(lambda: "lsmq_moving_waits 1.0" in api.get("/metrics").body.decode(), "they wait")
    assert api.all_bodies(topic, 0) == []
    api.call("PATCH", f"/v1/topics/{topic}.late", {"max_messages": None}, status=200)
    comes(api, f"{topic}.late", "in the way", "a", "b")


def test_what_is_dropped_at_a_limit_is_moved_with_where_it_comes_from(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.create(topic, 2, queue_max_messages=2, overflow="drop_oldest", dropped_to=f"{topic}.over")
    api.send(topic, *({"queue": 1, "body": f"{number}"} for number in range(5)))
    found = comes(api, f"{topic}.over", "0", "1", "2")
    assert {each["properties"]["lsmq-dlq-reason"] for each in found} == {"overflow"}
    assert sorted(each["properties"]["lsmq-dlq-offset"] for each in found) == ["0", "1", "2"]
    assert api.all_bodies(topic, 1) == ["3", "4"]
    assert api.get(f"/v1/topics/{topic}/usage").json()["dropped"]["overflow"] == 3


def test_what_is_dropped_at_a_limit_of_bytes_is_moved_as_well(api: Api, topic_name: str) -> None:
    topic = topic_name
    api.create(topic, 2, queue_max_bytes=200, overflow="drop_oldest", dropped_to=f"{topic}.over")
    bodies = [f"{number}" * 90 for number in range(4)]
    api.send(topic, *({"queue": 1, "body": body} for body in bodies))
    comes(api, f"{topic}.over", *bodies[:2])
    assert api.all_bodies(topic, 1) == bodies[2:]


def test_a_circle_over_both_options_is_refused_and_dropping_what_is_new_as_well(api: Api, topic_name: str) -> None:
    topic = topic_name
    full = {"queue_max_messages": 2, "overflow": "drop_oldest"}
    api.create(f"{topic}.a", 1, expired_to=f"{topic}.b")
    document = {"queues": 1, "dropped_to": f"{topic}.a", **full}
    refused = api.call("PUT", f"/v1/topics/{topic}.b", document, status=400)
    assert f"{topic}.b to {topic}.a to {topic}.b" in refused.error["message"]
    document |= {"dropped_to": f"{topic}.c", "overflow": "drop_newest"}
    assert "dropped_to" in api.call("PUT", f"/v1/topics/{topic}.b", document, status=400).error["message"]


def test_nothing_is_moved_along_a_circle_that_two_alterations_at_once_have_made(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node().start()
    api = Api(node.url)
    for topic, target in (("a", "b"), ("b", None), ("before", "a")):
        api.create(topic, 1, expired_to=target)
    node.stop()
    with ShardStore.open(node.data / "shard-0", StoreOptions()) as store:
        store.alter_topic("b", TopicOptions(expired_to="a", revision=1))
    api = Api(node.start().url)
    for topic in ("a", "b", "before"):
        api.send(topic, {"body": f"of {topic}", "ttl_ms": 1})
    eventually(lambda: "lsmq_moving_waits 2.0" in api.get("/metrics").body.decode(), "those in the circle wait")
    comes(api, "a", "of before")
    assert letters(api, "b") == []
    assert "a to b to a" in node.log()
    api.call("PATCH", "/v1/topics/b", {"expired_to": None}, status=200)
    comes(api, "b", "of a")


def test_what_was_found_as_the_topic_to_move_to_was_taken_away_is_moved_when_it_is_given_again(tmp_path: Path) -> None:
    find, topics = Lapses.find, Lapses.topics
    done: list[str | None] = []

    async def check(client: Session, broker: Broker) -> None:
        store = broker.topology.port(0).store
        await client.put("/v1/topics/from", json={"queues": 1, "expired_to": "late"})

        def alter(expired_to: str | None, revision: int) -> None:
            store.alter_topic("from", TopicOptions(expired_to=expired_to, revision=revision))
            done.append(expired_to)

        def finds(lapses: Lapses, topic_id: int, *limits: int) -> Lapsed | None:
            lapsed = find(lapses, topic_id, *limits)
            if not done and lapsed is not None and len(lapsed.queues):
                alter(None, 1)
            return lapsed

        def looks(lapses: Lapses) -> list[int]:
            if len(done) == 1:
                alter("late", 2)
            return topics(lapses)

        async def has_come() -> bool:
            answer = await client.get("/v1/topics/late/queues/0/messages")
            return answer.status == 200 and len((await answer.json())["messages"]) == 1

        with patch.object(Lapses, "find", finds), patch.object(Lapses, "topics", looks):
            await client.post("/v1/topics/from/messages", json={"messages": [{"body": "x", "ttl_ms": 1}]})
            await comes_true(has_come, "it is moved")
            assert done == [None, "late"]

    with_node(tmp_path, check)


def test_a_target_that_holds_few_makes_no_others_slow_nor_itself_once_it_holds_more(tmp_path: Path) -> None:
    find = Lapses.find
    asked: dict[int, int] = {}  # by topic's id, how many at once

    async def check(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/small", json={"queues": 1, "max_messages": 1})
        await client.put("/v1/topics/a", json={"queues": 1, "expired_to": "small"})
        await client.put("/v1/topics/b", json={"queues": 1, "expired_to": "large"})
        ids = [broker.topology.port(0).store.topic(name).id for name in ("a", "b")]

        def finds(lapses: Lapses, topic_id: int, max_messages: int, max_bytes: int) -> Lapsed | None:
            asked[topic_id] = max_messages
            return find(lapses, topic_id, max_messages, max_bytes)

        async def ask_for(*wanted: int) -> None:
            async def asked_so() -> bool:
                return [asked.get(topic_id) for topic_id in ids] == list(wanted)

            await comes_true(asked_so, f"so many are asked for: {wanted}")

        with patch.object(Lapses, "find", finds):
            expiring = {"messages": [{"body": "x", "ttl_ms": 1}] * 3}
            await client.post("/v1/topics/a/messages", json=expiring)
            await ask_for(1, 500)
            await client.patch("/v1/topics/small", json={"max_messages": None})
            await ask_for(500, 500)

    with_node(tmp_path, check)


def test_as_many_are_moved_as_a_batch_takes(tmp_path: Path) -> None:
    """Half of ``memtable_bytes``: many that are just less than is moved at once, and a large one."""

    async def check(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/a", json={"queues": 1, "expired_to": "late"})
        for messages in ([{"body": "x" * 2_090, "ttl_ms": 1}] * 400, [{"body": "x" * 2_090, "ttl_ms": 1}] * 99):
            assert (await client.post("/v1/topics/a/messages", json={"messages": messages})).status == 200
        large = {"messages": [{"body": "x" * 1_040_000, "ttl_ms": 1}]}
        assert (await client.post("/v1/topics/a/messages", json=large)).status == 200

        async def all_are_moved() -> bool:
            try:
                topic = await broker.topic("late")
            except UnknownTopic:
                return False
            return (await broker.offsets(topic, np.array((0,))))[1].tolist() == [500]

        await comes_true(all_are_moved, "all are moved")

    find = Lapses.find

    def finds(lapses: Lapses, *given: int) -> Lapsed | None:
        found = find(lapses, *given)
        return found if found is None or len(found.queues) == 500 or given[1] < 500 else None

    with patch.object(Lapses, "find", finds):  # All at once, or as few as are asked for.
        with_node(tmp_path, check)


def test_what_has_room_is_moved_to_a_target_that_has_not_room_for_all(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/small", json={"queues": 1, "max_messages": 5})
        await client.post("/v1/topics/small/messages", json={"messages": [{"body": "its own"}] * 2})
        await client.put("/v1/topics/a", json={"queues": 1, "expired_to": "small"})
        await client.post("/v1/topics/a/messages", json={"messages": [{"body": "x", "ttl_ms": 1}] * 5})

        async def is_full() -> bool:
            return (await broker.offsets(await broker.topic("small"), np.array((0,))))[1].tolist() == [5]

        await comes_true(is_full, "three are moved")

    with_node(tmp_path, check)


@pytest.mark.part(2)
def test_none_is_lost_when_the_node_is_killed_while_they_are_moved(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(segment_bytes=256 * 1024, memtable_bytes=4 * 1024 * 1024).start()
    api, count = Api(node.url), 6_000
    api.create("t", 8, expired_to="late")
    for first in range(0, count, 1_000):
        numbers = range(first, first + 1_000)
        api.send("t", *({"queue": n % 8, "body": f"{n}", "ttl_ms": 500 + n % 3_000} for n in numbers))
    for part in (1, 2, 3):
        come_at_least(api, "late", part * count // 5)
        node.kill9()
        api = Api(node.start().url)
    eventually(lambda: len({letter["body"] for letter in letters(api, "late")}) == count, "all are moved", 90)
    often = Counter(letter["body"] for letter in letters(api, "late"))
    assert often.keys() == {f"{number}" for number in range(count)}
    assert max(often.values()) <= 2, "none more often than a crash tore the log"
    assert all(api.all_bodies("t", queue) == [] for queue in range(8))
    assert api.get("/v1/topics/t/usage").json()["messages"] == 0


@pytest.mark.part(3)
def test_none_of_what_is_dropped_is_lost_when_the_node_is_killed(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(segment_bytes=256 * 1024, memtable_bytes=4 * 1024 * 1024).start()
    api, count = Api(node.url), 6_000
    api.create("t", 3, dropped_to="over", queue_max_messages=10, overflow="drop_oldest")
    for first in range(0, count, 1_000):
        api.send("t", *({"queue": n % 3, "body": f"{n}"} for n in range(first, first + 1_000)))
    for part in (1, 2):
        come_at_least(api, "over", part * count // 4)
        node.kill9()
        api = Api(node.start().url)
    wanted = {f"{number}" for number in range(count - 30)}
    eventually(lambda: {letter["body"] for letter in letters(api, "over")} == wanted, "all are moved", 90)
    assert [len(api.all_bodies("t", queue)) for queue in range(3)] == [10, 10, 10]

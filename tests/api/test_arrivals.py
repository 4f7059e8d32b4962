"""Moments, and what came to named queues between them: each message once, whatever happens to node and names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lsmq.sync import Client, Producer
from support.node_process import NodeProcess
from support.waiting import clock_passes

from .calls import Answer, Api


def moment(api: Api, topic: str, shard: int = 0) -> dict[str, int]:
    found: dict[str, int] = api.call("POST", f"/v1/topics/{topic}/moments", {"shard": shard}, status=200).json()
    return found


def place(known: dict[str, int], **more: int) -> dict[str, int]:
    return {"time_ms": known["time_ms"], **more}


def arrivals(api: Api, topic: str, **asked: Any) -> Answer:
    return api.call("POST", f"/v1/topics/{topic}/arrivals", {"shard": 0, **asked})


def arrived(api: Api, topic: str, **asked: Any) -> dict[str, tuple[int, int]]:
    """By name, over all pages: from which offset to which."""
    found, after = {}, 0
    while True:
        answer = arrivals(api, topic, after=after, with_names=True, **asked).json()
        rows = zip(answer["names"], answer["starts"], answer["ends"], strict=True)
        found.update({name: (start, end) for name, start, end in rows})
        if answer["next"] is None:
            return found
        after = answer["next"]


def test_arrivals_are_what_came_between_two_moments(api: Api, topic_name: str) -> None:
    api.create(topic_name, queues="named")
    first = moment(api, topic_name)
    assert first["messages"] == 0 and moment(api, topic_name) == first, "nothing came: nothing is written"
    api.send(topic_name, *({"queue": f"a.{at}", "body": "x"} for at in (1, 2, 1)))
    second = moment(api, topic_name)
    api.send(topic_name, {"queue": "a.2", "body": "y"}, {"queue": "b", "body": "y"})
    third = moment(api, topic_name)
    assert (second["messages"], third["messages"]) == (3, 5)
    assert second["time_ms"] > first["time_ms"]
    assert arrived(api, topic_name) == {"a.1": (0, 2), "a.2": (0, 2), "b": (0, 1)}
    assert arrived(api, topic_name, until=place(second)) == {"a.1": (0, 2), "a.2": (0, 1)}
    between = {"since": place(second), "until": place(third)}
    assert arrived(api, topic_name, **between) == {"a.2": (1, 2), "b": (0, 1)}
    assert arrived(api, topic_name, **between, limit=1) == {"a.2": (1, 2), "b": (0, 1)}, "page by page"
    assert arrived(api, topic_name, **between, prefix="a.") == {"a.2": (1, 2)}
    assert arrived(api, topic_name, pattern="a.*") == {"a.1": (0, 2), "a.2": (0, 2)}
    assert arrived(api, topic_name, names=["b", "no.such"], limit=1) == {"b": (0, 1)}
    answer = arrivals(api, topic_name, **between, names=["b"]).json()
    assert answer["messages"] == 2 and answer["exact"], "all that came, whichever are picked"


def test_places_between_two_moments_cut_a_queue(api: Api, topic_name: str) -> None:
    api.create(topic_name, queues="named")
    start = moment(api, topic_name)
    api.send(topic_name, *({"queue": f"q{at % 3}", "body": "x"} for at in range(12)))
    end = moment(api, topic_name)
    numbers = arrivals(api, topic_name).json()["queues"]
    cut = place(start, until_ms=end["time_ms"], queue=numbers[1], offset=3)
    names = dict(zip(numbers, arrived(api, topic_name), strict=True))
    first, second, third = (names[number] for number in numbers)
    assert arrived(api, topic_name, since=place(start), until=cut) == {first: (0, 4), second: (0, 3)}
    assert arrived(api, topic_name, since=cut, until=place(end)) == {second: (3, 4), third: (0, 4)}


@pytest.mark.part(2)
def test_moments_hold_over_restarts_and_for_names_that_come_and_go(make_node: Callable[..., NodeProcess]) -> None:
    """Against a list of what was sent: found by reading after a restart, and kept without one."""
    chance = random.Random(14)
    node = make_node(memtable_bytes=64 << 10, max_message_bytes=4 << 10).start()
    api = Api(node.url)
    with Client(node.url) as client:
        client.create_topic("agents", queues="named")
    moments, sent = [moment(api, "agents")], []
    for turn in range(12):
        with Client(node.url) as client, Producer(client, "agents") as producer:
            some: dict[str, int] = {}
            for _ in range(300):
                name = f"agent.{chance.randrange(8 * (turn + 1))}"
                producer.send(b"x" * chance.randrange(400), queue=name)
                some[name] = some.get(name, 0) + 1
        sent.append(some)
        moments.append(moment(api, "agents"))
        if turn % 4 == 3:
            node.restart()
            api.moved(node.url)
    assert [each["messages"] for each in moments] == [300 * turn for turn in range(13)]
    for first in range(13):
        for last in range(first, 13):
            expected: dict[str, int] = {}
            for some in sent[first:last]:
                for name, count in some.items():
                    expected[name] = expected.get(name, 0) + count
            found = arrived(api, "agents", since=place(moments[first]), until=place(moments[last]))
            assert {name: end - start for name, (start, end) in found.items()} == expected
    # One goes, and its number to another.
    before = moments[-1]
    (gone,) = arrivals(api, "agents", names=["agent.1"]).json()["queues"]
    api.call("DELETE", "/v1/topics/agents/queues/agent.1", status=204)
    api.send("agents", {"queue": "fresh", "body": "x"}, {"queue": "agent.1", "body": "x"})
    after = moment(api, "agents")
    found = arrived(api, "agents", since=place(before), until=place(after))
    assert {name: end - start for name, (start, end) in found.items()} == {"fresh": 1, "agent.1": 1}
    assert gone in arrivals(api, "agents", since=place(before)).json()["queues"], "the number is used again"
    # What went before it was read is told: while a moment is kept by the queue, and then by the sum.
    api.call("POST", "/v1/topics/agents/queues/fresh/trim", {"before": found["fresh"][1]}, status=200)
    kept = arrivals(api, "agents", since=place(before), until=place(after)).json()
    lost = [start for start, earliest in zip(kept["starts"], kept["earliest"], strict=True) if earliest > start]
    assert len(lost) == 1 and kept["messages"] == 2
    node.restart()
    api.moved(node.url)
    read = arrivals(api, "agents", since=place(before), until=place(after)).json()
    assert read["exact"] and read["messages"] == 1 == after["messages"] - before["messages"] - 1


def test_a_time_of_ones_own_is_a_place_too(api: Api, topic_name: str) -> None:
    api.create(topic_name, queues="named")
    api.send(topic_name, {"queue": "a", "body": "x"})
    (message,) = api.get(f"/v1/topics/{topic_name}/queues/a/messages").json()["messages"]
    clock_passes(message["stored_ms"])
    api.send(topic_name, {"queue": "a", "body": "y"}, {"queue": "b", "body": "y"})
    later = {"time_ms": message["stored_ms"] + 1}
    assert arrived(api, topic_name, since=later) == {"a": (1, 2), "b": (0, 1)}
    assert arrived(api, topic_name, until=later) == {"a": (0, 1)}
    never = {"time_ms": 1 << 60}
    assert arrived(api, topic_name, since=never) == {} and len(arrived(api, topic_name, until=never)) == 2


def test_what_cannot_be_says_why(api: Api, topic_name: str) -> None:
    api.create(topic_name, queues="named")
    other = f"{topic_name}-n"
    api.create(other)
    for path in ("moments", "arrivals"):
        answer = api.call("POST", f"/v1/topics/{other}/{path}", {"shard": 0}, status=400)
        assert "queues 'named'" in answer.error["message"]
        answer = api.call("POST", f"/v1/topics/{topic_name}/{path}", {"shard": 7}, status=400)
        assert answer.error["field"] == "shard" and "lies on the shards 0" in answer.error["message"]
        assert api.call("POST", f"/v1/topics/no-such/{path}", {"shard": 0}, status=404).code == "unknown_topic"
    assert "until_ms is missing" in arrivals(api, topic_name, since={"time_ms": 1, "queue": 3}).error["message"]
    assert "before time_ms" in arrivals(api, topic_name, until={"time_ms": 3, "until_ms": 1}).error["message"]
    assert "pick queues one way" in arrivals(api, topic_name, names=["a"], prefix="a").error["message"]
    assert arrivals(api, topic_name, prefix="a\n").code == "invalid_queue_name"

"""Held streams of a real node, frame by frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from api.calls import Api
from lsmq import Client
from lsmq.groups import Group
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true

from .streams import HeldStream, held


@pytest.fixture
def api(shared_node: NodeProcess, topic_name: str) -> Api:
    api = Api(shared_node.url)
    api.create(topic_name, queues=4)
    return api


def send(api: Api, topic: str, count: int, **fields: Any) -> None:
    messages = [{"queue": number % 4, "body": f"{number}", **fields} for number in range(count)]
    api.send(topic, *messages)


def committed(api: Api, topic: str, group: str) -> dict[int, int]:
    found = api.get(f"/v1/groups/{group}/offsets?topic={topic}").json()
    return dict(zip(found["queues"], found["offsets"], strict=True))


def offsets(messages: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((message["queue"], message["offset"]) for message in messages)


@pytest.mark.parametrize("protocol", ["lsmq.json", "lsmq.msgpack"])
async def test_messages_come_as_they_are_sent_and_acknowledgements_are_committed(
    api: Api, shared_node: NodeProcess, topic_name: str, protocol: str
) -> None:
    group = topic_name[-40:]
    send(api, topic_name, 8, key="k", tag="t", properties={"a": "b"})
    async with held(shared_node.url, topic_name, group, protocol=protocol) as stream:
        first = await stream.messages(8)
        await asyncio.to_thread(send, api, topic_name, 4)
        assert offsets(await stream.messages(4)) == [(queue, 2) for queue in range(4)]
    assert offsets(first) == [(queue, offset) for queue in range(4) for offset in range(2)]
    expected = "0" if protocol == "lsmq.json" else b"0"
    message = next(one for one in first if (one["queue"], one["offset"]) == (0, 0))
    assert message["body"] == expected and message["key"] == "k" and message["properties"] == {"a": "b"}
    assert stream.stream["group"] == group and stream.queues == [[0, 4]]
    assert committed(api, topic_name, group) == {0: 3, 1: 3, 2: 3, 3: 3}


async def test_what_is_not_acknowledged_comes_again_and_nothing_else(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 12)
    async with held(shared_node.url, topic_name) as stream:
        found = await stream.messages(12, ack=False)
        await stream.ack(*[message for message in found if message["queue"] == 0])
        await stream.say(ack=[[1, 0]])
    async with held(shared_node.url, topic_name) as stream:
        again = await stream.messages(8)
        await stream.nothing()
    assert offsets(again) == [(1, 1), (1, 2), *[(queue, offset) for queue in (2, 3) for offset in range(3)]]


async def test_no_more_is_sent_than_there_is_credit_for(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    send(api, topic_name, 40)
    async with held(shared_node.url, topic_name, credit=10) as stream:
        found = await stream.messages(10, ack=False)
        await stream.nothing()
        assert len(found) == 10
        assert api.metric("lsmq_push_credit_stalls_total") >= 1
        await stream.ack(*found)
        found = await stream.messages(10, ack=False)
        await stream.say(credit=0)
        await stream.ack(*found)
        await stream.nothing()
        await stream.say(credit=100)
        assert len(await stream.messages(20)) == 20


async def test_bytes_are_credit_too(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    api.send(topic_name, *[{"queue": 0, "body": "x" * 1_000} for _ in range(20)])
    async with held(shared_node.url, topic_name, credit_bytes=5_000) as stream:
        found = await stream.messages(4, ack=False)
        await stream.nothing()
        assert len(found) <= 6
    async with held(shared_node.url, topic_name, credit_bytes=1) as stream:
        for offset in range(3):
            assert offsets(await stream.messages(1)) == [(0, offset)]


async def test_subscribers_share_the_queues_and_take_over_from_each_other(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    url = shared_node.url
    async with held(url, topic_name, subscriber="a") as one:
        await one.owns([0, 4])
        send(api, topic_name, 4)
        first = await one.messages(4, ack=False)
        async with held(url, topic_name, subscriber="b") as other:
            await one.nothing()
            assert one.queues == [[0, 4]]  # Two of them it gives up with the last acknowledgement.
            assert other.queues == []
            await one.ack(*first)
            await one.owns([0, 2])
            await other.owns([2, 4])
            await asyncio.to_thread(send, api, topic_name, 8)
            assert {queue for queue, _ in offsets(await one.messages(4))} == {0, 1}
            left = await other.messages(4, ack=False)
            assert {queue for queue, _ in offsets(left)} == {2, 3}
        await one.owns([0, 4])
        assert offsets(await one.messages(4)) == offsets(left)


@pytest.mark.parametrize("mode", ["clustered", "broadcast"])
async def test_streams_are_described_with_what_they_have_not_acknowledged(
    api: Api, shared_node: NodeProcess, topic_name: str, mode: str
) -> None:
    url, group, shares = shared_node.url, f"shown-{mode}", 2 if mode == "clustered" else 4
    queues = [[0, 2], [2, 4]] if mode == "clustered" else [[0, 4], [0, 4]]
    async with (
        Client(url) as client,
        held(url, topic_name, group, subscriber="a", mode=mode, credit=7) as one,
        held(url, topic_name, group, subscriber="b", mode=mode) as other,
    ):
        await one.owns(queues[0])
        await other.owns(queues[1])
        await asyncio.to_thread(send, api, topic_name, 4)
        await one.messages(shares, ack=False)
        await other.messages(shares)
        described = [
            (stream.subscriber, stream.topic, stream.mode, stream.queues, stream.credit)
            for stream in sorted(await Group(client, group).streams(), key=lambda stream: stream.subscriber or "")
        ]
        assert described == [("a", topic_name, mode, shares, 7), ("b", topic_name, mode, shares, 1_000)]
        command = ["-m", "lsmq", "group", "describe", group, "--url", url, "--json"]
        shown = await asyncio.to_thread(run_python, *command)
        waiting = {stream["subscriber"]: stream["unacknowledged"] for stream in json.loads(shown.stdout)["streams"]}
        assert waiting == {"a": shares, "b": 0}
        table = await asyncio.to_thread(run_python, *command[:-1])
        assert b"unacknowledged" in table.stdout
        assert await Group(client, "nobody").streams() == []


async def test_streams_are_listed_in_pages(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    url, group = shared_node.url, f"{topic_name}-pages"
    async with (
        held(url, topic_name, group, subscriber="a", mode="broadcast"),
        held(url, topic_name, group, subscriber="b", mode="broadcast"),
        held(url, topic_name, group, subscriber="c", mode="broadcast"),
    ):
        path, pages, after = f"/v1/groups/{group}/streams", [], ""
        await comes_true(lambda: len(api.get(path).json()["streams"]) == 3, "all are known")
        while after is not None:
            page = (await asyncio.to_thread(api.get, f"{path}?limit=2&after={after}")).json()
            pages.append([stream["id"] for stream in page["streams"]])
            after = page["next"]
        assert [len(ids) for ids in pages] == [2, 1]
        assert [id for ids in pages for id in ids] == sorted({id for ids in pages for id in ids})
        whole = (await asyncio.to_thread(api.get, path)).json()
        assert len(whole["streams"]) == 3 and whole["next"] is None


async def test_more_subscribers_than_queues_stand_by(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()
        held_by: dict[str, HeldStream] = {}

        async def hold(name: str) -> None:
            async with held(shared_node.url, topic_name, subscriber=name) as stream:
                held_by[name] = stream
                while not stop.is_set():
                    with suppress(TimeoutError):
                        kind, code = await stream.frame(0.05)
                        assert kind != "closed", (name, code, stream.end)

        for name in "abcdef":
            tasks.create_task(hold(name))
        await comes_true(
            lambda: sorted(len(stream.queues) for stream in held_by.values()) == [0, 0, 1, 1, 1, 1], "four have a queue"
        )
        stop.set()


async def test_a_subscriber_that_comes_again_takes_the_place_of_its_former_stream(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 4)
    async with held(shared_node.url, topic_name, subscriber="a") as former:
        await former.messages(4, ack=False)
        async with held(shared_node.url, topic_name, subscriber="a") as stream:
            assert len(await stream.messages(4)) == 4
            assert (await former.until("end"))["code"] == "stream_replaced"
            assert await former.frame() == ("closed", 1008)


async def test_broadcast_subscribers_each_get_everything_and_go_on_where_they_were(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    url, group = shared_node.url, f"b-{topic_name[-40:]}"
    send(api, topic_name, 8)
    for name in ("north", "south"):
        async with held(url, topic_name, group, mode="broadcast", subscriber=name) as stream:
            assert len(await stream.messages(8)) == 8
        assert committed(api, topic_name, f"{group}%2F{name}") == {0: 2, 1: 2, 2: 2, 3: 2}
    async with held(url, topic_name, group, mode="broadcast", subscriber="north") as stream:
        await stream.nothing()
    async with held(url, topic_name, group, mode="broadcast") as nameless:
        assert len(await nameless.messages(8)) == 8
    async with held(url, topic_name, group, mode="broadcast", start="latest") as nameless:
        await nameless.owns([0, 4])
        await asyncio.to_thread(send, api, topic_name, 4)
        assert offsets(await nameless.messages(4)) == [(queue, 2) for queue in range(4)]


async def test_subscribers_of_a_broadcast_group_that_is_deleted_begin_anew(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    url, group = shared_node.url, f"b-{topic_name[-40:]}"
    send(api, topic_name, 8)
    async with held(url, topic_name, group, mode="broadcast", subscriber="north") as stream:
        assert len(await stream.messages(8)) == 8
        async with Client(url) as client:
            await Group(client, group).delete()
        assert (await stream.until("end"))["reset"]
    async with held(url, topic_name, group, mode="broadcast", subscriber="north") as stream:
        assert len(await stream.messages(8)) == 8


async def test_latest_begins_at_the_end_and_loses_nothing_that_comes_before_the_first_acknowledgement(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 4)
    async with held(shared_node.url, topic_name, start="latest") as stream:
        await stream.owns([0, 4])
        await stream.nothing()
        await asyncio.to_thread(send, api, topic_name, 4)
        await stream.messages(4, ack=False)
    async with held(shared_node.url, topic_name, start="latest") as stream:
        assert offsets(await stream.messages(4)) == [(queue, 1) for queue in range(4)]


async def test_sent_messages_count_as_handled_where_that_is_asked_for(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 40)
    async with held(shared_node.url, topic_name, ack="sent", credit=2) as stream:
        assert len(await stream.messages(40, ack=False)) == 40
    assert sum(committed(api, topic_name, "pushed").values()) == 40


async def test_a_group_shares_in_one_way(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    group = f"m-{topic_name[-40:]}"
    api.call("PUT", f"/v1/groups/{group}", {"mode": "clustered"}, status=200)
    async with held(shared_node.url, topic_name, group) as stream:
        assert (await stream.until("end"))["code"] == "group_mode_mismatch"
        assert await stream.frame() == ("closed", 1008)


async def test_a_group_that_is_deleted_and_made_anew_shares_in_the_new_way(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    group = f"a-{topic_name[-40:]}"
    async with held(shared_node.url, topic_name, group) as stream:
        await stream.owns([0, 4])
    api.call("DELETE", f"/v1/groups/{group}", status=204)
    async with held(shared_node.url, topic_name, group) as stream:
        await stream.owns([0, 4])
        assert api.get(f"/v1/groups/{group}").json()["mode"] == "push", "it is made again"
    api.call("DELETE", f"/v1/groups/{group}", status=204)
    api.call("PUT", f"/v1/groups/{group}", {"mode": "clustered"}, status=200)
    async with held(shared_node.url, topic_name, group) as stream:
        assert (await stream.until("end"))["code"] == "group_mode_mismatch"


@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        ("no json", "invalid_request", ""),
        ('{"ack": [[0]]}', "invalid_request", "ack[0]"),
        ('{"ack": [[0, -1]]}', "invalid_request", "ack[0][1]"),
        ('{"credit": 20000}', "invalid_request", "credit"),
        ('{"acks": []}', "invalid_request", "acks"),
    ],
)
async def test_bad_frames_end_the_stream_and_say_why(
    api: Api, shared_node: NodeProcess, topic_name: str, frame: str, code: str, field: str
) -> None:
    async with held(shared_node.url, topic_name) as stream:
        await stream.until("stream")
        await stream.socket.send_str(frame)
        end = await stream.until("end")
        assert end["code"] == code and field in end.get("field", "")
        assert await stream.frame() == ("closed", 1008)


async def test_acknowledging_what_was_not_sent_changes_nothing(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 8)
    async with held(shared_node.url, topic_name, credit=1) as stream:
        ((queue, _),) = offsets(await stream.messages(1, ack=False))
        await stream.say(ack=[[other, 1_000_000] for other in range(4) if other != queue])
        await stream.say(ack=[[queue, 1_000_000]])
        assert len(await stream.messages(7)) == 7
    assert sum(committed(api, topic_name, "pushed").values()) == 8


async def test_errors_of_opening(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    path = f"/v1/groups/pushed/push?topic={topic_name}"
    assert api.get(path, status=400).error["field"] == "Accept"
    assert api.get("/v1/groups/pushed/push", status=400).code == "invalid_request"
    assert api.get(f"{path}&credit=0", status=400).error["field"] == "credit"
    odd = api.get(f"{path}&start=middle", status=400)
    assert odd.error["message"] == "start is 'middle'; it must be one of 'earliest', 'latest'"
    events = {"Accept": "text/event-stream"}
    assert api.get("/v1/groups/pushed/push?topic=nothing", status=404, headers=events).code == "unknown_topic"
    assert api.call("POST", f"/v1/groups/pushed/push/{'0' * 32}", {"ack": []}, status=404).code == "unknown_stream"
    async with held(shared_node.url, "nothing") as stream:
        assert (await stream.until("end"))["code"] == "unknown_topic"


async def test_server_sent_events_with_acknowledgements_by_request(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 8)
    path = f"{shared_node.url}/v1/groups/pushed/push"
    async with aiohttp.ClientSession() as session:
        headers = {"Accept": "text/event-stream"}
        async with session.get(path, params={"topic": topic_name, "credit": "4"}, headers=headers) as response:
            assert response.content_type == "text/event-stream"
            events = _Events(response)
            stream = await events.until("stream")
            found: list[dict[str, Any]] = []
            while len(found) < 8:
                batch = await events.until("messages")
                found += batch
                acks = {"ack": [[message["queue"], message["offset"]] for message in batch]}
                async with session.post(f"{path}/{stream['id']}", json=acks) as answer:
                    assert await answer.json() == {"unacknowledged": 0}
    assert len(found) == 8
    await comes_true(lambda: sum(committed(api, topic_name, "pushed").values()) == 8, "all of it is committed")


class _Events:
    """Server-sent events as they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._lines = response.content

    async def until(self, kind: str) -> Any:
        event = ""
        while True:
            line = (await self._lines.readline()).decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == kind:
                return json.loads(value)


async def test_others_do_not_commit_for_a_group_with_streams_unless_they_reset_it(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    group = f"r-{topic_name[-40:]}"
    send(api, topic_name, 8)
    commit = {"topic": topic_name, "queues": [0], "offsets": [0]}
    async with held(shared_node.url, topic_name, group) as stream:
        await stream.messages(8)
        path = f"/v1/groups/{group}/offsets"
        assert api.call("POST", path, commit, status=409).code == "group_has_members"
        api.call("POST", path, {**commit, "reset": True}, status=200)
        end = await stream.until("end")
        assert end["retriable"] and end["reset"]
    async with held(shared_node.url, topic_name, group) as stream:
        assert offsets(await stream.messages(2)) == [(0, 0), (0, 1)]


async def test_a_websocket_of_an_unknown_subprotocol_is_refused_and_without_one_it_is_json(
    shared_node: NodeProcess, topic_name: str
) -> None:
    api = Api(shared_node.url)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-WebSocket-Protocol": "mqtt, lsmq.xml"}
    api.create(topic_name, 1)
    path = f"/v1/groups/pushed/push?topic={topic_name}"
    refused = await asyncio.to_thread(api.call, "GET", path, headers=headers, status=400)
    assert refused.error["field"] == "Sec-WebSocket-Protocol" and "lsmq.json" in refused.error["message"]
    async with held(shared_node.url, topic_name, protocol="") as stream:
        await stream.owns([0, 1])
        assert stream.socket.protocol is None


async def test_streams_of_a_deleted_topic_end(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    async with held(shared_node.url, topic_name) as stream:
        await stream.owns([0, 4])
        api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
        end = await stream.until("end")
        assert (end["code"], end["message"]) == ("unknown_topic", f"topic {topic_name!r} was deleted meanwhile")


async def test_a_subscriber_that_acknowledges_nothing_loses_its_stream(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    send(api, topic_name, 4)
    async with held(shared_node.url, topic_name, subscriber="slow", ack_timeout_ms=300) as stream:
        await stream.messages(4, ack=False)
        end = await stream.until("end")
        assert end["code"] == "slow_consumer" and end["retriable"]
    async with held(shared_node.url, topic_name, subscriber="other", ack_timeout_ms=300) as stream:
        assert len(await stream.messages(4)) == 4
        await stream.nothing(0.6)  # Nothing is owed: nothing is timed.


async def test_pages_of_other_origins_are_refused(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    headers = {"Origin": "https://elsewhere.example", "Accept": "text/event-stream"}
    refused = api.get(f"/v1/groups/pushed/push?topic={topic_name}", status=403, headers=headers)
    assert refused.code == "origin_not_allowed" and "browser_origins" in refused.error["message"]
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        async with held(shared_node.url, topic_name, origin="https://elsewhere.example"):
            pass
    async with held(shared_node.url, topic_name, origin=shared_node.url) as stream:
        await stream.owns([0, 4])


async def test_pages_of_named_origins_may(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(browser_origins="https://shop.example, null").start()
    api = Api(node.url)
    api.create("t")
    path, origin = f"/v1/groups/pushed/push/{'0' * 32}", {"Origin": "https://shop.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = api.call("OPTIONS", path, headers={**origin, **asked}, status=204)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    answer = api.call("POST", path, {"acks": []}, headers={**origin, "Content-Type": "application/json"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    for allowed in ("https://shop.example", "null"):
        async with held(node.url, "t", origin=allowed) as stream:
            await stream.owns([0, 4])
    api.call("OPTIONS", path, headers={"Origin": "https://shop.example.org"}, status=403)


async def test_a_node_that_stops_says_so_and_commits_what_was_acknowledged(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node().start()
    api = Api(node.url)
    api.create("t")
    send(api, "t", 40)
    async with held(node.url, "t") as stream:
        found = await stream.messages(40, ack=False)
        await stream.ack(*[message for message in found if message["queue"] != 3])
        await comes_true(lambda: api.metric("lsmq_push_unacknowledged") == 10, "three queues are acknowledged")
        stopping = asyncio.create_task(asyncio.to_thread(node.stop))
        end = await stream.until("end")
        assert end["code"] == "shutting_down" and end["retriable"]
        assert await stream.frame() == ("closed", 1001)
        assert await stopping == 0
    node.start()
    assert committed(Api(node.url), "t", "pushed") == {0: 10, 1: 10, 2: 10}
    async with held(node.url, "t") as stream:
        assert offsets(await stream.messages(10)) == [(3, offset) for offset in range(10)]
        await stream.nothing()


async def test_what_was_acknowledged_is_durable_when_the_stream_is_closed(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node().start()
    api = Api(node.url)
    api.create("t")
    send(api, "t", 400)
    async with held(node.url, "t") as stream:
        await stream.messages(400)
    node.kill9()
    node.start()
    async with held(node.url, "t") as stream:
        await stream.owns([0, 4])
        await stream.nothing()

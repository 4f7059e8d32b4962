"""Any node answers for any queue: three real nodes, asked by a client that knows nothing of leaders."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgpack
import pytest

from lsmq import Client, Producer
from lsmq.record_batch import BatchBuilder, Column, split_batches
from lsmq_lab.local_cluster import LocalCluster
from lsmq_node.storage.columns import DTYPES, decode_column
from support.clusters import running_cluster
from support.waiting import eventually

SHARDS = 3
QUEUES = 6
TOPICS = (f"topic-{number}" for number in itertools.count())
SETTINGS: dict[str, Any] = {
    "segment_bytes": 1 << 20,
    "memtable_bytes": 4 << 20,
    "max_forwarded": 4,
    "max_response_bytes": 8 << 20,
    "address_share_percent": 100,
    "cluster.ack_timeout_ms": 2_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("forwarding") / "cluster"
    with running_cluster(__name__, directory, shards=SHARDS, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def urls(cluster: LocalCluster) -> list[str]:
    """Of all nodes, which are well, each shard led by the one it is meant for."""
    found = [node.url for node in cluster.plan.nodes]
    eventually(lambda: ask(f"{found[0]}/v1/cluster")[0] == 200, "the cluster is known")

    def well() -> bool:
        shown = ask(f"{found[0]}/v1/cluster")[1]
        return all(node["alive"] for node in shown["nodes"]) and all(
            entry["leader"] == entry["replicas"][0] and sorted(entry["in_sync"]) == sorted(entry["replicas"])
            for entry in shown["shards"]
        )

    eventually(well, "all is well")
    return found


@pytest.fixture
def topic(urls: list[str]) -> str:
    name = next(TOPICS)
    assert ask(f"{urls[0]}/v1/topics/{name}", "PUT", {"queues": QUEUES})[0] == 201
    return name


def ask(url: str, method: str = "GET", body: Any = None, *options: str, **headers: str) -> tuple[int, Any]:
    """Status and document, of curl, which follows nothing unless told."""
    content = [] if body is None else ["--data-binary", body if isinstance(body, str) else json.dumps(body)]
    given = [f"-H{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    command = ["curl", "-sS", "-m", "30", "-X", method, "-w", "\n%{http_code}", *given, *options, *content, url]
    text, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), json.loads(text) if text else None


def leaders(url: str, topic: str) -> dict[int, str]:
    """By queue."""
    routes = ask(f"{url}/v1/topics/{topic}")[1]["routes"]
    return {queue: route["leader"] for route in routes for queue in range(route["first"], route["end"])}


def metric(url: str, name: str) -> float:
    text = subprocess.run(["curl", "-sS", f"{url}/metrics"], capture_output=True, text=True, check=True).stdout
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


def test_every_node_takes_and_gives_messages_of_every_queue(urls: list[str], topic: str) -> None:
    for queue in range(QUEUES):
        for at, url in enumerate(urls):
            base = f"{url}/v1/topics/{topic}"
            status, answer = ask(f"{base}/messages", "POST", {"messages": [{"queue": queue, "body": f"{queue}-{at}"}]})
            assert status == 200, answer
            (stored,) = answer["results"]
            assert (stored["queue"], stored["offset"]) == (queue, at)
            status, found = ask(f"{url}/v1/messages/{stored['id']}")
            assert status == 200 and found["body"] == f"{queue}-{at}" and found["topic"] == topic
        for url in urls:
            base = f"{url}/v1/topics/{topic}"
            status, found = ask(f"{base}/queues/{queue}/messages?offset=earliest")
            assert [message["body"] for message in found["messages"]] == [f"{queue}-{at}" for at in range(len(urls))]
            assert ask(f"{base}/queues/{queue}")[1] == {"queue": queue, "earliest": 0, "latest": len(urls)}
            status, found = ask(f"{base}/delete", "POST", {"queues": [queue], "offsets": [0], "before": True})
            assert status == 200, found
    assert set(leaders(urls[0], topic).values()) == set(urls)  # So of each node some were passed on.


def test_messages_of_one_request_for_many_leaders_are_stored_by_each_and_answered_in_order(
    urls: list[str], topic: str
) -> None:
    for at, url in enumerate(urls):
        messages = [{"queue": (7 * place) % QUEUES, "key": f"k{place}", "body": str(place)} for place in range(30)]
        messages += [{"key": f"k{place}", "body": f"by key {place}"} for place in range(20)]
        status, answer = ask(f"{url}/v1/topics/{topic}/messages", "POST", {"messages": messages})
        assert status == 200, answer
        results = answer["results"]
        assert [result["queue"] for result in results[:30]] == [message["queue"] for message in messages[:30]]
        for place in (0, 1, 2, 3, 31, 44, 49):
            found = ask(f"{urls[(at + 1) % 3]}/v1/messages/{results[place]['id']}")[1]
            assert (found["body"], found["key"]) == (messages[place]["body"], messages[place]["key"])


def test_offsets_are_read_committed_and_deleted_over_several_leaders_in_one_request(
    urls: list[str], topic: str
) -> None:
    every = list(range(QUEUES))
    messages = [{"queue": queue, "body": "x"} for queue in every for _ in range(queue + 4)]
    assert ask(f"{urls[0]}/v1/topics/{topic}/messages", "POST", {"messages": messages})[0] == 200
    for at, url in enumerate(urls):
        base, group = f"{url}/v1/topics/{topic}", f"{url}/v1/groups/{topic}-{at}/offsets"
        for form, asked in (("", every), ("?queues=5,0-2,4,0", [5, 0, 1, 2, 4, 0])):
            latest = [queue + 4 for queue in asked]
            found = {"queues": asked, "earliest": [at] * len(asked), "latest": latest}
            assert ask(f"{base}/offsets{form}") == (200, found)
        status, found = ask(f"{base}/offsets?time_ms=0")
        assert (status, found["at_time"]) == (200, [at] * QUEUES)
        committed = {"topic": topic, "queues": [4, 0, 2], "offsets": [2, 0, 1]}
        assert ask(group, "POST", committed) == (200, {"committed": 3})
        assert ask(f"{group}?topic={topic}&queues=0-5") == (200, {"queues": [0, 2, 4], "offsets": [0, 1, 2]})
        assert ask(group, "POST", {**committed, "offsets": [0, 0, 0], "reset": True})[0] == 200
        found = {"queues": [4, 0, 4], "offsets": [0, 0, 0]}
        assert ask(f"{urls[at - 1]}/v1/groups/{topic}-{at}/offsets?topic={topic}&queues=5,4,0,4") == (200, found)
        gone = {"queues": every[::-1], "offsets": [at] * QUEUES}
        assert ask(f"{base}/delete", "POST", gone) == (200, {"deleted": QUEUES})
        gone = {"queues": every, "offsets": [at + 1] * QUEUES, "before": True}
        assert ask(f"{base}/delete", "POST", gone) == (200, {"deleted": QUEUES})
        status, answer = ask(f"{base}/delete", "POST", {"queues": [0, 5], "offsets": [at, 99]})
        assert (status, answer["error"]["code"], answer["error"]["queue"]) == (416, "offset_out_of_range", 5)
        for way in ("redirect", "refuse"):
            assert ask(f"{base}/offsets", Lsmq_Forward=way)[0] == 421
            assert ask(f"{base}/delete", "POST", gone, Lsmq_Forward=way)[0] == 421


def test_committed_offsets_of_queues_by_name_are_read_over_several_leaders_in_one_request(urls: list[str]) -> None:
    topic = next(TOPICS)
    assert ask(f"{urls[0]}/v1/topics/{topic}", "PUT", {"queues": "named"})[0] == 201
    messages = [{"queue": f"q{number}", "body": "x"} for number in range(20)]
    assert ask(f"{urls[0]}/v1/topics/{topic}/messages", "POST", {"messages": messages})[0] == 200
    queues = ask(f"{urls[0]}/v1/topics/{topic}/queues")[1]["queues"]
    numbers = sorted(queue["number"] for queue in queues)
    for at, url in enumerate(urls):
        group = f"/v1/groups/{topic}-{at}/offsets"
        committed = {"topic": topic, "queues": numbers, "offsets": [1] * 20}
        assert ask(url + group, "POST", committed) == (200, {"committed": 20})
        status, found = ask(f"{urls[at - 1]}{group}?topic={topic}&slots=0-4095")
        assert (status, sorted(found["queues"]), found["offsets"]) == (200, numbers, [1] * 20)
        assert ask(f"{url}{group}?topic={topic}&slots=0-4096")[1]["error"]["code"] == "unknown_queue"
        assert ask(f"{url}{group}?topic={topic}&slots=0-4095", Lsmq_Forward="refuse")[0] == 421


def write_to_all(url: str, topic: str) -> None:
    """A message to each queue."""
    every = [{"queue": queue, "body": str(queue)} for queue in range(QUEUES)]
    assert ask(f"{url}/v1/topics/{topic}/messages", "POST", {"messages": every})[0] == 200


def popped(url: str, urls: list[str], group: str, topic: str) -> list[str]:
    """Receipts, of the node and of all others that its answer says to ask."""
    wanted = f"/v1/groups/{group}/pop", "POST", {"topic": topic, "max": 100}
    status, answer = ask(url + wanted[0], *wanted[1:])
    assert status == 200 and sorted([*answer["other_leaders"], url]) == sorted(urls)
    rest = [ask(each + wanted[0], *wanted[1:])[1] for each in answer["other_leaders"]]
    return [message["receipt"] for found in (answer, *rest) for message in found["messages"]]


def test_receipts_of_several_leaders_are_settled_in_one_request_and_each_is_told_of(
    urls: list[str], topic: str
) -> None:
    write_to_all(urls[0], topic)
    for at, url in enumerate(urls):
        group = f"{url}/v1/groups/{topic}-{at}"
        receipts = popped(url, urls, f"{topic}-{at}", topic)
        assert len(receipts) == QUEUES
        wanted = {"topic": topic, "receipts": ["none", *receipts[:4], "none", *receipts[4:]]}
        for what in ({"how": "extend", "visibility_ms": 40_000}, {"how": "nack", "delay_ms": 0}):
            status, answer = ask(f"{group}/{what.pop('how')}", "POST", {**wanted, **what})
            assert (status, answer["done"]) == (200, QUEUES)
            assert [(each["index"], each["code"]) for each in answer["refused"]] == [
                (0, "unknown_receipt"),
                (5, "unknown_receipt"),
            ]
        again = popped(url, urls, f"{topic}-{at}", topic)
        assert len(again) == QUEUES
        both = [each for pair in zip(receipts, again, strict=True) for each in pair]
        status, answer = ask(f"{group}/ack", "POST", {"topic": topic, "receipts": both})
        assert (status, answer["done"]) == (200, QUEUES)
        assert [(each["index"], each["code"]) for each in answer["refused"]] == [
            (place, "receipt_expired") for place in range(0, 2 * QUEUES, 2)
        ]
        assert popped(url, urls, f"{topic}-{at}", topic) == []
        assert ask(f"{group}/ack", "POST", {"topic": topic, "receipts": both}, Lsmq_Forward="refuse")[0] == 421


def test_a_work_queue_is_configured_and_described_in_all_shards_whichever_node_is_asked(
    urls: list[str], topic: str
) -> None:
    write_to_all(urls[0], topic)
    for at, url in enumerate(urls):
        path = f"/v1/groups/{topic}-{at}/work-queue"
        status, put = ask(url + path, "PUT", {"topic": topic, "order": "key", "max_deliveries": 3 + at})
        status_there, found = ask(f"{urls[at - 1]}{path}?topic={topic}")
        assert status == status_there == 200 and put == found
        shards = [each["shard"] for each in found["shards"]]
        assert len(shards) > 1 and shards == sorted(set(shards))
        assert {each["settings"]["max_deliveries"] for each in found["shards"]} == {3 + at}
        assert sum(each["undelivered"] for each in found["shards"]) == QUEUES
        (alone,) = ask(f"{url}{path}?topic={topic}&shard={shards[-1]}")[1]["shards"]
        assert alone == found["shards"][-1]
        led = ask(f"{url}{path}?topic={topic}", Lsmq_Forward="refuse")[1]["shards"]
        assert 0 < len(led) < len(shards)
        status, answer = ask(f"{url}/v1/groups/{topic}-{at}/pop", "POST", {"topic": topic, "shards": shards})
        assert (status, answer["error"]["code"]) == (400, "invalid_request") and "several nodes" in str(answer)


@pytest.mark.parametrize("named", [False, True])
def test_a_group_is_reset_in_all_shards_whichever_node_is_asked(urls: list[str], named: bool) -> None:
    name = next(TOPICS)
    assert ask(f"{urls[0]}/v1/topics/{name}", "PUT", {"queues": "named" if named else QUEUES})[0] == 201
    queues = [f"q{number}" for number in range(20)] if named else list(range(QUEUES))
    messages = [{"queue": queue, "body": "x"} for queue in queues for _ in range(2)]
    assert ask(f"{urls[0]}/v1/topics/{name}/messages", "POST", {"messages": messages})[0] == 200

    def reset(url: str, to: str, method: str = "POST") -> tuple[dict[Any, tuple[int, int]], int, int]:
        moves, again, skipped, steps, after = {}, 0, 0, 0, "0:0"
        while after is not None:
            given, path = {"topic": name, "to": to, "after": after}, f"{url}/v1/groups/{name}/reset"
            query = "?" + urlencode(given) if method == "GET" else ""
            status, found = ask(path + query, method, None if query else given)
            assert status == 200, found
            moves.update({move["queue"]: (move["committed"], move["to"]) for move in found["moves"]})
            again, skipped, after = again + found["read_again"], skipped + found["skipped"], found["next"]
            steps += 1
        assert steps == SHARDS
        return moves, again, skipped

    count = len(queues)
    for number, url in enumerate(urls):
        expected = dict.fromkeys(queues, ((None, 0, 0)[number], 2)), 0, 2 * count
        assert reset(url, "latest", "GET") == reset(url, "latest") == expected
        assert reset(url, "latest") == ({}, 0, 0)
        back = dict.fromkeys(queues, (2, 0)), 2 * count, 0
        assert reset(urls[number - 1], "earliest") == back


def test_what_is_wrong_with_a_request_is_said_by_whoever_is_asked(urls: list[str], topic: str) -> None:
    for url in urls:
        base = f"{url}/v1/topics/{topic}"
        assert ask(f"{base}/queues/{QUEUES}/messages")[1]["error"]["code"] == "unknown_queue"
        for queue in range(QUEUES):
            status, answer = ask(f"{base}/queues/{queue}/messages?offset=99")
            assert (status, answer["error"]["code"]) == (416, "offset_out_of_range")
            status, answer = ask(f"{base}/messages", "POST", {"messages": [{"queue": queue, "body": "x", "tag": 1}]})
            assert (status, answer["error"]["field"]) == (400, "messages[0].tag")
        status, answer = ask(f"{base}/queues/0", Lsmq_Forward="somewhere")
        assert (status, answer["error"]["field"]) == (400, "Lsmq-Forward")


def test_a_repeat_through_another_node_is_stored_once(urls: list[str], topic: str) -> None:
    body = {"messages": [{"queue": 5, "body": "once"}], "producer": {"id": 77, "sequence": 0}}
    answers = [ask(f"{url}/v1/topics/{topic}/messages", "POST", body) for url in urls]
    assert [status for status, _ in answers] == [200] * 3
    assert all(answer == answers[0][1] for _, answer in answers)
    body["messages"] = [{"queue": 5, "body": "another"}]
    assert ask(f"{urls[0]}/v1/topics/{topic}/messages", "POST", body)[1]["error"]["code"] == "sequence_reused"


@pytest.mark.part(2)
def test_who_wants_to_be_redirected_is_sent_to_the_leader_and_not_passed_on(urls: list[str], topic: str) -> None:
    for queue, leader in leaders(urls[0], topic).items():
        for url in urls:
            passed = [metric(each, "lsmq_forwarded_total") for each in urls]
            path = f"/v1/topics/{topic}/messages"
            body = {"messages": [{"queue": queue, "body": "x"}]}
            status, answer = ask(url + path, "POST", body, "-o-", Lsmq_Forward="redirect")
            if url == leader:
                assert status == 200
            else:
                assert status == 307 and answer["error"]["code"] == "not_leader"
                assert answer["error"]["leader"] == leader
            command = ["curl", "-sSL", "-HLsmq-Forward: redirect", "-d", json.dumps(body), url + path]
            followed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            assert followed["results"][0]["queue"] == queue
            assert [metric(each, "lsmq_forwarded_total") for each in urls] == passed
    # Of several leaders there is no one to send to.
    every = [{"queue": queue, "body": "x"} for queue in range(QUEUES)]
    status, answer = ask(f"{urls[0]}/v1/topics/{topic}/messages", "POST", {"messages": every}, Lsmq_Forward="redirect")
    assert (status, answer["error"]["code"]) == (421, "not_leader")


async def test_batches_of_many_leaders_in_one_request_are_stored_by_each(urls: list[str], topic: str) -> None:
    headers = {"Content-Type": "application/msgpack"}
    parts = []
    for body in range(10 * QUEUES):
        builder = BatchBuilder()
        builder.add(body % QUEUES, b"%d" % body)
        parts.append({"topic": topic, "batch": builder.build()})
    parts.insert(7, {"topic": f"{topic}-none", "batch": parts[0]["batch"]})
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(
                f"{url}/v1/batches", data=msgpack.packb({"batches": parts}), headers=headers
            ) as told:
                assert told.status == 200, await told.text()
                results = msgpack.unpackb(await told.read())["results"]
            assert results.pop(7)["error"]["code"] == "unknown_topic"
            assert [each for each in results if "error" in each] == []
        for queue in range(QUEUES):
            found = ask(f"{urls[0]}/v1/topics/{topic}/queues/{queue}/messages?offset=earliest")[1]["messages"]
            assert sorted(int(message["body"]) for message in found) == sorted([*range(queue, 10 * QUEUES, QUEUES)] * 3)
        refuse = {**headers, "Lsmq-Forward": "refuse"}
        async with session.post(
            f"{urls[0]}/v1/batches", data=msgpack.packb({"batches": parts}), headers=refuse
        ) as told:
            results = msgpack.unpackb(await told.read())["results"]
        codes = {each["error"]["code"] for each in results if "error" in each}
        assert codes == {"unknown_topic", "not_leader"} and any("batch" in each for each in results)


async def test_batches_and_fetches_are_passed_on_as_they_are(urls: list[str], topic: str) -> None:
    async with aiohttp.ClientSession() as session:
        for queue in range(QUEUES):
            for at, url in enumerate(urls):
                builder = BatchBuilder()
                builder.add(queue, b"body" * 50_000, key=f"key-{at}")
                headers = {"Content-Type": "application/vnd.lsmq.batch"}
                target, packed = f"{url}/v1/topics/{topic}/batches", builder.build()
                async with session.post(target, data=packed, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    (stored,) = split_batches(await answer.read(), source="answer")
                    column = stored.directory[Column.OFFSET]
                    assert decode_column(stored.buffer, column, 1, DTYPES[Column.OFFSET]).tolist() == [at]
        for url in urls:
            for queue in range(QUEUES):
                body = {"queues": [queue], "offsets": [0], "keep": True}
                async with session.post(f"{url}/v1/topics/{topic}/fetch", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    _, *batches = split_batches(await answer.read(), source="answer")
                    bodies = [row[5] - row[4] for batch in batches for row in batch.rows()]
                    assert bodies == [200_000] * 3
                    # A session is good at the node that keeps it, which is not the one that is asked again.
                    led_here = leaders(url, topic)[queue] == url
                    assert ("Lsmq-Fetch-Session" in answer.headers) == led_here


async def test_a_long_poll_that_was_passed_on_wakes_and_ends_with_its_client(urls: list[str], topic: str) -> None:
    led = leaders(urls[0], topic)
    queue = next(queue for queue, leader in led.items() if leader != urls[0])
    path = f"/v1/topics/{topic}/queues/{queue}/messages?offset=0&wait_ms=20000"

    async def held(count: int) -> None:
        await asyncio.to_thread(eventually, lambda: metric(led[queue], "lsmq_waiters") == count, f"{count} polls held")

    async with aiohttp.ClientSession() as session:
        poll = asyncio.create_task(session.get(urls[0] + path))
        await held(1)
        await asyncio.to_thread(
            ask, f"{urls[0]}/v1/topics/{topic}/messages", "POST", {"messages": [{"queue": queue, "body": "news"}]}
        )
        assert (await (await poll).json())["messages"][0]["body"] == "news"
        gone = [asyncio.create_task(session.get(urls[0] + path.replace("offset=0", "offset=1"))) for _ in range(4)]
        await held(4)
        async with session.get(urls[0] + path) as answer:  # One more than max_forwarded.
            assert answer.status == 503
            error = (await answer.json())["error"]
            assert error["retriable"] and error["limit"] == 4 and error["leader"] == led[queue]
        for poll in gone:
            poll.cancel()
        await held(0)


async def test_our_own_client_asks_leaders_itself(urls: list[str], topic: str) -> None:
    before = [metric(url, "lsmq_forwarded_total") for url in urls]
    async with Client(urls) as client, Producer(client, topic) as producer:
        for queue in range(QUEUES):
            await (await producer.send(b"x", queue=queue))
    assert [metric(url, "lsmq_forwarded_total") for url in urls] == before


def test_pages_of_others_are_refused_where_they_ask(urls: list[str], topic: str) -> None:
    for url in urls:
        for queue in range(QUEUES):
            path = f"{url}/v1/topics/{topic}/queues/{queue}"
            assert ask(path, Origin="https://elsewhere.example")[1]["error"]["code"] == "origin_not_allowed"
            assert ask(path, Host="evil.example")[1]["error"]["code"] == "host_not_allowed"


def test_nobody_passes_himself_off_as_a_node(cluster: LocalCluster, urls: list[str], topic: str) -> None:
    inside = cluster.plan.nodes[0].internal_url
    body = {"messages": [{"queue": 0, "body": "x"}]}
    status, answer = ask(f"{inside}/internal/api/v1/topics/{topic}/messages", "POST", body)
    assert (status, answer["error"]["code"]) == (401, "not_authenticated")


def test_a_node_that_is_passed_what_it_does_not_lead_passes_nothing_on(
    cluster: LocalCluster, urls: list[str], topic: str
) -> None:
    """As when two nodes disagree about the leader: the second says so, and no request goes round."""
    from lsmq_coordinator.auth import ClusterSecret
    from lsmq_coordinator.control_http import ControlHttp

    led = leaders(urls[0], topic)
    queue = next(queue for queue, leader in led.items() if leader != urls[0])
    secret = ClusterSecret.load(cluster.directory / "secret")

    async def passed_wrongly() -> tuple[int, Any]:
        http = ControlHttp(secret)
        await http.start()
        try:
            path = f"/internal/api/v1/topics/{topic}/queues/{queue}"
            answer = await http.exchange(cluster.plan.nodes[0].internal_url, "GET", path, b"", {}, 10)
            return answer.status, json.loads(answer.body)
        finally:
            await http.close()

    passed = metric(urls[0], "lsmq_forwarded_total")
    status, answer = asyncio.run(passed_wrongly())
    assert (status, answer["error"]["code"], answer["error"]["leader"]) == (421, "not_leader", led[queue])
    assert metric(urls[0], "lsmq_forwarded_total") == passed


@pytest.mark.slow
def test_acknowledged_messages_outlive_a_leader_whoever_they_were_sent_through(
    cluster: LocalCluster, urls: list[str], topic: str
) -> None:
    """The others are asked all along; what they acknowledged is there, and once a new leader is there all is taken."""
    victim, *others = cluster.plan.nodes
    acknowledged: dict[str, str] = {}
    stopping = False

    def send(url: str) -> int:
        failed = 0
        for count in itertools.count():
            if stopping:
                return failed
            body = f"{url} {count}"
            message = {"messages": [{"queue": count % QUEUES, "body": body}]}
            status, answer = ask(f"{url}/v1/topics/{topic}/messages", "POST", message)
            if status == 200:
                acknowledged[answer["results"][0]["id"]] = body
            else:
                assert answer["error"]["retriable"], answer
                failed += 1
        raise AssertionError

    with ThreadPoolExecutor(len(others)) as senders:
        sending = [senders.submit(send, node.url) for node in others]
        eventually(lambda: len(acknowledged) > 50, "messages are taken")
        cluster.kill(victim.id)
        before = len(acknowledged)
        eventually(lambda: victim.url not in leaders(others[0].url, topic).values(), "others lead")
        eventually(lambda: len(acknowledged) > before + 50, "messages are taken again")
        stopping = True
        for sender in sending:
            sender.result()
    for identity, body in acknowledged.items():
        status, found = ask(f"{others[1].url}/v1/messages/{identity}")
        assert (status, found["body"]) == (200, body)
    cluster.start(victim.id)


async def test_messages_are_found_by_key_in_all_shards_whoever_is_asked(urls: list[str], topic: str) -> None:
    expected = []
    for number in range(2 * QUEUES):
        message = {"queue": (5 * number) % QUEUES, "key": "anna & co", "body": str(number)}
        assert ask(f"{urls[number % 3]}/v1/topics/{topic}/messages", "POST", {"messages": [message]})[0] == 200
        expected.insert(0, str(number))
    for url in urls:
        path = f"{url}/v1/topics/{topic}/messages?key=anna%20%26%20co"
        status, found = ask(f"{path}&explain=1")
        assert status == 200 and [message["body"] for message in found["messages"]] == expected
        assert sorted(work["shard"] for work in found["explain"]) == [0, 1, 2]
        bodies, after = [], ""
        while True:
            found = ask(f"{path}&limit=5{after}")[1]
            bodies += [message["body"] for message in found["messages"]]
            if found["next"] is None:
                break
            after = f"&after={found['next']}"
        assert bodies == expected
        async with Client([url]) as client:
            page = await client.find_messages(topic, "anna & co", limit=3)
            assert [message.text() for message in page.messages] == expected[:3]
            page = await client.find_messages(topic, "anna & co", limit=100, after=page.next, explain=True)
            assert [message.text() for message in page.messages] == expected[3:] and len(page.explain) == 3
            assert page.next is None
            page = await client.find_messages(topic, "anna & co", limit=100, filter="priority = 0 AND key LIKE 'anna%'")
            assert [message.text() for message in page.messages] == expected
            assert not (await client.find_messages(topic, "anna & co", filter="priority > 0")).messages
            picked: list[tuple[int, int, str]] = []
            pages, cursor = 0, None
            while pages == 0 or cursor is not None:
                page = await client.find_messages(topic, filter="key LIKE 'anna%'", limit=4, after=cursor)
                picked += [(message.queue, message.offset, message.text()) for message in page.messages]
                pages, cursor = pages + 1, page.next
            assert sorted(text for _, _, text in picked) == sorted(expected)
            assert picked == sorted(picked) and pages >= len(expected) / 4


@pytest.mark.parametrize("query", ["filter=priority%20%3D%200", "key=k"])
async def test_a_page_of_what_is_found_is_no_larger_however_many_shards_there_are(
    urls: list[str], topic: str, query: str
) -> None:
    async with Client(urls) as client, Producer(client, topic) as producer:
        for number in range(4 * QUEUES):  # Less in each shard than a page may have.
            await producer.send_and_wait(b"x" * 1_000_000, key="k", queue=number % QUEUES)
    for url in urls:
        found, after = [], ""
        while not found or after:
            page = ask(f"{url}/v1/topics/{topic}/messages?{query}&limit=1000&explain=1{after}")[1]
            if query == "key=k":
                assert all(work["messages"] <= 5 for work in page["explain"]), "each gives its part, and one more"
            assert sum(len(message["body"]) for message in page["messages"]) <= 2 * SETTINGS["max_response_bytes"]
            found += [(message["queue"], message["offset"]) for message in page["messages"]]
            after = f"&after={page['next']}" if page["next"] else ""
        assert sorted(found) == [(queue, offset) for queue in range(QUEUES) for offset in range(4)]


def test_any_node_lists_what_somebody_has_of_all_shards_and_any_settles_it(urls: list[str], topic: str) -> None:
    messages = [{"queue": queue, "body": "x"} for queue in range(QUEUES)]
    assert ask(f"{urls[0]}/v1/topics/{topic}/messages", "POST", {"messages": messages})[0] == 200
    group = f"/v1/groups/{topic}"
    assert ask(f"{urls[0]}{group}/held?topic={topic}")[0] == 404
    for url in urls:
        popped = {"topic": topic, "max": 100, "visibility_ms": 600_000}
        assert ask(f"{url}{group}/pop", "POST", popped)[0] == 200
    lists = [ask(f"{url}{group}/held?topic={topic}")[1]["messages"] for url in urls]
    assert lists[0] == lists[1] == lists[2]
    assert [message["queue"] for message in lists[0]] == list(range(QUEUES))
    first, rest = (ask(f"{urls[1]}{group}/held?topic={topic}&limit=4{more}")[1] for more in ("", "&after=1.3.0"))
    assert first["messages"] + rest["messages"] == lists[0] and first["next"] == "1.3.0"
    for message in lists[0]:
        settled = {"topic": topic, "receipts": [message["receipt"]]}
        assert ask(f"{urls[2]}{group}/ack", "POST", settled) == (200, {"done": 1, "refused": []})
    assert ask(f"{urls[0]}{group}/held?topic={topic}")[1]["messages"] == []

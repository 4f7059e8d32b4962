"""Tokens and rights in a cluster: agreed on by all nodes, kept by requests that are passed on, revoked everywhere."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest

from lsmq import Client, Consumer, Forbidden, Producer, Unauthenticated
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "auth": "token"}
QUEUES = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("rights") / "cluster"
    with running_cluster(__name__, directory, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def urls(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> str:
    token = cluster.token
    assert token is not None
    return token


def ask(url: str, method: str = "GET", body: Any = None, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    content = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, content, headers, method=method), timeout=30) as found:
            text = found.read()
            return found.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            is_json = error.headers.get_content_type() == "application/json"
            return error.code, json.loads(error.read()) if is_json else None


def made(url: str, admin: str, name: str, *roles: tuple[str, str]) -> str:
    given = [{"role": role, "prefix": prefix} for role, prefix in roles]
    status, answer = ask(f"{url}/v1/tokens", "POST", {"name": name, "roles": given}, admin)
    assert status == 201, answer
    token: str = answer["token"]
    return token


@pytest.fixture(scope="module")
def topic(urls: list[str], admin: str) -> str:
    assert ask(f"{urls[0]}/v1/topics/orders", "PUT", {"queues": QUEUES}, admin)[0] == 201
    return "orders"


def test_each_node_has_an_administrator_who_is_known_to_all(cluster: LocalCluster, urls: list[str]) -> None:
    files = [cluster.directory / node.id / "data" / "admin.token" for node in cluster.plan.nodes]
    eventually(lambda: all(file.exists() for file in files), "all nodes have written theirs")
    for node, file in zip(cluster.plan.nodes, files, strict=True):
        for url in urls:
            status, found = ask(f"{url}/v1/whoami", token=file.read_text().strip())
            assert (status, found["name"]) == (200, f"admin@{node.id}")


def test_a_token_that_one_node_made_is_good_at_the_next_at_once(urls: list[str], admin: str) -> None:
    for number in range(6):
        token = made(urls[number % 3], admin, f"quick-{number}")
        assert ask(f"{urls[(number + 1) % 3]}/v1/whoami", token=token)[0] == 200


def test_a_request_that_is_passed_on_is_that_of_who_sent_it(urls: list[str], admin: str, topic: str) -> None:
    writer = made(urls[0], admin, "writer", ("producer", "ord"))
    for url in urls:
        messages = [{"queue": queue, "body": "x"} for queue in range(QUEUES)]

        def takes(url: str = url, messages: Any = messages) -> bool:
            status, answer = ask(f"{url}/v1/topics/{topic}/messages", "POST", {"messages": messages}, writer)
            assert status == 200 or answer["error"]["retriable"], answer
            return status == 200

        eventually(takes, "it is stored, whoever leads meanwhile")
        for queue in range(QUEUES):
            path = f"{url}/v1/topics/{topic}/queues/{queue}"
            assert ask(path, token=writer)[0] == 200
            status, refused = ask(f"{path}/messages", token=writer)
            assert (status, refused["error"]["right"]) == (403, f"read topic {topic}")
        assert ask(f"{url}/v1/topics/{topic}/messages", "POST", {"messages": messages})[0] == 401


def test_schedules_count_for_who_makes_them_whichever_node_is_asked(urls: list[str], admin: str, topic: str) -> None:
    tenant = made(urls[0], admin, "planner", ("tenant", topic))
    assert ask(f"{urls[0]}/v1/limits/planner", "PATCH", {"schedules": 1}, admin)[0] == 204
    for url in urls:
        eventually(
            lambda url=url: "planner" in str(ask(f"{url}/v1/limits", token=admin)[1]), "each node has heard of it"
        )
    for queue in range(0, QUEUES, 2):
        document = {"cron": "0 9 * * *", "tz": "UTC", "message": {"body": "x", "queue": queue}}
        statuses = []
        for number, url in enumerate(urls):
            path = f"{url}/v1/topics/{topic}/schedules/of-{queue}-{number}"
            statuses.append(ask(path, "PUT", document, tenant)[0])
        assert statuses == [201, 429, 429]


def test_names_that_transactions_bring_are_refused_and_counted_by_whoever_leads_their_shard(
    urls: list[str], admin: str, cluster: LocalCluster
) -> None:
    assert ask(f"{urls[0]}/v1/topics/named", "PUT", {"queues": "named"}, admin)[0] == 201
    tenant = made(urls[0], admin, "namer", ("tenant", "named"), ("tenant", "group-"))
    assert ask(f"{urls[0]}/v1/limits/namer", "PATCH", {"queues": 2}, admin)[0] == 204
    for url in urls:
        eventually(lambda url=url: "namer" in str(ask(f"{url}/v1/limits", token=admin)[1]), "each node has heard of it")
    names = [f"n{number}" for number in range(12 * len(cluster.plan.nodes))]

    def begin(group: str, number: int, *names: str) -> tuple[int, Any]:
        path = f"{urls[0]}/v1/producer-groups/{group}"
        messages = [{"topic": "named", "queue": name, "body": "x"} for name in names]
        return ask(f"{path}/transactions", "POST", {"member": "m", "number": number, "messages": messages}, tenant)

    for group in ("group-1", "group-2", "group-3"):
        beat = {"member": "m", "session_ms": 60_000, "join": True}
        assert ask(f"{urls[0]}/v1/producer-groups/{group}/heartbeat", "POST", beat, tenant)[0] == 200
        status, answer = begin(group, 1, *names)
        assert (status, answer["error"]["code"], answer["error"]["setting"]) == (
            429,
            "too_many_queues",
            "principal_queues",
        )
        assert begin(group, 1, names[0])[0] == 200


def test_administrators_who_change_rights_at_all_nodes_at_once_are_not_refused(urls: list[str], admin: str) -> None:
    def put(number: int) -> int:
        rights = [{"kind": "topic", "pattern": "orders", "action": "read"}]
        return ask(f"{urls[number % 3]}/v1/roles/at-once-{number}", "PUT", {"rights": rights}, admin)[0]

    with ThreadPoolExecutor(24) as administrators:
        assert {*administrators.map(put, range(240))} == {204}


def test_what_opens_the_inside_opens_nothing_outside_and_the_other_way_round(
    cluster: LocalCluster, urls: list[str], admin: str
) -> None:
    for node in cluster.plan.nodes:
        for path in ("/internal/control/version", "/internal/api/v1/topics"):
            assert ask(f"{node.internal_url}{path}", token=admin)[0] == 401
        assert ask(f"{node.url}/internal/api/v1/topics", token=admin)[0] == 404
        assert ask(f"{node.internal_url}/v1/topics", token=admin)[0] == 404


def test_who_is_revoked_is_refused_by_all_nodes_within_a_moment(urls: list[str], admin: str) -> None:
    token = made(urls[0], admin, "leaving", ("monitor", ""))
    for url in urls:
        assert ask(f"{url}/v1/topics", token=token)[0] == 200
    assert ask(f"{urls[1]}/v1/tokens/leaving", "DELETE", token=admin)[0] == 204
    began = time.monotonic()
    eventually(lambda: {ask(f"{url}/v1/topics", token=token)[0] for url in urls} == {401}, "all refuse")
    print(f"refused by all nodes after {time.monotonic() - began:.3f} s")


def by_cookie(url: str, method: str, path: str, session: dict[str, str], body: Any = None) -> tuple[int, Any]:
    """As the page that this node serves asks it."""
    headers = {**session, "Origin": url, "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, content, headers, method=method), timeout=30
        ) as found:
            return found.status, json.loads(found.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def signed_in(url: str, token: str) -> dict[str, str]:
    request = urllib.request.Request(f"{url}/v1/session", headers={"Authorization": f"Bearer {token}"}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as found:
        cookie, said = found.headers["Set-Cookie"].partition(";")[0], json.loads(found.read())
    return {"Cookie": cookie, "Lsmq-Anti-Forgery": said["anti_forgery"]}


def test_a_session_is_good_at_every_node_at_once_and_what_is_passed_on_is_that_of_who_signed_in(
    urls: list[str], admin: str, topic: str
) -> None:
    token = made(urls[0], admin, "page", ("producer", "ord"))
    for number, first in enumerate(urls):
        session, url = signed_in(first, token), urls[(number + 1) % 3]
        messages = [{"queue": queue, "body": "x"} for queue in range(QUEUES)]
        status, answer = by_cookie(url, "POST", f"/v1/topics/{topic}/messages", session, {"messages": messages})
        assert status == 200, answer
        for queue in range(QUEUES):
            path = f"/v1/topics/{topic}/queues/{queue}"
            assert by_cookie(url, "GET", path, session)[0] == 200
            status, refused = by_cookie(url, "GET", f"{path}/messages", session)
            assert (status, refused["error"]["right"]) == (403, f"read topic {topic}")


def test_who_signs_out_at_one_node_is_out_at_all_within_a_moment(urls: list[str], admin: str) -> None:
    token = made(urls[0], admin, "out", ("monitor", ""))
    session = signed_in(urls[0], token)
    for url in urls:
        assert by_cookie(url, "GET", "/v1/topics", session)[0] == 200
    assert by_cookie(urls[1], "DELETE", "/v1/session", session)[0] == 204
    assert by_cookie(urls[1], "GET", "/v1/topics", session)[0] == 401
    eventually(lambda: {by_cookie(url, "GET", "/v1/topics", session)[0] for url in urls} == {401}, "all refuse")
    assert {ask(f"{url}/v1/topics", token=token)[0] for url in urls} == {200}


async def test_clients_send_and_read_with_a_token_and_hear_what_is_missing(
    urls: list[str], admin: str, topic: str
) -> None:
    token = made(urls[0], admin, "worker", ("producer", topic), ("consumer", topic), ("consumer", "kitchen"))
    async with Client(urls, token=token) as client:
        async with Producer(client, topic) as producer:
            for number in range(30):
                await producer.send_and_wait(str(number), queue=number % QUEUES)
        async with Consumer(client, topic, group="kitchen") as consumer:
            found: list[str] = []
            while len([text for text in found if text not in ("x", "for all to see")]) < 30:
                found += [message.text() for message in await consumer.poll(timeout_ms=1000)]
        with pytest.raises(Forbidden, match="create topic another"):
            await client.create_topic("another", queues=1)
    async with Client(urls, token="lsmq_wrong") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.topics()


async def test_a_stream_from_all_leaders_is_held_in_the_name_of_who_holds_it(
    urls: list[str], admin: str, topic: str
) -> None:
    reader = made(urls[0], admin, "reader", ("consumer", ""))
    headers = {"Authorization": f"Bearer {reader}"}
    async with Client(urls, token=admin) as client, Producer(client, topic) as producer:
        for queue in range(QUEUES):
            await producer.send_and_wait("for all to see", queue=queue)
    async with aiohttp.ClientSession(headers=headers) as session:
        url = f"{urls[0]}/v1/groups/watchers/push?topic={topic}"
        async with session.ws_connect(url, protocols=("lsmq.json",)) as socket:
            seen: set[int] = set()
            while len(seen) < QUEUES:
                frame = await socket.receive_json(timeout=30)
                assert "end" not in frame, frame
                seen |= {message["queue"] for message in frame.get("messages", ())}
            assert ask(f"{urls[1]}/v1/tokens/reader", "DELETE", token=admin)[0] == 204
            while "end" not in (frame := await socket.receive_json(timeout=30)):
                pass
            assert frame["end"]["code"] == "unauthenticated"


def test_limits_hold_on_all_nodes_each_counts_for_itself_and_topics_count_for_all(urls: list[str], admin: str) -> None:
    name, one = "limited", made(urls[0], admin, "limited", ("admin", ""))
    neighbour = made(urls[0], admin, "unlimited", ("admin", ""))
    limits = {"requests_per_s": 2, "topics": 3}
    assert ask(f"{urls[0]}/v1/limits/{name}", "PATCH", limits, admin)[0] == 204

    def known_limits(url: str) -> dict[str, int]:
        found = ask(f"{url}/v1/limits", token=admin)[1]["principals"]
        return next((each["limits"] for each in found if each["name"] == name), {})

    for url in urls:
        eventually(lambda url=url: known_limits(url) == limits, "it is known there")
        with ThreadPoolExecutor(20) as pool:
            statuses = [each[0] for each in pool.map(lambda _, url=url: ask(f"{url}/v1/whoami", token=one), range(20))]
            assert set(statuses) == {200, 429}, "each node lets some through"
            others = pool.map(lambda _, url=url: ask(f"{url}/v1/whoami", token=neighbour), range(20))
            assert {each[0] for each in others} == {200}
    assert ask(f"{urls[0]}/v1/limits/{name}", "PATCH", {"requests_per_s": None}, admin)[0] == 204

    def create(url: str, topic: str) -> tuple[int, Any]:
        return ask(f"{url}/v1/topics/{topic}", "PUT", {"queues": 3}, one)

    eventually(lambda: create(urls[0], "limited-0")[0] in (200, 201), "the rate is his own no more")
    eventually(lambda: create(urls[1], "limited-1")[0] in (200, 201), "nor there")
    eventually(lambda: create(urls[2], "limited-2")[0] in (200, 201), "nor there")
    for url in urls:
        assert create(url, "limited-3")[1]["error"]["code"] == "too_many_topics", "whatever this node has heard of"
        assert create(url, "limited-0")[0] == 200
    assert ask(f"{urls[0]}/v1/limits/{name}", "PATCH", {"topics": 6}, admin)[0] == 204
    for url in urls:
        eventually(lambda url=url: known_limits(url) == {"topics": 6}, "it is known there")
    with ThreadPoolExecutor(12) as pool:
        made_at_once = pool.map(lambda number: create(urls[number % 3], f"at-once-{number}")[0], range(12))
        assert sorted(made_at_once) == [201] * 3 + [429] * 9

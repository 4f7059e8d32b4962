"""Fetch sessions: asking again for many queues by what was answered last."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest

from lsmq.record_batch import Column, Flag, split_batches
from lsmq.topics import FETCH_SESSION_HEADER
from lsmq_node.broker import Broker
from lsmq_node.broker.sessions import IDLE_S, SessionPart
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .calls import Answer, Api
from .in_process import Session, with_node

QUEUES = 1_000


def moved(body: bytes) -> dict[int, int]:
    return {
        queue: offset
        for batch in split_batches(body)
        if batch.column(Column.FLAGS)[0] & Flag.POSITION
        for queue, offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True)
    }


@pytest.fixture
def api(node: NodeProcess) -> Api:
    api = Api(node.url)
    api.create("t", QUEUES)
    return api


def go_on(api: Api, last: Answer, status: int = 200, **rest: Any) -> Answer:
    document = {"session": last.headers[FETCH_SESSION_HEADER], **rest}
    headers = {"Content-Type": "application/msgpack", "Accept": "application/json"}
    return api.call("POST", "/v1/topics/t/fetch", body=msgpack.packb(document), headers=headers, status=status)


def begin(api: Api, **rest: Any) -> Answer:
    return api.fetch("t", dict.fromkeys(range(QUEUES), 0), keep=True, **rest)


def test_a_session_goes_on_where_its_last_answer_ended(api: Api) -> None:
    api.send("t", {"queue": 5, "body": "a"}, {"queue": 900, "body": "b"})
    answer = begin(api)
    assert moved(answer.body) == {5: 1, 900: 1}
    answer = go_on(api, answer)
    assert answer.body == b""
    api.send("t", {"queue": 5, "body": "c"}, {"queue": 6, "body": "d"})
    answer = go_on(api, answer)
    assert moved(answer.body) == {5: 2, 6: 1}
    assert go_on(api, answer, wait_ms=50).body == b""


def test_what_does_not_fit_comes_next_and_no_queue_starves(api: Api) -> None:
    api.send("t", *({"queue": queue, "body": "x"} for queue in range(20) for _ in range(10)))
    answer = begin(api, max_messages=7)
    reached = moved(answer.body)
    for _ in range(60):
        api.send("t", {"queue": 3, "body": "a busy queue"})
        answer = go_on(api, answer, max_messages=7)
        reached.update(moved(answer.body))
    assert {queue: offset for queue, offset in reached.items() if queue != 3} == dict.fromkeys(set(range(20)) - {3}, 10)


def test_a_held_session_is_answered_by_any_of_its_queues(api: Api) -> None:
    answer = begin(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go_on, api, answer, wait_ms=20_000)
        eventually(lambda: api.status()["waiters"] == 1, "the poll is held")
        api.send("t", {"queue": 77, "body": "x"})
        assert moved(waiting.result().body) == {77: 1}
    eventually(lambda: api.status()["waiters"] == 0, "no poll is held")


def test_a_queue_that_was_emptied_ahead_of_its_reader_is_passed_over(api: Api) -> None:
    for queue in (4, 5):
        api.send("t", *({"queue": queue, "body": "x"} for _ in range(3)))
    answer = begin(api, max_messages=1)
    assert moved(answer.body) == {4: 1}
    api.call("POST", "/v1/topics/t/trim", {"queues": "4-5", "offset": 3}, status=200)
    answer = go_on(api, answer)
    assert moved(answer.body) == {4: 3, 5: 3}
    assert go_on(api, answer, wait_ms=50).body == b"", "it is said once"
    assert moved(begin(api).body) == {4: 3, 5: 3}


def test_a_token_is_good_once_and_its_loss_loses_nothing(api: Api) -> None:
    first = begin(api)
    api.send("t", {"queue": 1, "body": "x"})
    lost = go_on(api, first)
    assert moved(lost.body) == {1: 1}
    again = go_on(api, first, status=404)
    assert again.code == "unknown_fetch_session"
    assert go_on(api, lost, status=404).code == "unknown_fetch_session", "the session is gone with its first misuse"
    assert moved(begin(api).body) == {1: 1}


def test_a_session_of_another_topic_is_unknown(api: Api) -> None:
    api.create("u", 1)
    answer = api.fetch("u", {0: 0}, keep=True)
    assert go_on(api, answer, status=404).code == "unknown_fetch_session"


def test_a_deleted_topic_ends_who_waits(api: Api) -> None:
    answer = begin(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go_on, api, answer, 404, wait_ms=20_000)
        eventually(lambda: api.status()["waiters"] == 1, "the poll is held")
        api.call("DELETE", "/v1/topics/t", status=None)
        assert waiting.result().code == "unknown_topic"
        assert waiting.result().error["message"] == "topic 't' was deleted meanwhile"


def test_without_keep_there_is_no_session_and_queues_must_be_named(api: Api) -> None:
    assert FETCH_SESSION_HEADER not in api.fetch("t", {0: 0}).headers
    refused = api.call("POST", "/v1/topics/t/fetch", {"wait_ms": 1}, status=400)
    assert refused.code == "invalid_request"
    assert "session" in refused.error["message"]


DOCUMENT = {"queues": [0, 1], "offsets": [0, 0], "keep": True}
SIZE_BYTES = 2_048 + 2 * (13 + 256)


async def opened(client: Session) -> str | None:
    answer = await client.post("/v1/topics/t/fetch", json=DOCUMENT)
    return answer.headers.get(FETCH_SESSION_HEADER)


def watching(broker: Broker) -> int:
    """Sessions that commits are told to."""
    return sum(len(state.all()) for state in broker.waiters._topics.values())


def test_sessions_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        sessions = broker.reads.sessions
        sessions._limit_bytes = sessions._share_bytes = 3 * SIZE_BYTES
        tokens = [await opened(client) for _ in range(5)]
        assert len(sessions) == 3
        statuses = [(await client.post("/v1/topics/t/fetch", json={"session": token})).status for token in tokens]
        assert statuses == [404, 404, 200, 200, 200]
        sessions._limit_bytes = 100
        assert await opened(client) is None
        assert watching(broker) == len(sessions) == 3
        for session in list(sessions._kept.values()):
            sessions._drop_kept(session)
        assert not broker.waiters._topics and sessions.size_bytes == 0 and not sessions._bytes_of

    with_node(tmp_path, test)


def test_sessions_of_one_client_do_not_drive_out_those_of_others(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        sessions = broker.reads.sessions
        sessions._limit_bytes, sessions._share_bytes = 4 * SIZE_BYTES, 2 * SIZE_BYTES
        topic = await broker.topic("t")
        other = [sessions.open(topic, (), "another") for _ in range(2)]
        names = {sessions.keep(session).partition(".")[0] for session in other if session is not None}
        for _ in range(20):
            assert await opened(client) is not None
        assert names <= set(sessions._kept) and len(sessions) == 4

    with_node(tmp_path, test)


def test_sessions_end_by_themselves_when_nobody_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Session, broker: Broker) -> None:
        sessions = broker.reads.sessions
        for _ in range(30):
            await opened(client)
        assert watching(broker) == 30 and sessions._timer is not None
        for session in sessions._kept.values():
            session.used_at -= IDLE_S
        sessions._timer.cancel()
        sessions._expire()
        assert (watching(broker), len(sessions), sessions.size_bytes, sessions._timer) == (0, 0, 0, None)

    with_node(tmp_path, test)


def test_a_commit_looks_only_into_sessions_of_its_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/many", json={"queues": 1_000})
        for first in range(0, 1_000, 10):
            queues = list(range(first, first + 10))
            await client.post("/v1/topics/many/fetch", json={"queues": queues, "offsets": [0] * 10, "keep": True})
        looked: list[SessionPart] = []
        touch = SessionPart.touch
        monkeypatch.setattr(SessionPart, "touch", lambda self, queues: looked.append(self) or touch(self, queues))
        sent = await client.post("/v1/topics/many/messages", json={"messages": [{"queue": 505, "body": "x"}]})
        assert sent.status == 200 and watching(broker) == 100
        assert [part.queues.tolist() for part in looked] == [list(range(500, 510))]

    with_node(tmp_path, test)


def test_what_is_held_counts_too(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        sessions = broker.reads.sessions
        sessions._limit_bytes = sessions._share_bytes = 2 * SIZE_BYTES
        tokens = [await opened(client) for _ in range(2)]
        held = [
            asyncio.create_task(client.post("/v1/topics/t/fetch", json={"session": token, "wait_ms": 20_000}))
            for token in tokens
        ]
        await comes_true(lambda: broker.waiters.count == 2, "both are held")
        assert await opened(client) is None, "there is no room beside those that are held"
        await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}]})
        assert [answer.status for answer in await asyncio.gather(*held)] == [200, 200]
        assert sessions.size_bytes == 2 * SIZE_BYTES

    with_node(tmp_path, test)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.part(2)
def test_nothing_is_missed_or_doubled_however_sends_and_polls_fall(tmp_path: Path, seed: int) -> None:
    async def test(client: Session, broker: Broker) -> None:
        chance = random.Random(seed)
        count = 400
        await client.put("/v1/topics/many", json={"queues": count})
        sent: dict[int, int] = {}
        done = asyncio.Event()

        async def send() -> None:
            for _ in range(150):
                queues = [int(chance.triangular(0, count - 1, 0)) for _ in range(chance.randrange(1, 8))]
                messages = [{"queue": queue, "body": f"{queue}"} for queue in queues]
                response = await client.post("/v1/topics/many/messages", json={"messages": messages})
                assert response.status == 200
                for queue in queues:
                    sent[queue] = sent.get(queue, 0) + 1
                await asyncio.sleep(chance.choice((0, 0, 0.002)))
            done.set()

        async def receive() -> dict[int, int]:
            reached = dict.fromkeys(range(count), 0)
            token = None
            while not done.is_set() or any(reached[queue] < end for queue, end in sent.items()):
                document: dict[str, Any] = {"max_messages": chance.choice((1, 5, 1000)), "wait_ms": 50}
                if token is None or chance.random() < 0.05:
                    document |= {"queues": list(reached), "offsets": list(reached.values()), "keep": True}
                else:
                    document["session"] = token
                async with client.post("/v1/topics/many/fetch", json=document) as response:
                    if response.status == 404:
                        token = None
                        continue
                    token = response.headers[FETCH_SESSION_HEADER]
                    if chance.random() < 0.05:
                        token = None
                        continue  # as if the answer had been lost
                    body = await response.read()
                offsets: dict[int, list[int]] = {}
                for batch in split_batches(body):
                    if not (Column.FLAGS in batch.directory and batch.column(Column.FLAGS)[0] & Flag.POSITION):
                        for queue, offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True):
                            offsets.setdefault(queue, []).append(offset)
                for queue, end in moved(body).items():
                    assert offsets[queue] == list(range(reached[queue], end))
                    reached[queue] = end
            return reached

        async with asyncio.timeout(60):
            sender = asyncio.create_task(send())
            reached = await receive()
            await sender
        assert {queue: end for queue, end in reached.items() if end} == sent

    with_node(tmp_path, test)


def test_more_queues_than_may_ever_be_followed_are_refused_for_good(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/named", json={"queues": "named"})
        messages = [{"queue": f"q{number}", "body": "x"} for number in range(500)]
        await client.post("/v1/topics/named/messages", json={"messages": messages})
        asked = {"pattern": "**", "start": "earliest"}
        for more in ({"keep": True}, {}):
            answer = await client.post("/v1/topics/named/fetch", json=asked | more)
            error = (await answer.json())["error"]
            assert (answer.status, error["code"], error["retriable"]) == (413, "request_too_large", False)
            assert error["size"] > error["limit"] == 40_000 and "max_fetch_session_bytes" in error["message"]
        answer = await client.post("/v1/topics/named/fetch", json=asked | {"pattern": "q1"})
        assert answer.status == 200

    with_node(tmp_path, test, max_fetch_session_bytes=40_000)

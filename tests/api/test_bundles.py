"""Record batches of several topics in one request: each has a fate of its own."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import msgpack
import pytest

from lsmq.record_batch import BatchBuilder, Codec, Column, RecordBatch
from lsmq_node.broker import Broker, ProduceRequest
from lsmq_node.storage import Appended

from .calls import Answer, Api, pack
from .in_process import Session, with_node


def send(api: Api, *batches: tuple[str, bytes], status: int = 200, query: str = "") -> list[dict[str, Any]]:
    """The results of batches of topics."""
    parts = [{"topic": topic, "batch": batch} for topic, batch in batches]
    results: list[dict[str, Any]] = ask(api, {"batches": parts}, query).msgpack()["results"]
    return results


def ask(api: Api, document: Any, query: str = "", *, status: int = 200) -> Answer:
    headers = {"Content-Type": "application/msgpack", **({} if status == 200 else {"Accept": "application/json"})}
    return api.call("POST", f"/v1/batches{query}", body=msgpack.packb(document), headers=headers, status=status)


def code(result: dict[str, Any]) -> str:
    found: str = result["error"]["code"]
    return found


def test_each_batch_is_stored_or_refused_by_itself(api: Api, topic_name: str) -> None:
    one, two, named = topic_name, f"{topic_name}-2", f"{topic_name}-n"
    api.create(one, 2)
    api.create(two, 1)
    api.create(named, "named")
    api.send(two, {"queue": 0, "body": "before"})
    names = b"first\0second"
    results = send(
        api,
        (one, pack((1, b"a"), (0, b"b"))),
        (f"{topic_name}-none", pack((0, b"lost"))),
        (two, pack((0, b"c"))),
        (one, pack((7, b"lost"))),
        (named, len(names).to_bytes(4, "little") + names + pack((1, b"d"))),
        (one, b"no batch"),
        query="?ack=quorum&flush=sync",
    )
    offsets = [list(RecordBatch(each["batch"]).column(Column.OFFSET)) for each in results if "batch" in each]
    assert offsets == [[0, 0], [1], [0]]
    assert [code(each) for each in results if "error" in each] == ["unknown_topic", "unknown_queue", "invalid_batch"]
    assert ["error" in each for each in results] == [False, True, False, True, False, True]
    assert (api.bodies(one, 1), api.bodies(one, 0), api.bodies(two, 0)) == (["a"], ["b"], ["before", "c"])
    assert [each["body"] for each in api.get(f"/v1/topics/{named}/queues/second/messages").json()["messages"]] == ["d"]


def test_a_batch_that_is_sent_again_is_stored_once(api: Api, topic_name: str) -> None:
    topics = [f"{topic_name}-{number}" for number in range(3)]
    batches = []
    for topic in topics:
        api.create(topic, 1)
        batches.append((topic, pack((0, topic.encode()), producer_id=1 + secrets.randbits(62), sequence=0)))
    assert [each["duplicate"] for each in send(api, *batches[:2])] == [False, False]
    assert [each["duplicate"] for each in send(api, *batches)] == [True, True, False]
    assert [api.bodies(topic, 0) for topic in topics] == [[topic] for topic in topics]


def test_a_topic_that_was_made_anew_is_another_one(api: Api, topic_name: str) -> None:
    id = api.create(topic_name, 1)["id"]
    parts = [{"topic": topic_name, "topic_id": given, "batch": pack((0, b"x"))} for given in (id - 1, id, None)]
    results = ask(api, {"batches": parts}).msgpack()["results"]
    assert [("error" in each) and code(each) for each in results] == ["topic_replaced", False, False]
    assert api.bodies(topic_name, 0) == ["x", "x"]


def test_a_topic_of_another_cluster_is_not_the_one_that_is_meant(api: Api, topic_name: str) -> None:
    created_ms = api.create(topic_name, 1)["created_ms"]
    parts = [
        {"topic": topic_name, "topic_created_ms": given, "batch": pack((0, b"x"))}
        for given in (created_ms - 1, created_ms, created_ms + 1, None)
    ]
    results = ask(api, {"batches": parts}).msgpack()["results"]
    assert [("error" in each) and code(each) for each in results] == ["unavailable", False, "unavailable", False]
    assert "another cluster" in results[0]["error"]["message"]
    assert api.bodies(topic_name, 0) == ["x", "x"]


def test_a_request_says_by_headers_which_topic_it_means(api: Api, topic_name: str) -> None:
    made = api.create(topic_name, 1)
    path = f"/v1/topics/{topic_name}"

    def asked(status: int, id: object, created_ms: object) -> Answer:
        headers = {"Lsmq-Topic-Id": str(id), "Lsmq-Topic-Created": str(created_ms)}
        return api.call("GET", f"{path}/queues/0/messages", headers=headers, status=status)

    asked(200, made["id"], made["created_ms"])
    assert asked(503, made["id"], made["created_ms"] + 1).code == "unavailable"
    assert asked(503, made["id"] + 1, made["created_ms"]).code == "unavailable"
    assert asked(409, made["id"] - 1, made["created_ms"]).code == "topic_replaced"
    assert asked(400, made["id"], "yesterday").error["field"] == "Lsmq-Topic-Created"


@pytest.mark.parametrize("codec", Codec)
def test_batches_may_be_compressed(api: Api, topic_name: str, codec: Codec) -> None:
    api.create(topic_name, 1)
    builder = BatchBuilder()
    builder.add(0, b"body" * 1000)
    results = send(api, (topic_name, builder.build(codec=codec)), (topic_name, pack((0, b"plain"))))
    assert all("batch" in each for each in results)
    assert sorted(api.bodies(topic_name, 0)) == ["body" * 1000, "plain"]


def test_what_is_wrong_with_the_whole_is_said(api: Api, topic_name: str) -> None:
    plain = api.call("POST", "/v1/batches", {"batches": []}, status=400)
    assert "application/msgpack" in plain.error["message"]
    for wrong in ({}, {"batches": []}, {"batches": [{"topic": topic_name}]}, {"batches": [{"batch": b""}]}):
        assert ask(api, wrong, status=400).code == "invalid_request"
    part = {"topic": topic_name, "batch": b""}
    assert "batches" in ask(api, {"batches": [part] * 1_001}, status=400).error["message"]
    assert ask(api, {"batches": [part], "more": 1}, status=400).code == "invalid_request"
    api.create(topic_name, 1)
    assert (
        code(ask(api, {"batches": [{"topic": topic_name, "batch": "text"}]}).msgpack()["results"][0]) == "invalid_batch"
    )


def test_a_request_is_counted_as_the_batch_in_it_that_fared_worst(api: Api, topic_name: str) -> None:
    id = api.create(topic_name, 1)["id"]
    stored, not_known_yet = ({"topic": topic_name, "topic_id": each, "batch": pack((0, b"x"))} for each in (id, id + 1))
    full = {"topic": f"{topic_name}-full", "batch": pack((0, b"x"))}
    api.create(f"{topic_name}-full", 1, max_messages=1, overflow="refuse")
    ask(api, {"batches": [full]})

    def counted() -> dict[str, float]:
        text = api.get("/metrics").body.decode()
        found = re.findall(r'^lsmq_http_requests_total{operation="sendBatches",status="(\d+)"} (\S+)$', text, re.M)
        return {status: float(count) for status, count in found}

    for parts, status in (
        ([stored, stored], "200"),
        ([stored, full], "507"),
        ([not_known_yet, stored], "503"),
        ([full, not_known_yet, stored], "503"),
        ([{**stored, "topic": f"{topic_name}-none"}, stored], "404"),
    ):
        before = counted()
        ask(api, {"batches": parts})
        assert counted() == {**before, status: before.get(status, 0) + 1}


def test_a_delayed_message_for_a_queue_whose_name_is_no_text_is_refused_by_itself(api: Api, topic_name: str) -> None:
    one, named = topic_name, f"{topic_name}-n"
    api.create(one, 1)
    api.create(named, "named")
    names = b"first\0se\xc7cond"
    builder = BatchBuilder()
    builder.add(0, b"x", due_ms=60_000)
    builder.add(1, b"y", due_ms=60_000)
    refused, stored = send(
        api, (named, len(names).to_bytes(4, "little") + names + builder.build()), (one, pack((0, b"a")))
    )
    assert code(refused) == "invalid_queue_name" and "batch" in stored


def test_one_that_breaks_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    produce = Broker.produce

    async def broken(self: Broker, request: ProduceRequest) -> list[Appended]:
        if request.topic.name == "broken":
            raise RuntimeError("a defect")
        return await produce(self, request)

    monkeypatch.setattr(Broker, "produce", broken)

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/broken", json={"queues": 1})
        parts = [{"topic": topic, "batch": pack((0, b"x"))} for topic in ("t", "broken", "t")]
        headers = {"Content-Type": "application/msgpack"}
        answer = await client.post("/v1/batches", data=msgpack.packb({"batches": parts}), headers=headers)
        assert answer.status == 200
        first, failed, last = msgpack.unpackb(await answer.read())["results"]
        assert code(failed) == "internal" and "RuntimeError" in failed["error"]["message"]
        assert "batch" in first and "batch" in last

    with_node(tmp_path, test)


def test_batches_that_are_sent_together_hold_no_more_messages_than_a_request_may(api: Api, topic_name: str) -> None:
    one, named = topic_name, f"{topic_name}-n"
    api.create(one, 1)
    api.create(named, "named")
    full = pack(*[(0, b"")] * 5_000)
    with_names = (1).to_bytes(4, "little") + b"q" + full
    assert all("batch" in each for each in send(api, (one, full), (named, with_names)))
    for batches in ((one, full), (one, full), (one, pack((0, b"")))), ((named, with_names),) * 3:
        parts = [{"topic": topic, "batch": batch} for topic, batch in batches]
        refused = ask(api, {"batches": parts}, status=413)
        assert refused.code == "too_many_messages" and "max_messages_per_request" in refused.error["message"]
    assert api.get(f"/v1/topics/{one}/queues/0").json()["latest"] == 5_000

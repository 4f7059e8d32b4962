"""Producer groups and transactions over HTTP, on a real node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api, pack
from lsmq import Client
from lsmq.producer_groups import ProducerGroup
from lsmq_node.transactions.book import MAX_BYTES, MAX_PARTS
from support.node_process import NodeProcess
from support.waiting import eventually


class Member:
    """A member of a producer group, by plain HTTP."""

    def __init__(self, api: Api, group: str, id: str = "m", **options: Any) -> None:
        self.api = api
        self.group = group
        self.id = id
        self.path = f"/v1/producer-groups/{group}"
        self.number = 0
        self.heartbeat(join=True, **options)

    def heartbeat(self, status: int = 200, **options: Any) -> Any:
        return self.api.call("POST", f"{self.path}/heartbeat", {"member": self.id, **options}, status=status).json()

    def begin(self, *messages: dict[str, Any], status: int | None = 200, **options: Any) -> Any:
        self.number = options.pop("number", self.number + 1)
        document = {"member": self.id, "number": self.number, "messages": list(messages), **options}
        return self.api.call("POST", f"{self.path}/transactions", document, status=status).json()

    def add(self, id: str, part: int, *messages: dict[str, Any], status: int = 200) -> Any:
        document = {"part": part, "messages": list(messages)}
        return self.api.call("POST", f"{self.path}/transactions/{id}/messages", document, status=status).json()

    def commit(self, id: str, status: int = 200, **options: Any) -> Any:
        document = {"member": self.id, "wait_ms": 5_000, **options}
        return self.api.call("POST", f"{self.path}/transactions/{id}/commit", document, status=status).json()

    def roll_back(self, id: str, status: int = 200) -> Any:
        document = {"member": self.id}
        return self.api.call("POST", f"{self.path}/transactions/{id}/rollback", document, status=status).json()

    def get(self, id: str, status: int = 200) -> Any:
        return self.api.get(f"{self.path}/transactions/{id}", status).json()

    def ask(self, path: str, document: Any, status: int = 200) -> Any:
        return self.api.call("POST", f"{self.path}{path}", document, status=status).json()


def message(topic: str, body: str = "x", **rest: Any) -> dict[str, Any]:
    return {"topic": topic, "body": body, **rest}


def bodies(api: Api, topic: str, queues: int) -> list[str]:
    return sorted(body for queue in range(queues) for body in api.all_bodies(topic, queue))


def test_messages_of_several_topics_appear_when_they_are_committed(api: Api, topic_name: str) -> None:
    other = f"{topic_name}-other"
    api.create(topic_name, 4)
    api.create(other, 2)
    member = Member(api, topic_name)
    begun = member.begin(message(topic_name, "a", queue=3, key="k", tag="t", properties={"p": "q"}), reference="order")
    id = begun["transaction"]
    assert (begun["state"], begun["reference"], begun["delivered"]) == ("open", "order", False)
    member.add(id, 1, message(topic_name, "b", queue=3), message(other, "c", queue=1))
    assert bodies(api, topic_name, 4) == bodies(api, other, 2) == []
    done = member.commit(id)
    assert (done["state"], done["delivered"], done["decided_by"], done["waiting_shards"]) == (
        "committed",
        True,
        "m",
        [],
    )
    assert done["messages"] == {topic_name: 2, other: 1}
    assert api.bodies(topic_name, 3, offset=0) == ["a", "b"]
    assert api.bodies(other, 1, offset=0) == ["c"]
    found = api.read(topic_name, 3, offset=0).json()["messages"][0]
    assert (found["key"], found["tag"], found["properties"]) == ("k", "t", {"p": "q"})


def test_what_is_rolled_back_is_never_seen(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    member = Member(api, topic_name)
    id = member.begin(message(topic_name))["transaction"]
    assert member.roll_back(id)["state"] == "rolled_back"
    assert bodies(api, topic_name, 2) == []
    assert member.get(id)["delivered"]


def test_every_step_can_be_repeated(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    for _ in range(2):
        member.heartbeat(join=True)
        id = member.begin(message(topic_name, "1"), number=1)["transaction"]
        assert member.add(id, 1, message(topic_name, "2"))["parts"] == 2
    for _ in range(2):
        assert member.commit(id)["state"] == "committed"
    assert member.begin(message(topic_name, "1"), number=1)["state"] == "committed"
    assert member.add(id, 1, message(topic_name, "2"))["state"] == "committed"
    assert api.all_bodies(topic_name, 0) == ["1", "2"]


def test_a_decision_stays(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    committed, rolled_back = (member.begin(message(topic_name))["transaction"] for _ in range(2))
    member.commit(committed)
    member.roll_back(rolled_back)
    for refused in (
        member.roll_back(committed, 409),
        member.commit(rolled_back, 409),
        member.add(committed, 1, message(topic_name), status=409),
    ):
        assert refused["error"]["code"] == "transaction_decided"
        assert refused["error"]["decided_by"] == "m"
        assert not refused["error"]["retriable"]
    assert api.all_bodies(topic_name, 0) == ["x"]


@pytest.mark.parametrize("step", ["commit", "rollback", "messages", "get"])
def test_an_unknown_transaction_has_its_own_error(api: Api, topic_name: str, step: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    refused = {
        "commit": lambda: member.commit("nothing-1", 404),
        "rollback": lambda: member.roll_back("nothing-1", 404),
        "messages": lambda: member.add("nothing-1", 1, message(topic_name), status=404),
        "get": lambda: member.get("nothing-1", 404),
    }[step]()
    assert refused["error"]["code"] == "unknown_transaction"


def test_only_members_begin(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    member.heartbeat(leave=True)
    assert member.begin(message(topic_name), status=404)["error"]["code"] == "unknown_producer_member"
    assert member.heartbeat(404)["error"]["code"] == "unknown_producer_member"


def test_a_late_beginning_of_a_forgotten_number_begins_nothing(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    member.begin(message(topic_name), number=1_000)
    assert member.begin(message(topic_name), number=999)["state"] == "open", "beginnings may overtake one another"
    assert member.begin(message(topic_name), number=700, status=404)["error"]["code"] == "unknown_transaction"


@pytest.mark.parametrize(
    ("document", "status", "code", "text"),
    [
        ({"messages": []}, 400, "invalid_request", "messages has 0 items"),
        ({"messages": [{"body": "x"}]}, 400, "invalid_request", "messages[0].topic must be"),
        ({"messages": [{"topic": "nowhere", "body": "x"}]}, 404, "unknown_topic", "'nowhere'"),
        ({"messages": [{"topic": "T"}]}, 400, "invalid_request", "messages[0] has neither body nor body_b64"),
        ({"messages": [{"topic": "T", "body": "x", "queue": 9}]}, 404, "unknown_queue", "no queue 9"),
        ({"messages": [{"topic": "T", "body": "x", "colour": 1}]}, 400, "invalid_request", "colour is not known"),
        ({"messages": [{"topic": "T", "body": "x" * 101}]}, 413, "message_too_large", "limit is 100"),
        ({"messages": [{"topic": "T", "body": "x" * 99, "key": "long"}]}, 413, "message_too_large", "limit of 100"),
        ({"messages": [{"topic": "T", "body": "x"}], "reference": "r" * 257}, 400, "invalid_request", "reference"),
        ({"messages": [{"topic": "T", "body": "x"}], "max_checks": 0}, 400, "invalid_request", "max_checks"),
        ({"messages": [{"topic": "T", "body": "x"}], "sequence": "s"}, 409, "sequence_taken_over", "at epoch 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_stored(
    api: Api, topic_name: str, document: dict[str, Any], status: int, code: str, text: str
) -> None:
    api.create(topic_name, 2, max_message_bytes=100)
    for each in document["messages"]:
        if each.get("topic") == "T":
            each["topic"] = topic_name
    member = Member(api, topic_name)
    refused = member.ask("/transactions", {"member": "m", "number": 1, **document}, status)["error"]
    assert refused["code"] == code and text in refused["message"]
    assert api.get(f"{member.path}/transactions").json() == {"transactions": [], "next": None}


def test_a_transaction_has_limits(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    large = "x" * (MAX_BYTES // 8)
    id = member.begin(*(message(topic_name, large) for _ in range(7)))["transaction"]
    refused = member.add(id, 1, message(topic_name, large), message(topic_name, large), status=413)["error"]
    assert refused["code"] == "transaction_too_large" and refused["limit"] == MAX_BYTES
    assert member.add(id, MAX_PARTS, message(topic_name), status=400)["error"]["expected"] == 1
    assert member.commit(id)["messages"] == {topic_name: 7}


def test_a_silent_transaction_is_asked_about_and_then_rolled_back(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    times = {"check_after_ms": 200, "check_every_ms": 200, "max_checks": 2}
    id = member.begin(message(topic_name), reference="order 17", **times)["transaction"]
    for count in (1, 2):
        (asked,) = eventually(lambda: member.heartbeat(wait_ms=3_000)["checks"], "the member is asked")
        assert (asked["transaction"], asked["reference"], asked["checks"]) == (id, "order 17", count)
    given_up = eventually(lambda: (found := member.get(id))["state"] == "rolled_back" and found, "it is given up")
    assert given_up["decided_by"] == "broker"
    assert member.commit(id, 409)["error"]["decided_by"] == "broker"
    assert api.all_bodies(topic_name, 0) == []


def test_others_are_asked_when_a_member_is_gone_and_not_before(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    first, blind, other = (Member(api, topic_name, id, checks=id != "blind") for id in ("first", "blind", "other"))
    times = {"check_after_ms": 100, "check_every_ms": 100, "max_checks": 1_000}
    id = first.begin(message(topic_name), **times)["transaction"]
    eventually(lambda: first.heartbeat()["checks"], "its own member is asked")
    assert not other.heartbeat()["checks"]
    first.heartbeat(leave=True)
    (asked,) = eventually(lambda: other.heartbeat(wait_ms=3_000)["checks"], "another is asked")
    assert asked["transaction"] == id
    assert not blind.heartbeat()["checks"], "it has said that it cannot tell"
    other.commit(id)
    assert api.all_bodies(topic_name, 0) == ["x"]
    assert other.get(id)["decided_by"] == "other"


def test_with_nobody_to_ask_a_transaction_waits(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    id = member.begin(message(topic_name), check_after_ms=100, check_every_ms=100, max_checks=1)["transaction"]
    eventually(lambda: member.heartbeat()["checks"], "it is asked")
    gone = Member(api, f"{topic_name}-2", "gone")
    alone = gone.begin(message(topic_name), check_after_ms=100, check_every_ms=100, max_checks=1)["transaction"]
    gone.heartbeat(leave=True)
    eventually(lambda: member.get(id)["state"] == "rolled_back", "the one whose member lives is given up")
    assert gone.get(alone)["state"] == "open" and gone.get(alone)["checks"] == 0
    late = Member(api, f"{topic_name}-2", "late", checks=True)
    assert eventually(lambda: late.heartbeat(wait_ms=3_000)["checks"], "who comes is asked")[0]["transaction"] == alone


def test_a_session_that_ends_hands_transactions_over(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    silent, other = Member(api, topic_name, "silent", session_ms=1_000), Member(api, topic_name, "other", checks=True)
    id = silent.begin(message(topic_name), check_after_ms=60_000)["transaction"]
    asked = eventually(lambda: other.heartbeat(wait_ms=3_000)["checks"], "the other is asked at once")
    assert asked[0]["transaction"] == id
    assert [each["id"] for each in api.get(other.path).json()["members"]] == ["other"]


def test_transactions_are_listed_in_pages_oldest_first(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    begun = [member.begin(message(topic_name)) for _ in range(5)]
    order = [each["transaction"] for each in sorted(begun, key=lambda each: (each["begun_ms"], each["transaction"]))]
    path, pages, after = f"{member.path}/transactions", [], ""
    while after is not None:
        page = api.get(f"{path}?state=open&limit=2&after={after}").json()
        pages.append([each["transaction"] for each in page["transactions"]])
        after = page["next"]
        member.roll_back(pages[-1][-1])  # Where a page ended need not be there any more.
    assert pages == [order[:2], order[2:4], order[4:]]
    for wrong in ("limit=0", "limit=10001", "after=17", "after=m-1"):
        refused = api.call("GET", f"{path}?{wrong}", status=400)
        assert refused.code == "invalid_request" and wrong.partition("=")[0] in refused.error["message"]


@pytest.mark.slow
def test_the_client_lists_more_transactions_than_a_page_has(
    api: Api, shared_node: NodeProcess, topic_name: str
) -> None:
    api.create(topic_name, 1)
    members, each = [f"m{number}" for number in range(17)], 59

    async def use() -> tuple[list[str], list[str]]:
        async with Client(shared_node.url) as client:
            group = ProducerGroup(client, topic_name)

            async def begin(member: str) -> None:
                await group.heartbeat(member, join=True, session_ms=60_000)
                for number in range(1, each + 1):
                    await group.begin(member, number, [message(topic_name)])

            await asyncio.gather(*map(begin, members))
            open_ones, committed = await group.transactions("open"), await group.transactions("committed")
            return [found.id for found in open_ones], [found.id for found in committed]

    open_ones, committed = asyncio.run(use())
    assert len(open_ones) == len(members) * each > 1_000 and not committed
    assert set(open_ones) == {f"{member}-{number}" for member in members for number in range(1, each + 1)}


def test_an_operator_sees_and_decides(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    member = Member(api, topic_name)
    opened, done = (member.begin(message(topic_name))["transaction"] for _ in range(2))
    member.commit(done)
    (listed,) = api.get(f"{member.path}/transactions?state=open").json()["transactions"]
    assert listed["transaction"] == opened
    assert len(api.get(f"{member.path}/transactions").json()["transactions"]) == 2
    api.call("POST", f"{member.path}/transactions/{opened}/commit", {"wait_ms": 5_000}, status=200)
    assert member.get(opened)["decided_by"] == "operator"
    groups = {found["group"]: found for found in api.get("/v1/producer-groups").json()["groups"]}
    assert groups[topic_name] == {
        "group": topic_name,
        "shard": groups[topic_name]["shard"],
        "members": 1,
        "unfinished": 0,
    }
    member.heartbeat(leave=True)
    remembered = {found["group"]: found for found in api.get("/v1/producer-groups").json()["groups"]}[topic_name]
    assert (remembered["members"], remembered["unfinished"]) == (0, 0), "what it decided can still be looked at"


def test_a_sequence_goes_on_at_another_member(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    first, second = Member(api, topic_name, "first"), Member(api, topic_name, "second")
    taken = first.ask("/sequences/file", {"member": "first"})
    assert taken == {"sequence": "file", "epoch": 1, "position": None}
    options = {"sequence": "file", "sequence_epoch": 1}
    first.commit(first.begin(message(topic_name, "1"), position="line 1", **options)["transaction"])
    half = first.begin(message(topic_name, "2"), position="line 2", **options)["transaction"]
    assert second.ask("/sequences/file", {"member": "second"}) == {"sequence": "file", "epoch": 2, "position": "line 1"}
    assert first.commit(half, 409)["error"]["decided_by"] == "second"
    refused = first.begin(message(topic_name, "2"), position="line 2", status=409, **options)["error"]
    assert (refused["code"], refused["epoch"]) == ("sequence_taken_over", 2)
    options["sequence_epoch"] = 2
    second.commit(second.begin(message(topic_name, "two"), position="line 2", **options)["transaction"])
    assert api.all_bodies(topic_name, 0) == ["1", "two"]


def test_messages_for_a_topic_that_is_gone_hold_up_no_others(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data").start()
    try:
        api = Api(node.url)
        api.create("stays", 1)
        api.create("goes", 1)
        member = Member(api, "g")
        id = member.begin(message("stays"), message("goes"))["transaction"]
        api.call("DELETE", "/v1/topics/goes", status=204)
        api.create("goes", 1)
        assert member.commit(id, member="broker")["delivered"]  # Whoever that is: it is the member's decision.
        assert api.all_bodies("stays", 0) == ["x"]
        assert api.all_bodies("goes", 0) == []
        assert api.metric("lsmq_transactions_dropped_batches_total") == 1
        assert api.metric("lsmq_transactions_committed_total") == 1
        assert api.metric("lsmq_transactions_given_up_total") == 0
        assert api.metric("lsmq_transactions_open") == 0
    finally:
        node.stop()


def test_where_transactions_have_filled_a_shard_they_can_still_be_finished(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", max_documents_bytes=1 << 20, address_share_percent=100).start()
    try:
        api = Api(node.url)
        api.create("t", 1)
        member = Member(api, "g")
        ids: list[str] = []
        while "transaction" in (begun := member.begin(message("t", "x" * 50_000), status=None)):
            ids.append(begun["transaction"])
        assert begun["error"]["code"] == "documents_full" and begun["error"]["retriable"]
        assert len(ids) == 10
        for id in ids:
            assert member.commit(id)["delivered"]
        member.begin(message("t"))
        assert len(api.all_bodies("t", 0)) == 10
    finally:
        node.stop()


def test_a_held_heartbeat_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data").start()
    api = Api(node.url)
    member = Member(api, "g", session_ms=60_000)
    held = threading.Thread(target=lambda: member.heartbeat(wait_ms=20_000))
    held.start()
    eventually(lambda: api.metric("lsmq_transactions_requests_held") == 1, "a heartbeat is held")
    assert node.stop() == 0
    held.join(5)
    assert not held.is_alive()


def test_clients_cannot_send_under_the_ids_of_the_broker(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    refused = api.send_batch(topic_name, pack((0, b"x"), producer_id=1 << 63), 400)
    assert refused.code == "invalid_batch"


def test_deliveries_are_no_business_of_clients(api: Api) -> None:
    assert api.call("POST", "/v1/shards/0/deliveries", {}).status == 404
    assert not any("deliveries" in path for path in api.get("/v1/openapi.json").json()["paths"])


@pytest.mark.parametrize("shards", [1, 3])
def test_messages_for_named_queues_appear_when_they_are_committed(
    make_node: Callable[..., NodeProcess], shards: int
) -> None:
    node = make_node(shards=shards).start()
    api = Api(node.url)
    api.call("PUT", "/v1/topics/n", {"queues": "named"}, status=201)
    api.create("t", 1)
    api.send("n", {"queue": "known", "body": "0"})
    member = Member(api, "g")
    names = [f"new.{at}" for at in range(20)]
    begun = member.begin(
        message("n", "a", queue="known"),
        *(message("n", name, queue=name) for name in names),
        message("t", "c"),
        message("n", "later", queue="late", delay_ms=1),
    )
    assert [row["name"] for row in api.get("/v1/topics/n/queues").json()["queues"]] == ["known"]
    assert member.commit(begun["transaction"])["delivered"] is True
    node.kill9()
    node.start()
    api = Api(node.url)
    assert api.all_bodies("t", 0) == ["c"]
    for name, expected in (("known", ["0", "a"]), *((name, [name]) for name in names)):
        found = api.get(f"/v1/topics/n/queues/{name}/messages").json()["messages"]
        assert [each["body"] for each in found] == expected
    found = api.get("/v1/topics/n/queues/late/messages?wait_ms=20000").json()["messages"]
    assert [each["body"] for each in found] == ["later"]
    member.api = api
    begun = member.begin(message("n", "never", queue="rolled-back"))
    member.roll_back(begun["transaction"])
    assert api.get("/v1/topics/n/queues/rolled-back", 404).code == "unknown_queue"

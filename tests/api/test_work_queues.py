"""Work queues over HTTP, on a real node: each message settled for itself, and nothing lost when the node is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api

LONG_MS = 60_000
SHORT_MS = 100


class Work:
    """A group's work queue on a topic of its own."""

    def __init__(self, api: Api, topic: str, queues: int = 4) -> None:
        self.api, self.topic = api, topic
        api.create(topic, queues)

    def send(self, *bodies: str, queue: int = 0) -> None:
        self.api.send(self.topic, *({"body": body, "queue": queue} for body in bodies))

    def pop(self, count: int = 100, *, visibility_ms: int = LONG_MS, wait_ms: int = 0) -> list[dict[str, Any]]:
        document = {"topic": self.topic, "max": count, "visibility_ms": visibility_ms, "wait_ms": wait_ms}
        found: list[dict[str, Any]] = self.post("pop", document)["messages"]
        return found

    def post(self, what: str, document: dict[str, Any], status: int = 200) -> Any:
        return self.api.call("POST", f"/v1/groups/{self.topic}/{what}", document, status=status).json()

    def settle(self, what: str, *messages: dict[str, Any], **more: Any) -> list[str]:
        """The codes of what was refused."""
        receipts = [message["receipt"] for message in messages]
        answer = self.post(what, {"topic": self.topic, "receipts": receipts, **more})
        assert answer["done"] + len(answer["refused"]) == len(receipts)
        return [refused["code"] for refused in answer["refused"]]

    def configure(self, **settings: Any) -> None:
        document = {"topic": self.topic, **settings}
        self.api.call("PUT", f"/v1/groups/{self.topic}/work-queue", document, status=200)

    def shard(self) -> dict[str, Any]:
        described = self.api.get(f"/v1/groups/{self.topic}/work-queue?topic={self.topic}").json()
        shard: dict[str, Any]
        (shard,) = described["shards"]
        return shard

    def figures(self) -> dict[str, int]:
        shard = self.shard()
        assert shard["undelivered"] == shard["new"] + shard["ready"] + shard["waiting"] + shard["blocked"]
        return {name: shard[name] for name in ("in_flight", "waiting", "ready", "dead")}

    def undelivered(self) -> tuple[int, int]:
        """And of those, the ones that nobody has seen."""
        described = self.api.get(f"/v1/groups/{self.topic}/work-queue?topic={self.topic}").json()
        return sum(shard["undelivered"] for shard in described["shards"]), sum(s["new"] for s in described["shards"])

    def dead_letters(self) -> list[dict[str, Any]]:
        answer = self.api.read(f"{self.topic}.dlq", 0, None, max=1_000)
        found: list[dict[str, Any]] = answer.json()["messages"] if answer.status == 200 else []
        return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_messages_go_to_one_consumer_each_whatever_their_queue(api: Api) -> None:
    work = Work(api, "shared-out")
    for queue in range(4):
        work.send("a", "b", "c", queue=queue)
    first, second = work.pop(5), work.pop(100)
    places = [(message["queue"], message["offset"]) for message in first + second]
    assert len(first) == 5 and len(set(places)) == len(places) == 12
    assert all(message["deliveries"] == 1 for message in first)
    assert work.pop() == []
    assert work.figures()["in_flight"] == 12


def test_what_waits_to_be_delivered_is_counted(api: Api) -> None:
    work = Work(api, "counted")
    assert api.get("/v1/groups/counted/work-queue?topic=counted", 404).error["code"] == "unknown_group"
    assert work.pop() == []
    assert work.undelivered() == (0, 0)
    for queue in range(4):
        work.send("a", "b", "c", queue=queue)
    assert work.undelivered() == (12, 12)
    messages = work.pop(5)
    assert work.undelivered() == (7, 7), "what is in flight was delivered"
    work.settle("ack", *messages[:2])
    work.settle("nack", messages[2], delay_ms=3_600_000)
    work.settle("nack", messages[3], release=True)
    assert work.figures() == {"in_flight": 1, "waiting": 1, "ready": 1, "dead": 0}
    assert work.undelivered() == (9, 7)
    work.settle("ack", *work.pop())
    assert work.undelivered() == (1, 0)
    work.send("d", queue=1)
    assert work.undelivered() == (2, 1)


def test_what_is_acknowledged_never_comes_again_and_what_is_not_does(api: Api) -> None:
    work = Work(api, "ack")
    work.send("0", "1", "2", "3")
    messages = work.pop(visibility_ms=SHORT_MS)
    assert work.settle("ack", *messages[1:3]) == []
    again = work.pop(wait_ms=5_000) + work.pop()
    assert bodies(again) == ["0", "3"]
    assert [message["deliveries"] for message in again] == [2, 2]
    assert work.settle("ack", *again) == []
    assert api.get("/v1/groups/ack/offsets?topic=ack").json() == {"queues": [0], "offsets": [4]}


def test_a_receipt_counts_until_the_visibility_ends_and_each_is_answered_for_itself(api: Api) -> None:
    work = Work(api, "receipts")
    work.send("0", "1")
    late = work.pop(1, visibility_ms=SHORT_MS)[0]
    held = work.pop(1)[0]
    again = work.pop(1, wait_ms=5_000)[0]
    assert again["offset"] == late["offset"]
    foreign = {**held, "receipt": "A" * len(held["receipt"])}
    assert work.settle("ack", late, foreign, held, {"receipt": "?"}) == [
        "receipt_expired",
        "unknown_receipt",
        "unknown_receipt",
    ]
    for what in ("extend", "nack"):
        assert work.settle(what, late) == ["receipt_expired"]
    assert work.settle("ack", held) == [], "an acknowledgement may be sent again"
    assert work.settle("ack", again) == []
    other = Work(api, "receipts-other")
    assert other.settle("ack", again) == ["unknown_receipt"]


def test_extending_hides_a_message_for_longer(api: Api) -> None:
    work = Work(api, "extended")
    work.send("0")
    (message,) = work.pop(visibility_ms=300)
    assert work.settle("extend", message, visibility_ms=LONG_MS) == []
    assert work.pop(wait_ms=400) == []
    assert work.settle("ack", message) == []


def test_a_failed_message_rests_longer_each_time_and_others_pass_it(api: Api) -> None:
    work = Work(api, "failing")
    work.configure(retry_first_ms=150, retry_max_ms=100_000)
    work.send("bad", "1", "2")
    (bad,) = work.pop(1)
    assert work.settle("nack", bad, reason="not today") == []
    assert bodies(work.pop()) == ["1", "2"], "nothing is held up"
    assert work.figures()["waiting"] == 1
    assert work.settle("ack", bad) == ["receipt_expired"]
    (bad,) = work.pop(wait_ms=5_000)
    assert (bad["body"], bad["deliveries"]) == ("bad", 2)
    assert work.settle("nack", bad, delay_ms=LONG_MS) == []
    assert work.pop(wait_ms=200) == []


def test_a_delay_longer_than_the_visibility_does_not_duplicate(api: Api) -> None:
    work = Work(api, "delayed")
    work.send("0")
    (message,) = work.pop(visibility_ms=SHORT_MS)
    assert work.settle("nack", message, delay_ms=1_000) == []
    assert work.pop(wait_ms=500) == []
    (again,) = work.pop(wait_ms=5_000)
    assert again["deliveries"] == 2 and work.pop() == []


def test_a_message_that_always_fails_becomes_a_dead_letter(api: Api) -> None:
    work = Work(api, "poison")
    work.configure(max_deliveries=2)
    api.send("poison", {"body": "bad", "queue": 2, "key": "k", "tag": "t", "properties": {"a": "b"}})
    (bad,) = work.pop()
    assert work.settle("nack", bad, delay_ms=0) == []
    (bad,) = work.pop()
    assert bad["deliveries"] == 2
    assert work.settle("nack", bad, reason="too hot") == []
    eventually(lambda: bool(work.dead_letters()), "it is among the dead letters")
    (letter,) = work.dead_letters()
    assert (letter["body"], letter["key"], letter["tag"]) == ("bad", "k", "t")
    assert letter["properties"] == {
        "a": "b",
        "lsmq-dlq-topic": "poison",
        "lsmq-dlq-queue": "2",
        "lsmq-dlq-offset": "0",
        "lsmq-dlq-id": bad["id"],
        "lsmq-dlq-group": "poison",
        "lsmq-dlq-deliveries": "2",
        "lsmq-dlq-reason": "negative acknowledgement: too hot",
    }
    eventually(lambda: sum(work.figures().values()) == 0, "nothing is left of it")
    assert work.pop() == []


def test_visibility_that_always_ends_makes_a_dead_letter_too_and_rejecting_one_at_once(api: Api) -> None:
    work = Work(api, "silent")
    work.configure(max_deliveries=1)
    work.send("slow", "wrong")
    slow, wrong = work.pop(1, visibility_ms=SHORT_MS) + work.pop(1)
    assert work.settle("nack", wrong, dead_letter=True) == []
    eventually(lambda: len(work.dead_letters()) == 2, "both are among the dead letters")
    reasons = {letter["body"]: letter["properties"]["lsmq-dlq-reason"] for letter in work.dead_letters()}
    assert reasons == {"slow": "visibility timeout", "wrong": "negative acknowledgement"}
    assert work.settle("ack", slow) == ["receipt_expired"]


def test_the_largest_message_fits_among_the_dead_letters(api: Api) -> None:
    work = Work(api, "large")
    work.configure(max_deliveries=1)
    api.send("large", {"body": "x" * ((1 << 20) - 40), "queue": 0, "properties": {"a": "b"}})
    (large,) = work.pop(visibility_ms=SHORT_MS)
    eventually(lambda: bool(work.dead_letters()), "it is among the dead letters")
    (letter,) = work.dead_letters()
    assert letter["properties"]["lsmq-dlq-cut"] == str(len(large["body"]))
    assert len(letter["body"]) > (1 << 20) - 1_000


def test_what_was_not_looked_at_is_given_back_without_counting(api: Api) -> None:
    work = Work(api, "released")
    work.send("0")
    (message,) = work.pop()
    assert work.settle("nack", message, release=True) == []
    (again,) = work.pop()
    assert again["deliveries"] == 1


def test_a_held_pop_gets_what_arrives_at_once(api: Api) -> None:
    work = Work(api, "held")
    assert work.pop() == []
    found: list[dict[str, Any]] = []
    waiting = [threading.Thread(target=lambda: found.extend(work.pop(1, wait_ms=20_000))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    eventually(lambda: api.metric("lsmq_work_pops_held") == 3, "three pops are held")
    began = time.monotonic()
    work.send("0", "1", "2", queue=3)  # one queue is touched: the pops wake each other
    for thread in waiting:
        thread.join()
    assert bodies(found) == ["0", "1", "2"]
    assert time.monotonic() - began < 15, "they were told, and did not wait for the end"


def test_acknowledged_messages_are_deleted_where_that_is_asked_for(api: Api) -> None:
    work = Work(api, "deleted")
    work.configure(delete_on_ack=True)
    work.send("0", "1", "2")
    messages = {message["body"]: message for message in work.pop()}
    assert work.settle("ack", messages["0"], messages["2"]) == []

    def earliest() -> int:
        return int(api.get("/v1/topics/deleted/queues/0").json()["earliest"])

    eventually(lambda: earliest() == 1, "the first message is gone")
    assert work.settle("ack", messages["1"]) == []
    eventually(lambda: earliest() == 3, "all are gone")


def test_a_group_is_a_work_queue_or_shares_queues_never_both(api: Api) -> None:
    work = Work(api, "one-mode")
    work.send("0")
    beat = {"member": "m", "topics": ["one-mode"]}
    work.pop()
    assert api.call("POST", "/v1/groups/one-mode/heartbeat", beat, status=409).code == "group_mode_mismatch"
    commit = {"topic": "one-mode", "queues": [0], "offsets": [1]}
    assert api.call("POST", "/v1/groups/one-mode/offsets", commit, status=409).code == "group_mode_mismatch"
    api.call("POST", "/v1/groups/sharing/heartbeat", beat, status=200)
    pop = api.call("POST", "/v1/groups/sharing/pop", {"topic": "one-mode"}, status=409)
    assert pop.code == "group_mode_mismatch"


def test_a_deleted_group_begins_anew(api: Api) -> None:
    work = Work(api, "begun-anew")
    work.send("0", "1")
    assert work.settle("ack", work.pop()[1]) == []
    api.call("DELETE", "/v1/groups/begun-anew/offsets?shard=0", status=204)
    assert bodies(work.pop()) == ["0", "1"]


def test_what_a_deleted_group_has_handed_out_takes_nothing_from_the_next_one_of_its_name(api: Api) -> None:
    work = Work(api, "begun-again")
    work.send("0", "1", "2")
    before = work.pop()
    api.call("DELETE", "/v1/groups/begun-again/offsets?shard=0", status=204)
    for what in ("ack", "nack", "extend"):
        more = {"visibility_ms": LONG_MS} if what == "extend" else {}
        assert work.settle(what, *before, **more) == ["receipt_expired"] * 3
    found = work.pop()
    assert bodies(found) == ["0", "1", "2"]
    work.configure(max_deliveries=3)
    assert work.settle("ack", *before) == ["receipt_expired"] * 3
    assert work.settle("ack", *found) == []
    assert work.pop() == []


def test_bad_requests_name_what_is_wrong(api: Api) -> None:
    work = Work(api, "bad-pops")
    for what, document, field in (
        ("pop", {"topic": "bad-pops", "visibility_ms": 1}, "visibility_ms"),
        ("pop", {"topic": "bad-pops", "max": 0}, "max"),
        ("nack", {"topic": "bad-pops", "receipts": ["x"], "delay_ms": -1}, "delay_ms"),
        ("nack", {"topic": "bad-pops", "receipts": ["x"], "release": True, "reason": "r"}, "release"),
        ("nack", {"topic": "bad-pops", "receipts": ["x"], "dead_letter": True, "delay_ms": 0}, "delay_ms"),
        ("ack", {"topic": "bad-pops", "receipts": []}, "receipts"),
    ):
        assert work.post(what, document, status=400)["error"]["field"] == field
    assert work.post("pop", {"topic": "nowhere"}, status=404)["error"]["code"] == "unknown_topic"
    settings = {"topic": "bad-pops", "shards": [10], "max_deliveries": 3}
    assert api.call("PUT", "/v1/groups/bad-pops/work-queue", settings, status=400).error["field"] == "shards"


def test_single_messages_and_beginnings_of_queues_are_deleted(api: Api) -> None:
    api.create("deletes", 2)
    api.send("deletes", *({"body": f"{number}", "queue": 0} for number in range(6)))
    delete = "/v1/topics/deletes/delete"
    api.call("POST", delete, {"queues": [0, 0], "offsets": [2, 4]}, status=200)
    assert api.bodies("deletes", 0, offset=0) == ["0", "1", "3", "5"]
    api.call("POST", delete, {"queues": [0], "offsets": [2], "before": True}, status=200)
    assert api.bodies("deletes", 0, offset="earliest") == ["3", "5"]
    assert api.call("POST", delete, {"queues": [0], "offsets": [6]}, status=416).code == "offset_out_of_range"
    api.send("deletes", {"body": "6", "queue": 0})
    assert api.bodies("deletes", 0, offset=6) == ["6"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path).start()
    yield node
    if node.alive:
        node.kill9()


def test_a_killed_node_forgets_no_acknowledgement_no_delay_and_no_count(node: NodeProcess) -> None:
    work = Work(Api(node.url), "survivor")
    work.configure(max_deliveries=3)
    work.send(*map(str, range(10)))
    messages = {message["body"]: message for message in work.pop()}
    assert work.settle("ack", messages["0"], messages["4"], messages["9"]) == []
    assert work.settle("nack", messages["5"], delay_ms=LONG_MS) == []
    assert work.settle("nack", messages["6"], delay_ms=0) == []
    node.kill9()
    node.start()
    # A receipt from before counts as long as nobody else has the message.
    assert work.settle("ack", messages["7"]) == []
    assert work.settle("extend", messages["8"], visibility_ms=LONG_MS) == []
    assert work.settle("ack", messages["5"], messages["6"]) == ["receipt_expired"] * 2
    found = {message["body"]: message["deliveries"] for message in work.pop()}
    assert found == {"1": 1, "2": 1, "3": 1, "6": 2}
    assert work.settle("ack", messages["1"]) == ["receipt_expired"], "another has it"
    assert work.settle("ack", messages["8"]) == []
    assert work.figures() == {"in_flight": 4, "waiting": 1, "ready": 0, "dead": 0}


@pytest.mark.slow
def test_dead_letters_come_once_though_the_node_is_killed_on_the_way(node: NodeProcess) -> None:
    work = Work(Api(node.url), "grave")
    work.configure(max_deliveries=1)
    sent = [f"{number:03}" for number in range(200)]
    work.send(*sent)
    for _ in range(3):
        messages = work.pop(60)
        work.settle("nack", *messages)
        node.kill9()
        node.start()
        work.pop(1, visibility_ms=LONG_MS)
    while rest := work.pop(100, wait_ms=300):
        work.settle("nack", *rest)

    def found() -> list[str]:
        return bodies(work.dead_letters())

    eventually(lambda: len(found()) >= 197, "all but what is in flight are among the dead letters")
    eventually(lambda: work.figures()["dead"] == 0, "none is on its way")
    assert len(set(found())) == len(found()), "some came twice"


def test_a_work_queue_spans_shards_and_follows_a_topic_that_grows(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, shards=3).start()
    try:
        work = Work(Api(node.url), "wide", 5)
        for queue in range(5):
            work.send(f"{queue}a", f"{queue}b", queue=queue)
        messages = work.pop()
        assert bodies(messages) == sorted(f"{queue}{each}" for queue in range(5) for each in "ab")
        assert {message["shard"] for message in messages} == {0, 1, 2}
        assert work.settle("ack", *messages) == []
        work.api.call("PUT", "/v1/topics/wide/queues", {"queues": 11}, status=200)
        found: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: found.extend(work.pop(1, wait_ms=20_000)))
        waiting.start()
        eventually(lambda: work.api.metric("lsmq_work_pops_held") == 1, "a pop is held")
        for queue in range(11):
            work.send(f"{queue}", queue=queue)
        waiting.join()
        found += work.pop()
        assert bodies(found) == sorted(map(str, range(11)))
        for message in found:  # it was delivered where it can be settled
            assert work.settle("ack", message) == []
        node.kill9()
        node.start()
        assert work.pop() == []
    finally:
        node.kill9()

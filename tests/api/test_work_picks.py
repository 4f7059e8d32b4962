"""Pops that pick over HTTP, on a real node: each worker gets what it wants, and leaves all else to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq.messages import priority_value
from lsmq.record_batch import BatchBuilder
from lsmq_node.workqueue.picks import MAX_FILTERS
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api
from .test_work_queues import LONG_MS, SHORT_MS, Work, bodies


class Picking(Work):
    def pick(self, count: int = 100, *, visibility_ms: int = LONG_MS, wait_ms: int = 0, **what: Any) -> Any:
        document = {"topic": self.topic, "max": count, "visibility_ms": visibility_ms, "wait_ms": wait_ms, **what}
        return self.post("pop", document)["messages"]

    def put(self, count: int, queue: int = 0, **fields: Any) -> None:
        for first in range(0, count, 5_000):
            numbers = range(first, min(count, first + 5_000))
            self.api.send(self.topic, *({"queue": queue, "body": f"{number}", **fields} for number in numbers))


def test_each_worker_gets_what_it_picks_and_the_rest_stays_for_others(api: Api) -> None:
    work = Picking(api, "picks")
    for queue in range(4):
        work.put(3, queue, tag="a", type="order", properties={"amount": "50"})
        work.put(3, queue, tag="b", properties={"amount": "150"})
    big = work.pick(filter="amount > 100")
    assert len(big) == 12 and {message["tag"] for message in big} == {"b"}
    assert work.pick(filter="amount > 100") == work.pick(tag="b") == work.pick(type="other") == []
    assert work.undelivered() == (12, 12), "nobody has seen the others"
    assert work.settle("ack", *big) == []
    assert len(work.pick(5, tag=["a", "c"])) == 5
    assert len(work.pick(type="order", filter="amount < 100")) == 7
    assert work.pop() == []
    assert work.undelivered() == (0, 0)


def test_a_worker_that_wants_all_passes_over_what_others_picked(api: Api) -> None:
    work = Picking(api, "all-between", 1)
    for number in range(3_000):
        if number % 1_000 == 0:
            work.put(1, tag="rare")
        if number % 100 == 0:
            work.put(100, tag="common")
    rare = work.pick(tag="rare")
    assert [message["offset"] for message in rare] == [0, 1_001, 2_002]
    work.settle("ack", rare[1])
    found = work.pop(1_000) + work.pop(1_000) + work.pop(1_000) + work.pop(1_000)
    assert len(found) == 3_000 and {message["tag"] for message in found} == {"common"}
    assert work.settle("ack", *found[:1_000], *found[1_000:2_000], *found[2_000:]) == []
    assert work.settle("ack", rare[0], rare[2]) == []
    assert work.figures() == {"in_flight": 0, "waiting": 0, "ready": 0, "dead": 0}
    assert work.undelivered() == (0, 0)


def test_what_failed_comes_again_to_those_who_pick_it_alone(api: Api) -> None:
    work = Picking(api, "picked-again", 1)
    work.put(1, tag="a")
    work.put(1, tag="b")
    work.put(1, tag="a")
    taken = work.pop()
    assert work.settle("nack", *taken, delay_ms=0) == []
    (again,) = work.pick(tag="b", wait_ms=5_000, visibility_ms=SHORT_MS)
    assert (again["offset"], again["deliveries"]) == (1, 2)
    (again,) = work.pick(tag="b", wait_ms=30_000)  # its visibility ends
    assert (again["offset"], again["deliveries"]) == (1, 3)
    assert work.pick(tag="c") == []
    assert sorted(message["offset"] for message in work.pop()) == [0, 2]


def test_what_nobody_can_read_nobody_picks_when_it_failed_either(api: Api) -> None:
    work = Picking(api, "picked-unreadable", 1)
    builder = BatchBuilder()
    builder.add_packed(0, b"broken", b"\xc1", priority=priority_value(7, 0))
    builder.add(0, b"whole")
    api.send_batch(work.topic, builder.build())
    whole, broken = work.pick(filter="tag IS NULL"), work.pop()
    assert (bodies(whole), bodies(broken)) == (["whole"], ["broken"])
    assert work.settle("nack", *whole, *broken, delay_ms=0) == []
    assert bodies(work.pick(filter="tag IS NULL")) == ["whole"]
    assert bodies(work.pick(filter="priority = 7")) == ["broken"], "which needs none of what cannot be read"


def test_a_message_wakes_the_held_pop_that_wants_it(api: Api) -> None:
    work = Picking(api, "woken", 2)
    found: dict[str, Any] = {}

    def wait(tag: str) -> None:
        found[tag] = work.pick(tag=tag, wait_ms=60_000)

    waiting = [threading.Thread(target=wait, args=(tag,)) for tag in ("a", "b")]
    for thread in waiting:
        thread.start()
    held = "lsmq_work_pops_held"
    eventually(lambda: f"{held} 2.0" in api.get("/metrics").body.decode(), "both are held")
    work.put(1, tag="nobody's")
    work.put(1, 1, tag="b")
    waiting[1].join(60)
    assert len(found["b"]) == 1 and "a" not in found, "who wants another one waits on"
    work.put(1, tag="a")
    waiting[0].join(60)
    assert len(found["a"]) == 1


def test_little_is_found_in_a_long_backlog_with_bounded_work(api: Api) -> None:
    work = Picking(api, "needle", 1)
    work.put(40_000, tag="hay")
    work.put(1, tag="needle")
    (needle,) = work.pick(tag="needle")
    assert needle["offset"] == 40_000
    work.put(1, tag="needle")
    assert [message["offset"] for message in work.pick(filter="tag = 'needle'")] == [40_001]
    assert work.settle("ack", needle) == []


def test_backlogs_of_one_queue_do_not_hold_up_another(api: Api) -> None:
    work = Picking(api, "picked-turns", 2)
    work.put(10_000, 0, tag="a")
    work.put(2, 1, tag="a")
    found = work.pick(4, tag="a")
    assert sorted(message["queue"] for message in found) == [0, 0, 1, 1]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path).start()
    yield node
    if node.alive:
        node.kill9()


def test_a_killed_node_forgets_nothing_of_what_was_picked(node: NodeProcess) -> None:
    work = Picking(Api(node.url), "again", 1)
    for _ in range(20):
        work.put(1, tag="a")
        work.put(1, tag="b")
    found = work.pick(tag="b")
    assert work.settle("ack", *found[:10]) == []
    assert work.settle("nack", found[10], delay_ms=LONG_MS) == []
    assert work.settle("nack", found[11], dead_letter=True) == []
    eventually(lambda: len(work.dead_letters()) == 1, "a dead letter is put away")
    node.kill9()
    node.start()
    work.api = Api(node.url)
    assert work.figures()["waiting"] == 1
    assert work.settle("ack", *found[12:15]) == [], "a receipt from before counts as long as nobody else has it"
    assert [message["offset"] for message in work.pick(tag="b")] == [message["offset"] for message in found[15:]]
    assert work.settle("ack", found[15]) == ["receipt_expired"]
    assert [message["offset"] for message in work.pop()] == list(range(0, 40, 2))


def test_what_cannot_be_obeyed_is_refused(api: Api) -> None:
    work = Picking(api, "refused-picks", 1)
    document = {"topic": work.topic, "filter": "amount >"}
    assert work.post("pop", document, status=400)["error"]["code"] == "invalid_filter"
    for settings, named in (
        ({"order": "key"}, "order 'key'"),
        ({"order": "priority"}, "order 'priority'"),
        ({"fair_by": "tag"}, "fair_by 'tag'"),
        ({"max_in_flight_per": 1}, "max_in_flight_per"),
        ({"max_rate_per": 1}, "max_rate_per"),
    ):
        work.configure(**settings)
        error = work.post("pop", {"topic": work.topic, "tag": "a"}, status=400)["error"]
        assert error["field"] == "filter" and named in error["message"]
    work.configure()
    for number in range(MAX_FILTERS):
        assert work.pick(tag=f"{number}") == []
    error = work.post("pop", {"topic": work.topic, "tag": "more"}, status=429)["error"]
    assert (error["code"], error["limit"]) == ("too_many_filters", MAX_FILTERS)
    assert work.pop() == work.pick(tag="0") == [], "others go on"

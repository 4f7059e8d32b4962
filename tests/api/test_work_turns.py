"""Fairness and priority of work queues over HTTP, on a real node."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lsmq_node.workqueue.settings import WorkSettings
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api
from .test_work_queues import SHORT_MS, Work, bodies


def send(work: Work, count: int, **fields: Any) -> None:
    for first in range(0, count, 5_000):
        part = range(first, min(count, first + 5_000))
        work.api.send(work.topic, *({"queue": 0, "body": f"{number}", **fields} for number in part))


def counted(messages: list[dict[str, Any]], by: str = "queue") -> Counter[Any]:
    return Counter(message.get(by) for message in messages)


def test_queues_take_turns_and_a_backlog_of_one_is_not_the_wait_of_others(api: Api) -> None:
    work = Work(api, "turns")
    send(work, 500, queue=0)
    for queue in (1, 2, 3):
        send(work, 3, queue=queue)
    first = work.pop(10)
    assert counted(first) == {0: 3, 1: 3, 2: 2, 3: 2}
    assert counted(work.pop(10)) == {0: 8, 2: 1, 3: 1}
    send(work, 1, queue=1)
    assert 1 in counted(work.pop(2)), "who had nothing waits for a turn of each"


def test_weights_are_kept_over_requests_of_any_size(api: Api) -> None:
    work = Work(api, "weighted")
    for queue in range(3):
        send(work, 200, queue=queue)
    work.configure(weights={"1": 5, "2": 2})
    found = [message for limit in (1, 3, 7, 2, 50, 1, 16) for message in work.pop(limit)]
    assert counted(found) == {0: 10, 1: 50, 2: 20}


@pytest.mark.parametrize("label", ["tag", "type", "key"])
def test_tenants_within_a_queue_take_turns(api: Api, label: str) -> None:
    work = Work(api, f"{label}s", 1)
    work.configure(fair_by=label, weights={"gold": 3})
    send(work, 12_000, **{label: "bulk"})
    send(work, 30, **{label: "gold"})
    send(work, 10)
    found = work.pop(20) + work.pop(20)
    assert work.settle("ack", *found) == []
    assert counted(found, label) == {"gold": 24, "bulk": 8, None: 8}
    assert [m["body"] for m in found if m.get(label) == "gold"] == [f"{number}" for number in range(24)]
    assert work.undelivered()[0] == work.undelivered()[1]


def test_as_many_of_each_are_in_flight_as_may_be_and_all_come_in_the_end(api: Api) -> None:
    work = Work(api, "capped")
    work.configure(max_in_flight_per=2)
    send(work, 5, queue=0)
    send(work, 1, queue=1)
    first = work.pop(100)
    assert counted(first) == {0: 2, 1: 1}
    assert work.pop(100) == []
    one = next(message for message in first if message["queue"] == 0)
    assert work.settle("ack", one) == []
    assert bodies(work.pop(100, wait_ms=5_000)) == ["2"]
    work.configure(fair_by="key", max_in_flight_per=1)
    send(work, 3, queue=2, key="k")
    assert counted(work.pop(100), "key") == {"k": 1}


def test_each_goes_at_its_pace_and_a_held_pop_gets_the_next_in_time(api: Api) -> None:
    work = Work(api, "paced")
    work.configure(max_rate_per=2)
    for queue in (0, 1):
        send(work, 10, queue=queue)
    first = work.pop(100)
    assert counted(first) == {0: 2, 1: 2}
    more = work.pop(100, wait_ms=10_000)
    assert 1 <= len(more) <= 2 and set(bodies(more)) == {"2"}
    api.create("paced-names", "named")  # type: ignore[arg-type]
    document = {"topic": "paced-names", "weights": {"1": 5}}
    error = api.call("PUT", "/v1/groups/paced-names/work-queue", document, status=400).json()["error"]
    assert error["field"] == "weights" and "named" in error["message"]


def test_low_priorities_grow_older_and_come_in_the_end(api: Api) -> None:
    work = Work(api, "ageing", 1)
    work.configure(order="priority", priority_ageing_ms=1)
    send(work, 1, priority=0)
    (first,) = api.read("ageing", 0, offset=0).json()["messages"]
    while True:  # until one is stored so much later that its priority does not make up for it
        work.api.send(work.topic, {"queue": 0, "body": "high", "priority": 3})
        last = api.read("ageing", 0, offset="latest").json()["next_offset"] - 1
        (newest,) = api.read("ageing", 0, offset=last).json()["messages"]
        if newest["stored_ms"] > first["stored_ms"] + 3:
            break
    found = work.pop(100)
    places = [message["offset"] for message in found]
    assert 0 <= places.index(0) < places.index(last), "it was older by more than three times a millisecond"


def test_what_is_held_for_others_wakes_a_pop_when_there_is_room(api: Api) -> None:
    work = Work(api, "room")
    work.configure(max_in_flight_per=1)
    send(work, 2, queue=0)
    (first,) = work.pop(10, visibility_ms=SHORT_MS)
    again = work.pop(10, wait_ms=10_000)
    assert bodies(again) == [first["body"]] or bodies(again) == ["1"]


def test_higher_priorities_come_first_whatever_waits(api: Api) -> None:
    work = Work(api, "priority", 2)
    work.configure(order="priority")
    send(work, 9_000, priority=1)
    for queue in (0, 1):
        send(work, 3, queue=queue, priority=200)
        send(work, 2, queue=queue, priority=0)
    found = work.pop(1) + work.pop(7)
    assert [message["priority"] for message in found] == 6 * [200] + 2 * [1]
    assert counted(found[:6]) == {0: 3, 1: 3}, "of one priority queues take turns"
    assert [m["body"] for m in found[:6] if m["queue"] == 0] == ["0", "1", "2"], "first in, first out"
    send(work, 1, queue=1, priority=255)
    assert [message["priority"] for message in work.pop(2)] == [255, 1]
    document = {"topic": work.topic, "order": "key"}
    assert "has 'priority'" in work.post("pop", document, status=400)["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"order": "key", "fair_by": "tag"}, "fair_by"),
        ({"weights": {"gold": 5}}, "weights"),
        ({"priority_ageing_ms": 5}, "priority_ageing_ms"),
        ({"fair_by": "tag", "weights": {f"{number}": 2 for number in range(1_001)}}, "weights"),
    ],
)
def test_settings_that_cannot_be_obeyed_are_refused_by_name(api: Api, settings: dict[str, Any], field: str) -> None:
    api.create("refused", 1)
    document = {"topic": "refused", **settings}
    error = api.call("PUT", "/v1/groups/refused/work-queue", document, status=400).json()["error"]
    assert error["field"] == field
    error = api.call("PUT", "/v1/groups/refused/work-queue", {"topic": "refused", "weights": {"1": 0}}, status=400)
    assert "weights" in error.json()["error"]["message"]


@pytest.mark.parametrize("name", ["9" * 5_000, "9" * 30, "\u0663", "\ud800"])
def test_a_weight_of_what_is_no_queue_is_refused_and_the_work_queue_works_on(api: Api, name: str) -> None:
    check_refused_weight(api, "queue", name)


@pytest.mark.parametrize("fair_by", ["key", "tag"])
@pytest.mark.parametrize("name", ["\ud800", "x" * 1_025])
def test_a_weight_of_what_is_no_key_is_refused_and_the_work_queue_works_on(api: Api, fair_by: str, name: str) -> None:
    check_refused_weight(api, fair_by, name)


def check_refused_weight(api: Api, fair_by: str, name: str) -> None:
    """It was stored once, and then no request to the work queue was answered but with an internal error."""
    api.create("weighed", 1)
    document = {"topic": "weighed", "fair_by": fair_by, "weights": {name: 2}}
    error = api.call("PUT", "/v1/groups/weighed/work-queue", document, status=400).json()["error"]
    assert error["field"] == "weights" and "weights names" in error["message"] and len(error["message"]) < 300
    assert api.call("POST", "/v1/groups/weighed/pop", {"topic": "weighed"}).json() == {"messages": []}


def test_weights_that_an_earlier_release_stored_and_nobody_can_have_are_passed_over() -> None:
    stored = WorkSettings.of({"weights": {"9" * 5_000: 2, "7": 5}})
    assert stored.tenant_weights() == {7: 5}
    assert WorkSettings.of({"fair_by": "key", "weights": {"\ud800": 2}}).tenant_weights() == {}


def test_a_killed_node_goes_on_by_priority_and_with_its_settings(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    try:
        work = Work(Api(node.url), "killed-priority", 1)
        work.configure(order="priority", weights={"0": 2})
        send(work, 5, priority=1)
        send(work, 2, priority=7)
        seven, six = work.pop(2)
        assert (seven["priority"], six["priority"]) == (7, 7)
        assert work.settle("nack", six, delay_ms=0) == []
        node.kill9()
        node.start()
        assert work.settle("ack", seven) == [], "nobody has got it since"
        found = work.pop(10)
        assert [(message["priority"], message["deliveries"]) for message in found] == [(7, 2), *5 * [(1, 1)]]
        assert work.settle("ack", *found) == []
        eventually(lambda: work.undelivered() == (0, 0), "all is done")
    finally:
        node.kill9()

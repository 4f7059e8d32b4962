"""Values at their ends: refused by name, whichever encoding they come in, or obeyed as they are."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from .calls import Api

MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/json"}


def packed(api: Api, method: str, path: str, document: Any, status: int) -> dict[str, Any]:
    answer = api.call(method, path, body=msgpack.packb(document), headers=MSGPACK, status=status)
    return answer.error if status >= 400 else answer.json()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -float("inf"), True, 0, 1e308])
def test_a_rate_that_is_no_number_is_refused_and_nothing_is_set(api: Api, topic_name: str, rate: float) -> None:
    api.create(topic_name, 1)
    path = f"/v1/groups/{topic_name}/work-queue"
    error = packed(api, "PUT", path, {"topic": topic_name, "max_rate_per": rate}, 400)
    assert (error["code"], error["field"]) == ("invalid_request", "max_rate_per")
    assert api.get(f"{path}?topic={topic_name}", 404).code == "unknown_group"
    settings = packed(api, "PUT", path, {"topic": topic_name, "max_rate_per": 0.001}, 200)["shards"][0]["settings"]
    assert settings["max_rate_per"] == 0.001


@pytest.mark.parametrize("accepted", [False, None, 1, "true", 0])
def test_a_shard_is_revived_for_whoever_accepts_the_loss_and_for_nobody_else(api: Api, accepted: object) -> None:
    path = "/v1/cluster/shards/0/revive"
    for error in (
        api.call("POST", path, {"node": "n1", "accept_loss": accepted}, status=400).error,
        packed(api, "POST", path, {"node": "n1", "accept_loss": accepted}, 400),
    ):
        assert (error["code"], error["field"]) == ("invalid_request", "accept_loss")
    taken = api.call("POST", path, {"node": "n1", "accept_loss": True}).error
    assert taken.get("field") != "accept_loss", "what stands in its way here is another thing"


@pytest.mark.parametrize("ranges", ["1-0", "0,3-2", "2-2,1-0", "9-0"])
def test_a_range_that_ends_before_it_begins_is_refused_wherever_ranges_stand(
    api: Api, topic_name: str, ranges: str
) -> None:
    api.create(topic_name, 4)
    named = f"{topic_name[:100]}-named"
    api.create(named, "named")
    group = f"/v1/groups/{topic_name}"
    for field, answer in (
        ("queues", api.call("POST", f"{group}/reset", {"topic": topic_name, "to": "latest", "queues": ranges})),
        ("queues", api.get(f"{group}/reset?topic={topic_name}&to=latest&queues={ranges}", None)),
        ("ranges", api.get(f"{group}/lag?topic={topic_name}&ranges={ranges}", None)),
        ("slots", api.get(f"{group}/offsets?topic={named}&slots={ranges}", None)),
        ("queues", api.get(f"{group}/offsets?topic={topic_name}&queues={ranges}", None)),
        ("queues", api.get(f"/v1/topics/{topic_name}/offsets?queues={ranges}", None)),
        ("queues", api.call("POST", f"/v1/topics/{topic_name}/purge", {"queues": ranges})),
    ):
        assert answer.status == 400, answer.body
        assert answer.error["field"] == field and field in answer.error["message"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "é", "a b", "x" * 201])
def test_dead_letters_are_for_a_topic_that_there_can_be(api: Api, topic_name: str, name: str) -> None:
    api.create(topic_name, 1)
    path = f"/v1/groups/{topic_name}/work-queue"
    refused = api.call("PUT", path, {"topic": topic_name, "dead_letter": name}, status=400)
    assert refused.code == "invalid_topic_name"
    assert api.get(f"{path}?topic={topic_name}", 404).code == "unknown_group"
    longest = "x" * 200
    found = api.call("PUT", path, {"topic": topic_name, "dead_letter": longest}, status=200).json()
    assert found["dead_letter_topic"] == longest


def test_dead_letters_do_not_come_back_to_where_they_died(api: Api, topic_name: str) -> None:
    path, dead = f"/v1/groups/{topic_name}/work-queue", f"{topic_name}-dead"
    api.create(topic_name, 1)
    api.create(dead, 1, expired_to=topic_name)
    for name in (topic_name, dead):
        refused = api.call("PUT", path, {"topic": topic_name, "dead_letter": name}, status=400)
        assert refused.error["field"] == "dead_letter"
        assert f"{topic_name} to {name}" in refused.error["message"]


def test_no_member_raises_a_generation_to_where_nobody_can_follow(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    path, first = f"/v1/groups/{topic_name}/heartbeat", {"member": "m", "topics": [topic_name]}
    told = api.call("POST", path, first, status=200).json()
    for epoch in (2**53, 2**52, told["epoch"] + 2**32 + 1):
        refused = api.call("POST", path, {**first, "epoch": epoch, "version": told["version"]}, status=400).error
        assert (refused["code"], refused["field"]) == ("invalid_request", "epoch")
    healed = api.call("POST", path, {**first, "epoch": 2**32, "version": told["version"]}, status=200).json()
    assert 2**32 < healed["epoch"] < 2**33
    again = {**first, "epoch": healed["epoch"], "version": healed["version"], "owned": healed["assigned"]}
    assert api.call("POST", path, again, status=200).json()["epoch"] == healed["epoch"]


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_number_that_has_no_form_in_the_answer_is_refused_like_any_other(
    api: Api, topic_name: str, accept: str
) -> None:
    api.create(topic_name, 2)
    headers = {"Content-Type": "application/json", "Accept": accept}
    told = api.call("POST", f"/v1/groups/{topic_name}/heartbeat", {"member": "m", "topics": [topic_name]}).json()
    fence = {"topic": topic_name, "queues": [[0, 10**40]], "member": "m", "epoch": told["epoch"]}
    for path, document in (
        (f"/v1/groups/{topic_name}/fence", fence),
        (f"/v1/topics/{topic_name}/purge", {"queues": f"0-{10**40}"}),
    ):
        answer = api.call("POST", path, document, headers=headers, status=404)
        error = (answer.json() if accept.endswith("json") else answer.msgpack())["error"]
        assert error["code"] == "unknown_queue" and error["queues"] == 2
        assert str(error["queue"]) in error["message"]

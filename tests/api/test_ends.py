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

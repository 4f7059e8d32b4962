"""Which topics are busy and which groups are behind, as a node says it to people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from api.calls import Api
from support.node_process import NodeProcess
from support.waiting import eventually

from .test_series import commit


@pytest.mark.part(3)
def test_topics_are_busy_while_messages_come_or_go(node: NodeProcess) -> None:
    api = Api(node.url)
    for name in ("quiet", "busy", "idle"):
        api.create(name, 1)

    def work(found: dict[str, Any]) -> bool:
        api.send("busy", *[{"body": "x" * 100}] * 50)
        api.send("quiet", {"body": "x"})
        assert len(api.bodies("busy", 0, max=20)) == 20
        return [topic["topic"] for topic in found["topics"]] == ["busy", "quiet"]

    eventually(lambda: work(api.get("/v1/busiest").json()), "the busiest comes first, and none that is idle")
    (busy,) = api.get("/v1/busiest?limit=1").json()["topics"]
    assert busy["in_per_s"] > busy["out_per_s"] > 0
    assert 90 * busy["in_per_s"] <= busy["in_bytes_per_s"] <= 300 * busy["in_per_s"]
    assert 90 * busy["out_per_s"] <= busy["out_bytes_per_s"] <= 300 * busy["out_per_s"]
    eventually(lambda: api.get("/v1/busiest").json()["topics"] == [], "nothing is busy any more")
    assert api.get("/v1/busiest?limit=0", 400).code == "invalid_request"


@pytest.mark.part(2)
def test_groups_that_are_behind_are_listed_by_how_far(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node().start().url)
    api.create("t", 2)
    api.send("t", *[{"queue": 0, "body": "x"}] * 30)
    for group, offset in (("done", 30), ("far", 3), ("near", 25)):
        commit(api, group, "t", {0: offset})
    expected = [{"group": "far", "topic": "t", "lag": 27}, {"group": "near", "topic": "t", "lag": 5}]
    eventually(lambda: bool(api.get("/v1/busiest").json()["groups"] == expected), "lags are counted")
    found = api.get("/v1/busiest?limit=1").json()
    assert found["groups"] == expected[:1] and found["lag_age_ms"] >= 0

"""A node whose clock was a year ahead: what waits once it is set right is said, and can be brought on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Api

#: What is started behind it has a wall clock that is a year ahead.
AHEAD = (
    sys.executable,
    "-c",
    "import sys, runpy; from lsmq_lab.drills.skewed_clock import skew; skew(365 * 86_400); "
    "sys.argv = ['lsmq', *sys.argv[4:]]; runpy.run_module('lsmq', run_name='__main__')",
)


@pytest.mark.part(2)
def test_after_a_clock_was_a_year_ahead_what_waits_is_said_and_can_be_brought_on(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node().start(prefix=AHEAD)
    api = Api(node.url)
    api.create("reminders", 2)
    api.send("reminders", {"queue": 0, "body": "then"}, {"queue": 0, "body": "in an hour", "delay_ms": 3_600_000})
    node.stop()
    node.start()
    api = Api(node.url)

    def warnings() -> list[str]:
        found: list[str] = api.call("GET", "/readyz").json().get("warnings", [])
        return found

    (said,) = eventually(warnings, "what stands still is named", PATIENCE_S)
    assert said.startswith("stored-times: times in shard 0 stand still at ")
    api.send("reminders", {"queue": 1, "body": "soon", "delay_ms": 1})
    path = "/v1/topics/reminders/delayed"
    waiting = {each["body"]: each["id"] for each in api.call("GET", path).json()["messages"]}
    assert waiting.keys() == {"soon", "in an hour"}
    for body, moment in (("soon", {"delay_ms": 0}), ("in an hour", {"deliver_at_ms": time.time_ns() // 1_000_000})):
        assert api.call("PUT", f"{path}/{waiting[body]}", moment).status == 200
    eventually(lambda: api.all_bodies("reminders", 0) == ["then", "in an hour"], "it comes at once", PATIENCE_S)
    eventually(lambda: api.all_bodies("reminders", 1) == ["soon"], "and so does what was to come later", PATIENCE_S)

    assert api.call("PUT", "/v1/cluster/shards", {"shards": 2}).status == 200
    assert api.call("POST", "/v1/topics/reminders/spread", {"keys": "stay"}).status == 200
    new = api.call("GET", "/v1/topics/reminders").json()["queues"] - 1
    api.send("reminders", {"queue": new, "body": "in the new shard", "delay_ms": 100})
    eventually(lambda: api.all_bodies("reminders", new) == ["in the new shard"], "that goes by the clock", PATIENCE_S)

"""What hangs is seen and ended in the console: messages that a worker keeps, a producer that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api.calls import Api
from push.browser import browser, find_browser
from support.node_process import NodeProcess
from support.waiting import comes_true

from .test_console import TEXT, _press, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")


async def test_messages_that_a_worker_keeps_are_taken_from_him(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=1)
    api.send("orders", *({"queue": 0, "body": body} for body in ("again", "dead", "done")))
    popped = {"topic": "orders", "max": 3, "visibility_ms": 600_000}
    taken = api.call("POST", "/v1/groups/kitchen/pop", popped, status=200).json()["messages"]
    assert len(taken) == 3
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{node.url}/console#/groups/kitchen")
        await shows(page, "document.querySelector('main [name=topic]')", "a topic is asked for")
        form = "document.querySelector('main form')"
        await page.evaluate(f"{form}.elements.topic.value = 'orders'; {form}.requestSubmit()")
        await shows(page, "document.querySelectorAll('[aria-label=Held] tbody tr').length === 3", "they are listed")
        buttons = (
            "[...document.querySelectorAll('[aria-label=Held] tbody tr')].map((row) => row.querySelector('a').href)"
        )
        assert (await page.evaluate(buttons))[2].endswith("#/topics/orders/0?offset=2")
        await page.sized(390, 844)
        await shows(page, "innerWidth === 390", "it is narrow")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, "it fits a telephone"
        await page.evaluate("document.querySelector('[aria-label=Held] button').click()")
        await shows(page, f"{TEXT}.includes('Give to others: sure?')", "it asks once more")
        assert len(api.get("/v1/groups/kitchen/held?topic=orders").json()["messages"]) == 3
        await page.evaluate("document.querySelector('[aria-label=Held] button').click()")
        await shows(page, f"{TEXT}.includes('somebody else gets it')", "it is given to others")
        labels = {1: "To the dead letters", 2: "Done"}
        for row, label in labels.items():
            own = f"[...document.querySelectorAll('[aria-label=Held] tbody tr')][{row}]"
            button = f"[...{own}.querySelectorAll('button')].find((each) => each.textContent === {label!r})"
            await page.evaluate(
                f"(() => {{ const button = {button}; button.click(); button.click(); return true; }})()"
            )
        await shows(
            page, f"{TEXT}.includes('not tried again') && {TEXT}.includes('never comes again')", "both are ended"
        )
        again = api.call("POST", "/v1/groups/kitchen/pop", popped, status=200).json()["messages"]
        assert [message["body"] for message in again] == ["again"]
        await comes_true(lambda: api.bodies("orders.dlq", 0, offset="earliest") == ["dead"], "one is a dead letter")
        await asyncio.to_thread(
            api.call,
            "POST",
            "/v1/groups/kitchen/ack",
            {"topic": "orders", "receipts": [again[0]["receipt"]]},
            status=200,
        )
        await page.evaluate("location.hash = '#/groups/kitchen?topic=orders&again=1'")
        await shows(page, f"{TEXT}.includes('Nobody has any message of it')", "all are settled")


async def test_a_producer_that_is_silent_is_ended_and_its_transaction_decided(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=1)
    own = "/v1/producer-groups/tellers"
    for member in ("hangs", "lives"):
        beat = {"member": member, "join": True, "session_ms": 300_000}
        api.call("POST", f"{own}/heartbeat", beat, status=200)
    begun = {"member": "hangs", "number": 1, "reference": "order 17"}
    messages = [{"topic": "orders", "queue": 0, "body": "x"}]
    api.call("POST", f"{own}/transactions", {**begun, "messages": messages}, status=200)
    api.call("POST", f"{own}/sequences/outbox", {"member": "hangs"}, status=200)
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{node.url}/console#/producers/tellers")
        await shows(page, "document.querySelectorAll('[aria-label=Members] tbody tr').length === 2", "both are there")
        assert await page.evaluate("document.querySelector('[aria-label=Sequences]').textContent.includes('outbox')")
        await page.evaluate(_press("End", "hangs"))
        await shows(page, f"{TEXT}.includes('others are asked about its transactions')", "one is ended")
        assert [member["id"] for member in api.get(own).json()["members"]] == ["lives"]
        silent = {"member": "hangs"}
        assert api.call("POST", f"{own}/heartbeat", silent, status=404).code == "unknown_producer_member"
        await page.evaluate(_press("Roll back", "order 17"))
        await shows(page, f"{TEXT}.includes('rolled back')", "its transaction is decided")
        assert api.get(f"{own}/transactions?state=open").json()["transactions"] == []

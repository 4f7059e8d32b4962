"""The console: its files, the figures that it draws, and its pages in a real browser where the machine has one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.calls import Api
from lsmq_node.config import NodeConfig
from lsmq_node.history import COLUMNS, SAMPLES, quantile_ms
from lsmq_node.metrics import BUCKETS_S
from lsmq_node.node import running_node
from push.browser import Page, browser, find_browser
from support.node_process import NodeProcess
from support.waiting import comes_true

EXECUTABLE = find_browser()
TEXT = "(document.querySelector('main')?.textContent ?? '')"
HOSTILE = "<img src=x onerror=\"document.title='caught'\">"


def test_pages_may_load_nothing_but_what_the_node_serves(api: Api) -> None:
    page = api.get("/console")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    named = re.findall(r'(?:href|src)="(/[^"]*)"', page.body.decode())
    assert len(named) == 2
    for path in named:
        assert api.get(path).headers["Content-Security-Policy"] == policy


def test_every_file_is_served_and_asks_nobody_else(api: Api) -> None:
    files = [
        file for file in resources.files("lsmq_node.console").iterdir() if file.name.endswith((".js", ".css", "ml"))
    ]
    assert len(files) == 16
    for file in files:
        answer = api.get(f"/console/{file.name}")
        assert answer.body == file.read_bytes()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.body.decode())
        assert "innerHTML" not in answer.body.decode() and "style=" not in answer.body.decode()


@pytest.mark.parametrize("name", ["nothing.js", "__init__.py", "..%2Fnode.py", "%2Fetc%2Fpasswd"])
def test_nothing_else_is_served(api: Api, name: str) -> None:
    assert api.get(f"/console/{name}", 404).code == "unknown_path"


def test_the_history_keeps_an_hour_and_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_node(NodeConfig(data=tmp_path)) as node:
            assert all(values == [] for values in node.history.columns().values())
            for _ in range(SAMPLES + 5):
                node.history.sample()
            found = node.history.columns()
            assert set(found) == set(COLUMNS) and {len(values) for values in found.values()} == {SAMPLES}
            assert list(found["time_ms"]) == sorted(found["time_ms"])
            assert found["memory_bytes"][-1] > 0 and found["disk_free_bytes"][-1] > 0
            assert found["parts_stopped"][-1] == 0
            newest = node.history.columns(last=2)
            assert newest == {name: values[-2:] for name, values in found.items()}

    asyncio.run(test())


def test_a_time_is_the_bound_of_the_bucket_that_holds_it() -> None:
    counts = np.zeros(len(BUCKETS_S) + 1, np.int64)
    assert quantile_ms(counts, 0.5) == 0
    counts[0], counts[3] = 98, 2
    assert (quantile_ms(counts, 0.5), quantile_ms(counts, 0.99)) == (1.0, 10.0)
    counts[:] = 0
    counts[-1] = 1
    assert quantile_ms(counts, 0.5) == 60_000


async def shows(page: Page, expression: str, what: str) -> Any:
    async def found() -> bool:
        try:
            return bool(await page.evaluate(f"document.readyState === 'complete' && !!({expression})"))
        except AssertionError as error:
            if not any(words in str(error) for words in ("execution context", "target navigated")):
                raise
            return False  # The page is not there yet.

    await comes_true(found, what)


async def reloads(page: Page) -> None:
    """Returns with the page that was loaded again."""
    await page.evaluate("window.isFormer = true; location.reload()")
    await shows(page, "!window.isFormer", "the page is loaded again")


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
async def test_somebody_finds_follows_and_sends_messages_and_what_is_hostile_stays_text(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=300)
    api.create("inboxes", queues="named")
    api.send("orders", {"queue": 0, "key": HOSTILE, "tag": HOSTILE, "properties": {HOSTILE: HOSTILE}, "body": HOSTILE})
    api.send("orders", {"queue": 0, "body_b64": "/wD+"})
    api.send("inboxes", {"queue": HOSTILE, "body": "x"}, {"queue": "007", "body": "x"})

    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console")
        await shows(page, "document.querySelectorAll('.tile svg').length === 9", "the overview has its tiles")
        await shows(page, "document.querySelector('#health').className === 'good'", "all is well")
        await page.evaluate("location.hash = '#/topics'")
        await shows(page, f"{TEXT}.includes('orders') && {TEXT}.includes('inboxes')", "topics are listed")
        await page.evaluate("location.hash = '#/topics/inboxes'")
        await shows(page, f"{TEXT}.includes('<img src=x')", "a hostile name of a queue is text")
        await page.evaluate("location.hash = '#/topics/orders?after=290'")
        await shows(page, "document.querySelectorAll('tbody tr').length === 10", "the last queues are listed")
        await page.evaluate("location.hash = '#/topics/orders/0?follow=1'")
        await shows(page, f"{TEXT}.includes('ff 00 fe') && {TEXT}.includes('<img src=x')", "text and hex are shown")
        await asyncio.to_thread(api.send, "orders", {"queue": 0, "body": "sent later"})
        await shows(page, f"{TEXT}.includes('sent later')", "what comes is shown")
        fill = "document.querySelector('textarea').value = 'from the page'"
        await page.evaluate(f"{fill}; document.querySelector('details form').requestSubmit()")
        await shows(page, f"{TEXT}.includes('stored at offset 3')", "it says where it was stored")
        assert api.bodies("orders", 0, offset=3) == ["from the page"]
        await page.evaluate("location.hash = '#/topics/inboxes/007'")
        await shows(page, f"{TEXT}.includes('inboxes / 007')", "a queue is shown whose name is made of digits")
        await page.evaluate(f"{fill}; document.querySelector('details form').requestSubmit()")
        await shows(page, f"{TEXT}.includes('stored at offset 1')", "and sent to by that name, not by the number")
        await page.evaluate("location.hash = '#/topics/orders?filter=nonsense%20%3D%3D'")
        await shows(page, "document.querySelector('[role=alert]')?.textContent.includes('filter')", "an error is told")
        await page.evaluate("location.hash = '#/cluster'")
        await shows(page, f"{TEXT}.includes('Shards')", "the cluster is shown")
        assert await page.evaluate("document.images.length") == 0
        assert await page.evaluate("document.title") == "cluster - LSMQ"


def _press(label: str, row: str) -> str:
    """Press a button of the row with a text; twice, as it asks to be sure."""
    rows = f"[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.includes({row!r}))"
    button = f"[...{rows}.querySelectorAll('button')].find((each) => each.textContent === {label!r})"
    return f"(() => {{ const button = {button}; button.click(); button.click(); return true; }})()"


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
async def test_a_message_that_is_shown_is_deleted_and_none_of_a_topic_or_queue_made_anew_meanwhile(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node, queue = make_node().start(), "/v1/topics/orders/queues/agents%2F7"
    api = Api(node.url)
    api.create("orders", queues="named")
    api.send("orders", {"queue": "agents/7", "body": "alpha"}, {"queue": "agents/8", "body": "other"})
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders/agents%2F7")
        await shows(page, f"{TEXT}.includes('alpha')", "it is shown")
        api.call("DELETE", queue, status=204)
        for name in ("agents/9", "agents/7"):  # The first gets the number that is free.
            api.send("orders", {"queue": name, "body": "bravo"})
        await page.evaluate(_press("Delete", "alpha"))
        await shows(page, f"{TEXT}.includes('deleted')", "what was shown is gone")
        left = api.get(f"{queue}/messages?offset=earliest").json()["messages"]
        assert [message["body"] for message in left] == ["bravo"]
        await page.evaluate("location.reload()")
        await shows(page, f"{TEXT}.includes('bravo')", "the new one is shown")
        api.call("DELETE", "/v1/topics/orders", status=204)
        api.create("orders", queues="named")
        api.send("orders", {"queue": "agents/7", "body": "charlie"})
        await page.evaluate(_press("Delete", "bravo"))
        await shows(page, f"{TEXT}.includes('topic_replaced')", "it says that the topic is another one")
        left = api.get(f"{queue}/messages?offset=earliest").json()["messages"]
        assert [message["body"] for message in left] == ["charlie"]


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
async def test_messages_are_sent_again_deleted_and_called_off_when_a_button_is_pressed_twice(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=2)
    api.create("inboxes", queues="named")
    api.send("orders", {"queue": 1, "key": "k", "tag": "dead", "properties": {"why": "x"}, "body": "first"})
    api.send("inboxes", {"queue": "agents/7", "body": "letter"}, {"queue": "agents/7", "body": "other"})
    for body in ("soon", "never", "hurried"):
        api.send("orders", {"queue": 0, "body": body, "delay_ms": 3_600_000})
    schedule = {"cron": "0 9 * * *", "tz": "Europe/Berlin", "message": {"queue": 0, "body": "wake up"}}
    api.call("PUT", "/v1/topics/orders/schedules/morning", schedule, status=201)

    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders?tag=dead")
        await shows(page, f"{TEXT}.includes('first')", "what has the tag is found")
        await page.evaluate("document.querySelector('tbody button').click()")
        await shows(page, f"{TEXT}.includes('Send again: sure?')", "it asks once more")
        assert api.bodies("orders", 1, offset="earliest") == ["first"]
        await page.evaluate("document.querySelector('tbody button').click()")
        await shows(page, f"{TEXT}.includes('stored in orders at offset 1')", "it is sent again")
        again = api.all_messages("orders", 1)[1]
        assert (again["key"], again["tag"], again["properties"], again["body"]) == ("k", "dead", {"why": "x"}, "first")

        await page.evaluate("location.hash = '#/topics/inboxes/agents%2F7'")
        await shows(page, f"{TEXT}.includes('letter') && {TEXT}.includes('other')", "a queue by name is shown")
        await page.evaluate(_press("Delete", "letter"))
        await shows(page, f"{TEXT}.includes('deleted')", "it says that it is deleted")
        found = api.get("/v1/topics/inboxes/queues/agents%2F7/messages?offset=0").json()["messages"]
        assert [message["body"] for message in found] == ["other"]

        dead = {
            "lsmq-dlq-topic": "inboxes",
            "lsmq-dlq-queue": "0",
            "lsmq-dlq-queue-name": "agents/8",
            "lsmq-dlq-reason": "x",
        }
        await asyncio.to_thread(api.send, "orders", {"queue": 1, "body": "refused", "properties": {**dead, "own": "1"}})
        await page.evaluate("location.hash = '#/topics/orders/1'")
        await shows(page, f"{TEXT}.includes('refused')", "a dead letter is shown")
        await page.evaluate(_press("Send back to inboxes", "refused"))
        await shows(page, f"{TEXT}.includes('stored in inboxes at offset 0')", "it goes to where it was")
        back = api.get("/v1/topics/inboxes/queues/agents%2F8/messages?offset=0").json()["messages"]
        assert [(message["body"], message["properties"]) for message in back] == [("refused", {"own": "1"})]

        own = "/v1/producer-groups/tellers"
        await asyncio.to_thread(api.call, "POST", f"{own}/heartbeat", {"member": "m", "join": True})
        for number, reference in ((1, "order 17"), (2, "order 18")):
            begun = {"member": "m", "number": number, "reference": reference}
            messages = [{"topic": "orders", "queue": 1, "body": reference}]
            await asyncio.to_thread(api.call, "POST", f"{own}/transactions", {**begun, "messages": messages})
        await page.evaluate("location.hash = '#/producers/tellers'")
        await shows(page, f"{TEXT}.includes('order 17') && {TEXT}.includes('order 18')", "transactions are listed")
        await page.evaluate(_press("Commit", "order 17"))
        await page.evaluate(_press("Roll back", "order 18"))
        await shows(page, f"{TEXT}.includes('committed') && {TEXT}.includes('rolled back')", "they are decided")
        assert api.get(f"{own}/transactions?state=open").json()["transactions"] == []
        await comes_true(lambda: "order 17" in api.bodies("orders", 1, offset="earliest"), "it is delivered")
        assert "order 18" not in api.bodies("orders", 1, offset="earliest")

        await page.evaluate("location.hash = '#/later/orders'")
        await shows(page, f"{TEXT}.includes('never') && {TEXT}.includes('morning')", "what comes later is listed")
        row = "document.querySelector('[aria-label=Schedules] tbody tr')"
        assert "09:00:00" in await page.evaluate(f"{row}.cells[3].textContent"), "by the clocks of its own zone"
        assert "09:00:00" not in await page.evaluate(f"{row}.cells[4].textContent"), "and in UTC"
        await page.evaluate(_press("Cancel", "never"))
        await shows(page, f"{TEXT}.includes('cancelled')", "it is cancelled")
        await page.evaluate(_press("Now", "hurried"))
        await shows(page, f"{TEXT}.includes('comes now')", "it is put at another time")
        await page.evaluate(_press("Delete", "morning"))
        await shows(page, f"{TEXT}.includes('deleted')", "a schedule is deleted")
        await comes_true(lambda: api.bodies("orders", 0, offset="earliest") == ["hurried"], "it has come")
        assert [message["body"] for message in api.get("/v1/topics/orders/delayed").json()["messages"]] == ["soon"]
        assert api.get("/v1/topics/orders/schedules").json()["schedules"] == []

"""The console finds the queues that stand out, shows bodies in other ways, and works off dead letters, one or all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.calls import Api
from lsmq.topics import dead_letter_topic
from push.browser import browser, find_browser
from support.node_process import NodeProcess
from support.waiting import comes_true

from .test_console import TEXT, _press, reloads, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")


def letter(body: str, why: str) -> dict[str, Any]:
    origin = {"lsmq-dlq-topic": "orders", "lsmq-dlq-queue": "1", "lsmq-dlq-reason": why}
    return {"queue": 0, "tag": why, "body": body, "properties": {**origin, "own": "1"}}


def pressed(label: str) -> str:
    """Press a button that is there once on the page; twice, as it asks to be sure."""
    button = f"[...document.querySelectorAll('main button')].find((each) => each.textContent === {label!r})"
    return f"(() => {{ const button = {button}; button.click(); button.click(); return true; }})()"


async def test_the_deepest_queues_of_a_topic_come_first_and_lead_to_their_messages(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", 100_000)
    api.create("inboxes", queues="named")
    api.send("orders", *({"queue": 77_777, "body": "a"} for _ in range(30)), {"queue": 5, "body": '{"n": 1}'})
    api.send(
        "inboxes",
        {"queue": "agent/1", "body": "x"},
        {"queue": "agent/2", "body": "x"},
        {"queue": "agent/2", "body": "y"},
    )
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders?by=depth")
        first = "document.querySelector('tbody tr')?.textContent"
        await shows(page, f"{first}?.startsWith('77777') && {first}?.includes('30')", "the deepest comes first")
        await shows(page, f"{TEXT}.includes('2 queues have messages')", "it says how many have any")
        await page.evaluate("location.hash = '#/topics/orders?by=age'")
        await shows(page, f"{TEXT}.includes('oldest stored')", "by age as well")
        await page.evaluate("location.hash = '#/topics/inboxes?by=depth'")
        await shows(page, f"{first}?.startsWith('agent/2')", "by name where they have names")
        await page.evaluate("document.querySelector('tbody a').click()")
        await shows(page, f"{TEXT}.includes('Offsets 0 to 2')", "it leads to the queue")
        await page.evaluate("location.hash = '#/topics/orders?by=nonsense'")
        await shows(page, "document.querySelector('main > [role=alert]')", "an error is told")
        assert not await page.evaluate("document.querySelector('main p[role=status]')"), "and nobody looks any more"
        await page.evaluate("location.hash = '#/topics/orders/5?view=hex'")
        await shows(page, f"{TEXT}.includes('7b 22 6e 22 3a 20 31 7d')", "a body's bytes are shown")
        await page.evaluate("location.hash = '#/topics/orders/5?view=json'")
        await shows(page, "document.querySelector('pre')?.textContent.includes('\\n')", "JSON is indented")


async def test_numbers_of_a_body_are_shown_as_they_were_written(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders")
    written = r'{"id":12345678901234567890, "one": [1.0, {}, [ ] ],"text":"a, [b]: \"{c","id":1e400}'
    api.send("orders", {"queue": 0, "body": written}, {"queue": 0, "body": "[" * 9_000 + "]" * 9_000})
    shown = r"""{
  "id": 12345678901234567890,
  "one": [
    1.0,
    {},
    []
  ],
  "text": "a, [b]: \"{c",
  "id": 1e400
}"""
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders/0?view=json")
        await shows(page, "document.querySelector('pre')", "the messages are shown")
        assert await page.evaluate("document.querySelector('tbody pre').textContent") == shown


async def test_dead_letters_are_edited_sent_back_and_deleted_one_by_one_and_all_that_match(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", 2)
    api.create("orders.dlq", 1)
    late, bad = [letter(f"late {n}", "late") for n in range(120)], [letter(f"bad {n}", "bad") for n in range(3)]
    said = {"lsmq-dlq-reason": "negative acknowledgement: no such pizza", "own": "2"}
    api.send("orders.dlq", letter("wrnog", "typo"), *late, *bad)
    api.send("orders.dlq", {"queue": 0, "tag": "said", "body": "refused", "properties": said})
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders.dlq?tag=said")
        await shows(page, f"{TEXT}.includes('reason: no such pizza')", "what the worker said")
        assert await page.evaluate(f"{TEXT}.includes('kind: negative acknowledgement')")
        await page.evaluate("location.hash = '#/topics/orders.dlq?tag=typo'")
        await shows(page, f"{TEXT}.includes('wrnog')", "the letter is found")
        await page.evaluate(_press("Edit", "wrnog").replace("button.click(); button.click();", "button.click();"))
        await page.evaluate("document.querySelector('.edit textarea').value = 'wrong no more'")
        await page.evaluate(pressed("Send as it is now"))
        await shows(page, f"{TEXT}.includes('stored in orders at offset 0')", "what was edited is sent back")
        (back,) = api.read("orders", 1).json()["messages"]
        assert (back["body"], back["properties"]) == ("wrong no more", {"own": "1"})

        await page.evaluate("location.hash = '#/topics/orders.dlq?tag=late'")
        await shows(page, f"{TEXT}.includes('late 0')", "letters are found")
        await page.evaluate(pressed("Send all back and delete them here"))
        await shows(page, f"{TEXT}.includes('120 sent back')", "all pages are worked off")
        assert api.all_bodies("orders", 1)[1:] == [f"late {n}" for n in range(120)]
        left = [message["tag"] for message in api.read("orders.dlq", 0).json()["messages"]]
        assert left == ["typo", *["bad"] * 3, "said"]

        await page.evaluate("location.hash = '#/topics/orders.dlq?tag=bad'")
        await shows(page, f"{TEXT}.includes('bad 2')", "others are found")
        await asyncio.to_thread(api.send, "orders.dlq", letter("bad, and came later", "other"))
        await page.evaluate(pressed("Delete all"))
        await shows(page, f"{TEXT}.includes('3 deleted')", "they are deleted")
        left = [message["tag"] for message in api.read("orders.dlq", 0).json()["messages"]]
        assert left == ["typo", "said", "other"]


@pytest.mark.part(2)
async def test_dead_letters_of_a_topic_with_a_long_name_are_sent_back_as_others_are(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    for topic in ("o" * 200, "p" * 196 + ".dlq"):
        name = dead_letter_topic(topic)
        api.create(topic, 1)
        api.create(name, 1)
        origin = {"lsmq-dlq-topic": topic, "lsmq-dlq-queue": "0", "lsmq-dlq-reason": "late"}
        api.send(name, {"queue": 0, "body": "x", "tag": str(len(name)), "properties": origin})
        async with browser(EXECUTABLE) as tabs:
            page = await tabs.open(f"{node.url}/console#/topics/{name}?tag={len(name)}")
            await shows(page, f"{TEXT}.includes('Send back')", "the letter is found")
            await page.evaluate(pressed("Send back"))
            await shows(page, f"{TEXT}.includes('at offset 0')", "it is where it was")
            assert api.all_bodies(topic, 0) == ["x"]


async def test_how_far_a_group_is_behind_is_drawn_while_somebody_looks(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", 2)
    api.send("orders", *({"queue": 0, "body": str(number)} for number in range(7)))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/groups/kitchen?topic=orders")
        lag = "document.querySelector('[aria-label=Lag] tbody tr')"
        await shows(page, f"{lag}?.textContent.includes('7')", "it says how far")
        await asyncio.to_thread(api.send, "orders", {"queue": 1, "body": "one more"})
        await shows(page, f"{lag}?.textContent.includes('8')", "it goes on looking")
        points = f"{lag}.querySelector('polyline').getAttribute('points').split(' ').length"
        await comes_true(lambda: _many(page, points), "a line is drawn")


async def _many(page: Any, points: str) -> bool:
    return bool(await page.evaluate(f"{points} >= 2"))


async def test_keys_are_told_and_close_again(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console")
        await shows(page, "document.querySelector('.tile')", "the console is there")
        await page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '?', bubbles: true}))")
        await shows(page, "document.getElementById('keys').open", "the keys are told")
        await page.evaluate("document.querySelector('#keys button').click()")
        await shows(page, "!document.getElementById('keys').open", "they are closed")
        await page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'g', bubbles: true}))")
        await shows(page, "location.hash === '#/groups'", "a key leads to a page")


@pytest.mark.part(2)
async def test_what_a_queue_keeps_of_its_own_is_seen_and_changed(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", 2)
    api.create("inboxes", queues="named")
    api.send("inboxes", {"queue": "agents/7", "body": "x"})
    for path, queue in (("orders/1", "/v1/topics/orders/queues/1"), ("inboxes/agents%2F7", None)):
        own = queue or "/v1/topics/inboxes/queues/agents%2F7"
        async with browser(EXECUTABLE) as tabs:
            page = await tabs.open(f"{node.url}/console#/topics/{path}")
            await shows(page, f"{TEXT}.includes('Keeps what its topic says')", "it has nothing of its own")
            age, messages = (
                "document.querySelector('[name=retention_ms]')",
                "document.querySelector('[name=retention_messages]')",
            )
            await page.evaluate(f"{age}.value = 'for ever'")
            await page.evaluate(pressed("Change"))
            await shows(page, f"{TEXT}.includes('for ever is no limit')", "it says what is wrong")
            assert "options" not in api.get(own).json()
            await page.evaluate(f"{age}.value = '7d'; {messages}.value = 'unlimited'")
            await page.evaluate(pressed("Change"))
            await shows(
                page, f"{TEXT}.includes('retention_ms 604800000, retention_messages unlimited')", "it is changed"
            )
            assert api.get(own).json()["options"] == {"retention_ms": 604_800_000, "retention_messages": "unlimited"}
            await reloads(page)
            await shows(page, f"{age}?.value === '604800000'", "it is there")
            await page.evaluate(f"{age}.value = ''; {messages}.value = ''")
            await page.evaluate(pressed("Change"))
            await shows(page, f"{TEXT}.includes('Keeps what its topic says')", "it follows its topic again")
            assert "options" not in api.get(own).json()

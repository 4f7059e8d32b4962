"""Having a group go on from somewhere else in the console, in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.calls import Api
from api.test_groups import commit, committed
from lsmq import Client, Consumer, Producer
from push.browser import Page, browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, reloads, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
FORM = "document.querySelector('main form')"
BUTTON = "[...document.querySelectorAll('main .act button')].find((each) => each.textContent.startsWith('Reset'))"


async def preview(page: Page, **fields: str) -> None:
    set_all = "; ".join(f"{FORM}.elements[{name!r}].value = {value!r}" for name, value in fields.items())
    await page.evaluate(f"{set_all}; {FORM}.requestSubmit()")


async def rows(page: Page) -> Any:
    """Of the table that says what changes."""
    every = "[...document.querySelectorAll('[aria-label=\"What changes\"] tbody tr')]"
    return await page.evaluate(f"{every}.map((row) => [...row.cells].map((cell) => cell.textContent))")


async def test_what_a_reset_would_change_is_shown_and_it_is_done_when_the_button_is_pressed_twice(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=3)
    api.send("orders", *({"queue": queue, "body": "x"} for queue in (0, 0, 0, 0, 1, 1)))
    commit(api, "kitchen", "orders", {0: 3, 1: 1})

    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/groups/kitchen")
        await shows(page, FORM, "the form is there")
        await preview(page, topic="orders", to="earliest")
        await shows(page, f"{TEXT}.includes('Queues that change: 2; messages read again: 4, skipped: 0.')", "sums")
        assert await rows(page) == [["0", "3", "0", "3", "0"], ["1", "1", "0", "1", "0"]]
        await reloads(page)
        await shows(page, f"{TEXT}.includes('messages read again: 4')", "the address shows the same")
        assert committed(api, "kitchen", "orders") == {0: 3, 1: 1}, "nothing was done"
        await page.evaluate(f"{BUTTON}.click()")
        await shows(page, f"{TEXT}.includes('Reset: sure?')", "it asks once more")
        assert committed(api, "kitchen", "orders") == {0: 3, 1: 1}
        await page.evaluate(f"{BUTTON}.click()")
        await shows(page, f"{TEXT}.includes('offsets set: 2')", "it is done")
        assert committed(api, "kitchen", "orders") == {0: 0, 1: 0}

        await preview(page, to="offset", at="x")
        await shows(page, f"{TEXT}.includes('x is no offset')", "what is no offset is told")
        await preview(page, to="offset", at="2", queues="0")
        await shows(page, f"{TEXT}.includes('change: 1; messages read again: 0, skipped: 2.')", "one offset")
        await preview(page, to="time", at="soon", queues="")
        await shows(page, f"{TEXT}.includes('soon is no time')", "what is no time is told")
        await preview(page, to="time", at="2100-01-01 12:00")
        await shows(page, f"{TEXT}.includes('Queues that change: 2; messages read again: 0, skipped: 6.')", "a time")
        assert "at=2100-01-01T12%3A00%3A00.000Z" in await page.evaluate("location.hash")
        await preview(page, to="time", at="-1h")
        await shows(page, f"{TEXT}.includes('Queues that change: 0')", "an hour ago is the beginning")
        await page.evaluate("location.hash = '#/groups/kitchen?topic=nowhere&to=latest'")
        await shows(page, "document.querySelector('main > [role=alert]')?.textContent.includes('nowhere')", "an error")

        beat = {"member": "m", "topics": ["orders"], "session_ms": 300_000}
        while not beat.get("owned"):
            said = await asyncio.to_thread(api.call, "POST", "/v1/groups/kitchen/heartbeat", beat, status=200)
            told = said.json()
            beat |= {"epoch": told["epoch"], "version": told["version"], "owned": told["assigned"], "wait_ms": 1_000}
        await page.evaluate("location.hash = '#/groups/kitchen?topic=orders&to=latest'")
        await shows(page, f"{TEXT}.includes('Members that live: 1')", "it says that somebody lives")
        await shows(page, f"{TEXT}.includes('orders 0 to 2')", "and what it owns")
        await page.evaluate(f"{BUTTON}.click(); {BUTTON}.click()")
        await shows(page, f"{TEXT}.includes('offsets set: 2')", "it is done though")
        assert committed(api, "kitchen", "orders") == {0: 4, 1: 2}


async def test_of_many_queues_a_hundred_are_shown_and_all_are_summed_up_and_set(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("many", queues=40_100)
    queues = range(0, 40_100, 200)
    api.send("many", *({"queue": queue, "body": "x"} for queue in queues))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/groups/new?topic=many&to=latest")
        await shows(page, f"{TEXT}.includes('Queues that change: {len(queues)}')", "all are summed up")
        assert len(await rows(page)) == 100
        assert await page.evaluate(f"{TEXT}.includes('and {len(queues) - 100} more')")
        await page.evaluate(f"{BUTTON}.click(); {BUTTON}.click()")
        await shows(page, f"{TEXT}.includes('offsets set: {len(queues)}')", "all are set")
        assert committed(api, "new", "many") == dict.fromkeys(queues, 1)


async def test_a_group_that_reads_by_a_pattern_says_so_and_is_set_in_queues_that_match(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    async with Client(node.url) as client, browser(EXECUTABLE) as tabs:
        await client.create_topic("agents", queues="named")
        async with Producer(client, "agents") as producer:
            for name in ("agents.1.inbox", "agents.1.log", "agents.2.inbox"):
                await producer.send(name, queue=name)
        async with Consumer(client, "agents", group="workers", pattern="agents.*.inbox"):
            pass
        page = await tabs.open(f"{node.url}/console#/groups/workers?topic=agents&to=latest")
        await shows(page, f"{TEXT}.includes('It reads agents.*.inbox of agents.')", "what it reads")
        await shows(page, f"{TEXT}.includes('Queues that change: 2; messages read again: 0, skipped: 2.')", "sums")
        assert sorted(row[0] for row in await rows(page)) == ["agents.1.inbox", "agents.2.inbox"]

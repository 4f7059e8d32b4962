"""The console goes on where the node goes away, hangs and comes back, and shows nothing old as if it were new."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from api.calls import Api
from push.browser import browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
SILENT = "document.querySelector('#health').textContent === 'the node does not answer'"


@pytest.mark.part(2)
async def test_a_page_goes_on_when_the_node_is_back(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders")
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders/0?follow=1")
        await shows(page, f"{TEXT}.includes('Stop following') && document.querySelector('table')", "it is followed")
        await page.evaluate("document.querySelector('textarea').value = 'half'")
        await asyncio.to_thread(node.kill9)
        await shows(page, "document.querySelector('main > [role=alert]')", "it says that there is no answer")
        await shows(page, SILENT, "as the head of the page does")
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(api.send, "orders", {"queue": 0, "body": "sent after the start"})
        await shows(page, f"{TEXT}.includes('sent after the start')", "what comes is shown again")
        assert not await page.evaluate("document.querySelector('main > [role=alert]')"), "and no failure any more"
        assert await page.evaluate("document.querySelector('textarea').value") == "half"


@pytest.mark.part(2)
async def test_a_page_that_could_not_be_shown_is_shown_when_the_node_is_back(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    Api(node.url).create("orders")
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics/orders")
        await shows(page, f"{TEXT}.includes('Queues')", "a topic is shown")
        node.signal(signal.SIGSTOP)
        await shows(page, SILENT, "a node that hangs is told from one that is well")
        node.signal(signal.SIGCONT)
        await shows(page, "document.querySelector('#health').className === 'good'", "it is well again")
        await asyncio.to_thread(node.kill9)
        await page.evaluate("location.hash = '#/topics'")
        await shows(page, f"{TEXT}.includes('the node does not answer')", "the next page says what is wrong")
        await asyncio.to_thread(node.start)
        await shows(page, "document.querySelectorAll('tbody tr').length === 1", "the page is shown")

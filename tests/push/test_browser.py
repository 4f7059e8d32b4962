"""The example page, in a real browser where the machine has one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from api.calls import Api
from support.node_process import NodeProcess
from support.waiting import comes_true

from .browser import Page, browser, find_browser

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
EXECUTABLE = find_browser()

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def pages() -> Iterator[int]:
    """The port of a web server that has the examples."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(EXAMPLES))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


async def test_a_page_shows_messages_as_they_are_sent_and_goes_on_after_a_restart(
    make_node: Callable[..., NodeProcess], pages: int
) -> None:
    assert EXECUTABLE is not None
    node = make_node(browser_origins=f"http://127.0.0.1:{pages}").start()
    api = Api(node.url)
    api.create("orders", queues=2)

    def address(host: str, via: str) -> str:
        return f"http://{host}:{pages}/push.html?{urlencode({'node': node.url, 'subscriber': via, 'via': via})}"

    async def shows(page: Page, *expected: str) -> None:
        async def all_of_them() -> bool:
            lines = "[...document.querySelectorAll('#messages li')].map((line) => line.textContent).sort()"
            found = await page.evaluate(f"document.readyState === 'complete' ? {lines} : []")
            return bool(found == sorted(expected))

        await comes_true(all_of_them, f"the page shows {expected}")

    def send(body: str) -> None:
        api.send("orders", {"body": body})

    def committed(subscriber: str) -> int:
        return sum(api.get(f"/v1/groups/page%2F{subscriber}/offsets?topic=orders").json()["offsets"])

    async with browser(EXECUTABLE) as tabs:
        send("one pizza")
        opened = {via: await tabs.open(address("127.0.0.1", via)) for via in ("socket", "events")}
        for page in opened.values():
            await shows(page, "one pizza")
        await asyncio.to_thread(send, "two soups ☕")
        for via, page in opened.items():
            await shows(page, "one pizza", "two soups ☕")
            await comes_true(lambda via=via: committed(via) == 2, "both are committed")  # type: ignore[misc]
        await asyncio.to_thread(node.restart)
        await asyncio.to_thread(send, "three teas")
        for page in opened.values():  # Of what was acknowledged nothing comes again.
            await shows(page, "one pizza", "two soups ☕", "three teas")
        stranger = await tabs.open(address("localhost", "socket"))
        await comes_true(lambda: api.metric("lsmq_http_requests_total") > 0, "the node answers")
        assert await stranger.evaluate("document.getElementById('messages')?.childElementCount ?? 0") == 0
        refused = 'lsmq_http_requests_total{operation="push",status="403"}'
        await comes_true(lambda: refused in api.get("/metrics").body.decode(), "a page of another origin is refused")

"""The console where there is very much of everything, and where its tab is left open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from api.calls import Api
from api.test_groups import commit
from push.browser import browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
FORM = "document.querySelector('main form')"


async def test_a_group_without_members_says_how_far_it_is_behind_and_what_is_left_out(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    for number in range(13):
        api.create(f"topic-{number:02}", queues=2)
        api.send(f"topic-{number:02}", {"queue": 0, "body": "x"}, {"queue": 0, "body": "x"})
        commit(api, "kitchen", f"topic-{number:02}", {0: 1})
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/groups/kitchen")
        await shows(page, "document.querySelectorAll('[aria-label=Lag] tbody tr').length === 10", "topics it read")
        await shows(page, f"{TEXT}.includes('topic-00') && {TEXT}.includes('... and 3 more')", "and it read more")
        assert await page.evaluate(f"{FORM}.elements.topic.value") == "topic-00"


async def test_a_list_is_gone_to_by_name(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    for number in range(103):
        api.create(f"topic-{number:03}")
        commit(api, f"group-{number:03}", "topic-000", {0: 0})
    async with browser(EXECUTABLE) as tabs:
        for kind in ("topic", "group"):
            page = await tabs.open(f"{node.url}/console#/{kind}s")
            await shows(page, f"{TEXT}.includes('{kind}-099') && {TEXT}.includes('Further')", "a page of them")
            await page.evaluate(f"{FORM}.elements.after.value = '{kind}-099'; {FORM}.requestSubmit()")
            await shows(page, f"{TEXT}.includes('{kind}-102') && !{TEXT}.includes('{kind}-099')", "those after a name")


async def test_a_page_in_the_background_asks_for_no_figures(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    quick = """
        const later = window.setTimeout, asked = window.fetch;
        window.asks = {};
        window.setTimeout = (work) => later(work, 20);
        window.fetch = (path, ...more) => {
          window.asks[path] = (window.asks[path] ?? 0) + 1;
          return asked(path, ...more);
        };
        window.hide = (hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
          window.before = { ...window.asks };
        };
        window.more = (path) => (window.asks[path] ?? 0) - (window.before?.[path] ?? 0);
    """
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/topics")
        await shows(page, f"{TEXT}.includes('Topics')", "a page is shown")
        await page.evaluate(f"{quick}; location.hash = '#/'")
        await shows(page, "more('/v1/history') > 5 && more('/readyz') > 0", "it asks again and again")
        await page.evaluate("hide(true)")
        await shows(page, "more('/readyz') > 10", "whether the node is well is asked for")
        assert await page.evaluate("more('/v1/history')") <= 1, "and nothing else"
        await page.evaluate("hide(false)")
        await shows(page, "more('/v1/history') > 5", "it goes on where somebody looks again")

"""Signing in and out of the console, in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from api.test_rights import Realm
from push.browser import Page, browser, find_browser
from support.node_process import NodeProcess
from support.waiting import comes_true

from .test_console import TEXT, reloads, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
ASKED = "document.querySelector('input[name=token]')"
OUT = "[...document.querySelectorAll('#who button')].find((each) => each.textContent === 'Sign out')"


async def signs_in(page: Page, token: str) -> None:
    await shows(page, ASKED, "a token is asked for")
    await page.evaluate(f"{ASKED}.value = {token!r}; document.querySelector('main form').requestSubmit()")


async def realm_of(make_node: Callable[..., NodeProcess], token: str = "admin.token", **settings: object) -> Realm:
    node = make_node(auth="token", **settings).start()
    await comes_true((node.data / token).exists, "the first token is written")
    return Realm(node, token)


@pytest.mark.part(2)
async def test_somebody_signs_in_stays_so_and_signs_out(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    realm.admin.create("orders", 1)
    token = realm.admin.own["Authorization"].removeprefix("Bearer ")
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/cluster")
        await signs_in(page, "lsmq_" + "0" * 64)
        await shows(
            page, "document.querySelector('main [role=alert]').textContent.includes('not known')", "it says why"
        )
        await signs_in(page, "“lsmq_…”")
        await shows(page, "document.querySelector('main [role=alert]').textContent.includes('one word of')", "as here")
        await asyncio.to_thread(realm.node.kill9)
        await signs_in(page, token)
        await shows(page, "document.querySelector('main [role=alert]').textContent.includes('not answer')", "and here")
        await asyncio.to_thread(realm.node.start)
        await signs_in(page, token)
        await shows(page, "document.querySelectorAll('table').length === 3", "the cluster is shown")
        await shows(page, "document.getElementById('who').textContent.includes('admin@local')", "it says who")
        assert await page.evaluate("document.cookie + localStorage.length + sessionStorage.length") == "00"
        assert not await page.evaluate(f"document.documentElement.innerHTML.includes({token!r})")

        await reloads(page)
        await shows(page, "document.querySelectorAll('table').length === 3", "who loads it again is still in")
        second = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await shows(second, "document.querySelector('textarea')", "and so is another tab")
        fill = "document.querySelector('textarea').value = 'by a cookie'"
        await second.evaluate(f"{fill}; document.querySelector('details form').requestSubmit()")
        await shows(second, f"{TEXT}.includes('stored at offset 0')", "a message is sent")
        assert realm.admin.bodies("orders", 0) == ["by a cookie"]

        await page.evaluate(f"{OUT}.click()")
        await shows(page, ASKED, "who has signed out is asked")
        await second.evaluate("location.hash = '#/topics'")
        await shows(second, ASKED, "in the other tab as well")
        await signs_in(second, token)
        await shows(second, f"{TEXT}.includes('orders')", "topics are shown")


async def test_a_tab_goes_on_where_somebody_signed_in_anew_in_another(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    realm.admin.create("orders", 1)
    _, other = realm.somebody(("admin", ""))
    async with browser(EXECUTABLE) as tabs:
        first = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await signs_in(first, realm.admin.own["Authorization"].removeprefix("Bearer "))
        await shows(first, "document.querySelector('textarea')", "the first one is in")
        second = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await shows(second, "document.querySelector('textarea')", "and the second")
        token = other.own["Authorization"]
        anew = f"fetch('/v1/session', {{method: 'POST', headers: {{Authorization: {token!r}}}}})"
        await second.evaluate(f"{anew}.then((found) => {{ document.title = found.status }})")
        await shows(second, "document.title === '201'", "somebody signs in anew")
        fill = "document.querySelector('textarea').value = 'still works'"
        await first.evaluate(f"{fill}; document.querySelector('details form').requestSubmit()")
        await shows(first, f"{TEXT}.includes('stored at offset 0')", "a message is sent")
        await shows(first, "document.getElementById('who').textContent.includes('somebody-1')", "it says as whom")


@pytest.mark.part(2)
async def test_whose_token_is_revoked_is_shown_nothing_more(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    name, monitor = realm.somebody(("monitor", ""))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/cluster")
        await signs_in(page, monitor.own["Authorization"].removeprefix("Bearer "))
        await shows(page, "document.querySelectorAll('table').length === 3", "the cluster is shown")
        await asyncio.to_thread(realm.admin.call, "DELETE", f"/v1/tokens/{name}", status=204)
        await shows(page, ASKED, "the page, which asks again and again, is refused")
        assert not await page.evaluate("document.querySelectorAll('table').length")


async def test_a_tenant_sees_what_is_its_own_and_is_told_what_is_not(make_node: Callable[..., NodeProcess]) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    for topic in ("shop.orders", "bank.orders"):
        realm.admin.create(topic, 1)
        realm.admin.send(topic, {"queue": 0, "body": f"of {topic}"})
        realm.admin.call("PUT", f"/v1/groups/{topic}", {"mode": "work_queue"}, status=200)
    _, tenant = realm.somebody(("tenant", "shop."))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{realm.node.url}/console")
        await signs_in(page, tenant.own["Authorization"].removeprefix("Bearer "))
        await shows(page, f"{TEXT}.includes('for those who may describe the cluster')", "figures are not for him")
        assert not await page.evaluate("document.querySelector('main [role=alert]')")
        for list in ("topics", "groups"):
            await page.evaluate(f"location.hash = '#/{list}'")
            await shows(page, f"{TEXT}.includes('shop.orders')", "his own are listed")
            assert not await page.evaluate(f"{TEXT}.includes('bank')")
        await page.evaluate("location.hash = '#/topics/shop.orders/0'")
        await shows(page, f"{TEXT}.includes('of shop.orders')", "his messages are shown")
        for address in ("#/topics/bank.orders/0", "#/groups/bank.orders?topic=shop.orders", "#/cluster", "#/backups"):
            await page.evaluate(f"location.hash = {address!r}")
            await shows(page, "document.querySelector('main [role=alert]')?.textContent.includes('may not')", address)
            assert not await page.evaluate(f"{TEXT}.includes('of bank')")


@pytest.mark.part(3)
async def test_who_uses_the_page_stays_in_and_a_page_that_only_asks_by_itself_does_not(
    make_node: Callable[..., NodeProcess],
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node, browser_session_idle_ms=20_000)
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/cluster")
        await signs_in(page, realm.admin.own["Authorization"].removeprefix("Bearer "))
        await shows(page, "document.querySelectorAll('table').length === 3", "the cluster is shown")
        ask = "fetch('/v1/session').then((found) => found.json()).then((found) => { window.%s = found })"
        await page.evaluate(ask % "before")
        await shows(page, "window.before", "the session is known")

        async def prolonged() -> bool:
            await page.evaluate("dispatchEvent(new Event('pointerdown'))")
            await page.evaluate(ask % "after")
            return bool(await page.evaluate("(window.after?.idle_until_ms ?? 0) > window.before.idle_until_ms"))

        await comes_true(prolonged, "using the page prolongs the session")
        await shows(page, ASKED, "and then nobody uses it")


async def test_a_node_that_asks_nobody_shows_no_sign_in(shared_node: NodeProcess) -> None:
    assert EXECUTABLE is not None
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{shared_node.url}/console#/cluster")
        await shows(page, "document.querySelectorAll('table').length === 3", "the cluster is shown")
        assert await page.evaluate("document.getElementById('who').childElementCount") == 0

"""What axe-core, which knows the rules, has against the console: nothing. npm fetches it, for the test alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable

import pytest

from api.calls import Api
from api.test_groups import commit
from push.browser import Page, browser, find_browser
from support.node_process import NodeProcess
from support.waiting import comes_true

from .test_console import TEXT, shows
from .test_signing_in import realm_of, signs_in

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
AXE = "axe-core@4.10.3"
FETCH_S = 60
#: Addresses, and what is there once they are shown.
PAGES = {
    "#/": "document.querySelectorAll('.tile svg').length === 9",
    "#/topics": f"{TEXT}.includes('orders')",
    "#/topics/orders": f"{TEXT}.includes('Queues')",
    "#/topics/orders?by=depth": f"{TEXT}.includes('queues have messages')",
    "#/topics/orders?tag=t": f"{TEXT}.includes('All that match')",
    "#/topics/orders/0?view=hex": f"{TEXT}.includes('68 65 6c 6c 6f')",
    "#/topics/orders/0": f"{TEXT}.includes('Send a message') && {TEXT}.includes('hello')",
    "#/later/orders": f"{TEXT}.includes('not yet')",
    "#/groups": f"{TEXT}.includes('kitchen')",
    "#/groups/kitchen?topic=orders&to=earliest": f"{TEXT}.includes('read again: 1')",
    "#/groups/workers?topic=orders": "document.querySelectorAll('[aria-label=Held] tbody tr').length === 1",
    "#/producers": f"{TEXT}.includes('tellers')",
    "#/producers/tellers": f"{TEXT}.includes('order 17')",
    "#/cluster": f"{TEXT}.includes('Shards')",
    "#/backups": f"{TEXT}.includes('backup_to =')",
    "#/cluster/0": "document.querySelector('[aria-label=Replicas]')",
}


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    npm, directory = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("no npm is installed on this machine")
    try:
        subprocess.run([npm, "pack", "--silent", AXE], cwd=directory, timeout=FETCH_S, check=True, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"{AXE} cannot be fetched from here")
    (archive,) = directory.glob("*.tgz")
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


async def violations(page: Page, axe: str, *only: str) -> list[str]:
    """Of all rules, or these."""
    if not await page.evaluate("window.axe !== undefined"):
        await page.evaluate(f"{axe}; true")
    rules = json.dumps({"runOnly": {"type": "rule", "values": only}} if only else {})
    run = f"window.said = undefined; axe.run(document, {rules})"
    run += ".then((found) => { window.said = JSON.stringify(found.violations.map((each) => "
    await page.evaluate(f"{run}`${{each.id}}: ${{each.nodes.map((node) => node.html).join(' ')}}`)) }}); true")
    await comes_true(lambda: _said(page), "it has looked")
    found: list[str] = json.loads(await page.evaluate("window.said"))
    return found


async def _said(page: Page) -> bool:
    return bool(await page.evaluate("window.said !== undefined"))


@pytest.mark.part(3)
async def test_the_pages_break_no_rule_of_accessibility(make_node: Callable[..., NodeProcess], axe: str) -> None:
    assert EXECUTABLE is not None
    node = make_node().start()
    api = Api(node.url)
    api.create("orders", queues=2)
    api.send("orders", {"queue": 0, "key": "k", "tag": "t", "properties": {"a": "b"}, "body": "hello"})
    api.send("orders", {"queue": 1, "body": "not yet", "delay_ms": 3_600_000})
    commit(api, "kitchen", "orders", {0: 1})
    api.call("POST", "/v1/groups/workers/pop", {"topic": "orders", "max": 1, "visibility_ms": 600_000}, status=200)
    own = "/v1/producer-groups/tellers"
    api.call("POST", f"{own}/heartbeat", {"member": "m", "join": True}, status=200)
    begun = {"member": "m", "number": 1, "reference": "order 17"}
    messages = [{"topic": "orders", "queue": 1, "body": "x"}]
    api.call("POST", f"{own}/transactions", {**begun, "messages": messages})
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console")
        await shows(page, PAGES["#/"], "the console is there")
        found = {}
        # What is dark differs in its colours.
        for scheme, only in (("light", ()), ("dark", ("color-contrast",))):
            await page.prefer(scheme)
            for address, there in PAGES.items():
                await page.evaluate(f"location.hash = {address!r}")
                await shows(page, there, f"{address} is shown")
                found[scheme, address] = await violations(page, axe, *only)
        assert {where: said for where, said in found.items() if said} == {}


async def test_pages_that_leave_something_out_break_none_either(
    make_node: Callable[..., NodeProcess], axe: str
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    realm.admin.create("orders", 1)
    _, reader = realm.somebody(rights=(("topic", "orders", "read"),))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await signs_in(page, reader.own["Authorization"].removeprefix("Bearer "))
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await shows(page, f"{TEXT}.includes('write topic orders')", "it says what it takes to send")
            assert await violations(page, axe) == []
        await page.sized(390, 844)
        await shows(page, "innerWidth === 390", "it is narrow")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_the_page_that_signs_in_breaks_none_either(make_node: Callable[..., NodeProcess], axe: str) -> None:
    assert EXECUTABLE is not None
    node = make_node(auth="token").start()
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console")
        await shows(page, "document.querySelector('input[name=token]')", "a token is asked for")
        assert await violations(page, axe) == []
        await page.evaluate("document.querySelector('main form p, main h1').remove()")
        assert any(said.startswith("page-has-heading-one") for said in await violations(page, axe)), "it does look"

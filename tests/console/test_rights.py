"""The console shows to everybody what he may see, and leaves out what he may not do, saying which right it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from push.browser import Page, browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, _press, shows
from .test_signing_in import ASKED, OUT, realm_of, signs_in

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
NOTE = "document.querySelector('main [role=note]')"
BUTTONS = "[...document.querySelectorAll('main button')].map((each) => each.textContent)"


async def goes_to(page: Page, address: str, there: str) -> None:
    await page.evaluate(f"location.hash = {address!r}")
    await shows(page, there, f"{address} is shown")


async def test_a_reader_of_one_topic_sees_that_alone_and_no_button_that_would_be_refused(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    for topic in ("orders", "orders.secret"):
        realm.admin.create(topic, 1)
        realm.admin.send(topic, {"queue": 0, "tag": "t", "body": f"of {topic}"})
    realm.admin.send("orders", {"queue": 0, "body": "later", "delay_ms": 3_600_000})
    kitchen = {"topic": "orders", "queues": [0], "offsets": [0]}
    realm.admin.call("POST", "/v1/groups/kitchen/offsets", kitchen, status=200)
    realm.admin.call("POST", "/v1/groups/hidden/offsets", kitchen, status=200)
    _, reader = realm.somebody(rights=(("topic", "orders", "read"), ("group", "kitchen", "describe")))
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/topics")
        await signs_in(page, reader.own["Authorization"].removeprefix("Bearer "))
        await shows(page, f"{TEXT}.includes('orders')", "the topic is listed")
        assert not await page.evaluate(f"{TEXT}.includes('secret')")
        assert await page.evaluate(f"{NOTE}.hidden"), "nothing is left out of a list"
        links = "[...document.querySelectorAll('header nav a')].filter((each) => !each.hidden)"
        nav = f"{links}.map((each) => each.textContent)"
        assert await page.evaluate(nav) == ["Overview", "Topics", "Groups", "Producers"]
        await goes_to(page, "#/topics/orders", f"{TEXT}.includes('kitchen')")
        assert not await page.evaluate(f"{TEXT}.includes('hidden')")
        await goes_to(page, "#/topics/orders/0", f"{TEXT}.includes('of orders')")
        assert await page.evaluate(BUTTONS) == ["Show"]
        assert await page.evaluate("document.querySelectorAll('main details').length") == 0
        said = await page.evaluate(f"{NOTE}.textContent")
        assert said.endswith("It needs: write topic orders, alter topic orders, delete topic orders.")
        await goes_to(page, "#/topics/orders?tag=t", f"{TEXT}.includes('All that match')")
        assert await page.evaluate(BUTTONS) == ["Show"]
        await goes_to(page, "#/later/orders", f"{TEXT}.includes('later') && document.querySelector('tbody tr')")
        assert await page.evaluate(BUTTONS) == []
        await goes_to(page, "#/groups/kitchen?topic=orders&to=latest", f"{TEXT}.includes('What changes') || {NOTE}")
        await shows(page, f"{NOTE}.textContent.includes('alter group kitchen')", "it says what a reset takes")
        assert "Reset" not in await page.evaluate(BUTTONS)
        for address in ("#/topics/orders.secret/0", "#/groups/hidden?topic=orders", "#/cluster/0", "#/backups"):
            await goes_to(page, address, "document.querySelector('main [role=alert]')?.textContent.includes('may not')")
            assert not await page.evaluate(f"{TEXT}.includes('of orders.secret')")
        await page.evaluate(f"{OUT}.click()")
        await shows(page, ASKED, "who has signed out is asked")
        await signs_in(page, realm.admin.own["Authorization"].removeprefix("Bearer "))
        await goes_to(page, "#/topics/orders/0", f"{TEXT}.includes('Send again')")
        assert await page.evaluate(f"{NOTE}.hidden"), "an administrator may do everything"
        assert {"Send again", "Edit", "Delete", "Change"} <= set(await page.evaluate(BUTTONS))
        assert "Cluster" in await page.evaluate(nav)


async def test_who_watches_the_cluster_changes_nothing_in_it(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node, "p0/admin.token", processes=2, backup_to=tmp_path / "backups")
    _, monitor = realm.somebody(("monitor", ""))
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/cluster")
        await signs_in(page, monitor.own["Authorization"].removeprefix("Bearer "))
        await shows(page, "document.querySelectorAll('table').length === 3", "the cluster is shown")
        assert await page.evaluate(BUTTONS) == []
        assert "alter cluster" in await page.evaluate(f"{NOTE}.textContent")
        await goes_to(page, "#/cluster/0", "document.querySelector('[aria-label=Replicas]')")
        assert await page.evaluate(BUTTONS) == [] and not await page.evaluate(f"{TEXT}.includes('Hand it over')")
        await goes_to(page, "#/backups", f"{TEXT}.includes('Backups there')")
        assert await page.evaluate(BUTTONS) == []
        assert "read topic *" in await page.evaluate(f"{NOTE}.textContent")
        await page.evaluate(f"{OUT}.click()")
        await signs_in(page, realm.admin.own["Authorization"].removeprefix("Bearer "))
        await shows(page, f"{TEXT}.includes('Start a backup')", "an administrator starts one")
        await goes_to(page, "#/cluster/0", f"{TEXT}.includes('Move its replicas')")
        await goes_to(page, "#/cluster", f"{TEXT}.includes('Take a node out of use')")
        assert {"Drain", "Call off", "Replace"} <= set(await page.evaluate(BUTTONS))


async def test_a_right_that_is_taken_away_is_told_when_a_button_is_pressed_and_left_out_then(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    realm.admin.create("orders", 1)
    realm.admin.send("orders", {"queue": 0, "body": "stays"})
    rights = [{"kind": "topic", "pattern": "orders", "action": action} for action in ("read", "delete")]
    name, editor = realm.somebody(rights=tuple((each["kind"], each["pattern"], each["action"]) for each in rights))
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await signs_in(page, editor.own["Authorization"].removeprefix("Bearer "))
        await shows(page, f"{BUTTONS}.includes('Delete')", "he may delete")
        assert "Send again" not in await page.evaluate(BUTTONS)
        await asyncio.to_thread(realm.admin.call, "POST", f"/v1/acl/{name}/revoke", {"rights": rights[1:]}, status=204)
        await page.evaluate(_press("Delete", "stays"))
        await shows(page, f"{TEXT}.includes('forbidden: ')", "it is refused, and said so")
        assert realm.admin.bodies("orders", 0) == ["stays"]
        await goes_to(page, "#/topics", f"{TEXT}.includes('orders')")
        await goes_to(page, "#/topics/orders/0", f"{TEXT}.includes('stays')")
        assert "Delete" not in await page.evaluate(BUTTONS)
        assert "delete topic orders" in await page.evaluate(f"{NOTE}.textContent")


async def test_a_refusal_names_who_it_is_and_what_it_takes(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    realm = await realm_of(make_node)
    realm.admin.create("orders", 1)
    name, nobody = realm.nobody
    async with browser(EXECUTABLE, tmp_path / "profile") as tabs:
        page = await tabs.open(f"{realm.node.url}/console#/topics/orders/0")
        await signs_in(page, nobody.own["Authorization"].removeprefix("Bearer "))
        alert = "document.querySelector('main [role=alert]')?.textContent"
        await shows(page, f"{alert}?.includes('describe topic orders')", "the right is named")
        assert name in await page.evaluate(alert)
        assert nobody.get("/v1/whoami").json()["allowed"] == []
        assert realm.admin.get("/v1/whoami").json()["allowed"][0]["action"] == "all"

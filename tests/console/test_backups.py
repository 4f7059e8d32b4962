"""Backups in the console, in a real browser: one begun, watched, stopped, made; and what to set where none are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from api.calls import Api
from push.browser import browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, shows
from .test_working_off import pressed

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
BAR = "document.querySelector('progress[aria-label=Backup]')"


@pytest.mark.part(2)
async def test_a_backup_is_begun_watched_stopped_and_made(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert EXECUTABLE is not None
    place = tmp_path / "backups"
    settings = {"backup_to": place, "backup_keep": 1}
    node = make_node(tmp_path / "data", backup_bytes_per_s=65_536, **settings).start()
    api = Api(node.url)
    api.create("t", 1)
    api.send("t", *({"queue": 0, "body": f"{number}" * 20_000} for number in range(60)))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/cluster")
        await shows(page, "document.querySelector('main a[href=\"#/backups\"]')", "the cluster's page leads there")
        await page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'b', bubbles: true}))")
        await shows(page, f"{TEXT}.includes({str(place)!r}) && {TEXT}.includes('None yet')", "it says where they go")
        await page.evaluate("[...document.querySelectorAll('main button')][0].click()")
        await shows(page, f"{TEXT}.includes('Start a backup: sure?')", "it asks once more")
        assert not place.exists()
        await page.evaluate("[...document.querySelectorAll('main button')][0].click()")
        await shows(page, f"{BAR} && {BAR}.max > 1", "it says how far it is")
        await page.evaluate(pressed("Stop it"))
        await shows(page, f"!{BAR} && {TEXT}.includes('it was stopped')", "it is stopped")
        assert list((place / "backups").iterdir()) == []
    node.stop()
    node = make_node(tmp_path / "data", **settings).start()
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/backups")
        for _ in range(2):
            await shows(page, f"{TEXT}.includes('Start a backup') && !{BAR}", "one can be begun")
            before = await page.evaluate("document.querySelector('main ul')?.textContent ?? ''")
            await page.evaluate(pressed("Start a backup"))
            listed = "document.querySelector('main ul')?.textContent"
            await shows(page, f"{TEXT}.includes('Made: ') && {listed} && {listed} !== {before!r}", "it is made")
        (only,) = (place / "backups").iterdir()
        assert await page.evaluate(
            "[...document.querySelectorAll('main li code')].map((each) => each.textContent)"
        ) == [only.name]
        await shows(page, f"{TEXT}.includes('Removed: ')", "so many are kept")


async def test_where_none_are_made_it_says_what_to_set_and_what_does_it_without(shared_node: NodeProcess) -> None:
    assert EXECUTABLE is not None
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{shared_node.url}/console#/backups")
        await shows(page, f"{TEXT}.includes('backup_to =')", "what to set")
        command = f"lsmq backup create --url {shared_node.url} --to"
        assert await page.evaluate(f"{TEXT}.includes({command!r})")
        assert not await page.evaluate("document.querySelectorAll('main button').length")


async def test_nodes_stand_together_by_rack_and_host(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    assert EXECUTABLE is not None
    node = make_node(tmp_path / "data", processes=2).start()  # A cluster on one host, one of which only votes.
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/cluster")
        cells = "[...row.cells].map((cell) => cell.textContent)"
        rows = f"[...document.querySelectorAll('table.map tbody tr')].map((row) => {cells})"
        await shows(page, f"{rows}.length === 3", "the map is there")
        assert [row[:2] for row in await page.evaluate(rows)] == [["local", "control"], ["", "p0"], ["", "p1"]]
        nodes = "[...document.querySelectorAll('[aria-label=Nodes] tbody tr')]"
        assert "only votes" in await page.evaluate(f"{nodes}[0].textContent")
        assert "local" in await page.evaluate(f"{nodes}[1].textContent")

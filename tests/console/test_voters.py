"""Whose vote goes to whom, in a real browser: shown while it is under way, called off, and done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster
from push.browser import browser, find_browser
from support.clusters import running_cluster
from support.waiting import comes_true

from .test_cluster import pressed
from .test_console import TEXT, shows

EXECUTABLE = find_browser()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine"),
]
BAR = "document.querySelector('progress[aria-label=Voter]')"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three voters and a fourth node, which does not vote."""
    settings = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, tmp_path / "c", up=False, shards=1, settings=settings) as cluster:
        cluster.add_node()
        for node in cluster.plan.nodes:
            cluster.start(node.id)
        cluster.wait_ready()
        yield cluster


def overview(url: str) -> dict[str, Any]:
    with opener().open(f"{url}/v1/cluster", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


async def test_a_change_of_voters_is_begun_watched_and_called_off(cluster: LocalCluster) -> None:
    assert EXECUTABLE is not None
    url = cluster.plan.node("n2").url

    def heard() -> bool:
        return any(node["id"] == "n4" and node["alive"] for node in overview(url)["nodes"])

    def voting() -> list[str]:
        return [node["id"] for node in overview(url)["nodes"] if node["voter"]]

    await comes_true(heard, "n4 is heard")
    shown = [cluster.directory / "tls" / f"{node.id}.crt" for node in cluster.plan.nodes if cluster.plan.tls]
    rows = "[...document.querySelectorAll('[aria-label=Nodes] tbody tr')]"
    row = rows + ".find((each) => each.cells[0].textContent === {!r})"
    async with browser(EXECUTABLE, believes=shown) as tabs:
        page = await tabs.open(f"{url}/console#/cluster")
        await shows(page, f"{row.format('n1')}?.cells[6].textContent.startsWith('yes')", "n1 votes")
        assert await page.evaluate(f"{row.format('n4')}.cells[6].textContent") == "no"
        chosen = "[document.querySelector('[name=old]').value, document.querySelector('[name=by]').value].join()"
        assert await page.evaluate(chosen) == "n1,n4", "who could be meant is chosen already"

        cluster.pause("n4")  # It is still held alive for a moment, and will not be filled.
        await page.evaluate(pressed("Replace"))
        await shows(page, f"{TEXT}.includes('n4 takes the vote of n1: it is sent the log')", "it is under way")
        assert await page.evaluate(f"{BAR}.value === 0 && {BAR}.max === 3")
        await shows(page, f"{row.format('n4')}.cells[6].textContent === 'will'", "the newcomer is to vote")
        await page.evaluate(pressed("Keep it"))
        await shows(page, f"!{BAR} && !{TEXT}.includes('takes the vote')", "it is called off")
        assert voting() == ["n1", "n2", "n3"]

        cluster.resume("n4")
        await comes_true(heard, "n4 is heard again")
        await page.evaluate(pressed("Replace"))
        await comes_true(lambda: voting() == ["n2", "n3", "n4"], "n4 votes in the place of n1")

        assert not await page.evaluate(f"{TEXT}.includes('voter n3 is away')")
        cluster.kill("n3")
        plan = "document.querySelector('[aria-label=Plan]')?.textContent ?? ''"
        await shows(page, f"/voter n3 is away; n1 takes its vote in \\d+ s/.test({plan})", "who is to vote instead")
        await shows(page, f"/node n3 has been away for \\d+ s; its/.test({plan})", "what becomes of what it has")
        cluster.start("n3")
        await shows(page, f"!({plan}).includes('n3')", "it is back, and nothing is planned")
        await shows(page, f"{row.format('n4')}.cells[6].textContent.startsWith('yes') && !{BAR}", "the page says so")
        assert await page.evaluate(f"{row.format('n1')}.cells[6].textContent") == "no"
        await page.evaluate(pressed("Replace"))
        await shows(page, f"{TEXT}.includes('it is done; the voters are n2, n3, n4')", "it says what is wrong")

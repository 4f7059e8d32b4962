"""A voter that is replaced, as the console shows it in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq import Client, ClusterAdmin
from push.browser import browser, find_browser
from support.clusters import running_cluster
from support.waiting import comes_true

from .test_console import TEXT, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
VOTES = (
    "[...document.querySelectorAll('[aria-label=Nodes] tbody tr')]"
    ".map((row) => row.cells[0].textContent + ' ' + row.cells[6].textContent).join()"
)


async def test_who_takes_whose_vote_is_shown_while_it_is_under_way(tmp_path: Path) -> None:
    assert EXECUTABLE is not None
    with running_cluster(__name__, tmp_path / "c", up=False, shards=1, settings=SETTINGS) as cluster:
        cluster.add_node()
        for node in cluster.plan.nodes:
            cluster.start(node.id)
        cluster.wait_ready()
        url = cluster.plan.nodes[0].url
        shown = [cluster.directory / "tls" / f"{node.id}.crt" for node in cluster.plan.nodes if cluster.plan.tls]
        async with Client(url) as client, browser(EXECUTABLE, tmp_path / "profile", believes=shown) as tabs:
            admin = ClusterAdmin(client)

            async def heard() -> bool:
                return any(node.id == "n4" and node.alive for node in (await admin.overview()).nodes)

            await comes_true(heard, "n4 is heard")
            page = await tabs.open(f"{url}/console#/cluster")
            await shows(page, f"{VOTES} === 'n1 yes,n2 yes,n3 yes,n4 no'", "it says who votes")
            assert not await page.evaluate(f"{TEXT}.includes('takes the place of')")
            cluster.pause("n4")  # So that it takes as long as it is looked at.
            await admin.replace_voter("n3", "n4")
            await shows(page, f"{TEXT}.includes('n4 takes the place of n3 as a voter: it learns')", "it is under way")
            cluster.resume("n4")
            await shows(page, f"{VOTES} === 'n1 yes,n2 yes,n3 no,n4 yes'", "the newcomer votes")
            await shows(page, f"!{TEXT}.includes('takes the place of')", "nothing is under way")

"""A cluster in the console, in a real browser: handing a shard over, and moving its replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster
from push.browser import browser, find_browser
from support.clusters import running_cluster
from support.waiting import comes_true

from .test_console import TEXT, shows

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("console") / "cluster"
    with running_cluster(__name__, directory, shards=1, replicas=2, settings=SETTINGS) as cluster:
        yield cluster


def shard(url: str) -> dict[str, Any]:
    with opener().open(f"{url}/v1/cluster", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())["shards"][0]
    return found


def pressed(label: str) -> str:
    button = f"[...document.querySelectorAll('main .act button')].find((each) => each.textContent === {label!r})"
    return f"(() => {{ const button = {button}; button.click(); button.click(); return true; }})()"


@pytest.mark.part(3)
async def test_a_shard_is_handed_over_and_moved_with_its_progress_shown(cluster: LocalCluster) -> None:
    assert EXECUTABLE is not None
    url = cluster.plan.nodes[0].url
    await comes_true(lambda: len(shard(url)["in_sync"]) == 2, "both replicas are in sync")
    leader, replicas = shard(url)["leader"], shard(url)["replicas"]
    (follower,) = set(replicas) - {leader}
    (other,) = {node.id for node in cluster.plan.nodes} - set(replicas)
    shown = [cluster.directory / "tls" / f"{node.id}.crt" for node in cluster.plan.nodes if cluster.plan.tls]
    async with browser(EXECUTABLE, believes=shown) as tabs:
        page = await tabs.open(f"{url}/console#/cluster")
        await shows(page, "document.querySelector('a[href=\"#/cluster/0\"]')", "the shard is listed")
        await page.evaluate("location.hash = '#/cluster/0'")
        await shows(page, f"{TEXT}.includes('Led by {leader}')", "the shard is shown")
        await page.evaluate(pressed("Hand over"))
        await shows(page, f"{TEXT}.includes('Led by {follower}')", "it is led by the other one")

        await page.evaluate("document.querySelectorAll('[name=replica]').forEach((box) => { box.checked = false })")
        await page.evaluate(f"document.querySelector('[name=first]').value = {other!r}")
        await page.evaluate(pressed("Move"))
        await shows(page, f"{TEXT}.includes('{other} is to lead, and does not hold it')", "it says what is wrong")
        assert shard(url)["target"] == []
        for node in (follower, other):
            await page.evaluate(f"document.querySelector('[name=replica][value={node}]').checked = true")
        cluster.kill(other)  # so that it takes as long as it is looked at
        await page.evaluate(pressed("Move"))
        await shows(page, f"{TEXT}.includes('to be on {other}, {follower}')", "it is under way")
        bar = "document.querySelector('progress[aria-label=\"Moving shard 0\"]')"
        await shows(page, f"{bar} && {bar}.max === 2 && {bar}.value === 0", "it says how far it is")
        await page.evaluate(pressed("Stay as it is"))
        await shows(page, f"!{bar} && {TEXT}.includes('It is on ')", "it stays where it was")
        assert shard(url)["target"] == [] and sorted(shard(url)["replicas"]) == sorted(replicas)
        cluster.start(other)
        await page.evaluate(pressed("Move"))
        await shows(page, f"{TEXT}.includes('Led by {other}')", "the new one leads")
        held = "[...document.querySelectorAll('[aria-label=Replicas] tbody tr')].map((row) => row.cells[0].textContent)"
        await shows(page, f"{held}.sort().join() === {','.join(sorted((follower, other)))!r}", "the old one has gone")
        assert sorted(shard(url)["replicas"]) == sorted((follower, other))
        await page.evaluate("location.hash = '#/cluster/7'")
        await shows(page, f"{TEXT}.includes('there is no shard 7')", "another one is not there")


async def test_a_node_is_drained_with_its_progress_shown_and_let_in_again(cluster: LocalCluster) -> None:
    assert EXECUTABLE is not None
    url = cluster.plan.nodes[0].url
    await comes_true(lambda: len(shard(url)["in_sync"]) == 2, "both replicas are in sync", 60)
    leader, replicas = shard(url)["leader"], shard(url)["replicas"]
    (other,) = {node.id for node in cluster.plan.nodes} - set(replicas)
    shown = [cluster.directory / "tls" / f"{node.id}.crt" for node in cluster.plan.nodes if cluster.plan.tls]
    asked = next(node for node in cluster.plan.nodes if node.id not in (leader, other)).url
    bar = f"document.querySelector('progress[aria-label=\"Draining {leader}\"]')"
    rows = "[...document.querySelectorAll('[aria-label=Nodes] tbody tr')]"
    row = f"{rows}.find((each) => each.cells[0].textContent === {leader!r})"
    async with browser(EXECUTABLE, believes=shown) as tabs:
        page = await tabs.open(f"{asked}/console#/cluster")
        await shows(page, "document.querySelector('[name=node]')", "nodes can be drained")
        cluster.kill(other)  # so that there is nowhere to go
        await page.evaluate(f"document.querySelector('[name=node]').value = {leader!r}")
        await page.evaluate(pressed("Drain"))
        await shows(page, f"{TEXT}.includes('{leader} hands over what it leads')", "it is begun")
        await shows(page, f"{bar}?.max === 1 && {bar}.value === 0", "it says how far it is")
        await shows(page, f"{TEXT}.includes('{leader} is being drained: replicas left on it: 1')", "and what is left")
        await shows(page, f"{row}.cells[4].textContent === 'draining'", "its state is told")
        cluster.start(other)
        await shows(
            page, f"{bar}?.value === 1 && {TEXT}.includes('{leader} is drained: it holds nothing')", "it is done"
        )
        await shows(
            page, f"{row}.cells[4].textContent === 'drained' && {row}.cells[7].textContent === '0'", "it is empty"
        )
        assert leader not in shard(asked)["replicas"] and other in shard(asked)["replicas"]
        await page.evaluate(pressed("Call off"))
        await shows(page, f"!{bar} && {TEXT}.includes('{leader} may have replicas again')", "it is let in again")
        await shows(page, f"{row}.cells[4].textContent !== 'drained'", "and is as the others")

"""The bench of the console's pages asks for all that the pages ask for, of a node with queues by number and by name."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from lsmq_lab.benchmarks import BENCHES
from lsmq_lab.benchmarks.console import pages_of


def test_each_page_of_the_console_is_measured() -> None:
    script = resources.files("lsmq_node.console").joinpath("pages.js").read_text()
    (names,) = re.findall(r"export const pages = {(.*)};", script)
    there = {name.partition(":")[0].strip().strip('"') or "overview" for name in names.split(",")}
    assert there == {"overview", "topics", "later", "groups", "producers", "cluster", "backups"}
    measured = {page.name for page in pages_of(10, 2)}
    assert {"Overview", "Topics", "What comes later", "Groups", "Producers", "Cluster", "Backups"} <= measured


@pytest.mark.slow
def test_every_page_is_there_and_its_cost_is_known() -> None:
    bench = BENCHES["console"]
    report = bench.run(bench.values({"quick": True, "queues": 300, "groups": 3, "loads": 2}), lambda line: None)
    pages = {each["page"]: each for each in report.result["pages"]}
    assert set(pages) == {page.name for page in pages_of(300, 3)}
    assert all(each["median_ms"] > 0 and each["node_ms"] >= 0 for each in pages.values())
    assert {name for name, each in pages.items() if each["open_percent"] is not None} == {
        "Overview",
        "a group",
        "Cluster",
        "a shard",
        "Backups",
    }

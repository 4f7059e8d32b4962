"""One half of what starts a cluster speaks TLS: of the modules of tests, by their names, and of the drills."""

from __future__ import annotations

import re
from pathlib import Path

from lsmq_lab.drills import DRILLS
from lsmq_lab.drills.harness import has_tls
from support.clusters import in_tls

TESTS = Path(__file__).parent
#: Modules that say themselves what speaks TLS: they test that, or a cluster's files and command, or start no node.
OF_THEIR_OWN = {
    "tls.test_cluster",
    "tls.test_principals",
    "tls.test_zookeeper",
    "cluster.test_local_cluster",
    "cluster.test_processes",
    "drills.test_network",
}


def modules() -> dict[str, str]:
    """Those with tests, as ``__name__`` has them, and what is in them."""
    return {
        ".".join(file.relative_to(TESTS).with_suffix("").parts): file.read_text()
        for file in TESTS.rglob("test_*.py")
        if file.stem != Path(__file__).stem
    }


def test_no_module_chooses_for_itself() -> None:
    chooses = re.compile(r"\bLocalCluster\.found\(|\bfound_plan\(.*tls|\"cluster\", \"up\"|\btls=(True|False)\b")
    assert {name for name, text in modules().items() if chooses.search(text)} <= OF_THEIR_OWN


def test_one_half_of_the_modules_that_start_a_cluster_speaks_tls() -> None:
    starts = re.compile(r"\brunning_cluster\(|\bcluster: LocalCluster\b")
    found = {name for name, text in modules().items() if starts.search(text)} - OF_THEIR_OWN
    assert len(found) > 35
    assert 0.4 <= sum(map(in_tls, found)) / len(found) <= 0.6, {name: in_tls(name) for name in sorted(found)}


def test_one_half_of_the_drills_that_are_run_speaks_tls_and_each_does_in_every_other_seed() -> None:
    for seed in (1, 2):
        assert 0.4 <= sum(has_tls(name, seed) for name in DRILLS) / len(DRILLS) <= 0.6
    assert all(has_tls(name, 1) != has_tls(name, 2) for name in DRILLS)

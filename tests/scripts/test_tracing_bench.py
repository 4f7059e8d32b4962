"""What traces cost is measured beside code that has none: nothing of them is left in it, and all else is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lsmq
import lsmq_node
from lsmq_lab.benchmarks import BENCHES
from lsmq_lab.benchmarks.without_tracing import without_tracing

PACKAGES = [Path(package.__file__).parent for package in (lsmq, lsmq_node)]


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("def f(self):\n if self._tracing is not None:\n  a()\n b()", "def f(self):\n    pass\n    b()"),
        ("def f(self):\n if self._tracing is None:\n  a()\n else:\n  b()", "def f(self):\n    a()"),
        ("x = () if tracing is None else tracing.headers", "x = ()"),
        ("if (tracing := c._tracing) is not None and other():\n a()", "pass"),
        ("if a or (not b and tracing is None):\n c()", "if a or not b:\n    c()"),
        ("if span is not None and span[0] < 1:\n a()", "if span is not None and span[0] < 1:\n    a()"),
        (
            "def f(c):\n tracing = c._tracing\n span = None if tracing is None else tracing.receiving()\n return 1",
            "def f(c):\n    pass\n    pass\n    return 1",
        ),
    ],
)
def test_conditions_on_tracing_are_decided_and_others_stay(source: str, left: str) -> None:
    assert ast.unparse(without_tracing(source)[0]) == left


@pytest.mark.part(3)
def test_nothing_that_is_traced_is_left_in_any_module() -> None:
    places = 0
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            text = path.read_text()
            if path.name == "tracing.py" or "trac" not in text:
                continue
            tree, found = without_tracing(text)
            places += found
            used = [
                ast.unparse(node)
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and ast.unparse(node.value).rpartition(".")[2] in ("_tracing", "tracing", "traced")
            ]
            assert used == [], path
    assert places >= 20


@pytest.mark.part(3)
def test_code_without_it_is_imported_and_code_with_it_is_not_changed() -> None:
    program = (
        "import sys; from lsmq_lab.benchmarks.without_tracing import WithoutTracing; finder = WithoutTracing(); "
        "sys.meta_path.insert(0, finder); import lsmq, lsmq_node.node; print(finder.places['lsmq.producer'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) >= 5, done.stderr


@pytest.mark.slow
def test_the_bench_compares_all_cases_in_one_run() -> None:
    bench = BENCHES["tracing"]
    report = bench.run(bench.values({"quick": True, "messages": 300, "requests": 20}), lambda line: None)
    assert list(report.result["cases"]) == ["absent", "off", "off again", "on"]
    assert report.result["rewritten"] >= 20
    assert all(set(found) == {"request", "send", "read"} for found in report.result["ratios"].values())
    assert report.result["ratios"]["absent"]["send"]["median"] == 1
    (table,) = report.tables
    assert [row[0] for row in table.rows][-1] == "on, absent = 1"

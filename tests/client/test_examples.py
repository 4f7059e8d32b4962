"""The examples in the documentation run, against a real node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.node_process import NodeProcess
from support.python_process import run_python

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(shared_node: NodeProcess, example: Path) -> None:
    environment = {**os.environ, "LSMQ_URL": shared_node.url, "PYTHONWARNINGS": "error"}
    ran = run_python(example, env=environment, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.strip() and not ran.stderr

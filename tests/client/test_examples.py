"""The examples in the documentation run, against a real node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.node_process import NodeProcess

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(shared_node: NodeProcess, example: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env={**os.environ, "LSMQ_URL": shared_node.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.strip() and not ran.stderr

"""The demo as a user runs it, small: a real cluster, real processes, a real kill."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# The demo over consumers that are not handed the last of what was acknowledged.
LOSSY_DEMO = """
import sys
from dataclasses import fields
from _demo import __main__ as demo
from _demo import runs

load_receipts = runs.load_receipts


def load_fewer(path):
    whole = load_receipts(path)
    return type(whole)(**{field.name: getattr(whole, field.name)[:-100] for field in fields(whole)})


runs.load_receipts = load_fewer
if __name__ == "__main__":
    sys.exit(demo.main(sys.argv[1:]))
"""


def run_demo(*arguments: str, script: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), *sys.path])}
    command = [sys.executable, *(["-m", "_demo"] if script is None else [str(script)]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A year of made-up flights, with the columns of the real table that the demo looks at."""
    pick = random.Random(1)
    rows = [
        f"2013,{pick.randint(1, 12)},{pick.randint(1, 28)},{pick.randint(500, 2300)},UA,"
        f"{pick.choice(['NA', *(f'N{number}' for number in range(50))])},{'x' * pick.randint(1, 60)}"
        for _ in range(8_000)
    ]
    path = tmp_path / "flights.csv"
    path.write_text("year,month,day,sched_dep_time,carrier,tailnum,note\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_the_demo_holds_every_check_through_a_kill(table: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = run_demo("--table", str(table), "--queues", "64", "--consumers", "2", "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "with -9, leader of shard" in done.stdout
    assert "every check held" in done.stdout
    assert "FAIL" not in done.stdout
    assert "8,000 by the consumers; none lost, none doubled, none altered" in done.stdout
    assert done.stdout.count("  ok  ") == 6
    for figure in (
        "messages/s in",
        "messages/s out",
        "p50",
        "p99",
        "writes refused",
    ):
        assert figure in done.stdout
    assert (kept / "cluster" / "n1" / "data").is_dir()


@pytest.mark.slow
def test_the_demo_fails_when_acknowledged_writes_are_lost(table: Path, tmp_path: Path) -> None:
    script = tmp_path / "lossy.py"
    script.write_text(LOSSY_DEMO)
    done = run_demo("--table", str(table), "--rows", "2000", "--queues", "64", "--consumers", "2", script=script)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL" in done.stdout
    assert " lost, such as sequence " in done.stdout
    assert "a check failed" in done.stdout


def test_a_table_that_is_not_there_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    done = run_demo("--table", str(tmp_path / "none.csv"))
    assert done.returncode == 1
    assert "none.csv" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.part(2)
def test_wrong_usage_exits_with_2() -> None:
    assert run_demo("--rows", "0").returncode == 2
    assert run_demo("--rows", "many").returncode == 2

"""Tests of one group run in one process, and share what its fixtures made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.grouped_tests import group_of
from support.waiting import PATIENCE_S

MARKED = """
import os
import pytest
{module}
@pytest.mark.xdist_group("shared")
def test_a():
    with open({log!r}, "a") as log:
        print("shared", os.getpid(), file=log)

@pytest.mark.parametrize("number", range(4))
def test_b(number):
    with open({log!r}, "a") as log:
        print("free", os.getpid(), file=log)
"""


@pytest.mark.part(2)
def test_groups_stay_together_and_all_others_are_handed_out_one_by_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(MARKED.format(log=str(log), module=""))
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        "from support.grouped_tests import pytest_xdist_make_scheduler\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [kind for kind, _ in sorted(lines)] == ["free"] * 12 + ["shared"] * 3
    assert len({process for kind, process in lines if kind == "shared"}) == 1
    assert len({process for kind, process in lines if kind == "free"}) > 1


@pytest.mark.parametrize(
    ("module", "test", "group"),
    [
        ("", "test_a", "shared"),
        ("", "test_b[1]", None),
        ('pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("all")]', "test_b[a::b@c]", "all"),
        ('pytestmark = pytest.mark.xdist_group("all")', "test_a", "shared"),
    ],
)
def test_a_test_s_own_mark_goes_before_its_module_s(tmp_path: Path, module: str, test: str, group: str | None) -> None:
    (tmp_path / "test_it.py").write_text(MARKED.format(log="log", module=module))
    assert group_of(tmp_path, f"test_it.py::{test}") == group

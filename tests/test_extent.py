"""What a run of the suite leaves out comes in another one, and the same number tries the same again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import extent
from support.waiting import PATIENCE_S

COUNT, SHARE = 24, 3
TESTS = f"""
import pytest
from support.extent import leave_out, part_of

@pytest.mark.part({SHARE})
@pytest.mark.parametrize("number", range({COUNT}))
def test_now_and_then(number):
    print("part", number, *part_of(range(100), 4))

@pytest.mark.slow
@pytest.mark.parametrize("number", range({COUNT}))
def test_slow(number):
    print("slow", number)

@pytest.mark.slow
@pytest.mark.part(1)
def test_slow_and_vital():
    print("slow and vital")

def test_always():
    print("always", *part_of(range(100), 4))
"""


def run(directory: Path, **environment: str) -> list[str]:
    """What the tests print."""
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-W", "ignore"]
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("TEST_", "PYTEST_"))}
    inherited["PYTHONPATH"] = os.pathsep.join(sys.path)
    told = subprocess.run(
        [*words, directory], env=inherited | environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert told.returncode == 0, told.stdout + told.stderr
    lines = [line.lstrip(".") for line in told.stdout.splitlines()]
    return [line for line in lines if line.startswith(("part", "slow", "always"))]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "test_made.py").write_text(TESTS)
    plugin = "from support.extent import leave_out as pytest_collection_modifyitems\n"
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    part\n    slow\n")
    return tmp_path


def test_a_run_of_the_suite_has_a_part_and_the_same_number_gives_the_same(directory: Path) -> None:
    found = run(directory, TEST_PART="17")
    assert found == run(directory, TEST_PART="17")
    parts = [line for line in found if line.startswith("part")]
    slow = [line for line in found if line.startswith("slow")]
    assert 1 < len(parts) < COUNT and 2 < len(slow) < COUNT and slow[-1] == "slow and vital"
    assert found[-1].startswith("always")
    assert all(len(line.split()) >= 26 for line in [*parts, found[-1]]), "a fourth of a hundred each"


def test_who_asks_for_tests_and_a_soak_have_all(directory: Path) -> None:
    every = 2 * COUNT + 2
    assert len(run(directory)) == len(run(directory, TEST_PART="17", TEST_WHOLE="1")) == every
    whole = run(directory, TEST_PART="17", TEST_SOAK="1")
    assert len(whole) == every and whole[-1].split()[1:] == [str(number) for number in range(100)]


def test_each_is_drawn_in_one_of_so_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict.fromkeys(("a.py::one", "a.py::two[x]", "a.py::two[y]", "b.py::one"), 0)
    for number in range(300):
        monkeypatch.setattr(extent, "_PART", str(number))
        for test in drawn:
            drawn[test] += extent._drawn(test, SHARE) == 0
    assert all(60 < count < 140 for count in drawn.values()), drawn

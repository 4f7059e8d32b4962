"""What is installed: the wheel, built as pip builds it, and what an index shows of it."""

from __future__ import annotations

import email
import email.message
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.made_once import made_once
from support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "lsmq",
    "lsmq_command",
    "lsmq_pytest",
    "lsmq_node",
    "lsmq_coordinator",
    "lsmq_lab",
    "lsmq_pipeline",
    "pyspark_lsmq",
}
#: What programs that use LSMQ are tested with; nothing of our own tests.
FOR_TESTS = {"lsmq/testing.py", "lsmq_pytest/__init__.py", "lsmq_pytest/py.typed"}
LARGEST_BYTES = 3 << 20

BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = made_once(tmp_path_factory, "wheel", build).glob("lsmq-*.whl")
    return found


def build(directory: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, directory], cwd=ROOT, check=True, capture_output=True, timeout=120)


@contextmanager
def opened(wheel: Path) -> Iterator[tuple[ZipFile, email.message.Message]]:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        yield archive, email.message_from_string(archive.read(name).decode())


def test_the_wheel_holds_our_packages_typed_and_nothing_else(wheel: Path) -> None:
    with opened(wheel) as (archive, _):
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert {f"{package}/py.typed" for package in ("lsmq", "lsmq_node")} <= set(names)
    assert "lsmq_lab/benchmarks/suite/RocketmqWriter.java" in names
    assert {name for name in names if "test" in name or name.endswith((".pyc", ".so"))} == FOR_TESTS
    assert wheel.stat().st_size < LARGEST_BYTES


def test_pytest_finds_the_plugin_in_it(wheel: Path) -> None:
    with opened(wheel) as (archive, _):
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "[pytest11]\nlsmq = lsmq_pytest\n" in archive.read(name).decode() + "\n"


def test_an_index_shows_nothing_that_only_a_clone_has(wheel: Path) -> None:
    with opened(wheel) as (_, metadata):
        shown = metadata.get_payload()
    assert isinstance(shown, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert shown.startswith("# LSMQ\n") and "A minute to the first message" in shown
    assert re.findall(r"\]\((?!https://)[^)]*\)", shown) == []
    assert 'install ".[' not in shown and 'install "lsmq[node]"' in shown
    assert metadata.get_all("Project-URL") is None, "docs/decisions/0007-one-distribution.md says why"


def test_the_light_client_needs_what_it_imports_and_no_more(wheel: Path) -> None:
    with opened(wheel) as (_, metadata):
        needed = metadata.get_all("Requires-Dist") or []
    plain = {re.split(r"[<>=!;\[ ]", each, maxsplit=1)[0] for each in needed if "extra ==" not in each}
    assert plain == {"aiohttp", "click", "crc32c", "msgpack", "rich", "xxhash", "zstandard"}


def test_no_aiohttp_is_accepted_from_before_it_bounded_what_a_small_request_unpacks_to(wheel: Path) -> None:
    with opened(wheel) as (_, metadata):
        (needed,) = (each for each in metadata.get_all("Requires-Dist") or [] if each.startswith("aiohttp"))
    lowest = re.search(r">=([\d.]+)", needed)
    assert lowest is not None and tuple(map(int, lowest[1].split("."))) >= (3, 13, 3), needed


def test_the_wheel_is_a_client_as_it_is(wheel: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import lsmq, lsmq.sync, lsmq.cli;"
        " assert lsmq.__file__.startswith(sys.argv[1]); print(lsmq.__version__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, wheel], capture_output=True, text=True, timeout=PATIENCE_S, cwd=wheel.parent
    )
    with opened(wheel) as (_, metadata):
        assert ran.stdout.strip() == metadata["Version"], ran.stderr

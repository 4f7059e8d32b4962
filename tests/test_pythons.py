"""The wheel on each Python that it is for: installed as locked, with a node that takes and gives a message."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from support.extent import part_of
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "compose" / "image" / "node.lock"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
#: Comes as source; what builds it is no matter here.
SOURCE = "pysyncobj"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def interpreter(version: str) -> Path | None:
    """Of that version, where this machine has one: on PATH, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for candidate in map(Path, filter(None, found)):
        program = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == version:
            return candidate
    return None


def run(*words: str | Path, timeout: float = 600, **more: str) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "LSMQ_"))} | more
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    if done.returncode and re.search("Could not find a version|NewConnectionError|ConnectTimeout", done.stderr):
        pytest.skip(f"no package index is reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_and_what_is_locked_work_on_each_python_there_is(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("lsmq-*.whl")
    there = {version: python for version in VERSIONS if (python := interpreter(version)) is not None}
    for version in part_of(list(there)):
        works(version, there[version], wheel, tmp_path / version)


def works(version: str, python: Path, wheel: Path, directory: Path) -> None:
    run(python, "-m", "venv", "--without-pip", directory)
    own = directory / "bin"
    for what in (("--require-hashes", "-r", LOCK), ("--no-deps", "--no-index", wheel)):
        run(*PIP, "--python", own / "python", "install", "--quiet", "--no-compile", *what)
    (ours,) = (directory / "lib").glob("*/site-packages/lsmq_node")
    run(own / "python", "-W", "error", "-m", "compileall", "-q", "-f", ours)
    served = [own / "lsmq", "serve", "--data", directory / "data", "--port", "0"]
    with subprocess.Popen(served, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as node:
        try:
            assert node.stdout is not None
            ready = re.search(r"ready on (http://\S+)", node.stdout.readline())
            assert ready is not None, version
            lsmq = partial(run, own / "lsmq", timeout=PATIENCE_S, LSMQ_URL=ready[1])
            lsmq("topic", "create", "t", "--queues", "2")
            (directory / "message").write_text(f"of Python {version}\n")
            lsmq("produce", "t", directory / "message", "--queue", "1")
            assert lsmq("consume", "t", "--format", "%b\\n").splitlines() == [f"of Python {version}"]
        finally:
            node.terminate()
        assert node.wait(PATIENCE_S) == 0


def test_all_that_is_locked_is_published_for_each_python(tmp_path: Path) -> None:
    lines = re.split(r"\n(?=\S)", LOCK.read_text())
    kept = tmp_path / "binary.lock"
    kept.write_text("\n".join(line for line in lines if not line.startswith(SOURCE)))
    for version in part_of(VERSIONS):
        run(
            *(*PIP, "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", version),
            *("--require-hashes", "--dest", tmp_path / version, "-r", kept),
        )
        assert len(list((tmp_path / version).glob("*.whl"))) > 20, version

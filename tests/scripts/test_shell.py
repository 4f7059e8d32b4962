"""The scripts explain themselves where the machine lacks what they need."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def find_python(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Look for a Python the way the scripts do, with ``path`` as PATH while looking."""
    program = f'set -euo pipefail; source "{ROOT}/scripts/_venv.sh"; PATH="{path}"; find_python'
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    return subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, env=inherited | environment
    )


def fake_python(path: Path, name: str, *, version_ok: bool, venv_ok: bool, pip_ok: bool) -> None:
    """A script that answers the three questions that are asked of an interpreter."""
    answers = {"sys.version_info": version_ok, "ensurepip": venv_ok, "pip": pip_ok}
    cases = "".join(f"    *{word}*) exit {0 if good else 1} ;;\n" for word, good in answers.items())
    script = path / name
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
    script.chmod(0o755)


def test_no_python_at_all_is_explained(tmp_path: Path) -> None:
    found = find_python(str(tmp_path))
    assert found.returncode == 1
    assert "no Python 3.11 or newer on PATH" in found.stderr


def test_an_old_python_is_passed_over(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", version_ok=False, venv_ok=True, pip_ok=True)
    fake_python(tmp_path, "python3.12", version_ok=True, venv_ok=True, pip_ok=True)
    found = find_python(str(tmp_path))
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == str(tmp_path / "python3.12")


def test_a_python_with_venv_is_preferred_to_one_without(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", version_ok=True, venv_ok=False, pip_ok=True)
    fake_python(tmp_path, "python3.11", version_ok=True, venv_ok=True, pip_ok=True)
    assert find_python(str(tmp_path)).stdout.strip() == str(tmp_path / "python3.11")


def test_a_python_with_pip_alone_will_do(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", version_ok=True, venv_ok=False, pip_ok=True)
    assert find_python(str(tmp_path)).stdout.strip() == str(tmp_path / "python3")


def test_a_python_that_can_make_no_environment_is_explained(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", version_ok=True, venv_ok=False, pip_ok=False)
    found = find_python(str(tmp_path))
    assert found.returncode == 1
    assert "apt-get install python3-venv" in found.stderr


def test_a_python_that_was_asked_for_must_be_new_enough(tmp_path: Path) -> None:
    fake_python(tmp_path, "old", version_ok=False, venv_ok=True, pip_ok=True)
    found = find_python(str(tmp_path), PYTHON=str(tmp_path / "old"))
    assert found.returncode == 1
    assert "is not a Python 3.11 or newer" in found.stderr

"""What an image is made of: each package at one version, by hashes, as ours asks for it; and what is known of them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from _audit import verdict

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "compose" / "image"
#: What those have that an image may run on.
ENVIRONMENTS = [
    {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    for version in ("3.11", "3.12", "3.13", "3.14")
]


def locked(name: str) -> list[tuple[Requirement, list[str]]]:
    """What the lines of a lock say, and the hashes of each."""
    entries = re.split(r"\n(?=\S)", (IMAGE / name).read_text().strip())
    found = []
    for entry in entries:
        head, *hashes = (line.strip().removesuffix("\\").strip() for line in entry.splitlines())
        found.append((Requirement(head), hashes))
    return found


def version_in(lock: list[tuple[Requirement, list[str]]], name: str, environment: dict[str, str]) -> Version | None:
    for requirement, _ in lock:
        here = requirement.marker is None or requirement.marker.evaluate(environment)
        if canonicalize_name(requirement.name) == canonicalize_name(name) and here:
            (pinned,) = requirement.specifier
            return Version(pinned.version)
    return None


@pytest.mark.parametrize("name", ["node.lock", "build.lock"])
def test_each_package_is_one_version_with_hashes(name: str) -> None:
    for requirement, hashes in locked(name):
        assert [pinned.operator for pinned in requirement.specifier] == ["=="], str(requirement)
        assert requirement.url is None and hashes, str(requirement)
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", found) for found in hashes), str(requirement)


@pytest.mark.parametrize(("name", "asked"), [("node.lock", ["node", "s3"]), ("build.lock", ["--build"])])
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment["python_version"])
def test_the_locks_have_what_the_package_asks_for(name: str, asked: list[str], environment: dict[str, str]) -> None:
    words = [sys.executable, IMAGE / "requirements.py", *asked]
    wanted = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    lock = locked(name)
    for line in filter(None, wanted):
        requirement = Requirement(line)
        version = version_in(lock, requirement.name, environment)
        assert version is not None and version in requirement.specifier, f"{line}: scripts/lock writes {name} anew"


def test_the_lock_is_closed_under_what_its_packages_ask_for() -> None:
    lock = locked("node.lock")
    names = {canonicalize_name(requirement.name) for requirement, _ in lock}
    seen = 0
    for name in names:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # For other systems than this one.
        seen += 1
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in names, f"{name} needs {need}"
    assert seen > len(names) / 2


def test_the_image_is_made_of_nothing_else() -> None:
    steps = (ROOT / "compose" / "Dockerfile").read_text()
    installs = re.findall(r"pip (?:install|wheel) [^\\\n]*", steps)
    assert len(installs) == 5
    for step in installs:
        assert "--require-hashes" in step or "--no-deps" in step, step
        assert "--no-index" in step or "--require-hashes" in step or "--no-build-isolation" in step, step


def _package(**more: Any) -> dict[str, Any]:
    return {"name": "p", "version": "1", "vulns": [], **more}


def test_an_audit_says_what_it_found_or_that_it_could_not_look() -> None:
    hole = {"id": "CVE-2026-1", "fix_versions": ["2"]}
    clean, holed, unknown = _package(), _package(vulns=[hole]), {"name": "q", "skip_reason": "not found"}
    assert verdict([{"dependencies": [clean]}], strict=True) == (0, ["audited: 1 packages have no known vulnerability"])
    code, lines = verdict([{"dependencies": [unknown, holed]}, None], strict=False)
    assert code == 1 and lines[0] == "p 1: CVE-2026-1, mended in 2"
    for reports in ([{"dependencies": [clean, unknown]}], [{"dependencies": [clean]}, None], [{}], []):
        code, lines = verdict(reports, strict=False)
        assert code == 0 and lines[0].startswith("audit skipped: ")
        assert verdict(reports, strict=True)[0] == 2

"""What pip-audit finds in files of locked packages, and whether it had anything to look in: see ``scripts/audit``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_TIMEOUT_S = 300


def verdict(reports: list[dict[str, Any] | None], *, strict: bool) -> tuple[int, list[str]]:
    """The exit code and what to say of reports of pip-audit; None is one that did not come about.

    It exits with 0 as well where it knows nothing of a package, so its own code says little.
    """
    packages = [package for report in reports for package in (report or {}).get("dependencies", ())]
    found = [
        f"{package['name']} {package['version']}: {hole['id']}, mended in {' '.join(hole['fix_versions']) or 'no one'}"
        for package in packages
        for hole in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if found:
        return 1, [*found, "known vulnerabilities: raise the versions (scripts/lock)"]
    if None in reports or unknown or not packages:
        which = f"{len(unknown)} of {len(packages)} packages" if packages else "any package"
        return 2 if strict else 0, [f"audit skipped: what is known of {which} cannot be had from here"]
    return 0, [f"audited: {len(packages)} packages have no known vulnerability"]


def _report(lock: str) -> dict[str, Any] | None:
    options = ("--disable-pip", "--require-hashes", "--progress-spinner=off", "--format=json")
    words = ["-m", "pip_audit", *options, "-r", lock]
    try:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return report


def main(arguments: list[str]) -> int:
    code, lines = verdict([_report(lock) for lock in arguments if lock != "--strict"], strict="--strict" in arguments)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m lsmq_lab.world --seeds 0-99``: play seeds; print what failed, and how to see it again."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs import SeedReport

_NO_RANDOM_ADDRESSES = 0x0040000


def fix_hashes() -> None:
    """Begin again as a process whose hashes and addresses are the same each time."""
    if os.environ.get("PYTHONHASHSEED") == "0":
        return
    ctypes.CDLL(None).personality(_NO_RANDOM_ADDRESSES)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "lsmq_lab.world", *sys.argv[1:]], environment)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lsmq_lab.world", description=__doc__)
    parser.add_argument("--seeds", default="0-19", help="such as 7, or 0-99")
    parser.add_argument("--scenes", nargs="?", const="all", help="aimed plans instead of weather: all, or a name")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller plan that fails as well")
    parser.add_argument("--fingerprints", action="store_true", help="print a line a seed that names all that happened")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--uses", help="what clients do beside orders, as jobs,delayed, whatever a seed says")
    parser.add_argument("--trouble", type=float, default=3.0, metavar="S", help="seconds of weather in each seed")
    parser.add_argument("--short", action="store_true", help="as many faults in a second, and one use in each seed")
    options = parser.parse_args()
    seeds = _range(parser, options.seeds)
    if options.trouble < 1:
        parser.error(f"--trouble is {options.trouble:g}; less than a second is no weather")
    fix_hashes()
    from . import runs
    from .aimed import SCENES
    from .clients import USUAL
    from .runs import played, shrunk
    from .uses import USES

    runs.TROUBLE_S = options.trouble
    if options.short:
        runs.shorten()

    uses = None if options.uses is None else [use for use in options.uses.split(",") if use]
    if unknown := set(uses or ()) - {*USUAL, *USES}:
        parser.error(f"--uses has {', '.join(sorted(unknown))}; there are {', '.join((*USUAL, *USES))}")

    scenes = [""] if options.scenes is None else list(SCENES) if options.scenes == "all" else [options.scenes]
    if not set(scenes) <= {"", *SCENES}:
        parser.error(f"there is no scene {options.scenes}; there are {', '.join(SCENES)}")

    began, failed, cpu_s = time.monotonic(), 0, 0.0
    totals: dict[str, int] = {}
    for report in played(seeds, options.jobs, scenes, uses):
        cpu_s += report.cpu_s
        for name, count in report.figures.items():
            totals[name] = totals.get(name, 0) + count
        if options.trace:
            print(*report.trace, sep="\n")
        if options.fingerprints:
            print(f"{_name(report)} {report.fingerprint} {report.steps} steps {report.virtual_s:.6f} s", flush=True)
        if report.ok:
            continue
        failed += 1
        if options.shrink and not report.scene:
            report = shrunk(report)
        print(f"{_name(report)} FAILED after {report.virtual_s:.3f} s; with --trace it shows all that happened")
        print(f"  clients: {', '.join(('orders', *report.uses))}", *(f"  {fault}" for fault in report.plan), sep="\n")
        print(*report.problems, sep="\n", flush=True)
    said = ", ".join(f"{name} {count}" for name, count in totals.items())
    took = f"{time.monotonic() - began:.1f} s ({cpu_s:.1f} s of CPU)"
    print(f"{len(seeds) * len(scenes)} runs, {failed} failed, {took}: {said}")
    return 1 if failed else 0


def _range(parser: argparse.ArgumentParser, text: str) -> range:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        parser.error(f"--seeds is {text!r}; it is a number, or two as 0-99")
    return range(int(first), int(last or first) + 1)


def _name(report: SeedReport) -> str:
    return f"seed {report.seed} {report.scene}".rstrip()


if __name__ == "__main__":
    sys.exit(main())

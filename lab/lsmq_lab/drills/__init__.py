"""Drills: a cluster is hurt while producers and consumers work on it, and then everything is checked.

``lsmq drill NAME`` runs one. ``catalogue`` holds the drills, ``harness`` what they share, ``faults`` what can be done
to a cluster, ``workload`` who works meanwhile, ``side_work`` who works beside it where a drill is about groups or
transactions, ``compare`` looks whether replicas are equal in the end.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .catalogue import DRILLS
from .compose import ComposeFaults
from .harness import Drill, TellRound, run_local, run_on
from .report import DrillReport, print_report

__all__ = ["DRILLS", "Drill", "DrillReport", "print_report", "run_drill"]


def run_drill(
    name: str,
    *,
    rounds: int = 1,
    seed: int | None = None,
    directory: Path | None = None,
    compose: Path | None = None,
) -> DrillReport:
    """Run a drill of :data:`DRILLS`, with progress on standard error: a bar at a terminal, else a line a round.

    ``seed`` decides which shards and nodes are hit; without one it is drawn, and stands in the report. With ``compose``
    the containers of a Compose file are drilled instead of processes. Raises ``InvalidRequest`` and what keeps a
    cluster from being started; what goes wrong later is in the report.
    """
    drill = DRILLS[name]
    chosen = random.randrange(2**31) if seed is None else seed
    with _shown(drill, rounds) as progress:
        if compose is not None:
            return run_on(drill, ComposeFaults(compose), rounds=rounds, seed=chosen, progress=progress)
        return run_local(drill, rounds=rounds, seed=chosen, directory=directory, progress=progress)


@contextmanager
def _shown(drill: Drill, rounds: int) -> Iterator[TellRound]:
    """A bar of rounds and a line of what goes on; where nobody can see it move, a line for each round that is done."""
    if not sys.stderr.isatty():
        yield _lines(drill.name, rounds)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn(drill.name), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    with bars.Progress(
        *columns, bars.TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as shown:
        task = shown.add_task("", total=rounds)
        yield lambda done, text: shown.update(task, completed=done, description=text)


def _lines(name: str, rounds: int) -> TellRound:
    began_s, told = time.monotonic(), 0

    def tell(done: int, text: str) -> None:
        nonlocal told
        if done > told:
            told = done
            print(f"{name}: {done} of {rounds} rounds, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)

    return tell

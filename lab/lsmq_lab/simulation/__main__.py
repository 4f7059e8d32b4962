"""``python -m lsmq_lab.simulation``: run seeds; exit 1 when one violates an invariant."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .runs import Outcome, Simulation
from .world import Options


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lsmq_lab.simulation",
        description="Runs the replication protocol in virtual time under faults. A seed replays exactly.",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="run one seed")
    parser.add_argument("--seeds", metavar="A-B", help="run seeds A to B, both included (default 0-99)")
    parser.add_argument("--steps", type=int, default=Options().steps, help="steps with faults (default %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="print every event and action")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None and chosen.seeds is not None:
        parser.error("give --seed or --seeds")
    if chosen.steps < 1:
        parser.error("--steps must be above zero")
    try:
        first, last = (chosen.seed, chosen.seed) if chosen.seed is not None else _range(chosen.seeds or "0-99")
    except ValueError:
        parser.error(f"--seeds is {chosen.seeds!r}; it must look like 0-499")
    options = Options(steps=chosen.steps)
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    failed = 0
    for seed in range(first, last + 1):
        outcome = Simulation(seed, options, tell=print if chosen.verbose else None).run()
        totals.update({"steps": outcome.steps, "virtual seconds": round(outcome.seconds), **outcome.counts})
        if outcome.violated:
            failed += 1
            _report(outcome, options)
    print(f"{last - first + 1} seeds, {failed} failed, {time.perf_counter() - began:.1f} s")
    print("  ".join(f"{name}: {count:,}" for name, count in sorted(totals.items())))
    return 1 if failed else 0


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if int(last) < int(first):
        raise ValueError(text)
    return int(first), int(last)


def _report(outcome: Outcome, options: Options) -> None:
    print("\n".join(outcome.last_lines))
    print(f"seed {outcome.seed}: {outcome.detail}")
    print(f"replay: python -m lsmq_lab.simulation --seed {outcome.seed} --steps {options.steps} --verbose")


if __name__ == "__main__":
    sys.exit(main())

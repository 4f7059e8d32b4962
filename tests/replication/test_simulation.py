"""The simulator: five hundred seeds hold, a seed replays exactly, and the command tells what it did."""

from __future__ import annotations

import pytest

from lsmq_lab.simulation import Options, Simulation, simulate
from lsmq_lab.simulation.__main__ import main

SEEDS = 500
CHUNK = 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_all_invariants_hold_in_every_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert not outcome.violated, "\n".join((*outcome.last_lines, f"seed {seed}: {outcome.detail}"))


def test_a_seed_replays_exactly() -> None:
    told: list[list[str]] = [[], []]
    options = Options(steps=1500)
    outcomes = [Simulation(7, options, tell=lines.append).run() for lines in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 1000


def test_seeds_differ() -> None:
    options = Options(steps=300)
    assert Simulation(1, options).run().counts != Simulation(2, options).run().counts


def test_the_load_meets_faults() -> None:
    """A simulator in which nothing happens proves nothing."""
    counts: dict[str, int] = {}
    for seed in range(10):
        for name, count in simulate(seed).counts.items():
            counts[name] = counts.get(name, 0) + count
    for name in ("acknowledged at quorum", "acknowledged at leader", "reads", "epochs begun", "starts", "truncations"):
        assert counts.get(name, 0) >= 5, name
    assert counts.get("epochs led twice", 0) >= 1


def test_the_command_runs_seeds_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3-5", "--steps", "300"]) == 0
    assert "3 seeds, 0 failed" in capsys.readouterr().out


def test_the_command_prints_the_schedule_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--steps", "300", "--verbose"]) == 0
    assert "Persist(record=ReplicaRecord(" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--seeds", "5-3"], ["--seeds", "x"], ["--steps", "0"], ["--seed", "1", "--seeds", "1-2"]]
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2

"""What works by itself in a node: killed, it is begun again, and readiness and metrics say so meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsmq_coordinator import parts as parts_module
from lsmq_node import history
from lsmq_node.broker import Broker
from lsmq_node.history import NodeHistory
from lsmq_node.machines import MachineService
from support.raft_group import until

from .in_process import Session, with_node

_TIMERS = ("groups-timer", "transactions-timer", "workqueue-timer", "push-timer")


@pytest.mark.parametrize("part", _TIMERS)
def test_a_timer_that_fails_is_seen_and_begun_again(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "_LONGEST_PAUSE_S", 0.2)
    broken, honest = True, MachineService._tick

    async def tick(self: Any) -> None:
        if broken:
            raise KeyError("a mistake")
        await honest(self)

    monkeypatch.setattr(MachineService, "_tick", tick)

    async def test(session: Session, broker: Broker) -> None:
        nonlocal broken

        def problems() -> list[str]:
            return [problem for problem in broker.parts.problems(essential=True) if problem.startswith(part)]

        await until(problems)
        answer = await session.get("/readyz")
        assert answer.status == 503
        assert f"{part}: KeyError: 'a mistake'" in (await answer.json())["reasons"]
        assert f'lsmq_part_running{{part="{part}"}} 0.0' in await (await session.get("/metrics")).text()
        assert (await session.get("/healthz")).status == 200, "a restart would not help"
        broken = False
        await until(lambda: not broker.parts.problems(essential=True))
        assert (await session.get("/readyz")).status == 200

    with_node(tmp_path, test)


def test_a_sample_of_the_last_hour_that_fails_is_a_warning_and_the_next_ones_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY_S", 0.02)
    broken, taken, honest = True, 0, NodeHistory.sample

    def sample(self: NodeHistory) -> None:
        nonlocal taken
        if broken:
            raise KeyError("a mistake")
        honest(self)
        taken += 1

    monkeypatch.setattr(NodeHistory, "sample", sample)

    async def test(session: Session, broker: Broker) -> None:
        nonlocal broken
        await until(lambda: any(each.startswith("history: ") for each in broker.parts.problems(essential=False)))
        assert (await session.get("/readyz")).status == 200, "clients are served all the same"
        broken = False
        await until(lambda: taken > 1)
        await until(lambda: not broker.parts.problems(essential=False))

    with_node(tmp_path, test)

"""The registry of parts: what one says of itself, and parts that fail and are begun again."""

from __future__ import annotations

import asyncio

import pytest

from lsmq.errors import Unavailable
from lsmq_coordinator import parts as parts_module
from lsmq_coordinator.parts import PartReport, Parts, PartState, kept
from lsmq_coordinator.zookeeper import ZooKeeperConfig, ZooKeeperRegistry
from support.raft_group import until
from support.virtual_time import run_in_virtual_time
from support.waiting import eventually


def test_a_part_runs_fails_and_runs_again_and_each_change_is_told_once() -> None:
    told: list[PartReport] = []
    now = 5.0
    parts = Parts(told.append, lambda: now)
    part = parts.part("voter")
    assert told == [], "that it begins is no news"
    part.retrying("the disk is full")
    part.retrying("the disk is full")
    now = 9.0
    part.running()
    assert [(report.state, report.why, report.since, report.failures) for report in told] == [
        (PartState.RETRYING, "the disk is full", 5.0, 1),
        (PartState.RUNNING, "", 9.0, 1),
    ]
    part.stopped("it is damaged")
    parts.part("clock", essential=False).retrying("it is wrong")
    assert parts.problems(essential=True) == ["voter has stopped: it is damaged"]
    assert parts.problems(essential=False) == ["clock: it is wrong"]
    part.gone()
    assert [report.name for report in parts.reports()] == ["clock"]


def test_work_that_fails_or_ends_is_begun_again_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "_FIRST_PAUSE_S", 0.01)

    async def main() -> None:
        told: list[str] = []
        parts, begun = Parts(lambda report: told.append(report.why)), 0

        async def work() -> None:
            nonlocal begun
            begun += 1
            match begun:
                case 1:
                    raise Unavailable("not yet")
                case 2:
                    raise KeyError("a mistake")
                case 3:
                    return
                case _:
                    await asyncio.Event().wait()

        task = asyncio.create_task(kept(parts.part("work"), work))
        await until(lambda: begun == 4 and not parts.problems(essential=True))
        assert [why for why in told if why] == ["not yet", "KeyError: 'a mistake'", "it ended"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_work_says_of_itself_as_it_begins_stands() -> None:
    """An issuer that is away when a node starts was not told of for a moment, once it had been tried for a while."""

    async def main() -> None:
        told: list[str] = []
        parts = Parts(lambda report: told.append(report.why))
        part = parts.part("work")

        async def work() -> None:
            part.retrying("nobody answers")
            await asyncio.sleep(5 * parts_module._FIRST_PAUSE_S)
            raise Unavailable("not yet")

        task = asyncio.create_task(kept(part, work))
        await asyncio.sleep(25 * parts_module._FIRST_PAUSE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told[:4] == ["nobody answers", "not yet"] * 2 and "" not in told

    run_in_virtual_time(main())


def test_the_publisher_to_zookeeper_survives_whatever_its_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, tries = Parts(), 0

    def connecting(self: ZooKeeperRegistry) -> object:
        nonlocal tries
        tries += 1
        raise ValueError("a mistake of a library")

    monkeypatch.setattr(ZooKeeperRegistry, "_connecting", connecting)
    config = ZooKeeperConfig("127.0.0.1:1", "c", "n1", "http://u", retry_s=0.01)
    registry = ZooKeeperRegistry(config, part=parts.part("zookeeper", essential=False))
    registry.start()
    try:
        eventually(lambda: tries > 3, "it is tried again and again")
        assert parts.problems(essential=False) == ["zookeeper: ValueError: a mistake of a library"]
        assert parts.problems(essential=True) == [], "the cluster does not need it"
    finally:
        registry.stop()


def test_a_node_that_stops_does_not_say_that_zookeeper_is_away() -> None:
    parts = Parts()
    config = ZooKeeperConfig("127.0.0.1:1", "c", "n1", "http://u")
    registry = ZooKeeperRegistry(config, part=parts.part("zookeeper", essential=False))
    registry._began = -1e9  # Long without success.
    registry.stop()
    before = parts.problems(essential=False)
    registry._look()  # As its thread does once more when it is woken to end.
    assert parts.problems(essential=False) == before

"""A crash at every single operation the store does to its disk: what was acknowledged stays."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lsmq.errors import LsmqError
from lsmq_lab.world.disk import PowerCut
from lsmq_lab.world.drive import Drive
from support.clock import SimClock
from support.extent import part_of

from .harness import abandon, append, assert_no_orphans, flush, keep_house, merge, open_stepped
from .model import View, assert_shows, view
from .workload import Workload

GROUPS = 8  # each operation is one case; they are spread over so many tests


def workload(tmp_path: Path, seed: int = 0) -> Workload:
    return Workload(Drive(tmp_path, seed=seed), tmp_path / "data" / "shard", SimClock())


def dry_run(tmp_path: Path) -> list[str]:
    """What the workload does to the disk when nothing fails."""
    work = workload(tmp_path / "dry")
    work.run()
    assert_shows(work.store, work.model)
    assert not work.store._writer.stopped
    work.store.close()
    return work.disk.log


def test_the_workload_does_everything_there_is_to_do(tmp_path: Path) -> None:
    log = dry_run(tmp_path)
    kinds = {line.split()[0] for line in log}
    assert kinds == {"make_directory", "create", "write", "sync", "preallocate", "rename", "remove", "sync_directory"}
    spare = "0000000000000000.spare"
    for pattern in ("rename MANIFEST.tmp MANIFEST", f".wal {spare}", f"rename {spare}", "remove 0000"):
        assert any(pattern in line for line in log), pattern
    work = workload(tmp_path)
    work.run()
    stats = work.store.stats()
    assert stats.merges_total >= 2
    assert stats.dropped_tables_total >= 1
    assert stats.flushes_total >= 3
    assert len(work.disk.list(work.path / "wal")) >= 2
    abandon(work.store)


def test_the_workload_is_the_same_every_time(tmp_path: Path) -> None:
    assert dry_run(tmp_path) == dry_run(tmp_path)


def reopened_shows(work: Workload, disk: Drive) -> View:
    """What recovery finds on ``disk``, that it leaves no orphans, and that the store goes on from there.

    Returns what the store shows after that.
    """
    store = open_stepped(work.path, work.options, disk, work.clock)
    try:
        assert_shows(store, work.model, work.attempt)
        assert_no_orphans(store, disk, work.path)
        if "t" in [topic.name for topic in store.topics()]:
            topic = store.topic("t")
            before = store.latest_offsets(topic.id).tolist()
            store.wait(append(store, topic.id, (0, b"after"), (1, b"after")))
            after = store.latest_offsets(topic.id).tolist()
            assert after == [before[0] + 1, before[1] + 1, *before[2:]]
            keep_house(store)
            flush(store)
            merge(store)
            store.wait(append(store, topic.id, (0, b"after"), (1, b"after")))
        return view(store)
    finally:
        abandon(store)


def final_view(work: Workload, disk: Drive) -> View:
    store = open_stepped(work.path, work.options, disk, work.clock)
    try:
        return view(store)
    finally:
        abandon(store)


@pytest.mark.part(2)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_crash_at_any_operation_loses_nothing_acknowledged(tmp_path: Path, group: int) -> None:
    log = dry_run(tmp_path)
    for nth in part_of(range(1 + group, len(log) + 1, GROUPS), 16):
        work = workload(tmp_path / str(nth), seed=nth)
        point = work.disk.at(nth)
        with contextlib.suppress(PowerCut, LsmqError):
            work.run()
            work.store.close()
        assert point.hits == 1, (nth, log[nth - 1])
        if work.opened is not None:
            abandon(work.opened)
        for seed in (nth, 10_000 + nth):
            try:
                reopened_shows(work, work.disk.power_cut(seed))
            except BaseException as error:
                error.add_note(f"power cut at operation {nth} ({log[nth - 1]}), seed {seed}")
                raise
        try:
            recovered = work.disk.kill()
            shown = final_view(work, recovered)
            for seed in range(nth, nth + (8 if "MANIFEST" in log[nth - 2] + log[nth - 1] else 1)):
                # Recovery built on what the killed process left unsynced, and the power goes right then.
                assert final_view(work, recovered.power_cut(seed)) == shown
            again = work.disk.kill()
            shown = reopened_shows(work, again)
            assert final_view(work, again.power_cut(nth)) == shown  # nothing that was seen may go
        except BaseException as error:
            error.add_note(f"killed at operation {nth} ({log[nth - 1]})")
            raise

"""Replicas that cannot be opened, or taken away: what is said of them, how often, and what becomes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from structlog.testing import capture_logs

from coordinator.test_balance import cluster
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.state import ClusterState
from lsmq_node.cluster.hosted import HostedReplicas
from lsmq_node.cluster.ports import ReplicaPorts
from lsmq_node.cluster.replica import Replica
from lsmq_node.disks import NodeFile, held_disks
from storage.harness import small
from support.mounts import tmpfs
from support.waiting import comes_true

from .replica_group import TIMINGS


class Agreed:
    """The control plane, which always answers."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    async def catch_up(self, timeout: float) -> None: ...


def make(shard: int, directory: Path) -> Replica:
    nothing: Any = lambda *_: None  # noqa: E731
    ports = ReplicaPorts(*[nothing] * 8)
    return Replica(shard, "n1", directory, small(), TIMINGS, ports)


def test_a_replica_that_cannot_be_opened_is_tried_again_and_named_once(tmp_path: Path) -> None:
    async def test(hosted: HostedReplicas) -> None:
        manifest = tmp_path / "shard-0" / "MANIFEST"
        manifest.mkdir(parents=True)  # Reading it fails, as on a disk that breaks.
        with capture_logs() as logs:
            for _ in range(3):
                assert not await hosted._converge()
        assert [line["event"] for line in logs].count("replica_not_opened") == 1
        assert str(manifest.parent) in hosted.problems[0]
        manifest.rmdir()
        assert await hosted._converge()
        assert not hosted.problems and hosted.get(0) is not None

    hosting(tmp_path, Agreed(cluster({0: ("n1", "n2")}, ("n1", "n2"))), test)


def test_what_is_left_of_a_replica_that_was_moved_elsewhere_is_removed_when_it_can_be(tmp_path: Path) -> None:
    agreed = Agreed(cluster({0: ("n1", "n2")}, ("n1", "n2")))
    directory = tmp_path / "shard-0"

    async def test(hosted: HostedReplicas) -> None:
        assert await hosted._converge() and directory.exists()
        shard = replace(agreed.state.shards[0], replicas=("n2",))
        agreed.state = replace(agreed.state, version=2, shards=MappingProxyType({0: shard}))
        running = asyncio.create_task(hosted.run())
        with tmpfs(directory / "tables" / "busy", "size=64k"), capture_logs() as logs:
            hosted.viewed(agreed.state)
            await comes_true(lambda: "replica_not_removed" in [line["event"] for line in logs], "it is told")
            assert [path.name for path in directory.iterdir()] == ["tables"]
        await comes_true(lambda: not directory.exists(), "it goes by itself")
        running.cancel()
        await asyncio.wait([running])

    hosting(tmp_path, agreed, test)


def hosting(data: Path, agreed: Agreed, test: Any) -> None:
    async def main() -> None:
        with held_disks([data], NodeFile(1, cluster="c", node="n1"), lambda file: None) as disks:
            control = cast("ControlClient", agreed)
            hosted = HostedReplicas("n1", disks, control, make, Parts(), rebuild_after_s=0)
            try:
                await test(hosted)
            finally:
                await hosted.close()

    asyncio.run(main())

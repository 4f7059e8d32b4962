"""Whether the disks of a node are there, and take writes: said like everything that works by itself in it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog

from lsmq import runtime
from lsmq.errors import DataDirectoryUnusable
from lsmq_coordinator.parts import Part, kept
from lsmq_node.disks import START_AGAIN

from .background import Background
from .broker import Broker

_log = structlog.get_logger("lsmq.node")

_LOOK_S = 0.25
_CHECK_S = 2.0
#: A disk that has not finished a write or sync of a log, or a look at it, for so long hangs.
_HANGS_S = 5.0
#: A disk at its limit fills and empties by turns; it has room again when it had some for so long.
_CALM_S = 5.0


class DiskWatch:
    """The part ``disk`` of a node, without which clients may still come: reads go on, and so do shards on other disks.

    Where there are several, each is a part of its own as well. Loop thread only.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._background = Background("disk")
        self._disks: dict[Path, Part] = {}
        self._checked_since: float | None = None
        self._hanging: set[Path] = set()

    def start(self) -> None:
        self._part = self._broker.parts.part("disk", essential=False)
        for directories in self._broker.topology.disks.on_one_file_system():
            _log.warning("disks_share_a_file_system", directories=directories)
        self._background.start(kept(self._part, self._look))
        self._say()
        self._background.start(kept(self._broker.parts.part("disks", essential=False), self._check))
        self._background.start(self._see_hanging())

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self._checked_since = runtime.monotonic()
            await asyncio.to_thread(self._broker.topology.disks.check)
            self._checked_since = None
            self._say()

    async def _see_hanging(self) -> None:
        """A thread that waits for a disk comes back when that does: it can be seen from outside alone."""
        while True:
            await asyncio.sleep(_CHECK_S)
            topology = self._broker.topology
            stores = [port.store for port in topology.ports()]
            self._hanging = {each.path.parent for each in stores if each.disk_busy_s() > _HANGS_S}
            looked_at, since = topology.disks.looked_at, self._checked_since
            if looked_at is not None and since is not None and runtime.monotonic() - since > _HANGS_S:
                self._hanging.add(looked_at)

    def _say(self) -> None:
        """Each disk of several, whether it can be used; and what is not served without it."""
        topology = self._broker.topology
        disks = topology.disks.all
        shards = topology.lost_shards()
        with suppress(DataDirectoryUnusable):  # Where a disk cannot be listed now, some of them may be there.
            shards = [shard for shard in shards if shard not in topology.disks.shards()]
        for path in self._disks.keys() - {disk.path for disk in disks}:
            self._disks.pop(path).gone()
        for disk in disks if len(disks) > 1 or self._disks else ():
            part = self._disks.get(disk.path)
            if part is None:
                part = self._disks[disk.path] = self._broker.parts.part(f"disk {disk.path}", essential=False)
            if disk.lost is not None:
                without = f"; without it are the shards {', '.join(map(str, shards))}" if shards else ""
                part.stopped(f"{disk.lost.rstrip('.')}{without}. {START_AGAIN}")
            elif disk.failing is not None:
                part.retrying(disk.failing)
            else:
                part.running()

    def begin_stop(self) -> None:
        """Nobody waits for it."""

    async def stop(self) -> None:
        await self._background.stop()

    async def _look(self) -> None:
        loop, config = asyncio.get_running_loop(), self._broker.config
        full_at = float("-inf")
        while True:
            await asyncio.sleep(_LOOK_S)
            ports = self._broker.topology.ports()
            full = {port.store.path.parent for port in ports if port.store.disk_full}
            waits = {f"{port.store.path}: {port.wants_room}" for port in ports if port.wants_room is not None}
            if self._hanging:
                full_at = loop.time()
                self._part.retrying(
                    f"the disk of {' and of '.join(sorted(map(str, self._hanging)))} has not finished a write for "
                    f"{_HANGS_S:g} s and more: what lies there waits as long as it does, and goes on by itself. See "
                    "what the system says of it (dmesg); where it does not come back, stop the node, and replace it"
                )
            elif waits:
                full_at = loop.time()
                self._part.retrying(
                    f"replicas stand still that find no room on their disk ({'; '.join(sorted(waits))}). Free some "
                    "space, also below the file system where that is thin: they go on by themselves"
                )
            elif full:
                full_at = loop.time()
                # Without figures that change: what is said is said once.
                self._part.retrying(
                    f"the disk of {' and of '.join(sorted(map(str, full)))} has no room: writes are refused, reads go "
                    f"on. Free some space: {config.min_free_bytes >> 20} MiB (min_free_bytes) are kept for flushing"
                )
            elif loop.time() - full_at >= _CALM_S:
                self._part.running()

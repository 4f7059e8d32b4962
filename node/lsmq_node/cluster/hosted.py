"""The replicas at this node: opened, told of the control plane's decisions, and closed as it says.

A replica is opened when the control state lists this node for its shard, and removed, with its files, when a state
that is certainly not an old one lists it no more.

One that was here before and is on none of the disks that can be used lies on another one: it is not begun anew beside
that. Others lead the shard meanwhile. When they have for ``rebuild_after_s`` the node forgets its lost disks, as the
cluster forgets a node that is gone, and the replicas are made again on its other disks. So it is with a disk that fails
while the node runs, once all replicas on it have stopped.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from lsmq import runtime
from lsmq.errors import DataDirectoryUnusable, LsmqError
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.parts import Part, Parts
from lsmq_coordinator.state import ClusterState, Shard
from lsmq_node.disks import NodeDisks
from lsmq_node.disks.looking import sync_directory
from lsmq_node.replication import ControlView
from lsmq_node.storage.disk import OsDisk

from .record import load_record
from .replica import Replica

_log = structlog.get_logger("lsmq.cluster")

_RETRY_S = 1.0
#: Of several disks one may fail or come back without anybody else being told.
_LOOK_S = 2.0
_CATCH_UP_TIMEOUT_S = 5.0


def view_of(state: ClusterState, shard: Shard) -> ControlView:
    """A shard's control state as its replicas want it."""
    return ControlView(
        epoch=shard.epoch,
        version=shard.version,
        leader=shard.leader,
        in_sync=frozenset(shard.in_sync),
        replicas=frozenset(shard.replicas),
        min_in_sync=state.settings.min_in_sync,
        adding=frozenset(shard.adding),
        leading=shard.leading,
        starts=frozenset(start._replace(floor_lsn=0) for start in shard.starts),
        distrusted=frozenset(shard.distrusted),
        revived_epoch=shard.revived_epoch,
    )


class HostedReplicas:
    """Loop thread only. :meth:`run` is a task of the node's task group."""

    def __init__(
        self,
        node: str,
        disks: NodeDisks,
        control: ControlClient,
        make: Callable[[int, Path], Replica],
        parts: Parts,
        *,
        rebuild_after_s: float,
    ) -> None:
        """``make(shard, directory)`` gives a replica that is not open yet. ``rebuild_after_s``: 0 for never."""
        self._node = node
        self._disks = disks
        self._control = control
        self._make = make
        self._parts = parts
        self._unopened: dict[int, Part] = {}
        self._rebuild_after_s = rebuild_after_s
        self._lost_since: float | None = None
        self._open: dict[int, Replica] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self.problems: dict[int, str] = {}  # why a shard's replica cannot be opened
        self._left: set[int] = set()  # shards moved elsewhere of which something could not be removed
        self.lost: set[int] = set()  # shards whose replica lies on a further disk and cannot be used

    def get(self, shard: int) -> Replica | None:
        """The replica of a shard, if it is open."""
        return self._open.get(shard)

    def all(self) -> Mapping[int, Replica]:
        return self._open

    def missing(self) -> list[int]:
        """Shards whose replica should be here and is not open."""
        state = self._control.state
        return [shard.id for shard in state.replicas_on(self._node) if shard.id not in self._open]

    # What the control plane says

    def viewed(self, state: ClusterState) -> None:
        """A new control state."""
        for id, replica in self._open.items():
            shard = state.shards.get(id)
            if shard is not None:
                replica.viewed(view_of(state, shard))
        self._wake.set()

    def leased(self, valid_until: float, state: ClusterState) -> None:
        """The control plane answered this node: see ``ControlClient``."""
        for id, replica in self._open.items():
            shard = state.shards.get(id)
            if shard is not None:
                replica.leased(valid_until, view_of(state, shard))

    # Opening and removing

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            complete = await self._converge()
            again_s = await self._rebuild_s()
            if not complete:
                again_s = _RETRY_S
            try:
                async with asyncio.timeout(again_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _rebuild_s(self) -> float | None:
        """When to look again whether what dead disks had is to be made again; None for never. Forgets these disks where
        it is time."""
        if len(self._disks.all) == 1 or not self._rebuild_after_s:
            return None
        now = asyncio.get_running_loop().time()
        dead = [disk for disk in self._disks.all if disk.id is not None and disk.failing] + self._disks.lost()
        places = {disk.path for disk in dead}
        on_them = {shard: replica for shard, replica in self._open.items() if replica.path.parent in places}
        shards = sorted({*self.lost, *on_them})
        stopped = all(replica.stopped for replica in on_them.values())
        if not (dead and shards and stopped and self._led_elsewhere(shards)):
            self._lost_since = None
            return _LOOK_S
        self._lost_since = now if self._lost_since is None else self._lost_since
        left_s = self._lost_since + self._rebuild_after_s - now
        if left_s > 0:
            return min(left_s, _LOOK_S)
        try:
            await self._control.catch_up(_CATCH_UP_TIMEOUT_S)  # What an old state says of leaders may be so no more.
        except LsmqError:
            return _LOOK_S
        if not self._led_elsewhere(shards):
            return _LOOK_S
        _log.error("disks_forgotten", disks=[str(disk.path) for disk in dead], shards=shards)
        await asyncio.to_thread(self._disks.forget, dead)
        for shard in on_them:
            self._open.pop(shard, None)
        for replica in on_them.values():
            await replica.close()
        self._lost_since = None
        return 0.0

    def _led_elsewhere(self, shards: Sequence[int]) -> bool:
        """Whether other nodes lead all of these shards, of those that there are."""
        agreed = [self._control.state.shards[shard] for shard in shards if shard in self._control.state.shards]
        return bool(agreed) and all(each.leader not in (None, self._node) for each in agreed)

    async def _converge(self) -> bool:
        """Open what should be open and remove what should not; whether that was all possible."""
        state = self._control.state
        if not state.bootstrapped or self._closing:
            return True
        wanted = {shard.id for shard in state.replicas_on(self._node)}
        self.lost &= wanted
        for shard in self._unopened.keys() - wanted:
            self._say(shard, None)
        opened = await asyncio.gather(*(self._open_one(shard) for shard in sorted(wanted - self._open.keys())))
        extra = [shard for shard in self._present() if shard not in wanted]
        removed = [await self._remove(shard) for shard in extra]
        return all(opened) and all(removed)

    def _present(self) -> list[int]:
        return sorted({*self._disks.shards(), *self._open})

    async def _directory(self, shard: int) -> Path | None:
        """Where the replica lies, or is to; None where that is a disk that cannot be used.

        Raises ``DataDirectoryUnusable``, ``Unavailable``.
        """
        found = await self._found(shard)
        if found is not None or not self._disks.unusable():
            return found or self._disks.place(shard)
        if not self._was_here(shard):
            await self._control.catch_up(_CATCH_UP_TIMEOUT_S)  # An old state would not know.
        return None if self._was_here(shard) else self._disks.find(shard) or self._disks.place(shard)

    async def _found(self, shard: int) -> Path | None:
        """Where the replica lies; None where it is on none of the disks that can be used.

        Raises ``DataDirectoryUnusable``, ``Unavailable``.
        """
        if len(there := self._disks.directories(shard)) > 1:
            await self._tell_apart(shard, there)
        return self._disks.find(shard)

    async def _tell_apart(self, shard: int, there: Sequence[Path]) -> None:
        """A replica that was moved elsewhere and back while its disk was away is on two: put aside what is not the one
        that the cluster knows. Does nothing where both are, or none."""
        await self._control.catch_up(_CATCH_UP_TIMEOUT_S)  # An old state knows the former one.
        agreed = self._control.state.shards.get(shard)
        start = None if agreed is None else agreed.start_of(self._node)
        try:
            records = {directory: load_record(OsDisk(), directory) for directory in there}
            agreed_on = None if start is None else start.incarnation
            known = [each for each, record in records.items() if record and record.incarnation == agreed_on]
            for directory in records if len(known) == 1 else ():
                if directory not in known:
                    _log.error("replica_set_aside", shard=shard, path=str(directory), why="it was moved elsewhere")
                    directory.rename(directory.with_name(f"{directory.name}.damaged-{runtime.wall_ms()}"))
                    sync_directory(directory.parent)
        except OSError as error:
            raise DataDirectoryUnusable(f"{error.filename}: {error.strerror}") from error

    def _was_here(self, shard: int) -> bool:
        agreed = self._control.state.shards.get(shard)
        return agreed is not None and agreed.start_of(self._node) is not None

    async def _open_one(self, shard: int) -> bool:
        directory = None
        try:
            directory = await self._directory(shard)
            if directory is None:
                if shard not in self.lost:
                    self.lost.add(shard)
                    _log.error("replica_on_lost_disk", shard=shard)
                self.problems[shard] = self._disks.on_lost_disk(shard).message
                self._say(shard, None)  # Its disk does.
                return True
            replica = self._make(shard, directory)
            await replica.open()
        except LsmqError as error:
            is_new = self.problems.get(shard) != error.message
            self.problems[shard] = error.message
            if (
                isinstance(error, DataDirectoryUnusable)
                and directory is not None
                and directory.parent != self._disks.first
            ):
                self.lost.add(shard)
                self._say(shard, error.message)
            if is_new:
                _log.error("replica_not_opened", shard=shard, code=error.code, message=error.message)
            return False
        if self._closing:
            await replica.close()
            return False
        self.problems.pop(shard, None)
        self.lost.discard(shard)
        self._say(shard, None)
        self._open[shard] = replica
        state = self._control.state
        if shard in state.shards:
            replica.viewed(view_of(state, state.shards[shard]))
        return True

    def _say(self, shard: int, why: str | None) -> None:
        """Why a replica cannot be opened without which clients may still come; None where that is so no more."""
        if why is not None:
            if shard not in self._unopened:
                self._unopened[shard] = self._parts.part(f"shard {shard}", essential=False)
            self._unopened[shard].retrying(why)
        elif shard in self._unopened:
            self._unopened.pop(shard).gone()

    async def _remove(self, shard: int) -> bool:
        """Take a replica away that the cluster moved elsewhere; never by an old state."""
        try:
            await self._control.catch_up(_CATCH_UP_TIMEOUT_S)
        except LsmqError:
            return False
        state = self._control.state
        agreed = state.shards.get(shard)
        if agreed is None or self._node in agreed.replicas:
            return agreed is not None
        replica = self._open.pop(shard, None)
        if replica is not None:
            await replica.close()
        for directory in self._disks.directories(shard):
            await asyncio.to_thread(shutil.rmtree, directory, True)
        if left := self._disks.directories(shard):
            if shard not in self._left:
                self._left.add(shard)
                _log.warning("replica_not_removed", shard=shard, left=[str(directory) for directory in left])
            return False
        self._left.discard(shard)
        _log.info("replica_removed", shard=shard)
        return True

    async def close(self) -> None:
        """Stop serving, finish what is written and close all stores. :meth:`run` has ended."""
        self._closing = True
        await asyncio.gather(*(replica.close() for replica in self._open.values()))

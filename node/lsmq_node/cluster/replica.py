"""One replica of a shard, as its node uses it: opened, fed, asked, closed. What goes on inside is in :mod:`.shell`.

It is the broker's port to the shard (``broker.topology.ShardPort``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from lsmq import runtime
from lsmq.errors import LsmqError, NotEnoughReplicas, ShuttingDown, StoreBusy, Unavailable
from lsmq_coordinator.lives import LifeId
from lsmq_node.broker.topology import Ack
from lsmq_node.replication import ControlView, LogPosition, ReplicaMessage, ReplicaRole, Timings
from lsmq_node.replication.actions import Distrust
from lsmq_node.replication.events import LeaseGranted, MessageReceived, StreamBroken
from lsmq_node.storage import Appended, ShardStore, StoredTopic, StoreOptions
from lsmq_node.storage.disk import Clock, Disk, OsDisk, SystemClock

from .opening import Directory
from .ports import ReplicaPorts
from .shard_topics import ShardTopics
from .shell import Shell

__all__ = ["Replica", "ReplicaPorts"]

#: Writes are refused while so much of a leader's log waits for its followers.
UNCOMMITTED_BYTES = 64 * 1024 * 1024
ACK_TIMEOUT_S = 5.0
_CLOSE_WAIT_S = 2.0


class Replica:
    """Loop thread only. Make it, ``await open()``, feed it; ``await close()``."""

    def __init__(
        self,
        shard: int,
        node: str,
        path: Path,
        options: StoreOptions,
        timings: Timings,
        ports: ReplicaPorts,
        ack_timeout_s: float = ACK_TIMEOUT_S,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Args:
        path: the shard's directory. Beside it ``shard-N.damaged-<time>`` may appear.
        ack_timeout_s: after this a write is answered ``not_enough_replicas``, though it may still be stored.
        """
        self.shard = self.number = shard
        self.node = node
        self.path = path
        self._ack_timeout_s = ack_timeout_s
        self._shell = Shell(
            Directory(shard, node, path, options, disk or OsDisk(), clock or SystemClock()),
            timings.validate(),
            ports,
            ack_timeout_s,
        )
        self.topics = ShardTopics(self, ports.placed)
        self._closing = False

    async def open(self, distrust: Distrust = Distrust.NOTHING) -> None:
        """Open the store and begin. Raises what ``ShardStore.open`` raises, but for damage: the core is told of it."""
        await self._shell.open(distrust)

    async def close(self) -> None:
        """Stop serving, finish what is written, close the store. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self.serving:
            await self._shell.writes.settled(min(self._ack_timeout_s, _CLOSE_WAIT_S))
        await self._shell.close("the node is stopping")

    # What comes in

    def viewed(self, view: ControlView) -> None:
        """The control plane's state of the shard; old ones are ignored."""
        self._shell.viewed(view)

    def leased(self, valid_until: float, view: ControlView) -> None:
        """The control plane confirmed ``view``; ``valid_until`` is on ``runtime.monotonic()``."""
        self._shell.viewed(view)
        self._shell.handle(LeaseGranted(valid_until, view))

    def received(self, sender: str, message: ReplicaMessage, payload: bytes | memoryview = b"") -> None:
        """A message of another replica of this shard. ``payload`` must not change any more."""
        if len(payload) and self._shell.disk_full:
            return  # As if it were lost. It is asked for again when there is space.
        self._shell.handle(MessageReceived(sender, message), payload)

    def stream_broken(self, peer: str) -> None:
        """A connection with another node ended."""
        self._shell.handle(StreamBroken(peer))

    # What it is

    @property
    def is_open(self) -> bool:
        """Whether there is a ``store`` now."""
        return self._shell.store is not None

    @property
    def store(self) -> ShardStore:
        """Replaced when the replica is opened again: ask after each await. Raises ``Unavailable`` in between."""
        store = self._shell.store
        if store is None:
            raise Unavailable(f"the replica of shard {self.shard} is being opened", shard=self.shard)
        return store

    @property
    def role(self) -> ReplicaRole:
        return self._shell.role

    @property
    def epoch(self) -> int:
        core = self._shell.core
        return core.epoch if core is not None else 0

    @property
    def leader(self) -> str | None:
        """The node that leads ``epoch``; it may not serve yet."""
        core = self._shell.core
        return core.leader if core is not None else None

    @property
    def serving(self) -> bool:
        """Whether this replica leads, and lets readers and writers in."""
        return self._shell.serving

    @property
    def enough_in_sync(self) -> bool:
        core = self._shell.core
        return core is not None and core.enough_in_sync

    @property
    def failure(self) -> str | None:
        """Why the replica gave up, for an operator; None while it works."""
        return self._shell.failure

    @property
    def damage(self) -> tuple[str, ...]:
        """What was found to be damaged of its files while it ran, in words."""
        return self._shell.repair.found

    @property
    def stopped(self) -> LsmqError | None:
        """``failure`` as the error that requests get."""
        return self._shell.stopped

    @property
    def wants_room(self) -> str | None:
        return self._shell.wants_room

    @property
    def failures(self) -> int:
        return self._shell.writes.failed_commits

    @property
    def waits(self) -> int:
        return self._shell.writes.added

    @property
    def incarnation(self) -> int:
        core = self._shell.core
        return core.record.incarnation if core is not None else 0

    @property
    def life(self) -> LifeId | None:
        """The life that acts here; None before it is registered."""
        core = self._shell.core
        return core.record.life if core is not None and core.registered else None

    @property
    def high_watermark(self) -> int:
        core = self._shell.core
        return core.log.high_watermark if core is not None else 0

    @property
    def end_lsn(self) -> int:
        core = self._shell.core
        return core.log.end_lsn if core is not None else 0

    @property
    def durable_lsn(self) -> int:
        core = self._shell.core
        return core.log.durable_lsn if core is not None else 0

    @property
    def position(self) -> LogPosition | None:
        """How far the log is durable; None when the replica does not work."""
        if self._shell.core is None or self.role is ReplicaRole.HALTED:
            return None
        return self._shell.core.log.durable_position

    @property
    def lag(self) -> dict[str, int]:
        """On a leader: by follower, the bytes of the log that it has not reported durable."""
        core = self._shell.core
        if core is None:
            return {}
        return {node: max(core.log.end_lsn - lsn, 0) for node, lsn in core.followers().items()}

    def figures(self) -> dict[str, Any]:
        """All of this as plain values, for status and metrics."""
        return {
            "role": self.role.value,
            "epoch": self.epoch,
            "leader": self.leader,
            "serving": self.serving,
            "enough_in_sync": self.enough_in_sync if self.serving else None,
            "failure": self.failure,
            "incarnation": self.incarnation,
            "start": self._shell.core.record.start if self._shell.core is not None else 0,
            "registered": self.life is not None,
            "high_watermark": self.high_watermark,
            "durable_lsn": self.durable_lsn,
            "end_lsn": self.end_lsn,
            "lag_bytes": self.lag,
            "snapshot_bytes": self._shell.fetched,
        }

    # Reads and writes

    def check_writable(self, ack: Ack) -> None:
        """Ask before an append, in the same step of the loop.

        Raises ``NotLeader`` (details: shard, epoch, leader: a URL or None, sent), ``Unavailable`` while taking over or
        being opened, ``NotEnoughReplicas`` for ``quorum`` with too few in sync, ``StoreBusy`` when followers are so far
        behind that no more may wait for them, ``ShuttingDown``.
        """
        if self._closing:
            raise ShuttingDown("the node is stopping; send this to another node, or again when it is back")
        core = self._shell.core
        if core is None or not self.serving or not core.may_answer(runtime.monotonic()):
            raise self._cannot_serve()
        if ack == Ack.QUORUM and not core.enough_in_sync:
            raise NotEnoughReplicas(
                f"shard {self.shard} has fewer than min_in_sync replicas in sync; nothing was stored",
                shard=self.shard,
                sent=False,
            )
        if core.log.end_lsn - core.log.high_watermark > UNCOMMITTED_BYTES:
            raise StoreBusy(
                f"{UNCOMMITTED_BYTES >> 20} MiB of shard {self.shard} wait for followers; try again in a moment",
                shard=self.shard,
            )

    def check_readable(self, *, follower: bool = False, found: bool = False) -> None:
        """Ask *after* what was read. ``follower``: content with one that heard of its leader lately.

        Where records were ``found``, content with one that lost its leader as well: see ``ReplicaCore.may_show``.
        Raises ``NotLeader`` or ``Unavailable``.
        """
        core, now = self._shell.core, runtime.monotonic()
        if core is None or self._shell.store is None:
            raise self._cannot_serve()
        if follower and core.may_show(now, found=found):
            return
        if not self.serving or not core.may_answer(now):
            raise self._cannot_serve()

    async def prepare(self, topic: StoredTopic) -> None:
        await self.topics.prepare(topic)

    def wait(self, appended: Appended, ack: Ack) -> asyncio.Future[None]:
        """What to await until the write is acknowledged. Call it in the same step of the loop as the append.

        Raises ``DiskFull`` (nothing stored), ``ShardStopped``, ``NotLeader`` or ``NotEnoughReplicas``; the last two
        with ``sent=True`` in details: the write may be stored all the same.
        """
        log = self.store.replica
        reached_lsn = log.durable_lsn if ack == Ack.LEADER else log.committed_lsn
        future = self._shell.writes.add(appended, Ack(ack), reached_lsn, runtime.monotonic())
        self._shell.kick()
        return future

    def durable_at(self, appended: Appended) -> float | None:
        return self._shell.writes.durable_at(appended.lsn)

    def _cannot_serve(self) -> LsmqError:
        role = self.role
        if role is ReplicaRole.TAKING_OVER or role is ReplicaRole.LEADING:
            message = f"shard {self.shard} is being taken over; try again in a moment"
            return Unavailable(message, shard=self.shard, sent=False)
        if role is ReplicaRole.STARTING:
            return Unavailable(f"the replica of shard {self.shard} is being opened", shard=self.shard, sent=False)
        return self._shell.not_leader(f"{self.node} does not lead shard {self.shard}", sent=False)

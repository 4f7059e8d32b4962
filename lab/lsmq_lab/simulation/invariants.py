"""What must hold at every step, by name. A violation ends the run.

=============================  =======================================================================================
invariant                      meaning
=============================  =======================================================================================
one-leader-per-epoch           an epoch is begun by one life of one node, and only it serves and answers in it
went-back-is-silent            a disk that went back neither promises, follows, leads nor answers as what it was
fenced                         a replica that gave a promise for an epoch takes no frame of a lower one, ever again
acknowledged-is-durable        what is acknowledged at quorum is on the disks of at least ``min_in_sync`` replicas
acknowledged-survives          a leader that serves or answers holds all that was ever below a high watermark
in-sync-holds-everything       at every step every member of the in-sync set has on its disk all below a high watermark
high-watermark-rises           it never goes back on a replica
nothing-above-is-shown         a follower's high watermark is never ahead of all leaders'
logs-agree                     up to the high watermark logs are equal, byte for byte
applied-is-kept                no log is cut below what was applied
old-leaders-are-silent         after a leader answered in an epoch, nobody answers in a lower one
reads-never-go-back            a leader's answer shows all that any leader showed or acknowledged at quorum before
unknown-is-not-failed          what was refused is never stored, and nothing is stored twice
no-halt                        no replica has to give up
settles                        when faults end, a leader serves and all replicas become equal, in bounded time
=============================  =======================================================================================

After the control plane itself went back to an earlier state three do not hold and are not claimed: two leaders of
different epochs may answer for a while (the older one nothing at quorum), so *old-leaders-are-silent*,
*reads-never-go-back*, and *in-sync-holds-everything*. What was acknowledged at quorum still survives.
"""

from __future__ import annotations

from lsmq_node.replication import Member

from .cluster import Cluster, Write
from .disk import EPOCH_PAYLOAD, SimLog
from .replica import SimReplica


class InvariantViolated(AssertionError):
    """An invariant by name, and what was seen."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class Monitor:
    """Sees everything. ``committed`` is the log that must never change: chain by end LSN, as high watermarks passed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.control_went_back = False
        self.committed: dict[int, int] = {0: 0}
        self.committed_lsn = 0
        self.payloads: set[int] = set()
        self.acknowledged_lsn = 0
        self.acknowledged_count = 0
        self.shown_lsn = 0
        self.answered_epoch = 0
        self.counts: dict[str, int] = {}
        self._served_epoch = 0
        self._epochs: dict[int, tuple[str, int]] = {}
        self._promised: dict[str, int] = {}
        self._lost: dict[str, list[SimLog]] = {}
        self._shown: dict[str, int] = {}

    def _fail(self, name: str, what: str) -> None:
        raise InvariantViolated(name, what)

    def is_committed(self, log: SimLog) -> bool:
        """Whether a log holds all that is committed."""
        return log.holds(self.committed_lsn, self.committed[self.committed_lsn])

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # What replicas do.

    def started(self, replica: SimReplica) -> None:
        self._count("starts")
        disk = replica.disk
        self._shown[replica.name] = disk.flushed_lsn
        if not disk.log.holds(disk.flushed_lsn, self.committed[disk.flushed_lsn]):
            self._fail("logs-agree", f"{replica.name} has flushed up to {disk.flushed_lsn} what is not committed")

    def disk_goes(self, replica: SimReplica) -> None:
        """What it promised goes with the disk, and so does its incarnation."""
        self._count("disks lost")
        self._promised.pop(replica.name, None)
        disk = replica.disk
        self._lost.setdefault(replica.name, []).append(SimLog(disk.log.between(0, disk.durable_lsn)))

    def led_unasked(self) -> None:
        self._count("epochs led twice")

    def _is_what_it_was(self, replica: SimReplica) -> None:
        if replica.incarnation in replica.disk.gone:
            self._fail("went-back-is-silent", f"{replica.name} acts as {replica.incarnation}, which is no more")

    def promised(self, replica: SimReplica, epoch: int) -> None:
        self._is_what_it_was(replica)
        self._promised[replica.name] = max(self._promised.get(replica.name, 0), epoch)

    def accepted(self, replica: SimReplica) -> None:
        """A frame was accepted, in the epoch in which the replica now is."""
        assert replica.core is not None
        self._is_what_it_was(replica)
        promised = self._promised.get(replica.name, 0)
        if replica.core.epoch < promised:
            self._fail("fenced", f"{replica.name} promised {promised} and follows {replica.core.epoch}")

    def epoch_begun(self, replica: SimReplica, epoch: int) -> None:
        self._count("epochs begun")
        if epoch in self._epochs:
            self._fail("one-leader-per-epoch", f"{replica.name} begins {epoch} after {self._epochs[epoch]}")
        self._epochs[epoch] = replica.name, replica.life

    def serves(self, replica: SimReplica, epoch: int) -> None:
        self._count("serves")
        self._is_what_it_was(replica)
        assert replica.core is not None
        if not replica.core.may_answer(replica.clock):
            self._fail("old-leaders-are-silent", f"{replica.name} begins to serve {epoch} without a lease")
        self._of_its_epoch(replica, epoch)
        if epoch > self._served_epoch:
            self._served_epoch = epoch
            self._holds_everything(replica)

    def _holds_everything(self, replica: SimReplica) -> None:
        if not self.is_committed(replica.disk.log):
            lsn = self.committed_lsn
            self._fail("acknowledged-survives", f"{replica.name} serves without what was committed up to {lsn}")

    def _of_its_epoch(self, replica: SimReplica, epoch: int) -> None:
        if self._epochs.get(epoch) != (replica.name, replica.life):
            self._fail("one-leader-per-epoch", f"{replica.name} acts for {epoch} of {self._epochs.get(epoch)}")

    def truncating(self, replica: SimReplica, lsn: int) -> None:
        self._count("truncations")
        shown = self._shown[replica.name]
        if lsn < shown:
            self._fail("applied-is-kept", f"{replica.name} cuts at {lsn} and has applied up to {shown}")

    def halted(self, replica: SimReplica, reason: str) -> None:
        self._fail("no-halt", f"{replica.name}: {reason}")

    def advanced(self, replica: SimReplica, lsn: int) -> None:
        core, log = replica.core, replica.disk.log
        assert core is not None
        shown = self._shown[replica.name]
        if lsn < shown:
            self._fail("high-watermark-rises", f"{replica.name} goes from {shown} to {lsn}")
        leads = core.role.value == "leading"
        if lsn > self.committed_lsn and not leads:
            self._fail("nothing-above-is-shown", f"{replica.name} shows {lsn}, leaders {self.committed_lsn}")
        for entry in log.between(shown, lsn):
            known = self.committed.get(entry.end_lsn)
            if entry.end_lsn > self.committed_lsn:
                if entry.payload != EPOCH_PAYLOAD and entry.payload in self.payloads:
                    self._fail("unknown-is-not-failed", f"payload {entry.payload} is stored twice")
                self.payloads.add(entry.payload)
                self.committed[entry.end_lsn] = entry.chain
                self.committed_lsn = entry.end_lsn
            elif known != entry.chain:
                self._fail("logs-agree", f"{replica.name} differs from the committed log at {entry.end_lsn}")
        self._shown[replica.name] = lsn
        if leads:
            self._durable_everywhere(lsn)

    def _durable_everywhere(self, lsn: int) -> None:
        """On enough disks, counting those that had it and were lost."""
        view, chain = self._cluster.control.view, self.committed[lsn]
        holders = {name for name, logs in self._lost.items() if any(log.holds(lsn, chain) for log in logs)}
        for name, replica in self._cluster.replicas.items():
            if replica.disk.durable_lsn >= lsn and replica.disk.log.holds(lsn, chain):
                holders.add(name)
        if len(holders) < view.min_in_sync:
            self._fail("acknowledged-is-durable", f"{lsn} is the high watermark and durable on {sorted(holders)}")
        self._in_sync_holds(lsn)

    def _in_sync_holds(self, lsn: int) -> None:
        if self.control_went_back:
            return
        chain = self.committed[lsn]
        for member in self._cluster.control.view.in_sync:
            disk = self._cluster.replicas[member.node].disk
            if not self._has_lost(member) and not (disk.durable_lsn >= lsn and disk.log.holds(lsn, chain)):
                self._fail("in-sync-holds-everything", f"{member.node} is in sync and lacks what is below {lsn}")

    def _has_lost(self, member: Member) -> bool:
        """Whether the member's disk or a part of its log was lost, so that it no longer is what the set lists."""
        return not self._cluster.replicas[member.node].disk.is_intact(member.incarnation)

    def control_changed(self) -> None:
        self._count("control changes")
        self._in_sync_holds(self.committed_lsn)

    def truncated(self) -> None:
        self._in_sync_holds(self.committed_lsn)

    # What clients see.

    def _answers(self, replica: SimReplica) -> int:
        assert replica.core is not None
        self._is_what_it_was(replica)
        epoch = replica.core.epoch
        self._of_its_epoch(replica, epoch)
        if epoch < self.answered_epoch and not self.control_went_back:
            self._fail("old-leaders-are-silent", f"{replica.name} answers in {epoch} after {self.answered_epoch}")
        self.answered_epoch = max(self.answered_epoch, epoch)
        if not self.control_went_back:
            self._holds_everything(replica)
        return epoch

    def acknowledged(self, replica: SimReplica, write: Write) -> None:
        self._count(f"acknowledged at {write.ack}")
        epoch = self._answers(replica)
        if write.epoch != epoch:
            self._fail("one-leader-per-epoch", f"{replica.name} answers in {epoch} what it took in {write.epoch}")
        write.outcome = "acknowledged"
        if write.ack == "quorum":
            if self.committed.get(write.end_lsn) != write.chain:
                self._fail("acknowledged-is-durable", f"{write.end_lsn} is acknowledged and not committed")
            self.acknowledged_lsn = max(self.acknowledged_lsn, write.end_lsn)
            self.shown_lsn = max(self.shown_lsn, write.end_lsn)
            self._in_sync_holds(write.end_lsn)

    def read(self, replica: SimReplica) -> None:
        self._count("reads")
        core = replica.core
        assert core is not None
        self._is_what_it_was(replica)
        lsn = core.log.high_watermark
        if not replica.disk.log.holds(lsn, self.committed.get(lsn, -1)):
            self._fail("logs-agree", f"{replica.name} shows what is not committed up to {lsn}")
        if core.serving:
            self._answers(replica)
            if lsn < self.shown_lsn and not self.control_went_back:
                self._fail("reads-never-go-back", f"{replica.name} shows up to {lsn} after {self.shown_lsn}")
            self.shown_lsn = max(self.shown_lsn, lsn)

    # The end.

    def unsettled(self) -> str | None:
        """Why the cluster is not at rest yet."""
        view = self._cluster.control.view
        registered = {Member(start.node, start.incarnation) for start in view.starts}
        if self.control_went_back and view.in_sync and not view.in_sync & registered:
            self._count("left to people")  # It has forgotten who the disks are: one of them is to be revived.
            return None
        leader = self._cluster.replicas[view.leader] if view.leader is not None else None
        if leader is None or leader.core is None or not leader.core.may_answer(leader.clock):
            return f"no leader serves in epoch {view.epoch}"
        log = leader.disk.log
        for name in sorted(view.replicas):
            replica = self._cluster.replicas[name]
            if replica.core is None or not replica.disk.log.holds(log.end_lsn, log.chain_at(log.end_lsn)):
                return f"{name} has not the log of leader {leader.name}"
            if replica.disk.log.end_lsn != log.end_lsn or replica.core.log.high_watermark != log.end_lsn:
                return f"{name} does not show everything up to {log.end_lsn}"
        if {member.node for member in view.in_sync} != view.replicas:
            return "not all replicas are in the in-sync set"
        return None

    def finished(self, writes: list[Write]) -> None:
        for write in writes:
            if write.outcome == "refused" and write.payload in self.payloads:
                self._fail("unknown-is-not-failed", f"payload {write.payload} was refused and is stored")
            if write.outcome == "acknowledged" and write.ack == "quorum" and write.payload not in self.payloads:
                self._fail("acknowledged-survives", f"payload {write.payload} was acknowledged and is gone")

"""Deliberate bugs of replication: each breaks one rule. Where they are found: ``tests/simulation/bugs.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lsmq_coordinator.lives import InSyncMember
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.start_commands import _Disk
from lsmq_coordinator.witness import Witness
from lsmq_node.cluster import opening
from lsmq_node.cluster.record import load_record
from lsmq_node.cluster.replica import Replica
from lsmq_node.replication import (
    NOBODY,
    EpochHistory,
    LogPosition,
    Recovered,
    ReplicaCore,
    ReplicaRecord,
    Timings,
    common_end,
    shipping,
)
from lsmq_node.replication.actions import Serve
from lsmq_node.replication.candidate import Candidate
from lsmq_node.replication.control import ControlView
from lsmq_node.replication.follower import Follower
from lsmq_node.replication.identity import Registration
from lsmq_node.replication.leader import Leader
from lsmq_node.replication.lease import EpochLease
from lsmq_node.replication.messages import Progress, Promise, PromiseRequest
from lsmq_node.replication.promises import PromiseDesk
from lsmq_node.replication.pulling import FromSource, Puller
from lsmq_node.replication.state import ReplicaState
from lsmq_node.storage import recovery
from lsmq_node.storage.disk import Disk

Patch = pytest.MonkeyPatch


def shrink_counts_at_once(patch: Patch) -> None:
    def counted(self: Leader, state: ReplicaState) -> frozenset[InSyncMember]:
        assert state.view is not None
        return (self._desired & state.view.in_sync) or state.view.in_sync

    patch.setattr(Leader, "counted", counted)


def newcomer_counts_when_committed(patch: Patch) -> None:
    def counted(self: Leader, state: ReplicaState) -> frozenset[InSyncMember]:
        assert state.view is not None
        return state.view.in_sync

    patch.setattr(Leader, "counted", counted)


def joins_at_the_high_watermark(patch: Patch) -> None:
    patch.setattr(Leader, "_joined_lsn", lambda self, state: state.log.high_watermark)


def too_few_in_sync_are_enough(patch: Patch) -> None:
    patch.setattr(Leader, "enough_in_sync", lambda self, state: True)


def serves_before_its_epoch_is_committed(patch: Patch) -> None:
    begin = Leader.__init__

    def early(self: Leader, state: ReplicaState, epoch: int, begun_lsn: int, lease: EpochLease) -> None:
        begin(self, state, epoch, begun_lsn, lease)
        if not self.serving:
            self.serving = True
            state.emit(Serve(epoch))

    patch.setattr(Leader, "__init__", early)


def promises_before_they_are_persisted(patch: Patch) -> None:
    patch.setattr(ReplicaState, "bound", property(lambda self: True))


def one_promise_is_enough(patch: Patch) -> None:
    patch.setattr(ControlView, "promises_needed", property(lambda self: 1))


def promisers_tail_is_not_pulled(patch: Patch) -> None:
    honest = Candidate.counted

    def counted(self: Candidate, state: ReplicaState, view: ControlView) -> dict[str, Promise]:
        nothing = LogPosition(0, 0)
        return {node: replace(promise, position=nothing) for node, promise in honest(self, state, view).items()}

    patch.setattr(Candidate, "counted", counted)


def follower_cuts_nothing(patch: Patch) -> None:
    """As before KIP-101: a log that is not longer than the leader's is taken for its prefix."""

    def by_length(_mine: EpochHistory, my_end_lsn: int, _theirs: EpochHistory, their_end_lsn: int) -> int:
        return min(my_end_lsn, their_end_lsn)

    patch.setattr(shipping, "common_end", by_length)


def starts_are_compared_without_the_life(patch: Patch) -> None:
    """As if the number of an epoch and its place said who began it."""

    def nameless(history: EpochHistory) -> EpochHistory:
        return EpochHistory(tuple(start._replace(life=NOBODY) for start in history.starts))

    def by_number(mine: EpochHistory, my_end_lsn: int, theirs: EpochHistory, their_end_lsn: int) -> int | None:
        return common_end(nameless(mine), my_end_lsn, nameless(theirs), their_end_lsn)

    patch.setattr(shipping, "common_end", by_number)


def only_the_leaders_stretch_is_looked_at(patch: Patch) -> None:
    """As before KIP-279: where the last shared epoch ends in the follower's log is not asked."""

    def one_sided(mine: EpochHistory, my_end_lsn: int, theirs: EpochHistory, their_end_lsn: int) -> int | None:
        ours = mine.stretches(my_end_lsn)
        for start in reversed(theirs.starts):
            if start in ours:
                return min(ours[start], their_end_lsn)
        return None

    patch.setattr(shipping, "common_end", one_sided)


def reports_what_is_only_written(patch: Patch) -> None:
    def report(self: Puller, state: ReplicaState) -> None:
        if self._session is not None:
            progress = Progress(self._session, self.epoch, state.record.incarnation, state.log.end_lsn)
            state.send(self.source, progress)

    patch.setattr(Puller, "report", report)


def sessions_are_not_told_apart(patch: Patch) -> None:
    honest = Puller.receive

    def receive(self: Puller, state: ReplicaState, message: FromSource) -> None:
        if self._session is not None and not (self.streaming and type(message).__name__ == "Welcome"):
            message = replace(message, session=self._session)
        honest(self, state, message)

    patch.setattr(Puller, "receive", receive)


def lease_is_ignored(patch: Patch) -> None:
    patch.setattr(ReplicaCore, "may_answer", lambda self, now: self.serving)


def a_reset_connection_is_death(patch: Patch) -> None:
    """As if who cannot be reached were dead, and nobody had to wait for its lease."""
    overseers: dict[str, Overseer] = {}
    run, honest = Overseer.run, Replica.stream_broken

    async def known(self: Overseer) -> None:
        overseers[self._raft.config.node] = self
        await run(self)

    def stream_broken(self: Replica, peer: str) -> None:
        overseer = overseers[self.node]
        overseer.died(peer, overseer._raft.state.nodes[peer].life)
        honest(self, peer)

    patch.setattr(Overseer, "run", known)
    patch.setattr(Replica, "stream_broken", stream_broken)


def epoch_is_resumed_after_a_restart(patch: Patch) -> None:
    honest = ReplicaCore.start

    def start(self: ReplicaCore, now: float) -> Any:
        """The leader's new life takes itself for the one that was elected."""
        state = self._state
        state.bound_here = state.record.epoch
        if state.record.leader == state.node:
            state.record = replace(state.record, leading=state.record.life)
        return honest(self, now)

    def chosen_role(self: ReplicaCore) -> Any:
        state = self._state
        if state.view is not None and state.view.leader == state.node and state.view.epoch == state.record.epoch:
            state.view = replace(state.view, leading=state.record.life)
        return honest_role(self)

    def receive(self: PromiseDesk, state: ReplicaState, sender: str, request: PromiseRequest) -> None:
        """As if a promise were given to a node, whichever life of it asks."""
        record = state.record
        if (request.epoch, sender) == (record.epoch, record.leader) and record.leading is not None:
            request = replace(request, life=record.leading)
        honest_receive(self, state, sender, request)

    honest_role, honest_receive = ReplicaCore._chosen_role, PromiseDesk.receive
    patch.setattr(ReplicaCore, "start", start)
    patch.setattr(ReplicaCore, "_chosen_role", chosen_role)
    patch.setattr(PromiseDesk, "receive", receive)


def recovering(patch: Patch, change: Callable[[Recovered], Recovered]) -> None:
    """Replicas are told something else of their disks."""

    def begin(self: ReplicaCore, node: str, recovered: Recovered, timings: Timings | None = None) -> None:
        honest(self, node, change(recovered), timings)

    honest = ReplicaCore.__init__
    patch.setattr(ReplicaCore, "__init__", begin)


def lower_epochs_are_followed(patch: Patch) -> None:
    """As if the highest epoch seen were not in the record."""

    def forgetful(recovered: Recovered) -> Recovered:
        record = recovered.record
        if record is None:
            return recovered
        return replace(recovered, record=replace(record, epoch=0, leader=None, leading=None))

    recovering(patch, forgetful)


def emptied_disk_keeps_its_name(patch: Patch) -> None:
    """As if there were no incarnations."""
    recovering(patch, lambda recovered: replace(recovered, fresh_incarnation=1))


def short_log_is_not_noticed(patch: Patch) -> None:
    """As if nothing on a disk said how far its log was durable."""

    def floorless(recovered: Recovered) -> Recovered:
        record = recovered.record
        return recovered if record is None else replace(recovered, record=replace(record, floor_lsn=0))

    def load(disk: Disk, directory: Path) -> ReplicaRecord | None:
        record = load_record(disk, directory)
        return None if record is None else replace(record, floor_lsn=0)

    recovering(patch, floorless)
    patch.setattr(opening, "load_record", load)
    patch.setattr(recovery, "load_log_mark", lambda disk, path: None)


def lender_forgets_that_it_lends(patch: Patch) -> None:
    patch.setattr(Follower, "lend", lambda self, state, hello: None)


def older_copy_is_taken_for_the_disk(patch: Patch) -> None:
    """As if a disk were known by the name of its incarnation alone."""
    patch.setattr(_Disk, "is_known", lambda self, known, listed: True)


def starts_are_not_confirmed(patch: Patch) -> None:
    """As if a disk that forgot that its start counts were one that never knew."""
    honest = _Disk.is_known

    def is_known(self: _Disk, known: Any, listed: int | None) -> bool:
        return honest(self, None if known is None else known._replace(confirmed=False), listed)

    patch.setattr(_Disk, "is_known", is_known)


def acts_before_it_is_registered(patch: Patch) -> None:
    """As if asking for it were enough."""
    honest = Registration.settle

    def settle(self: Registration, state: ReplicaState, view: ControlView | None) -> None:
        honest(self, state, view)
        self.complete = True

    patch.setattr(Registration, "settle", settle)
    patch.setattr(ControlView, "acts", lambda self, node, life: True)


def floors_are_not_known(patch: Patch) -> None:
    """As if nobody remembered how far a log was known to be durable."""
    patch.setattr(Witness, "hear", lambda self, state, node, progress: None)

"""Deliberate bugs: each breaks one rule of the protocol, and names the invariants by which it may be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lsmq_lab.simulation import control as sim_control
from lsmq_lab.simulation.replica import SimReplica
from lsmq_node.replication import (
    NOBODY,
    EpochHistory,
    LogPosition,
    Member,
    Recovered,
    RegisteredStart,
    ReplicaCore,
    Timings,
    common_end,
    identity,
    shipping,
)
from lsmq_node.replication.actions import Serve
from lsmq_node.replication.candidate import Candidate
from lsmq_node.replication.control import ControlView
from lsmq_node.replication.follower import Follower
from lsmq_node.replication.identity import Registration
from lsmq_node.replication.leader import Leader
from lsmq_node.replication.lease import Lease
from lsmq_node.replication.messages import Progress, Promise, PromiseRequest
from lsmq_node.replication.promises import PromiseDesk
from lsmq_node.replication.pulling import FromSource, Puller
from lsmq_node.replication.state import ReplicaState

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """``seeds``: how many may be needed to find it: five times and more what it took when it was written."""

    name: str
    apply: Callable[[Patch], None]
    seeds: int = 100
    make_core: Callable[[str, Recovered, Timings], ReplicaCore] = ReplicaCore


def shrink_counts_at_once(patch: Patch) -> None:
    def counted(self: Leader, state: ReplicaState) -> frozenset[Member]:
        assert state.view is not None
        return self._desired & state.view.in_sync if self._desired else state.view.in_sync

    patch.setattr(Leader, "counted", counted)


def newcomer_counts_when_committed(patch: Patch) -> None:
    def counted(self: Leader, state: ReplicaState) -> frozenset[Member]:
        assert state.view is not None
        return state.view.in_sync

    patch.setattr(Leader, "counted", counted)


def joins_at_the_high_watermark(patch: Patch) -> None:
    patch.setattr(Leader, "_joined_lsn", lambda self, state: state.log.high_watermark)


def too_few_in_sync_are_enough(patch: Patch) -> None:
    patch.setattr(Leader, "enough_in_sync", lambda self, state: True)


def serves_before_its_epoch_is_committed(patch: Patch) -> None:
    begin = Leader.__init__

    def early(self: Leader, state: ReplicaState, epoch: int, begun_lsn: int, lease: Lease) -> None:
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
    honest = SimReplica.stream_broken

    def stream_broken(self: SimReplica, peer: str) -> None:
        cluster = self._cluster
        cluster.command(self.name, lambda: cluster.control.died(peer, cluster.replicas[peer].life))
        honest(self, peer)

    patch.setattr(SimReplica, "stream_broken", stream_broken)


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


def lower_epochs_are_followed(patch: Patch) -> None:
    """As if the highest epoch seen were not in the record."""


def forgetful_core(node: str, recovered: Recovered, timings: Timings) -> ReplicaCore:
    record = recovered.record
    if record is not None:
        recovered = replace(recovered, record=replace(record, epoch=0, leader=None))
    return ReplicaCore(node, recovered, timings)


def emptied_disk_keeps_its_name(patch: Patch) -> None:
    """As if there were no incarnations."""


def nameless_core(node: str, recovered: Recovered, timings: Timings) -> ReplicaCore:
    return ReplicaCore(node, replace(recovered, fresh_incarnation=ord(node)), timings)


def short_log_is_not_noticed(patch: Patch) -> None:
    """As if the record held no floor."""


def floorless_core(node: str, recovered: Recovered, timings: Timings) -> ReplicaCore:
    record = recovered.record
    if record is not None:
        recovered = replace(recovered, record=replace(record, floor_lsn=0))
    return ReplicaCore(node, recovered, timings)


def lender_forgets_that_it_lends(patch: Patch) -> None:
    patch.setattr(Follower, "lend", lambda self, state, hello: None)


def older_copy_is_taken_for_the_disk(patch: Patch) -> None:
    """As if a disk were known by the name of its incarnation alone."""
    registering_by(patch, lambda starts, registered, known: True)


def registering_by(patch: Patch, judge: Callable[[Any, int, RegisteredStart], bool]) -> None:
    """The control plane judges disks so; what is put back when is still chosen by the right rule."""
    honest = sim_control.ControlPlane.register_start

    def register_start(self: sim_control.ControlPlane, *arguments: Any) -> str | None:
        with pytest.MonkeyPatch.context() as registering:
            registering.setattr(sim_control, "recognises", judge)
            return honest(self, *arguments)

    patch.setattr(sim_control.ControlPlane, "register_start", register_start)


def starts_are_not_confirmed(patch: Patch) -> None:
    """As if a disk that forgot that its start counts were one that never knew."""

    def recognises(starts: Any, registered: int, known: RegisteredStart) -> bool:
        return identity.recognises(starts, registered, known._replace(confirmed=False))

    registering_by(patch, recognises)


def acts_before_it_is_registered(patch: Patch) -> None:
    def settle(self: Registration, state: ReplicaState, view: ControlView | None) -> None:
        self.complete = True

    patch.setattr(Registration, "settle", settle)
    patch.setattr(ControlView, "acts", lambda self, node, life: True)


def floors_are_not_known(patch: Patch) -> None:
    honest = sim_control.ControlPlane.register_start

    def register_start(self: sim_control.ControlPlane, *arguments: Any) -> str | None:
        self.floors.clear()
        return honest(self, *arguments)

    patch.setattr(sim_control.ControlPlane, "register_start", register_start)


BUGS = [
    Bug("shrink counts at once", shrink_counts_at_once),
    Bug("newcomer counts when committed", newcomer_counts_when_committed),
    Bug("joins at the high watermark", joins_at_the_high_watermark),
    Bug("too few in sync are enough", too_few_in_sync_are_enough),
    Bug("serves before its epoch is committed", serves_before_its_epoch_is_committed),
    Bug("promises before they are persisted", promises_before_they_are_persisted, seeds=500),
    Bug("one promise is enough", one_promise_is_enough, seeds=300),
    Bug("promiser's tail is not pulled", promisers_tail_is_not_pulled, seeds=300),
    Bug("follower cuts nothing", follower_cuts_nothing),
    Bug("only the leader's stretch is looked at", only_the_leaders_stretch_is_looked_at, seeds=500),
    Bug("starts are compared without the life", starts_are_compared_without_the_life),
    Bug("reports what is only written", reports_what_is_only_written),
    Bug("sessions are not told apart", sessions_are_not_told_apart, seeds=900),
    Bug("lease is ignored", lease_is_ignored),
    Bug("a reset connection is death", a_reset_connection_is_death),
    Bug("epoch is resumed after a restart", epoch_is_resumed_after_a_restart),
    Bug("lower epochs are followed", lower_epochs_are_followed, seeds=500, make_core=forgetful_core),
    Bug("emptied disk keeps its name", emptied_disk_keeps_its_name, make_core=nameless_core),
    Bug("short log is not noticed", short_log_is_not_noticed, make_core=floorless_core),
    Bug("lender forgets that it lends", lender_forgets_that_it_lends),
    Bug("older copy is taken for the disk", older_copy_is_taken_for_the_disk),
    Bug("starts are not confirmed", starts_are_not_confirmed, seeds=900),
    Bug("acts before it is registered", acts_before_it_is_registered),
    Bug("floors are not known", floors_are_not_known),
]

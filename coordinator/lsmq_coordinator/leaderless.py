"""Shards that nobody leads, and why: for the log and for whoever asks. Times are seconds, passed in."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from .election import ReplicaProgress, may_lead, why_leaderless
from .state import ClusterState, Shard

#: An ordinary election is over long before.
PATIENCE_S = 2.0
UNDER_WAY = "an election is under way"

_log = logging.getLogger("lsmq.cluster")


class LeaderlessShards:
    """One for each leadership of the control plane. ``reasons`` are of shards that had no leader for a while."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        #: Of those where nobody was elected just now, in which epoch that is so: in a later one somebody was.
        self.epochs: dict[int, int] = {}
        self._since: dict[int, float] = {}
        #: Of each shard its epoch, and since when.
        self._seen: dict[int, tuple[int, float]] = {}

    def look(
        self, state: ClusterState, alive: Set[str], reports: Mapping[str, Mapping[int, ReplicaProgress]], now: float
    ) -> None:
        """To be called now and then. What changes is logged."""
        found, epochs = {}, {}
        for id, shard in state.shards.items():
            epoch, since = self._seen.get(id, (None, now))
            if epoch != shard.epoch:
                since = now
            self._seen[id] = shard.epoch, since
            is_new = now - since < PATIENCE_S
            progress = {node: held[id] for node, held in reports.items() if id in held}
            reason = _why(shard, alive, progress)
            if reason is None:
                self._since.pop(id, None)
                continue
            if is_new and _is_elected(shard, alive, progress):  # However long there was none before: it is about to.
                reason = UNDER_WAY
            if now - self._since.setdefault(id, now) >= PATIENCE_S:
                found[id] = reason
                if not is_new:
                    epochs[id] = shard.epoch
        for id, reason in found.items():
            if self.reasons.get(id) != reason:
                _log.error("shard %d has no leader: %s", id, reason)
        for id in self.reasons.keys() - found.keys():
            _log.info("shard %d is led again", id)
        self.reasons, self.epochs = found, epochs


def _is_elected(shard: Shard, alive: Set[str], progress: Mapping[str, ReplicaProgress]) -> bool:
    """Whether its leader is there, as it was elected; it may not serve yet."""
    report = progress.get(shard.leader or "")
    return shard.leader in alive and report is not None and (report.incarnation, report.start) == shard.leading


def _why(shard: Shard, alive: Set[str], progress: Mapping[str, ReplicaProgress]) -> str | None:
    leader = shard.leader
    if _is_elected(shard, alive, progress):
        if progress[leader or ""].epoch >= shard.epoch:
            return None
        if len(shard.replicas) == 1:
            return f"{leader} was elected and does not serve yet; its log says why, where it does not in a moment"
        doubted = f"; the promises of {', '.join(shard.distrusted)} do not count" if shard.distrusted else ""
        return (
            f"{leader} was elected and hears of too few replicas that hold what was acknowledged{doubted}. Bring the "
            f"others back; if they never can be, `lsmq shard revive {shard.id} --from NODE --accept-loss` goes on "
            "with what one of them has"
        )
    if any(node in alive and may_lead(shard, node, progress.get(node)) for node in shard.replicas):
        return UNDER_WAY
    return why_leaderless(shard, alive, progress)

"""When the cluster moves something by itself: on the control plane's leader. Without a clock: times are seconds, passed
in.

What is to move where is decided by :mod:`~.balance`, anew each time, from the agreed state and from what nodes report.
A move exists in the agreed state from when it begins, and no sooner: whoever comes back before its replicas were made
again keeps those that nobody has begun to make, and another leader of the control plane plans for itself.

Kept for one leadership: what nodes reported of sizes and of logs. For how long a node is away is counted from when the
leadership began, where it was away before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .balance import ReplicaMove, ReplicaMoves, Situation, first_moves, plan
from .election import ReplicaProgress
from .liveness import FailureDetector
from .placement import fits_beside
from .reassignment import MOVES_AT_ONCE, ReassignmentStep, beginning
from .state import ClusterState, NodeState

_log = logging.getLogger(__name__)

#: A plan that is shown ends after so many moves.
MAX_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class BalanceTiming:
    """Seconds, and how much at once."""

    #: A node that is away for so long is gone: its replicas are made again elsewhere. 0: never by itself.
    rebuild_after_s: float = 600.0
    moves_at_once: int = MOVES_AT_ONCE
    #: Whether replicas, bytes, leaders and load are evened.
    even: bool = True
    even_leaders: bool = True
    #: What nobody changed is looked at so often.
    look_s: float = 30.0
    #: The load of a shard is what was written to it in so long, on average.
    load_s: float = 600.0


class Balancer:
    """One for each leadership of the control plane. Bounded by the replicas of the cluster."""

    def __init__(self, timing: BalanceTiming = BalanceTiming()) -> None:
        self._timing = timing
        #: By node, what its replicas take.
        self.sizes: dict[str, Mapping[int, int]] = {}
        #: Where each shard's log was, and when; and what that said of its load.
        self._marks: dict[int, tuple[int, float]] = {}
        self._loads: dict[int, float] = {}
        self._idle: tuple[object, ...] = ()
        self._idle_at = float("-inf")

    def hear(
        self, node: str, progress: Mapping[int, ReplicaProgress], sizes: Mapping[int, int] | None, now: float
    ) -> None:
        """A node's heartbeat: how far its logs reach, and now and then how many bytes its replicas take."""
        if sizes is not None:
            self.sizes[node] = sizes
        for id, report in progress.items():
            lsn, since = self._marks.setdefault(id, (report.end_lsn, now))
            if now - since >= self._timing.load_s:
                self._loads[id] = max(0, report.end_lsn - lsn) / (now - since)
                self._marks[id] = report.end_lsn, now

    def due(
        self, state: ClusterState, detector: FailureDetector, full: Set[tuple[int, str]], now: float
    ) -> list[ReassignmentStep]:
        """The commands that begin what may begin now. Empty while moves are paused."""
        if state.moves_paused:
            return []
        situation = self.situation(state, detector, full, now)
        seen = (state.version, situation.alive, situation.gone, situation.closed)
        if seen == self._idle and now - self._idle_at < self._timing.look_s:
            return []
        moves = first_moves(plan(state, situation), state, situation.alive, self._timing.moves_at_once)
        self._idle, self._idle_at = (() if moves else seen), now
        for move in moves:
            _log.info("shard %d moves from %s to %s: %s", move.shard, move.former, move.replicas, move.why)
        return [beginning(state, move) for move in moves]

    def situation(
        self, state: ClusterState, detector: FailureDetector, full: Set[tuple[int, str]], now: float
    ) -> Situation:
        """What is known of the nodes."""
        away, timing = detector.away(now), self._timing
        gone = {node for node, away_s in away.items() if 0 < timing.rebuild_after_s <= away_s}
        return Situation(
            alive=detector.alive,
            gone=given_up(state, gone),
            closed=frozenset(node for _, node in full) | detector.restless(now),
            sizes=self._shard_sizes(state),
            loads=self._loads,
            even=timing.even,
            even_leaders=timing.even_leaders,
            fits=fits_beside(state, detector.alive),
        )

    def _shard_sizes(self, state: ClusterState) -> dict[int, int]:
        """Bytes of a replica of each shard, by its leader's word."""
        found = {}
        for id, shard in state.shards.items():
            size = self.sizes.get(shard.leader or "", {}).get(id)
            if size is not None:
                found[id] = size
        return found

    def shown(
        self, state: ClusterState, detector: FailureDetector, full: Set[tuple[int, str]], now: float
    ) -> dict[str, Any]:
        """The plan for people: what would be moved from here on, what is being moved, and who is away.

        ``away``: seconds for each node, and in how many its replicas are made again; None: not by itself.
        """
        situation = self.situation(state, detector, full, now)
        after_s = self._timing.rebuild_after_s
        moves = list(islice(_each(plan(state, situation)), MAX_SHOWN + 1))
        return {
            "version": state.version,
            "paused": state.moves_paused,
            "moves": [_shown_move(move, situation) for move in moves[:MAX_SHOWN]],
            "more": len(moves) > MAX_SHOWN,
            "moving": [id for id in sorted(state.shards) if state.shards[id].target or state.shards[id].adding],
            "away": [
                {
                    "node": node,
                    "away_s": round(away_s, 1),
                    "rebuilt_in_s": round(max(0.0, after_s - away_s), 1) if after_s else None,
                }
                for node, away_s in sorted(detector.away(now).items())
            ],
        }


def _each(moves: Iterator[ReplicaMoves]) -> Iterator[ReplicaMove]:
    for together in moves:
        yield from together


def _shown_move(move: ReplicaMove, situation: Situation) -> dict[str, Any]:
    size = situation.sizes.get(move.shard)
    return {
        "shard": move.shard,
        "from": list(move.former),
        "to": list(move.replicas),
        "why": move.why.value,
        "bytes": None if size is None else size * len(move.added),
    }


def given_up(state: ClusterState, gone: Set[str]) -> frozenset[str]:
    """Of the nodes that were away for long enough, those that are not waited for: none where they are half of the
    cluster or more. So many do not break at once; something between them did, and what is left could not hold it all.
    """
    nodes = [node.id for node in state.nodes.values() if node.state is not NodeState.REMOVED]
    return frozenset(gone) if 2 * len(gone) < len(nodes) else frozenset()

"""Leaders of shards that hear too few of the others. Without a clock: times are seconds, passed in.

Such a leader asks for another one, again and again. It gets it when it asks again some time after one could take its
place: of followers that come back the node is heard of here a little before the replica is there.

It is not elected in the other's place, nor are those that asked before it: until their logs show that a later leader
reached them, or long enough after they last asked. So where nobody hears anybody the leaders of a shard do not take
turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from .election import ReplicaProgress, choose_successor
from .state import ClusterState, Shard

Reports = Mapping[str, Mapping[int, ReplicaProgress]]


@dataclass(frozen=True, slots=True)
class DeafTiming:
    """``ask_s``: how often such a leader asks, in seconds. All else follows from it."""

    ask_s: float = 0.5

    @property
    def sure_s(self) -> float:
        """So long after another could lead a leader must still ask: it must have asked once more."""
        return 0.8 * self.ask_s

    @property
    def fresh_s(self) -> float:
        """A leader that does not ask again within this time hears the others again."""
        return 3 * self.ask_s

    @property
    def forget_s(self) -> float:
        """So long after it last asked, a leader may be elected again."""
        return 60 * self.ask_s


class _Said(NamedTuple):
    epoch: int
    at: float


class DeafLeaders:
    """One for each leadership of the control plane."""

    def __init__(self, timing: DeafTiming = DeafTiming()) -> None:
        self._timing = timing
        self._said: dict[int, dict[str, _Said]] = {}
        self._replaceable: dict[int, float] = {}

    def say(self, shard: int, node: str, epoch: int, now: float) -> None:
        """``node`` leads ``epoch`` of the shard, or is to, and hears too few."""
        self._said.setdefault(shard, {})[node] = _Said(epoch, now)

    def successors(self, state: ClusterState, alive: Set[str], reports: Reports, now: float) -> dict[int, str]:
        """Who is to lead now, for each shard whose leader of today asks for another and that has one."""
        found = {}
        for id in list(self._said):
            shard = state.shards[id]
            known = {node: shards[id] for node, shards in reports.items() if id in shards}
            said = self._said[id] = {
                node: last
                for node, last in self._said[id].items()
                if now - last.at < self._timing.forget_s and not (node in known and known[node].epoch > last.epoch)
            }
            asks = self._asks(shard, said, now)
            others = alive - said.keys()
            successor = choose_successor(shard, others, known, state.settings.min_in_sync) if asks else None
            if asks is None or successor is None:
                self._replaceable.pop(id, None)
            elif asks.at - self._replaceable.setdefault(id, now) >= self._timing.sure_s:
                found[id] = successor
            if not said:
                del self._said[id]
        return found

    def _asks(self, shard: Shard, said: Mapping[str, _Said], now: float) -> _Said | None:
        last = said.get(shard.leader or "")
        return last if last is not None and last.epoch == shard.epoch and now - last.at < self._timing.fresh_s else None

"""How patient a voter is: as configured, or as its disk and its interpreter need. Pure.

An election costs each voter one durable write, so a candidate that does not wait for some of them never wins; and a
voter whose thread comes late takes a living leader for dead. Both are measured here.
"""

from __future__ import annotations

from collections import deque

from lsmq import runtime

from .raft_terms import RaftTiming

_REMEMBERED = 64
#: A vote waits for a write under way, then for its own; a third for messages and unevenness.
_SYNCS_PER_ELECTION = 3.0
#: A sign of life passes two threads that may both be late.
_DELAYS_PER_ELECTION = 4.0
_MAX_BACK_OFF = 3


class RaftPace:
    def __init__(self, timing: RaftTiming, random: runtime.Random) -> None:
        self._timing, self._random = timing, random
        self._syncs: deque[float] = deque(maxlen=_REMEMBERED)
        self._delays: deque[float] = deque(maxlen=_REMEMBERED)
        self._peers: dict[str, float] = {}

    def synced(self, took_s: float) -> None:
        """A write to this voter's disk took so long."""
        self._syncs.append(took_s)

    def peers_asked(self) -> None:
        """Another round begins: what peers said of their disks before may be so no more, and some may be gone."""
        self._peers.clear()

    def peer_synced(self, peer: str, took_s: float) -> None:
        """What a peer says of its disk in this round."""
        self._peers[peer] = took_s

    def ticked(self, late_s: float) -> None:
        """The thread came so much later than it meant to."""
        self._delays.append(late_s)

    @property
    def sync_s(self) -> float:
        """The longest of the latest syncs: close to the 99th percentile, and never below it."""
        return max(self._syncs, default=0.0)

    @property
    def shortest_s(self) -> float:
        """No election begins sooner after the leader was heard."""
        slow = max(_SYNCS_PER_ELECTION * self.sync_s, _DELAYS_PER_ELECTION * max(self._delays, default=0.0))
        return min(max(self._timing.election_min_s, slow), self._timing.patience_s)

    def election_s(self) -> float:
        """When to call an election after the leader was heard: another time at each call."""
        timing = self._timing
        spread = timing.election_max_s / timing.election_min_s - 1
        return self.shortest_s * (1 + spread * self._random.random())

    def question_s(self, failed: int) -> float:
        """How long to wait for answers to a pre-vote, which need no disk, after ``failed`` rounds."""
        longer = self.shortest_s * self._random.uniform(0.5, 1.0) * (1 << min(failed, _MAX_BACK_OFF))
        return min(longer, self._timing.patience_s * self._random.uniform(0.7, 1.0))

    def round_s(self, failed: int) -> float:
        """How long a candidate waits for votes, after ``failed`` rounds that came to nothing."""
        slowest = _SYNCS_PER_ELECTION * max(self._peers.values(), default=0.0)
        longer = self.election_s() * (1 << min(failed, _MAX_BACK_OFF))
        return max(min(longer, self._timing.patience_s * self._random.uniform(0.7, 1.0)), slowest)

    def turn_s(self, place: int, voters: int) -> float:
        """When the voter at ``place`` of those left calls an election, the leader's connection having broken."""
        turn = (place + self._random.uniform(0.1, 0.6)) / max(2, voters)
        return turn * self._timing.election_min_s * 0.7

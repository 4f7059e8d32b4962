"""What only a leader keeps: how far each of the others is, what to send it, what is committed. Pure.

Entries leave at once, before they are on the leader's own disk, and the next ones before the former were answered;
an answer that does not fit says where to go on. Signs of life leave every ``heartbeat_s`` whatever any disk does. Who
is behind the log's beginning gets the snapshot, a part at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import crc32c

from .raft_log import RaftLog
from .raft_membership import Electorate
from .raft_messages import MAX_ENTRIES, AppendAnswer, AppendEntries, SnapshotAnswer, SnapshotPart
from .raft_terms import MAX_SNAPSHOT_BYTES, RaftEntry, RaftTiming

MAX_APPEND_BYTES = 1 << 20
#: Sent to one voter and not answered yet.
MAX_UNANSWERED_BYTES = 4 << 20
PART_BYTES = 512 << 10
_PART_AGAIN_S = 1.0
#: Who has all but so many entries has caught up: they take a moment.
MAX_BEHIND = 64

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot to send."""

    index: int
    term: int
    content: bytes
    checksum: int


@dataclass(slots=True)
class FollowerProgress:
    """``next``: the first entry not sent yet. ``matched``: the last one known to be durable there."""

    next: int
    heard: float
    matched: int = 0
    stamp: float = -math.inf
    #: Where the next part of the snapshot begins, and when the one before left.
    wanted: int = 0
    part_sent: float = -math.inf
    #: Since when it is known to have what was committed before this leadership; and that it has answered since.
    filled: float = math.inf
    whole: bool = False


class Leading:
    """One leadership, from the election on; ``first`` is the entry with which its term begins."""

    def __init__(
        self, name: str, term: int, log: RaftLog, membership: Electorate, timing: RaftTiming, now: float
    ) -> None:
        self.term, self.first = term, log.last_index + 1
        self._name, self._log, self._timing = name, log, timing
        self._peers: dict[str, FollowerProgress] = {}
        self.set_membership(membership, now)
        self._beat = -math.inf
        self._offer: Offer | None = None
        #: Since when followers are told that they have held all that was committed, once they do.
        self._whole_since = math.inf

    @property
    def next_beat(self) -> float:
        return self._beat

    def set_membership(self, membership: Electorate, now: float) -> None:
        """Who is sent the log from now on, and who counts. A leader that does not vote does not count itself."""
        self._voting = membership.voting
        for peer in sorted(membership.addresses - self._peers.keys() - {self._name}):
            self._peers[peer] = FollowerProgress(self._log.last_index + 1, now)
        for peer in sorted(self._peers.keys() - membership.addresses):
            del self._peers[peer]

    def sends_to(self, peer: str) -> bool:
        return peer in self._peers

    # Sending

    def messages(self, now: float, commit: int, whole: bool) -> Iterator[tuple[str, AppendEntries | SnapshotPart]]:
        """What should leave: signs of life when it is time, and entries that did not leave yet."""
        beat = now >= self._beat
        if whole and commit >= self.first:
            self._whole_since = min(self._whole_since, now)
        if beat:
            self._beat = now + self._timing.heartbeat_s
        for peer, progress in self._peers.items():
            if progress.next <= self._log.base_index:
                message = self._part(progress, now, whole, beat)
                if message is not None:
                    yield peer, message
                continue
            entries = self._entries(progress)
            if entries or beat:
                previous = progress.next - 1
                term = self._log.term_at(previous)
                assert term is not None, f"the leader sends from {previous}, where its log does not reach"
                progress.next += len(entries)
                yield peer, AppendEntries(self.term, previous, term, entries, commit, now, whole)

    def _entries(self, progress: FollowerProgress) -> tuple[RaftEntry, ...]:
        last = progress.next - 1
        if last >= self._log.last_index:
            return ()
        if progress.matched and self._log.bytes_between(progress.matched, last) > MAX_UNANSWERED_BYTES:
            return ()
        return self._log.after(last, MAX_APPEND_BYTES, MAX_ENTRIES)

    def _part(self, progress: FollowerProgress, now: float, whole: bool, beat: bool) -> SnapshotPart | None:
        offer = self._offer
        if offer is None or offer.index < self._log.base_index:
            # None is made yet, or not one that the log continues: a sign of life meanwhile.
            return SnapshotPart(self.term, 0, 0, 0, 0, 0, b"", now, whole) if beat else None
        part = b""
        if now - progress.part_sent > _PART_AGAIN_S:
            part = offer.content[progress.wanted : progress.wanted + PART_BYTES]
            progress.part_sent = now
        if not part and not beat:
            return None
        total, index = len(offer.content), offer.index
        return SnapshotPart(self.term, index, offer.term, total, offer.checksum, progress.wanted, part, now, whole)

    # The snapshot

    def wants_snapshot(self) -> bool:
        """Whether somebody is so far behind that only a snapshot helps, and none is at hand. One that nobody needs any
        more is forgotten."""
        behind = any(progress.next <= self._log.base_index for progress in self._peers.values())
        if not behind:
            self._offer = None
        return behind and (self._offer is None or self._offer.index < self._log.base_index)

    def offer(self, index: int, term: int, content: bytes) -> None:
        """Have this snapshot sent to whoever needs one."""
        assert len(content) <= MAX_SNAPSHOT_BYTES, f"a snapshot of {len(content)} bytes"
        self._offer = Offer(index, term, content, crc32c.crc32c(content))
        for progress in self._peers.values():
            progress.wanted, progress.part_sent = 0, -math.inf

    # Answers

    def appended(self, peer: str, answer: AppendAnswer, now: float) -> None:
        progress = self._peers[peer]
        self._heard(progress, answer.stamp, now)
        if answer.ok:
            progress.matched = max(progress.matched, min(answer.matched, self._log.last_index))
            if progress.matched >= self.first:
                progress.filled = min(progress.filled, now)
            progress.whole |= answer.stamp >= max(progress.filled, self._whole_since)
            progress.next = max(progress.next, progress.matched + 1)
        else:
            progress.next = max(progress.matched, min(answer.hint, self._log.last_index)) + 1

    def part_taken(self, peer: str, answer: SnapshotAnswer, now: float) -> None:
        progress = self._peers[peer]
        self._heard(progress, answer.stamp, now)
        if self._offer is not None and answer.index == self._offer.index:
            if answer.wanted != progress.wanted:
                progress.part_sent = -math.inf
            progress.wanted = min(answer.wanted, len(self._offer.content))

    def _heard(self, progress: FollowerProgress, stamp: float, now: float) -> None:
        progress.heard = now
        if stamp <= now:
            progress.stamp = max(progress.stamp, stamp)

    def lost(self, peer: str) -> None:
        """The connection broke: what was under way may not have arrived."""
        progress = self._peers[peer]
        progress.next = min(progress.next, max(progress.matched, self._log.base_index) + 1)
        progress.part_sent = -math.inf

    def reborn(self, peer: str) -> None:
        """The peer was started anew: what it had acknowledged may be gone with its disk."""
        progress = self._peers[peer]
        progress.matched = progress.wanted = 0
        progress.filled, progress.whole = math.inf, False
        self.lost(peer)

    def forgive(self, now: float) -> None:
        """This process was paused: nobody could be heard."""
        for progress in self._peers.values():
            progress.heard = max(progress.heard, now - self._timing.fallback_s / 2)

    # What follows from them

    def _of_voters(self, own: T, of: Callable[[FollowerProgress], T]) -> list[T]:
        """Something of each who votes; ``own`` is this leader's."""
        return [own if voter == self._name else of(self._peers[voter]) for voter in self._voting]

    def committed(self, durable: int) -> int:
        """The last entry that a majority, by what is known here, has on disk."""
        reached = sorted(self._of_voters(durable, lambda progress: progress.matched))
        return reached[len(reached) - majority(len(reached))]

    def followed_since(self, now: float) -> float:
        """The latest moment at which a majority is known to have followed."""
        moments = sorted(self._of_voters(now, lambda progress: progress.stamp))
        return moments[len(moments) - majority(len(moments))]

    def has_majority(self, since: float) -> bool:
        heard = sum(self._of_voters(True, lambda progress: progress.heard >= since))
        return heard >= majority(len(self._voting))

    def all_caught_up(self) -> bool:
        """Whether every voter has what was committed before this leadership."""
        return all(self._of_voters(True, lambda progress: progress.matched >= self.first))

    def heard_since(self, since: float) -> frozenset[str]:
        """Who has answered since then."""
        return frozenset(peer for peer, progress in self._peers.items() if progress.heard >= since)

    def caught_up(self, since: float) -> frozenset[str]:
        """Of those, who has the log on its disk, but for what is under way, and knows that it is whole where this
        leader is: who does not know it helps nobody who is to be elected."""
        end = max(self._log.last_index - MAX_BEHIND, self.first)
        unknown = self._whole_since == math.inf
        ready = {peer for peer, progress in self._peers.items() if progress.whole or unknown}
        return frozenset(peer for peer in self.heard_since(since) & ready if self._peers[peer].matched >= end)


def majority(voters: int) -> int:
    return voters // 2 + 1

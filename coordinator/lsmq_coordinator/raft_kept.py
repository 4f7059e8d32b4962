"""What a voter keeps: its log, its term and vote, its life, and the writes that make them durable. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lsmq import runtime

from .raft_log import RaftLog
from .raft_membership import Electorate, Electorates, unwrapped, wrapped
from .raft_outbox import Outbox, SaveCut, SaveEntry, SaveSnapshot, SaveState
from .raft_terms import Loaded, RaftEntry, Snapshot

#: Entries kept behind a snapshot, in memory, for voters that are a little late.
KEPT_ENTRIES, KEPT_BYTES = 1_024, 1 << 20
#: Entries not yet on this voter's disk. Beyond, a leader takes no commands and a follower no entries.
MAX_UNWRITTEN_BYTES = 8 << 20
#: Entries not yet committed. Beyond, a leader takes no commands.
MAX_UNCOMMITTED_BYTES = 8 << 20
#: Of more voters that ever were no lives are remembered but of those who are.
MAX_LIVES = 32
#: More than there can be.
ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Restore:
    """The state machine is to become what a snapshot holds."""

    index: int
    content: bytes


class RaftKept:
    """Invariant: ``applied <= commit <= log.last_index``; what is at most ``durable`` is on this voter's disk."""

    def __init__(self, loaded: Loaded, random: runtime.Random, configured: Electorate) -> None:
        """``configured``: who votes where neither snapshot nor log says it."""
        self._random, self._configured = random, configured
        base = unwrapped(loaded.snapshot or b"")[0] or configured
        self.memberships = Electorates(loaded.snapshot_index, base, loaded.entries)
        self.log = RaftLog(loaded.snapshot_index, loaded.snapshot_term, loaded.entries)
        self.state = replace(loaded.state, term=max(loaded.state.term, self.log.last_term))
        self.durable = self.log.last_index
        self.commit = max(self.log.base_index, min(loaded.commit, self.log.last_index))
        self.applied = self.log.base_index
        self._restore: Restore | None = None
        self.outbox = Outbox()
        #: The write that holds the present term and vote.
        self.state_write = 0
        self._begin_life(self.state.life[0] + 1)

    @property
    def state_written(self) -> bool:
        return self.state_write <= self.outbox.written

    @property
    def overloaded(self) -> bool:
        """Whether so much waits for this voter's disk that no more is taken."""
        return self.outbox.unwritten_bytes > MAX_UNWRITTEN_BYTES

    @property
    def undecided(self) -> bool:
        """Whether so much waits for a majority's disks that no more is taken."""
        return self.log.bytes_between(self.commit, self.log.last_index) > MAX_UNCOMMITTED_BYTES

    def written(self, number: int) -> None:
        self.durable = max(self.durable, self.outbox.done(number))
        assert self.durable <= self.log.last_index, f"{self.durable} is durable of a log up to {self.log.last_index}"

    # The log

    def add(self, entry: RaftEntry) -> None:
        self.log.append(entry)
        self.memberships.add(entry)
        self.outbox.write(SaveEntry(entry))

    def cut(self, first: int) -> None:
        """Drop the entries from ``first`` on, none of which is committed."""
        assert first > self.commit, f"entry {first} of {self.commit} committed ones is to be cut"
        self.log.cut(first)
        self.memberships.cut(first)
        self.durable = min(self.durable, first - 1)
        self.outbox.write(SaveCut(first))

    def commit_to(self, index: int) -> None:
        self.commit = max(self.commit, index)
        assert self.commit <= self.log.last_index, f"{index} is committed of a log up to {self.log.last_index}"

    def snapshot(self, encode: Callable[[], bytes]) -> Snapshot:
        """Of what was applied. ``encode`` gives the state machine's state then, and may be called in any thread."""
        term, membership = self.log.term_at(self.applied), self.memberships.at(self.applied)
        assert term is not None, f"entry {self.applied} was applied and is not in the log"
        return Snapshot(self.applied, term, lambda: wrapped(membership, encode()))

    def compact(self, snapshot: Snapshot) -> None:
        """The snapshot takes the place of the log up to it: on disk at once, in memory but for the latest entries."""
        assert snapshot.index <= self.applied, f"a snapshot of {snapshot.index}, applied is {self.applied}"
        self.outbox.write(SaveSnapshot(snapshot, self.state, self.log.after(snapshot.index, ALL, ALL)))
        index = max(self.log.base_index, snapshot.index - KEPT_ENTRIES)
        if self.log.bytes_between(index, snapshot.index) > KEPT_BYTES:
            index = snapshot.index
        if index > self.log.base_index:
            self.log.compact(index)
            self.memberships.forget_below(index)

    def install(self, index: int, term: int, content: bytes) -> None:
        """A leader's snapshot takes the place of what it covers."""
        assert index > self.commit, f"a snapshot of {index} brings nothing to {self.commit} committed entries"
        self.durable = min(self.durable, self.commit)
        self.log.restart(index, term)
        entries = self.log.after(index, ALL, ALL)
        number = self.outbox.write(SaveSnapshot(Snapshot(index, term, lambda: content), self.state, entries))
        self.outbox.written_with(number, (RaftEntry(index, term, b""), *entries))
        self.commit = self.applied = index
        membership, state = unwrapped(content)
        self.memberships = Electorates(index, membership or self._configured, entries)
        self._restore = Restore(index, state)

    def take_committed(self) -> list[RaftEntry | Restore]:
        """What is to be applied, in order."""
        taken: list[RaftEntry | Restore] = [] if self._restore is None else [self._restore]
        self._restore = None
        taken += self.log.after(self.applied, ALL, self.commit - self.applied)
        self.applied = self.commit
        return taken

    # Term, vote, marks

    def save(self, **changes: Any) -> None:
        """Change the :class:`~.raft_terms.HardState`: one write."""
        term, vote = self.state.term, self.state.vote
        self.state = replace(self.state, **changes)
        assert self.state.term >= term, f"the term falls from {term} to {self.state.term}"
        number = self.outbox.write(SaveState(self.state))
        if (self.state.term, self.state.vote) != (term, vote):
            self.state_write = number
        if self.state.term > term:
            self.outbox.forget_below(self.state.term)

    def become_whole(self) -> None:
        """All voters have once caught up. So has this one when an entry of the present term is committed here: it
        has all committed entries before it."""
        if not self.state.whole and self.log.term_at(self.commit) == self.state.term > 0:
            self.save(whole=True)

    # Lives

    def went_back(self, told: tuple[int, str] | None) -> bool:
        """Whether a peer knows a later life of this voter: its disk is a copy of what it was. If so, it begins another
        life, as one that does not know what it promised."""
        if told is None or not _earlier(self.state.life, told):
            return False
        self.save(whole=False)
        self._begin_life(told[0] + 1)
        return True

    def know(self, peer: str, life: tuple[int, str]) -> bool | None:
        """A peer introduced its life: True when it is a new one, None when it is one before what is known."""
        known = self.state.lives.get(peer)
        if known is not None and _earlier(life, known):
            return None
        if known == life:
            return False
        lives = {**self.state.lives, peer: life}
        if len(lives) > MAX_LIVES:  # Voters come and go: who votes no more was never asked for what it promised.
            there = frozenset((peer,)).union(*(known.addresses for known in self.memberships.since(self.commit)))
            lives = {known: lives[known] for known in lives if known in there}
        self.save(lives=MappingProxyType(lives))
        return True

    def _begin_life(self, count: int) -> None:
        self.save(life=(count, f"{self._random.getrandbits(64):016x}"))


def _earlier(life: tuple[int, str], known: tuple[int, str]) -> bool:
    return life[0] < known[0] or (life[0] == known[0] and life[1] != known[1])

"""What a follower does with what a leader sends: the AppendEntries rule, and putting a snapshot together. Pure.

As in section 5.3 of the Raft paper, entries go only where one conflicts, never because a late or repeated message ends
before the log does. The commit index is held to what a message proves equal to the leader's log.
"""

from __future__ import annotations

from dataclasses import dataclass

import crc32c

from .raft_log import RaftLog
from .raft_messages import AppendEntries, SnapshotPart
from .raft_terms import RaftEntry


class Diverged(Exception):
    """A leader wants committed entries replaced: a voter lost its log, or two clusters share addresses."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: this voter and the leader have agreed on different clusters. All voters are restored from one "
            "backup, or none: see which of them have the right data directory, and begin with empty ones at the others"
        )


@dataclass(frozen=True, slots=True)
class AppendVerdict:
    """``proven``: the last entry that the message proves equal, None when it does not fit: try after ``hint``.
    Entries from ``cut`` on go, ``entries`` come."""

    proven: int | None
    hint: int = 0
    cut: int | None = None
    entries: tuple[RaftEntry, ...] = ()


def judge_append(message: AppendEntries, log: RaftLog, commit: int) -> AppendVerdict:
    """What an AppendEntries means for a log. Raises ``Diverged`` when a committed entry would go."""
    previous, entries = message.previous, message.entries
    if previous < log.base_index:
        # What the snapshot stands for is committed, and so equal.
        entries = entries[log.base_index - previous :]
        covered = message.entries[: log.base_index - previous][-1:]
        if covered and covered[0].index == log.base_index and covered[0].term != log.base_term:
            raise _diverged(log.base_index, log.base_term, covered[0].term)
        if not entries:
            return AppendVerdict(min(previous + len(message.entries), log.base_index))
        previous = log.base_index
        if entries[0].index != previous + 1:
            raise Diverged(f"entries from {entries[0].index} on were sent behind {message.previous}")
    elif (known := log.term_at(previous)) != message.previous_term:
        if known is not None and previous <= commit:
            raise _diverged(previous, known, message.previous_term)
        return AppendVerdict(None, hint=_before_term(log, previous, known, commit))
    same = 0
    while same < len(entries) and log.term_at(entries[same].index) == entries[same].term:
        same += 1
    rest = entries[same:]
    proven = previous + len(entries)
    if not rest:
        return AppendVerdict(proven)
    first = rest[0].index
    if first <= commit:
        raise _diverged(first, log.term_at(first), rest[0].term)
    return AppendVerdict(proven, cut=first if first <= log.last_index else None, entries=rest)


def _diverged(index: int, known: int | None, said: int) -> Diverged:
    return Diverged(f"entry {index} is committed with term {known}, not {said}")


def _before_term(log: RaftLog, previous: int, known: int | None, commit: int) -> int:
    """Where the leader should try next: the end of the log, or before the whole term that conflicts."""
    if known is None:
        return log.last_index
    index = previous - 1
    while index > commit and log.term_at(index) == known:
        index -= 1
    return index


class Assembly:
    """A snapshot that comes in parts. Holds one at a time, of limited size (``MAX_SNAPSHOT_BYTES``)."""

    def __init__(self) -> None:
        self._what: tuple[int, int, int, int, int] | None = None
        self._content = bytearray()

    def add(self, message: SnapshotPart) -> tuple[int, bytes | None]:
        """Where the next part should begin, and the content once it is whole and its sum is right."""
        what = (message.term, message.index, message.index_term, message.total, message.checksum)
        if what != self._what:
            self._what, self._content = what, bytearray()
        if message.offset == len(self._content):
            self._content += message.part
        if len(self._content) < message.total:
            return len(self._content), None
        content = bytes(self._content)
        self.drop()
        if crc32c.crc32c(content) != message.checksum:
            return 0, None
        return len(content), content

    def drop(self) -> None:
        self._what, self._content = None, bytearray()

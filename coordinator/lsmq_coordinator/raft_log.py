"""A voter's log in memory: the entries behind a base, which a snapshot stands for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .raft_terms import RaftEntry

#: What an entry takes besides its command, about.
ENTRY_BYTES = 29


class RaftLog:
    """Invariant: indexes count up by one from the base, terms never fall, committed entries are never cut."""

    def __init__(self, base_index: int, base_term: int, entries: Iterable[RaftEntry] = ()) -> None:
        self.base_index, self.base_term = base_index, base_term
        self._entries: list[RaftEntry] = []
        #: Bytes of all entries ever appended, up to and with each; differences are what counts.
        self._ends: list[int] = []
        self._start_bytes = 0
        for entry in entries:
            self.append(entry)

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def size_bytes(self) -> int:
        return self._end_of(self.last_index) - self._start_bytes

    def term_at(self, index: int) -> int | None:
        """The term of the entry at ``index``; None when the log does not reach there, or no longer."""
        if index == self.base_index:
            return self.base_term
        position = index - self.base_index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def bytes_between(self, after: int, last: int) -> int:
        """Bytes of the entries ``(after, last]``."""
        return self._end_of(last) - self._end_of(max(after, self.base_index))

    def _end_of(self, index: int) -> int:
        position = index - self.base_index
        return self._ends[position - 1] if position > 0 else self._start_bytes

    def append(self, entry: RaftEntry) -> None:
        assert entry.index == self.last_index + 1, f"entry {entry.index} does not follow entry {self.last_index}"
        assert entry.term >= self.last_term, f"entry {entry.index} falls from term {self.last_term} to {entry.term}"
        self._ends.append(self._end_of(self.last_index) + len(entry.command) + ENTRY_BYTES)
        self._entries.append(entry)

    def after(self, index: int, max_bytes: int, max_count: int) -> tuple[RaftEntry, ...]:
        """Entries behind ``index``, which is not below the base: at least one, where there is one."""
        assert index >= self.base_index, f"entries from {index} on are no longer there"
        first = index - self.base_index
        end, limit = first, self._end_of(index) + max_bytes
        while end < len(self._entries) and end - first < max_count and (end == first or self._ends[end] <= limit):
            end += 1
        return tuple(self._entries[first:end])

    def cut(self, first: int) -> None:
        """Drop the entries from ``first`` on."""
        assert first > self.base_index, f"entry {first} is below the snapshot {self.base_index}"
        del self._entries[first - self.base_index - 1 :]
        del self._ends[first - self.base_index - 1 :]

    def compact(self, index: int) -> None:
        """Drop the entries up to ``index``, for which a snapshot stands from now on."""
        term = self.term_at(index)
        assert term is not None, f"there is no entry {index} to make the base"
        dropped = index - self.base_index
        self._start_bytes = self._end_of(index)
        del self._entries[:dropped]
        del self._ends[:dropped]
        self.base_index, self.base_term = index, term

    def restart(self, index: int, term: int) -> None:
        """Another snapshot takes the place of what it covers; entries behind it stay where they continue it."""
        if self.term_at(index) == term:
            self.compact(index)
            return
        self.base_index, self.base_term, self._start_bytes = index, term, 0
        self._entries.clear()
        self._ends.clear()

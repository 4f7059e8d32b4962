"""What leaves a voter's state machine: writes for its disk, and messages, some of which wait for writes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .raft_log import ENTRY_BYTES
from .raft_messages import RaftMessage
from .raft_terms import HardState, RaftEntry, Snapshot


@dataclass(frozen=True, slots=True)
class SaveEntry:
    entry: RaftEntry


@dataclass(frozen=True, slots=True)
class SaveCut:
    """The entries from ``first`` on are no longer part of the log."""

    first: int


@dataclass(frozen=True, slots=True)
class SaveState:
    state: HardState


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """All there is to keep: it takes the place of everything written before."""

    snapshot: Snapshot
    state: HardState
    entries: tuple[RaftEntry, ...]


Write = SaveEntry | SaveCut | SaveState | SaveSnapshot


class Outbox:
    """Writes are numbered from 1 and become durable in order.

    Messages that wait are bounded: for each receiver only the newest of a kind is kept, which says all that the one
    before said.
    """

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self.queued = self.written = 0
        #: Entries that are not durable yet, in the order of their writes.
        self._entries: list[tuple[int, RaftEntry]] = []
        self.unwritten_bytes = 0
        self._ready: list[tuple[str, RaftMessage]] = []
        self._held: dict[tuple[str, type[RaftMessage]], tuple[int, RaftMessage]] = {}

    # Writes

    def write(self, write: Write) -> int:
        """The number of the write."""
        self._writes.append(write)
        self.queued += 1
        match write:
            case SaveEntry(entry):
                self._entries.append((self.queued, entry))
                self.unwritten_bytes += _size(entry)
            case SaveCut(first):
                self._keep([(number, entry) for number, entry in self._entries if entry.index < first])
            case SaveState() | SaveSnapshot():
                pass
        return self.queued

    def written_with(self, number: int, entries: tuple[RaftEntry, ...]) -> None:
        """These are what of the log is not durable before the write ``number`` is."""
        self._keep([(number, entry) for entry in entries])

    def _keep(self, entries: list[tuple[int, RaftEntry]]) -> None:
        self._entries = entries
        self.unwritten_bytes = sum(_size(entry) for _, entry in entries)

    def done(self, number: int) -> int:
        """The writes up to ``number`` are durable: the last entry that became so, 0 when none did."""
        assert self.written <= number <= self.queued, (
            f"write {number} of {self.queued} is reported after {self.written}"
        )
        self.written = number
        count = 0
        while count < len(self._entries) and self._entries[count][0] <= number:
            self.unwritten_bytes -= _size(self._entries[count][1])
            count += 1
        last = self._entries[count - 1][1].index if count else 0
        del self._entries[:count]
        for key, (after, message) in list(self._held.items()):
            if after <= number:
                del self._held[key]
                self._ready.append((key[0], message))
        return last

    def take_writes(self) -> tuple[list[Write], int]:
        """What is to be written, in order, and the number to report when it is."""
        taken, self._writes = self._writes, []
        return taken, self.queued

    # Messages

    def send(self, receiver: str, message: RaftMessage, after: int = 0) -> None:
        """Let a message go once the write ``after`` is durable."""
        key = (receiver, type(message))
        if after > self.written:
            self._held[key] = after, message
        else:
            self._held.pop(key, None)
            self._ready.append((receiver, message))

    def forget_below(self, term: int) -> None:
        """What waits and was to be said in an earlier term is not worth saying."""
        self._held = {key: held for key, held in self._held.items() if held[1].term >= term}

    def take_messages(self) -> list[tuple[str, RaftMessage]]:
        taken, self._ready = self._ready, []
        return taken


def _size(entry: RaftEntry) -> int:
    return len(entry.command) + ENTRY_BYTES

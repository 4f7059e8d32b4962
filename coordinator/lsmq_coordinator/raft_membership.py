"""Who votes: a value, and how the log and the snapshots of Raft carry it. Pure.

As in chapter 4 of the Raft thesis an entry of the log says who votes from there on: for whoever has it in its log,
committed or not. Each differs from the one before by one voter, so that majorities of both meet. Until the first such
entry the voters are those of the configuration.

An entry that says who votes is :data:`MARK` and then a command of the state machine with a ``membership``; a snapshot
behind one is :data:`MARK`, a length (4, little-endian), the membership that holds at its end as msgpack, and the state.
No value of msgpack begins with :data:`MARK`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgpack

from .raft_terms import RaftEntry

MARK = b"\xc1"
_LENGTH = struct.Struct("<I")


def _nobody() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Electorate:
    """Ids of nodes with Raft's ``host:port`` of each. ``learners`` are sent the log and do not vote.

    ``number`` grows by one with each change; 0: as configured. ``old`` and ``new``: whose place is to be taken by whom,
    until that is done.
    """

    number: int
    voters: Mapping[str, str]
    learners: Mapping[str, str] = field(default_factory=_nobody)
    old: str | None = None
    new: str | None = None

    @property
    def voting(self) -> frozenset[str]:
        """The addresses of those who vote."""
        return frozenset(self.voters.values())

    @property
    def addresses(self) -> frozenset[str]:
        """Of all who are sent the log."""
        return frozenset((*self.voters.values(), *self.learners.values()))

    def has(self, node: str) -> bool:
        return node in self.voters or node in self.learners

    def follows(self, former: Electorate) -> bool:
        """Whether it may come after ``former``: their majorities meet."""
        return self.number == former.number + 1 and len(self.voting ^ former.voting) <= 1 and bool(self.voters)

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "voters": {id: self.voters[id] for id in sorted(self.voters)},
            "learners": {id: self.learners[id] for id in sorted(self.learners)},
            "old": self.old,
            "new": self.new,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Electorate:
        voters, learners = MappingProxyType(dict(fields["voters"])), MappingProxyType(dict(fields["learners"]))
        return cls(fields["number"], voters, learners, fields["old"], fields["new"])


def marked(packed: bytes) -> bytes:
    """A packed command with a ``membership``, as an entry that says who votes."""
    return MARK + packed


def unmarked(command: bytes) -> bytes:
    """The packed command of an entry, whether or not it says who votes."""
    return command.removeprefix(MARK)


def membership_in(command: bytes) -> Electorate | None:
    """Who votes from this entry on; None where it does not say."""
    if not command.startswith(MARK):
        return None
    return Electorate.from_dict(msgpack.unpackb(command[len(MARK) :])["membership"])


def wrapped(membership: Electorate, content: bytes) -> bytes:
    """A snapshot's content with who votes at its end; as it is where the configuration says that."""
    if membership.number == 0:
        return content
    packed = msgpack.packb(membership.to_dict())
    return b"".join((MARK, _LENGTH.pack(len(packed)), packed, content))


def unwrapped(content: bytes) -> tuple[Electorate | None, bytes]:
    """The inverse of :func:`wrapped`; None where the configuration says who votes."""
    if not content.startswith(MARK):
        return None, content
    begin = len(MARK) + _LENGTH.size
    end = begin + _LENGTH.unpack_from(content, len(MARK))[0]
    return Electorate.from_dict(msgpack.unpackb(content[begin:end])), content[end:]


class Electorates:
    """Those that a log says, each with the index of its entry; the first holds where the log begins, or before.

    What is committed is never cut, and the configuration's is below all.
    """

    def __init__(self, base_index: int, base: Electorate, entries: Iterable[RaftEntry] = ()) -> None:
        self._known = [(base_index, base)]
        for entry in entries:
            self.add(entry)

    @property
    def latest(self) -> Electorate:
        """The one that counts."""
        return self._known[-1][1]

    @property
    def latest_index(self) -> int:
        return self._known[-1][0]

    def at(self, index: int) -> Electorate:
        """The one that holds after the entry ``index``, which is not below the base."""
        return next(known for first, known in reversed(self._known) if first <= index)

    def since(self, index: int) -> list[Electorate]:
        """That which holds after ``index``, and all later ones."""
        return [self.at(index), *(known for first, known in self._known if first > index)]

    def add(self, entry: RaftEntry) -> None:
        found = membership_in(entry.command)
        if found is not None:
            self._known.append((entry.index, found))

    def cut(self, first: int) -> None:
        """The entries from ``first`` on are no longer part of the log."""
        while len(self._known) > 1 and self._known[-1][0] >= first:
            self._known.pop()

    def forget_below(self, index: int) -> None:
        """What held before ``index`` is not asked for any more."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            self._known.pop(0)

"""What voters say to each other: nine kinds of messages, and their form in a frame.

In a frame a message is a msgpack list: its number in ``_KINDS``, then its fields in order. Numbers are never given
anew. ``term`` is always the sender's. ``stamp`` is the leader's monotonic clock when it sent, echoed by what answers:
so a leader knows until when it was followed.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields, replace
from typing import Any

from .raft_terms import MAX_COMMAND_BYTES, MAX_SNAPSHOT_BYTES, RaftEntry

MAX_ENTRIES = 1_024


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in ``candidate_term``? Costs nobody a write and raises nobody's term."""

    term: int
    candidate_term: int
    last_index: int
    last_term: int
    whole: bool


@dataclass(frozen=True, slots=True)
class PreVoteAnswer:
    """``sync_s``: how long the voter's disk takes for a vote; the candidate waits accordingly."""

    term: int
    candidate_term: int
    granted: bool
    sync_s: float


@dataclass(frozen=True, slots=True)
class Vote:
    term: int
    last_index: int
    last_term: int
    whole: bool


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Entries behind ``previous``; none in a mere sign of life."""

    term: int
    previous: int
    previous_term: int
    entries: tuple[RaftEntry, ...]
    commit: int
    stamp: float
    whole: bool


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """``matched``: what is durable here and equal to the leader's log. ``hint``, when not ``ok``: try from there."""

    term: int
    ok: bool
    matched: int
    hint: int
    stamp: float


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """``part`` lies at ``offset`` of the ``total`` bytes whose CRC-32C is ``checksum``; empty: a sign of life."""

    term: int
    index: int
    index_term: int
    total: int
    checksum: int
    offset: int
    part: bytes
    stamp: float
    whole: bool


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """The next part of the snapshot ``index`` should begin at ``wanted``."""

    term: int
    index: int
    wanted: int
    stamp: float


@dataclass(frozen=True, slots=True)
class Resigned:
    """The sender led ``term`` and does so no more: an election need not wait."""

    term: int


RaftMessage = (
    PreVote
    | PreVoteAnswer
    | Vote
    | VoteAnswer
    | AppendEntries
    | AppendAnswer
    | SnapshotPart
    | SnapshotAnswer
    | Resigned
)

_KINDS: dict[int, type[RaftMessage]] = {
    1: PreVote,
    2: PreVoteAnswer,
    3: Vote,
    4: VoteAnswer,
    5: AppendEntries,
    6: AppendAnswer,
    7: SnapshotPart,
    8: SnapshotAnswer,
    9: Resigned,
}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_TYPES: dict[int, list[type]] = {
    number: [typing.get_origin(hint) or hint for hint in typing.get_type_hints(kind).values()]
    for number, kind in _KINDS.items()
}
_NAMES = {kind: [entry.name for entry in fields(kind)] for kind in _NUMBERS}


def pack(message: RaftMessage) -> list[Any]:
    """The message as plain values for a frame."""
    kind = type(message)
    values = [_NUMBERS[kind], *(getattr(message, name) for name in _NAMES[kind])]
    if isinstance(message, AppendEntries):
        place = 1 + _NAMES[AppendEntries].index("entries")
        values[place] = [(entry.index, entry.term, entry.command) for entry in message.entries]
    return values


def unpack(content: Any) -> RaftMessage | None:
    """The message in a frame when it is one that voters send, of the right shape; else None."""
    if not isinstance(content, tuple) or not content or type(content[0]) is not int:
        return None
    types = _TYPES.get(content[0])
    given = content[1:]
    if types is None or [type(value) for value in given] != types:
        return None
    if any(value < 0 for value in given if type(value) is int):
        return None
    message = _KINDS[content[0]](*given)
    match message:
        case AppendEntries():
            return _checked_append(message)
        case SnapshotPart():
            fits = message.offset + len(message.part) <= message.total <= MAX_SNAPSHOT_BYTES
            return message if fits else None
        case _:
            return message


def _checked_append(message: AppendEntries) -> AppendEntries | None:
    """With entries that follow one another and never fall in term, or None."""
    entries: list[RaftEntry] = []
    index, term = message.previous, message.previous_term
    for given in message.entries:
        if not isinstance(given, tuple) or [type(value) for value in given] != [int, int, bytes]:
            return None
        entry = RaftEntry(*given)
        if entry.index != index + 1 or not term <= entry.term <= message.term or len(entry.command) > MAX_COMMAND_BYTES:
            return None
        index, term = entry.index, entry.term
        entries.append(entry)
    if len(entries) > MAX_ENTRIES:
        return None
    return replace(message, entries=tuple(entries))

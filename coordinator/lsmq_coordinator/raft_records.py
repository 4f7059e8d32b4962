"""The journal's records: what bytes a voter's writes become, and what a file's bytes mean. Pure.

A journal is :data:`MAGIC`, or :data:`MAGIC_CHANGED` where an entry or the snapshot says who votes, and then records,
little-endian. Releases that know of no changed voters refuse the second:

    ========  =====  =====================================================================
    marker      4    ``RLOG``
    length      4    of the content
    crc32c      4    of all that follows
    kind        1    :class:`JournalKind`
    durable     8    file position below which all was synced before the record was written
    content     n
    ========  =====  =====================================================================

    ========  ===  ===========================================================================================
    STATE      1   msgpack: term, vote, whole, life, lives (:class:`~.raft_terms.HardState`); the last one holds
    ENTRY      2   index (8), term (8), command
    CUT        3   index (8) of the first entry that is no longer part of the log
    SYNCED     4   commit index (8): written after a sync, so ``durable`` says what that sync made durable
    SNAPSHOT   5   index (8), term (8), state: in place of the log up to there. Only as the first record
    ========  ===  ===========================================================================================

An end that is not whole was torn by a crash before any answer rested on it: it is cut. The record behind a sync says
how far the file was durable, so a bit that flips later, in the last record too, is told from a torn write: it is
refused by name. (Until the next sync, at most a second later, a power cut may take that record away again.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import assert_never

import crc32c
import msgpack

from .raft_outbox import SaveCut, SaveEntry, SaveState
from .raft_terms import MAX_COMMAND_BYTES, MAX_SNAPSHOT_BYTES, HardState, Loaded, RaftEntry

MAGIC = b"LSMQRFT2"
#: The same, but that who votes is not what the configuration says.
MAGIC_CHANGED = b"LSMQRFT3"
MARKER = b"RLOG"
_HEADER = struct.Struct("<4sII")
_FIELDS = struct.Struct("<BQ")
_POSITION = struct.Struct("<QQ")
_INDEX = struct.Struct("<Q")
RECORD_BYTES = _HEADER.size + _FIELDS.size


class JournalKind(IntEnum):
    """Numbers reach disk: never given anew."""

    STATE = 1
    ENTRY = 2
    CUT = 3
    SYNCED = 4
    SNAPSHOT = 5


#: The most bytes of content a record may have.
_LIMITS = {
    JournalKind.STATE: 64 << 10,
    JournalKind.ENTRY: _POSITION.size + MAX_COMMAND_BYTES,
    JournalKind.CUT: _INDEX.size,
    JournalKind.SYNCED: _INDEX.size,
    JournalKind.SNAPSHOT: _POSITION.size + MAX_SNAPSHOT_BYTES,
}


@dataclass(frozen=True, slots=True)
class JournalRecord:
    kind: JournalKind
    durable: int
    content: bytes


class JournalDamaged(Exception):
    """The file does not hold what was durable. ``position`` is where it ends to make sense."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


def encode_record(kind: JournalKind, durable: int, content: bytes) -> bytes:
    assert len(content) <= _LIMITS[kind], f"a record {kind.name} of {len(content)} bytes; the limit is {_LIMITS[kind]}"
    body = _FIELDS.pack(kind, durable) + content
    return _HEADER.pack(MARKER, len(content), crc32c.crc32c(body)) + body


def encode_write(write: SaveEntry | SaveCut | SaveState, durable: int) -> bytes:
    match write:
        case SaveEntry(entry):
            return encode_record(JournalKind.ENTRY, durable, _POSITION.pack(entry.index, entry.term) + entry.command)
        case SaveCut(first):
            return encode_record(JournalKind.CUT, durable, _INDEX.pack(first))
        case SaveState(state):
            return encode_record(JournalKind.STATE, durable, _pack_state(state))
        case _:
            assert_never(write)


def encode_synced(durable: int, commit: int) -> bytes:
    return encode_record(JournalKind.SYNCED, durable, _INDEX.pack(commit))


def encode_snapshot(index: int, term: int, content: bytes) -> bytes:
    return encode_record(JournalKind.SNAPSHOT, 0, _POSITION.pack(index, term) + content)


def _pack_state(state: HardState) -> bytes:
    content = {
        "term": state.term,
        "vote": state.vote,
        "whole": state.whole,
        "life": list(state.life),
        "lives": {peer: list(life) for peer, life in sorted(state.lives.items())},
    }
    packed: bytes = msgpack.packb(content)
    return packed


def unpack_state(content: bytes) -> HardState:
    found = msgpack.unpackb(content)
    lives = MappingProxyType({peer: (count, word) for peer, (count, word) in found["lives"].items()})
    return HardState(found["term"], found["vote"], found["whole"], tuple(found["life"]), lives)


def unpack_index(content: bytes) -> int:
    """What a CUT or SYNCED record holds."""
    (index,) = _INDEX.unpack(content)
    return int(index)


def unpack_position(content: bytes) -> tuple[int, int, bytes]:
    """Index, term, and the rest, of an ENTRY or SNAPSHOT record."""
    index, term = _POSITION.unpack_from(content)
    return index, term, content[_POSITION.size :]


def read_record(content: bytes, position: int) -> tuple[JournalRecord, int] | None:
    """The record at ``position`` and where it ends, or None when none is intact there."""
    start = position + _HEADER.size
    if start + _FIELDS.size > len(content):
        return None
    marker, length, checksum = _HEADER.unpack_from(content, position)
    end = start + _FIELDS.size + length
    if marker != MARKER or end > len(content) or crc32c.crc32c(memoryview(content)[start:end]) != checksum:
        return None
    kind, durable = _FIELDS.unpack_from(content, start)
    if kind not in JournalKind.__members__.values() or length > _LIMITS[JournalKind(kind)]:
        return None
    return JournalRecord(JournalKind(kind), durable, content[start + _FIELDS.size : end]), end


def records(content: bytes) -> Iterator[tuple[int, JournalRecord]]:
    """The intact records from the start on, each with its position."""
    position = len(MAGIC)
    while (found := read_record(content, position)) is not None:
        yield position, found[0]
        position = found[1]


def replay(content: bytes) -> tuple[Loaded, int]:
    """What a journal holds, and where it ends. Raises ``JournalDamaged``."""
    if not content.startswith((MAGIC, MAGIC_CHANGED)):
        raise JournalDamaged(0, f"it begins neither with {MAGIC.decode()} nor with {MAGIC_CHANGED.decode()}")
    state: HardState | None = None
    entries: list[RaftEntry] = []
    snapshot: tuple[int, int, bytes | None] = (0, 0, None)
    commit, end = 0, len(MAGIC)
    for position, record in records(content):
        end = position + RECORD_BYTES + len(record.content)
        match record.kind:
            case JournalKind.STATE:
                state = unpack_state(record.content)
            case JournalKind.ENTRY:
                index, term, command = unpack_position(record.content)
                last = entries[-1] if entries else RaftEntry(snapshot[0], snapshot[1], b"")
                if index != last.index + 1 or term < last.term:
                    raise JournalDamaged(position, f"entry {index} of term {term} follows {last.index} of {last.term}")
                entries.append(RaftEntry(index, term, command))
            case JournalKind.CUT:
                first = unpack_index(record.content)
                kept = first - snapshot[0] - 1
                if not 0 <= kept < len(entries):
                    raise JournalDamaged(position, f"entries from {first} on are cut, which are not there")
                del entries[kept:]
            case JournalKind.SYNCED:
                commit = unpack_index(record.content)
            case JournalKind.SNAPSHOT:
                if position != len(MAGIC):
                    raise JournalDamaged(position, "a snapshot stands behind other records")
                snapshot = unpack_position(record.content)
    durable = max((record.durable for record in _later_records(content, end)), default=0)
    if durable > end:
        raise JournalDamaged(end, f"the record there is not intact, and {durable} bytes were durable")
    if state is None:
        raise JournalDamaged(end, "it holds no term and vote")
    last_index = snapshot[0] + len(entries)
    return Loaded(state, *snapshot, tuple(entries), min(max(commit, snapshot[0]), last_index)), end


def _later_records(content: bytes, position: int) -> Iterator[JournalRecord]:
    """Each intact record from ``position`` on, wherever it begins."""
    while (position := content.find(MARKER, position)) >= 0:
        found = read_record(content, position)
        if found is not None:
            yield found[0]
        position += 1

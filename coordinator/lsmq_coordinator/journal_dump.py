"""Looking into a voter's journal: its records, as dicts. Opens for reading only; the voter may be running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_never

import msgpack

from lsmq.errors import CorruptFile

from .raft_membership import Electorate, membership_in, unmarked, unwrapped
from .raft_records import (
    RECORD_BYTES,
    JournalDamaged,
    JournalKind,
    JournalRecord,
    records,
    replay,
    unpack_index,
    unpack_position,
    unpack_state,
)


def dump_journal(path: Path) -> Iterator[dict[str, Any]]:
    """A dict for each record, and one for the end. Raises ``CorruptFile`` after all that lies before the damage."""
    content = path.read_bytes()
    for position, record in records(content):
        yield {"position": position, "kind": record.kind.name.lower(), **_fields(record)}
    try:
        _, end = replay(content)
    except JournalDamaged as damaged:
        raise CorruptFile(
            f"{path}: damaged at byte {damaged.position}: {damaged}", file=str(path), position=damaged.position
        ) from damaged
    yield {"end": end, "torn_bytes": len(content) - end}


def _fields(record: JournalRecord) -> dict[str, Any]:
    match record.kind:
        case JournalKind.STATE:
            state = unpack_state(record.content)
            return {"term": state.term, "vote": state.vote, "whole": state.whole, "starts": state.life[0]}
        case JournalKind.ENTRY:
            index, term, command = unpack_position(record.content)
            size = RECORD_BYTES + len(record.content)
            return {"index": index, "term": term, "op": _op(unmarked(command)), "bytes": size, **_voters(command)}
        case JournalKind.CUT:
            return {"from_index": unpack_index(record.content)}
        case JournalKind.SYNCED:
            return {"durable_bytes": record.durable, "commit_index": unpack_index(record.content)}
        case JournalKind.SNAPSHOT:
            index, term, content = unpack_position(record.content)
            membership, state_bytes = unwrapped(content)
            return {"index": index, "term": term, "bytes": len(state_bytes), **_shown(membership)}
        case _:
            assert_never(record.kind)


def _voters(command: bytes) -> dict[str, Any]:
    try:
        return _shown(membership_in(command))
    except (ValueError, KeyError, TypeError):
        return {"voters": "?"}


def _shown(membership: Electorate | None) -> dict[str, Any]:
    """Who votes from there on, where it says so."""
    if membership is None:
        return {}
    return {"voters": dict(membership.voters), "learners": dict(membership.learners)}


def _op(command: bytes) -> str:
    """What a command does; empty for the entry with which a leader begins."""
    try:
        decoded = msgpack.unpackb(command, strict_map_key=False) if command else {}
    except ValueError:
        return "?"
    return str(decoded.get("op", "")) if isinstance(decoded, dict) else "?"

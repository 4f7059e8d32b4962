"""What a coordinator remembers of producer groups, and the documents it is kept in.

======================================== ===============================================================
``producer/<group>/<member>``            :class:`ProducerMember`
``transaction/<group>/<id>``             :class:`TransactionRecord`
``transaction-part/<group>/<id>/<n>``    the batches of one part of it: ``[[shard, topic id, topic, batch], ...]``
``sequence/<group>/<name>``              :class:`MemberSequence`
``transaction-lanes``                    by shard, the number of the next batch that is sent there
======================================== ===============================================================

Each is msgpack; a record is a list of its fields with a format number before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

import msgpack

from lsmq_node.machines import documents
from lsmq_node.storage.documents import LANES, SEQUENCES, TRANSACTIONS

MEMBERS = "producer/"
PARTS = "transaction-part/"

_FORMAT = 1

#: A group's name, and the id of one of its members or transactions, or the name of a sequence.
RecordKey = tuple[str, str]


class TransactionState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class _Record:
    """A frozen dataclass as a list of its fields. ``what`` it is, for errors."""

    __slots__ = ()
    what: ClassVar[str]

    def encode(self) -> bytes:
        values = [getattr(self, item.name) for item in fields(self)]  # type: ignore[arg-type]
        return documents.pack([_FORMAT, *(dict(value) if isinstance(value, Mapping) else value for value in values)])

    @classmethod
    def decode(cls, body: bytes, key: str) -> Self:
        """Raises ``CorruptFile`` naming the document, ``UnsupportedFormat`` where a newer version wrote it."""
        return documents.decode(body, key, cls.what, _FORMAT, lambda fields: cls(*fields[1:]))


@dataclass(frozen=True, slots=True)
class ProducerMember(_Record):
    """A producer of a group.

    Attributes:
        number: the greatest of the transactions it began.
        missing: lesser ones that have not come yet; those before them will not be taken any more.
        checks: it may be asked about transactions of others.
    """

    what: ClassVar[str] = "member"
    number: int
    missing: tuple[int, ...]
    session_ms: int
    client: str
    checks: bool


@dataclass(frozen=True, slots=True)
class MemberSequence(_Record):
    """Work that members do one after the other. ``position`` is how far it is committed, in its members' words."""

    what: ClassVar[str] = "sequence"
    epoch: int
    position: str | None
    member: str


@dataclass(frozen=True, slots=True)
class TransactionRecord(_Record):
    """Attributes:

    member: who began it.
    reference: what the application calls it.
    sequence, position: of which sequence it is, and how far that is with it; empty: of none.
    begun_ms, decided_ms: milliseconds since 1970.
    messages: by topic, how many.
    batches: by shard, how many.
    checks: how often a member was asked about it.
    decided_by: a member's id, ``operator`` or ``broker``.
    waiting: by shard that has not got its batches yet, the number of the first of them.
    """

    what: ClassVar[str] = "transaction"
    group: str
    id: str
    member: str
    reference: str
    sequence: str
    position: str
    begun_ms: int
    check_after_ms: int
    check_every_ms: int
    max_checks: int
    state: str = TransactionState.OPEN.value
    parts: int = 0
    size_bytes: int = 0
    messages: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)
    checks: int = 0
    decided_ms: int = 0
    decided_by: str = ""
    waiting: Mapping[int, int] = field(default_factory=dict)

    @property
    def key(self) -> RecordKey:
        return self.group, self.id

    @property
    def is_open(self) -> bool:
        return self.state == TransactionState.OPEN

    @property
    def is_finished(self) -> bool:
        """Decided, and where it was committed, in all its shards."""
        return not self.is_open and not self.waiting


class PartNames(NamedTuple):
    """The names of queues of a topic on a shard, joined by NUL."""

    shard: int
    topic_id: int
    joined: bytes


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """Messages of a transaction that came in one request. ``body`` is the document; ``names`` are in it, too."""

    body: bytes
    messages: Mapping[str, int]
    batches: Mapping[int, int]
    names: Sequence[PartNames] = ()


@dataclass(slots=True)
class BookChange:
    """A change of what is remembered: all of it or nothing. None: forget it."""

    members: dict[RecordKey, ProducerMember | None] = field(default_factory=dict)
    transactions: dict[RecordKey, TransactionRecord | None] = field(default_factory=dict)
    parts: dict[str, bytes | None] = field(default_factory=dict)
    sequences: dict[RecordKey, MemberSequence | None] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)  # numbers that shards have had; in no document

    def __bool__(self) -> bool:
        return bool(self.members or self.transactions or self.parts or self.sequences or self.lanes)

    def documents(self, lanes: Mapping[int, int]) -> dict[str, bytes | None]:
        """What to put; ``lanes`` are those of before."""
        found: dict[str, bytes | None] = dict(self.parts)
        kinds: tuple[tuple[str, Mapping[RecordKey, Any]], ...] = (
            (MEMBERS, self.members),
            (TRANSACTIONS, self.transactions),
            (SEQUENCES, self.sequences),
        )
        for prefix, records in kinds:
            for (group, name), record in records.items():
                found[f"{prefix}{group}/{name}"] = None if record is None else record.encode()
        if self.lanes:
            found[LANES] = documents.pack({**lanes, **self.lanes})
        return found


def part_key(key: RecordKey, number: int) -> str:
    return f"{PARTS}{key[0]}/{key[1]}/{number}"


def split_key(key: str, prefix: str) -> RecordKey:
    group, _, name = key.removeprefix(prefix).partition("/")
    return group, name


def encode_part(batches: list[tuple[int, int, str, bytes]]) -> bytes:
    """``batches``: shard, topic's id, topic, and the packed batch."""
    return documents.pack(batches)


def decode_part(body: bytes) -> list[tuple[int, int, str, bytes]]:
    return [tuple(batch) for batch in msgpack.unpackb(body)]

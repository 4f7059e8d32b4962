"""Documents: a small map of a shard from text to bytes, in memory, in its log and its checkpoints.

What coordinators have to remember lives here: groups, transactions, retries. A change is one log entry, kind DOCUMENT,
and takes effect as a whole when it is committed. The body of the entry is msgpack, a list of ``[key, value]``; nil as
value deletes the key, and no key stands there twice.

Not supported: conditions. Who leads a shard is the only one to write its documents, and knows what they hold.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgpack
from sortedcontainers import SortedDict

from lsmq.errors import DocumentsFull, InvalidRequest, RequestTooLarge

MAX_DOCUMENT_KEY_BYTES = 512
MAX_DOCUMENT_BYTES = 8 << 20
#: Keys and values of one change together.
MAX_CHANGE_BYTES = 2 * MAX_DOCUMENT_BYTES
_LAST = chr(sys.maxunicode)

#: Documents that need no room, few and small: how far delayed messages have come (:data:`.delayed.HAND`), and how far
#: each coordinator of transactions has. What was taken before comes though others have filled the documents.
SPARED = "delayed"
LANE = "transaction-lane/"
#: Documents that change when a transaction is decided, and when it is delivered, which gives back what it takes. Where
#: they are there already, and so are the numbers of what is sent, they have a part of the limit beyond it: whatever has
#: filled the documents, what was begun is finished.
TRANSACTIONS, SEQUENCES, LANES = "transaction/", "sequence/", "transaction-lanes"
_FINISHING = (TRANSACTIONS, SEQUENCES, "sequence-used/")
_RESERVE = 32

Changes = Mapping[str, bytes | None]


def encode_changes(changes: Changes) -> bytes:
    """The body of a log entry. Raises ``InvalidRequest`` for a bad key, ``RequestTooLarge`` beyond the limits."""
    if not changes:
        raise InvalidRequest("a change of documents names at least one")
    for key, value in changes.items():
        if not 1 <= len(key.encode(errors="surrogatepass")) <= MAX_DOCUMENT_KEY_BYTES or not key.isprintable():
            raise InvalidRequest(
                f"{key[:80]!r} is not a legal key of a document: use 1 to {MAX_DOCUMENT_KEY_BYTES} bytes of printable "
                "text",
                limit=MAX_DOCUMENT_KEY_BYTES,
            )
        if value is not None and len(value) > MAX_DOCUMENT_BYTES:
            raise _too_large(f"the document {key!r}", len(value), MAX_DOCUMENT_BYTES)
    body: bytes = msgpack.packb([[key, value] for key, value in changes.items()])
    if len(body) > MAX_CHANGE_BYTES:
        raise _too_large(f"a change of {len(changes)} documents", len(body), MAX_CHANGE_BYTES)
    return body


def _too_large(what: str, size: int, limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"{what} has {size} bytes; the limit is {limit}", limit=limit, size=size)


class Documents:
    """The documents of a shard. Its owner sees to it that one thread at a time changes or lists them."""

    __slots__ = ("_changed", "_values", "size_bytes")

    def __init__(self) -> None:
        self._values: SortedDict[str, bytes] = SortedDict()
        self._changed: dict[str, bytes | None] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> bytes | None:
        """Any thread may ask."""
        value: bytes | None = dict.get(self._values, key)
        return value

    def with_prefix(self, prefix: str) -> list[tuple[str, bytes]]:
        """Those whose key begins with ``prefix``, sorted by key. Costs what is found."""
        keys = self._values.irange(prefix, prefix + _LAST) if prefix else self._values
        return [(key, self._values[key]) for key in keys]

    def of_each(self, prefix: str, depth: int, name: str) -> list[tuple[str, bytes]]:
        """The document ``name`` of each place so many parts below ``prefix``, sorted by key. Costs one look a place,
        whatever it has besides."""
        found: list[tuple[str, bytes]] = []
        key: str | None = next(self._values.irange(prefix, prefix + _LAST), None)
        while key is not None:
            place = key.removeprefix(prefix).split("/", depth)[:-1]
            within = prefix + "".join(f"{part}/" for part in place)
            if len(place) == depth and (value := self.get(within + name)) is not None:
                found.append((within + name, value))
            behind = within + _LAST if len(place) == depth else key + "/"
            key = next(self._values.irange(behind, prefix + _LAST), None)
        return found

    def apply(self, body: bytes) -> None:
        """Carry out a change as it stands in the log."""
        for key, value in msgpack.unpackb(body):
            self.put(key, value)

    def put(self, key: str, value: bytes | None) -> None:
        """Put a document, or delete it where the value is None."""
        former = dict.get(self._values, key)
        if former is not None:
            self.size_bytes -= _size(key, former)
        if value is not None:
            self._values[key] = value
            self.size_bytes += _size(key, value)
        elif former is not None:
            del self._values[key]
        self._changed[key] = value

    def touch_all(self) -> None:
        """Have :meth:`take_change` give all there is."""
        self._changed = dict(self._values)

    def take_change(self) -> dict[str, bytes | None]:
        """What was put or deleted since the last time, as it is now."""
        changed, self._changed = self._changed, {}
        return changed

    def check_room(self, changes: Changes, limit_bytes: int) -> None:
        """Raises ``DocumentsFull`` for a change that needs space where there is none.

        What is in line and not committed does not count yet: the limit may be passed by as much as may wait there.
        """
        grown = finishing = 0
        for key, value in changes.items():
            if key == SPARED or key.startswith(LANE):
                continue
            former = dict.get(self._values, key)
            by = (0 if value is None else _size(key, value)) - (0 if former is None else _size(key, former))
            if key == LANES or (former is not None and key.startswith(_FINISHING)):
                finishing += by
            else:
                grown += by
        limit_bytes += 0 if grown > 0 else limit_bytes // _RESERVE
        grown += finishing
        if grown > 0 and self.size_bytes + grown > limit_bytes:
            raise DocumentsFull(
                f"{self.size_bytes} bytes of documents (groups, transactions, retries) are kept in this shard and "
                f"{grown} more are over the limit of {limit_bytes} (max_documents_bytes). Finish what is under way, "
                "delete groups that nobody uses, or raise the limit",
                used_bytes=self.size_bytes,
                limit=limit_bytes,
            )

    def items(self) -> list[tuple[str, bytes]]:
        """All of them, sorted by key."""
        return list(self._values.items())


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)

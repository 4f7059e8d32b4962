"""What voters say to each other, pure: frames and their authentication, checks, the AppendEntries rule, leases.

**Frames.** Every frame carries a MAC that is verified before anything in it is looked at; then it is msgpack.
Nothing is ever unpickled. Little-endian:

    =======  ====  ===========================================================================
    length     4   of what follows, at most 64 KiB before the peer is known, then 4 MiB
    mac       32   HMAC-SHA256 of: side of the sender (c or s), receiver's nonce, number, payload
    payload    n   msgpack
    =======  ====  ===========================================================================

The first frame of each side is its nonce (32 random bytes); the client's comes first, with zeros for the nonce
of the server. Numbers count the frames of a direction from 0. So a frame cannot be made, changed, repeated, left
out, sent back to who made it, or moved to another connection without the key. The contents are not encrypted.

**AppendEntries** (:func:`judge_append`) as in section 5.3 of the Raft paper: a follower drops entries only where
one conflicts, never because a late or repeated message ends before its log does.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

NONCE_BYTES = 32
MAC_BYTES = 32
LENGTH = struct.Struct("<I")
MAX_HELLO_BYTES = 64 << 10
MAX_FRAME_BYTES = 4 << 20


#: What :meth:`FrameSession.open` gives for the peer's hello.
HELLO = object()


class BadFrame(Exception):
    """The peer does not hold the key, or does not speak this protocol: the connection must end."""


class FrameSession:
    """Frames of one connection. ``client`` is the side that connected."""

    def __init__(self, key: bytes, *, client: bool) -> None:
        self._key = key
        self._side, self._peer_side = (b"c", b"s") if client else (b"s", b"c")
        self._nonce = os.urandom(NONCE_BYTES)
        self._peer_nonce: bytes | None = None
        self._sent = self._received = 0
        self.known = False

    def hello(self) -> bytes:
        """The frame that must be the first one sent."""
        return self._frame(self._nonce)

    def seal(self, message: Any) -> bytes:
        """A frame with ``message``. The peer's hello must have come."""
        if self._peer_nonce is None:
            raise BadFrame("a message was to be sent before the peer's hello came")
        return self._frame(msgpack.packb(message))

    def _frame(self, payload: bytes) -> bytes:
        mac = self._mac(self._side, self._peer_nonce or bytes(NONCE_BYTES), self._sent, payload)
        self._sent += 1
        return LENGTH.pack(MAC_BYTES + len(payload)) + mac + payload

    def split(self, buffered: bytes) -> int:
        """How many bytes the first frame in ``buffered`` takes; 0 when it is not complete. Raises ``BadFrame``."""
        if len(buffered) < LENGTH.size:
            return 0
        (length,) = LENGTH.unpack_from(buffered)
        if not MAC_BYTES <= length <= (MAX_FRAME_BYTES if self.known else MAX_HELLO_BYTES):
            raise BadFrame(f"a frame of {length} bytes")
        return LENGTH.size + length if len(buffered) >= LENGTH.size + length else 0

    def open(self, frame: bytes) -> Any:
        """The message in a whole frame, never None; ``HELLO`` for the peer's hello. Raises ``BadFrame``."""
        mac, payload = frame[LENGTH.size : LENGTH.size + MAC_BYTES], frame[LENGTH.size + MAC_BYTES :]
        first = self._peer_nonce is None
        # The client's hello is made before it knows a nonce of the server.
        nonce = bytes(NONCE_BYTES) if first and self._peer_side == b"c" else self._nonce
        if not hmac.compare_digest(mac, self._mac(self._peer_side, nonce, self._received, payload)):
            raise BadFrame("the authentication code does not match: another cluster secret?")
        self._received += 1
        if first:
            if len(payload) != NONCE_BYTES:
                raise BadFrame("the first frame is no hello")
            self._peer_nonce = payload
            return HELLO
        try:
            message = msgpack.unpackb(payload, use_list=False, strict_map_key=True)
        except (ValueError, msgpack.UnpackException) as error:
            raise BadFrame(f"the payload is not msgpack: {error}") from error
        if message is None:
            raise BadFrame("the payload is nothing")
        return message

    def _mac(self, side: bytes, nonce: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, side + nonce + number.to_bytes(8, "little") + payload, hashlib.sha256)


_INT = (int,)
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "request_vote": {"term": _INT, "last_log_index": _INT, "last_log_term": _INT, "whole": (bool,)},
    "response_vote": {"term": _INT},
    "append_entries": {
        "term": _INT,
        "commit_index": _INT,
        "entries": (tuple,),
        "prevLogIdx": _INT,
        "prevLogTerm": _INT,
        "stamp": (float,),
        "whole": (bool,),
    },
    "next_node_idx": {
        "next_node_idx": _INT,
        "reset": (bool,),
        "success": (bool,),
        "term": _INT,
        "stamp": (float,),
    },
}


def checked(message: Any) -> dict[str, Any] | None:
    """The message when it is one that voters send, of the right shape; else None.

    Of pysyncobj's messages these are the ones used. Left out: commands (they come over HTTP), snapshots and
    pieces of large entries (unpickled by pysyncobj; our entries are smaller), leadership transfers, membership.
    """
    if not isinstance(message, dict):
        return None
    shape = _FIELDS.get(message.get("type", ""))
    if shape is None or set(message) != {"type", *shape}:
        return None
    if not all(type(message[name]) in kinds for name, kinds in shape.items()):
        return None
    if any(message[name] < 0 for name, kinds in shape.items() if kinds is _INT):
        return None
    if message["type"] == "append_entries":
        entries = [entry for entry in message["entries"] if _is_entry(entry)]
        expected = range(message["prevLogIdx"] + 1, message["prevLogIdx"] + 1 + len(message["entries"]))
        if len(entries) != len(message["entries"]) or [entry[1] for entry in entries] != list(expected):
            return None
    return message


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, tuple)
        and len(entry) == 3
        and isinstance(entry[0], bytes)
        and type(entry[1]) is int
        and type(entry[2]) is int
    )


class Log(Protocol):
    """The part of the journal that the rule looks at."""

    @property
    def last_index(self) -> int: ...

    def term_at(self, index: int) -> int | None: ...


class Diverged(Exception):
    """A leader wants committed entries replaced: a voter lost its log, or two clusters share addresses."""


@dataclass(frozen=True, slots=True)
class Append:
    """What to do with an AppendEntries.

    ``message`` goes to pysyncobj. ``acknowledge`` is the next index to report to the leader when pysyncobj is
    not to look at the log at all, since it would cut what lies behind; else None.
    """

    message: dict[str, Any]
    acknowledge: int | None = None


def judge_append(message: Mapping[str, Any], log: Log, commit_index: int) -> Append:
    """Make an AppendEntries safe for pysyncobj, which drops all entries behind ``prevLogIdx``, equal or not.

    What the log holds already is left out of the message; entries are dropped only from the first conflict on.
    The commit index is held to what this message proves equal to the leader's log. Raises ``Diverged`` when a
    committed entry would go.
    """
    previous, entries = message["prevLogIdx"], message["entries"]
    known = log.term_at(previous)
    if known != message["prevLogTerm"]:
        if known is not None and previous <= commit_index:
            raise Diverged(f"entry {previous} is committed with term {known}, not {message['prevLogTerm']}")
        return Append(dict(message))
    same = 0
    while same < len(entries) and log.term_at(entries[same][1]) == entries[same][2]:
        same += 1
    rest = entries[same:]
    proven = previous + len(entries)
    safe = {**message, "commit_index": min(message["commit_index"], proven)}
    if rest:
        if rest[0][1] <= commit_index:
            raise Diverged(f"entry {rest[0][1]} is committed with term {log.term_at(rest[0][1])}, not {rest[0][2]}")
        last = entries[same - 1] if same else (b"", previous, message["prevLogTerm"])
        return Append({**safe, "entries": rest, "prevLogIdx": last[1], "prevLogTerm": last[2]})
    for name in ("entries", "prevLogIdx", "prevLogTerm"):
        del safe[name]
    return Append(safe, acknowledge=proven + 1)


def majority_moment(own: float, others: Iterable[float], voters: int) -> float:
    """The latest moment at which a majority, oneself included, is known to have been there."""
    moments: Sequence[float] = sorted([own, *others], reverse=True)
    needed = voters // 2 + 1
    return moments[needed - 1] if len(moments) >= needed else float("-inf")

"""How what voters say to each other travels, pure: frames and their authentication.

Every frame carries a MAC that is verified before anything in it is looked at; then it is msgpack.
Nothing is ever unpickled. Little-endian:

    =======  ====  ===========================================================================
    length     4   of what follows, at most 64 KiB before the peer is known, then 4 MiB
    mac       32   HMAC-SHA256 of: side of the sender (c or s), receiver's nonce, number, payload
    payload    n   msgpack
    =======  ====  ===========================================================================

The first frame of each side is its nonce (32 random bytes); the client's comes first, with zeros for the nonce
of the server. Numbers count the frames of a direction from 0. So a frame cannot be made, changed, repeated, left
out, sent back to who made it, or moved to another connection without the key. While the cluster changes its secret
there may be two keys: the client speaks under its first, the server under the one that the client's hello is under.
Where there is TLS
(:mod:`.raft_tls`) all of it is encrypted; else nothing is.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from lsmq import runtime

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
    """Frames of one connection. ``client`` is the side that connected. Of ``keys`` the first signs."""

    def __init__(self, keys: Sequence[bytes], *, client: bool) -> None:
        self._key = keys[0]
        #: Under any of these the first frame may come; those after it under its.
        self._accepted = keys[:1] if client else keys
        self._side, self._peer_side = (b"c", b"s") if client else (b"s", b"c")
        self._nonce = runtime.token_bytes(NONCE_BYTES)
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
        mac = self._mac(self._key, self._side, self._peer_nonce or bytes(NONCE_BYTES), self._sent, payload)
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
        for key in self._accepted:
            if hmac.compare_digest(mac, self._mac(key, self._peer_side, nonce, self._received, payload)):
                break
        else:
            raise BadFrame("the authentication code does not match: another cluster secret?")
        self._received += 1
        if first:
            if len(payload) != NONCE_BYTES:
                raise BadFrame("the first frame is no hello")
            self._peer_nonce = payload
            self._key, self._accepted = key, (key,)
            return HELLO
        try:
            message = msgpack.unpackb(payload, use_list=False, strict_map_key=True)
        except (ValueError, msgpack.UnpackException) as error:
            raise BadFrame(f"the payload is not msgpack: {error}") from error
        if message is None:
            raise BadFrame("the payload is nothing")
        return message

    @staticmethod
    def _mac(key: bytes, side: bytes, nonce: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(key, side + nonce + number.to_bytes(8, "little") + payload, hashlib.sha256)

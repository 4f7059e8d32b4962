"""Codes that bind each message of a link to its place on this link: nobody can change, drop, repeat or add one.

Both ends derive a key from the cluster secret and the mac of the request that began the link, which is of one start of
the receiver and unlike any other. The code of a message is the first 16 bytes of HMAC-SHA256 under that key over::

    number     8   little-endian: how many messages came before it on this link
    head, body     as :mod:`.wire` has them
    digest    16   XXH3 (128 bits) of the payload, seeded with 64 bits that are derived as the key is; b"" without one

XXH3 keeps step with the disk where a cryptographic digest of all of the log would cost a third of a core. It is no
cryptographic digest: it holds since neither its seed nor what it gives is ever seen. Encrypted is what TLS encrypts.
"""

from __future__ import annotations

import hashlib
import hmac

import xxhash

SEAL_BYTES = 16


class Seal:
    """One end of one link: the codes of its messages, in order."""

    def __init__(self, key: bytes, mac: str) -> None:
        """``key`` is the cluster's for links, ``mac`` that of the request that began this one."""
        self._key = hmac.digest(key, mac.encode(), hashlib.sha256)
        self._seed = int.from_bytes(hmac.digest(self._key, b"payload", hashlib.sha256)[:8], "little")
        self._number = 0

    def next(self, head: bytes | memoryview, payload: bytes | memoryview | bytearray) -> bytes:
        """The code of the next message; ``head`` is its head and body."""
        digest = xxhash.xxh3_128_digest(payload, self._seed) if len(payload) else b""
        text = b"".join((self._number.to_bytes(8, "little"), head, digest))
        self._number += 1
        return hmac.digest(self._key, text, hashlib.sha256)[:SEAL_BYTES]

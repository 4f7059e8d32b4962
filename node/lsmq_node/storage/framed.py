"""Small files that are replaced as a whole: a head with a checksum, and a msgpack map. Little-endian::

offset width field
 0      8    magic
 8      4    version
12      4    length of the body
16      4    crc       CRC32C of version, length and body
20      n    body
"""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import msgpack

from .failures import damaged, newer

_HEAD = struct.Struct("<8sIII")
_LENGTHS = struct.Struct("<II")


def encode_framed(magic: bytes, version: int, values: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(values)
    crc = crc32c.crc32c(body, crc32c.crc32c(_LENGTHS.pack(version, len(body))))
    return _HEAD.pack(magic, version, len(body), crc) + body


def decode_framed(raw: bytes, magic: bytes, version: int, source: str, what: str) -> dict[str, Any]:
    """The values of a file that is called ``what``. Raises ``CorruptFile`` or ``UnsupportedFormat``."""
    if len(raw) < _HEAD.size or raw[:8] != magic:
        raise damaged(source, f"not a {what} ({len(raw)} bytes)")
    _, found, length, crc = _HEAD.unpack_from(raw)
    body = memoryview(raw)[_HEAD.size :]
    if len(body) != length or crc32c.crc32c(body, crc32c.crc32c(_LENGTHS.pack(found, length))) != crc:
        raise damaged(source, f"the {what} is damaged", _HEAD.size)
    if found != version:
        raise newer(source, f"{what} version", found, version)
    return dict(msgpack.unpackb(body, strict_map_key=False))

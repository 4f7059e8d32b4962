"""Receipts: what a consumer shows to settle a delivery. Opaque to it; base64 of::

    offset width field
     0     1     version      1
     1     4     group        low half of the XXH3 of the group's name
     5     4     topic        id
     9     4     queue
    13     8     offset
    21     2     count        which delivery of the message it is
    23     8     expires_ms   when it ended, unless it was extended; milliseconds since 1970
    31     8     token        of the delivery: 16 bits by the work queue, which is another one where its group was
                              deleted and made anew, 16 by who delivered, and the low half counts
    39     4     crc          CRC32C of bytes [0, 39)

All integers are little-endian. The CRC catches mistakes, not forgers: who may pop may settle.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass

import crc32c
import xxhash

VERSION = 1
_BODY = struct.Struct("<BIIIQHQQ")
_CRC = struct.Struct("<I")
_BYTES = _BODY.size + _CRC.size
TEXT_LENGTH = -(-_BYTES * 4 // 3)
_MAX_COUNT = 0xFFFF


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """One delivery of one message."""

    queue: int
    offset: int
    count: int
    expires_ms: int
    token: int


def group_hash(group: str) -> int:
    """The part of a receipt that says whose it is."""
    return xxhash.xxh3_64_intdigest(group.encode()) & 0xFFFFFFFF


def encode_receipt(receipt: DeliveryReceipt, group: int, topic_id: int) -> str:
    """``group`` is a :func:`group_hash`."""
    count = min(receipt.count, _MAX_COUNT)
    body = _BODY.pack(VERSION, group, topic_id, receipt.queue, receipt.offset, count, receipt.expires_ms, receipt.token)
    return base64.urlsafe_b64encode(body + _CRC.pack(crc32c.crc32c(body))).rstrip(b"=").decode()


def decode_receipt(text: str, group: int, topic_id: int) -> DeliveryReceipt | None:
    """None for what is no receipt of this group and topic."""
    if len(text) != TEXT_LENGTH:
        return None
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(packed) != _BYTES or _CRC.unpack_from(packed, _BODY.size)[0] != crc32c.crc32c(packed[: _BODY.size]):
        return None
    version, owner, topic, queue, offset, count, expires_ms, token = _BODY.unpack_from(packed)
    if version != VERSION or owner != group or topic != topic_id:
        return None
    return DeliveryReceipt(queue, offset, count, expires_ms, token)

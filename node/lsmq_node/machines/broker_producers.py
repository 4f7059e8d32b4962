"""Batches that the broker stores itself: of producers of its own, so that each is stored once. Pure."""

from __future__ import annotations

import crc32c

from lsmq.record_batch import HEADER, HEADER_BYTES


def with_producer(batch: bytes, producer_id: int, epoch: int) -> bytes:
    """A packed batch as the first of this producer."""
    _, *fields = HEADER.unpack_from(batch)
    fields[-3:] = (producer_id, epoch, 0)
    head = HEADER.pack(0, *fields)[4:]
    rest = memoryview(batch)[HEADER_BYTES:]
    return crc32c.crc32c(rest, crc32c.crc32c(head)).to_bytes(4, "little") + head + rest

"""Slots of many queue names at once: what :func:`lsmq.queue_names.queue_slot` says of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from lsmq.queue_names import CONTROL, MAX_NAME_BYTES, SEPARATOR, SLOT_SHIFT

from .columns import I64

_FIRST_PRINTABLE, _PRINTABLES = np.uint8(0x20), np.uint8(0x5F)


def queue_slots(names: Sequence[bytes], joined: bytes | None = None) -> I64 | None:
    """Of names in UTF-8; None where ``check_queue_name`` may refuse one. ``joined``: the same with separators."""
    separator = SEPARATOR.encode()
    framed = b"".join((separator, separator.join(names) if joined is None else joined, separator))
    text = np.frombuffer(framed, np.uint8)
    ends = np.flatnonzero(text == 0)
    sizes = np.diff(ends) - 1
    if not names or len(sizes) != len(names) or int(sizes.min()) < 1 or int(sizes.max()) > MAX_NAME_BYTES:
        return None
    if int(sizes.min()) <= len("..") and any(separator + place + separator in framed for place in (b".", b"..")):
        return None
    if np.count_nonzero(text - _FIRST_PRINTABLE < _PRINTABLES) + len(ends) != len(text):
        try:
            decoded = framed.decode()
        except UnicodeDecodeError:
            return None
        if CONTROL.search(decoded.replace(SEPARATOR, "")) is not None:
            return None
    hashes = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, names)), ">u8")
    return (hashes >> np.uint64(SLOT_SHIFT)).astype(np.int64)

"""Lists of queues and offsets on the wire: numbers in JSON, packed integers in msgpack, ranges in a URL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidRequest
from lsmq_node.broker.admission import Admission
from lsmq_node.storage import StoredTopic

_MOST_DIGITS = 19


def integers(value: Any, width_bytes: int, field: str) -> NDArray[np.int64]:
    """The numbers of a field that is a list or, in msgpack, packed little-endian integers."""
    if isinstance(value, bytes):
        if len(value) % width_bytes:
            raise InvalidRequest(
                f"{field} has {len(value)} bytes, which is not a whole number of {width_bytes}-byte integers",
                field=field,
            )
        return np.frombuffer(value, "<u4" if width_bytes == 4 else "<i8").astype(np.int64)
    if isinstance(value, str):
        raise InvalidRequest(f"{field} is text; it must be a list, or bin in msgpack", field=field)
    return np.array(value, np.int64)


def queue_offsets(document: dict[str, Any], admission: Admission) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """``queues`` and ``offsets`` of a body: alike in number, queues sorted here and without repeats."""
    queues = integers(document["queues"], 4, "queues")
    offsets = integers(document["offsets"], 8, "offsets")
    if len(queues) != len(offsets):
        raise InvalidRequest(
            f"queues has {len(queues)} items and offsets {len(offsets)}; each queue needs its offset", field="offsets"
        )
    admission.queue_count(len(queues))
    if len(queues) > 1 and not bool((queues[1:] > queues[:-1]).all()):
        order = np.argsort(queues, kind="stable")
        queues, offsets = queues[order], offsets[order]
        same = np.flatnonzero(queues[1:] == queues[:-1])
        if len(same):
            raise InvalidRequest(f"queues names queue {int(queues[same[0]])} more than once", field="queues")
    if int(offsets.min()) < 0:
        raise InvalidRequest(f"offsets has {int(offsets.min())}; the least it may be is 0", field="offsets")
    return queues.astype(np.uint32), offsets


def parse_ranges(text: str, topic: StoredTopic, admission: Admission) -> NDArray[np.int64]:
    """The queues of ``0-99,200``: single numbers and ranges, both ends included. Empty text is all."""
    if not text:
        if topic.named:
            raise InvalidRequest(
                f"queues is missing; topic {topic.name!r} has queues with names, whose numbers are to be given",
                field="queues",
            )
        admission.queue_count(topic.queues)
        return np.arange(topic.queues, dtype=np.int64)
    pieces: list[NDArray[np.int64]] = []
    count = 0
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise InvalidRequest(
                f"queues has {piece[:40]!r}; it must be numbers and ranges, such as 0-99,200", field="queues"
            )
        low, high = int(first), int(last if dash else first)
        if high < low:
            raise InvalidRequest(f"queues has the range {piece}, whose end is before its start", field="queues")
        # Before the numbers are made: a range is short and may name billions.
        count += high - low + 1
        if topic.named:
            admission.queue(topic, high)
        elif high >= topic.queues:
            raise InvalidRequest(
                f"queues has {piece}; the queues of topic {topic.name!r} are 0 to {topic.queues - 1}", field="queues"
            )
        admission.queue_count(count)
        pieces.append(np.arange(low, high + 1, dtype=np.int64))
    return np.concatenate(pieces)


def is_number(text: str) -> bool:
    """Whether a text is a number; one of thousands of digits would take long to read, and is none."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS

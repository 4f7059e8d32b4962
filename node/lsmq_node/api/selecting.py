"""Which queues of a named topic a fetch is for: ``names``, ``pattern``, ``slots``, or those of a pattern in some slots;
and where reading begins."""

from __future__ import annotations

from typing import Any

import numpy as np

from lsmq.errors import InvalidRequest
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq_node.broker.admission import Admission
from lsmq_node.broker.requests import ReadStart, Selected
from lsmq_node.broker.selection import ByName, ByPattern, BySlot, Selection
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.name_patterns import NamePattern

from .arrays import integers, queue_offsets

#: Fields that select queues by name.
SELECTING = ("names", "pattern", "slots")


def selected_of(document: dict[str, Any], topic: StoredTopic, admission: Admission) -> Selected:
    """What a body selects. Raises ``InvalidRequest``, ``InvalidQueueName``."""
    given = [field for field in (*SELECTING, "queues") if field in document]
    if len(given) > 1 and given != ["pattern", "slots"]:
        raise InvalidRequest(
            f"{given[-1]} is given beside {given[0]}; a fetch selects queues one way, or by a pattern within slots",
            field=given[-1],
        )
    if not topic.named:
        raise InvalidRequest(
            f"{given[0]} selects queues by name, and those of topic {topic.name!r} have numbers; give queues, offsets",
            field=given[0],
        )
    start, group = document.get("start"), document.get("group")
    if start == ReadStart.COMMITTED and group is None:
        raise InvalidRequest("group is missing; start is 'committed', so say whose offsets", field="group")
    if group is not None and start != ReadStart.COMMITTED:
        raise InvalidRequest(f"group is given, and start is {start!r}; it must be 'committed'", field="group")
    if document["with_names"] and start != ReadStart.LATEST:
        raise InvalidRequest(
            f"with_names is given, and start is {start!r}; it must be 'latest': else names come with the messages",
            field="with_names",
        )
    numbers, offsets = np.empty(0, np.uint32), np.empty(0, np.int64)
    by_name: dict[str, int] = {}
    if "numbers" in document:
        if "offsets" not in document:
            raise InvalidRequest("offsets is missing; each of numbers needs its own", field="offsets")
        numbers, offsets = queue_offsets({**document, "queues": document["numbers"]}, admission)
    elif "offsets" in document:
        by_name = _offsets_of(document, start)
    elif start is None:
        raise InvalidRequest(
            "start is missing; say 'earliest', 'latest' or 'committed', or give offsets", field="start"
        )
    return Selected(
        which=selection_of(document),
        start=ReadStart(start or ReadStart.EARLIEST),
        group=group,
        reset=ReadStart(document["reset"]),
        numbers=numbers,
        offsets=offsets,
        by_name=by_name,
        tells_names="names" in document or document["with_names"],
    )


def _offsets_of(document: dict[str, Any], start: str | None) -> dict[str, int]:
    """Where reading begins in each of ``names``."""
    names = document.get("names")
    if names is None or start is not None:
        raise InvalidRequest("offsets is for names without start, or for numbers; leave it out", field="offsets")
    offsets = integers(document["offsets"], 8, "offsets").tolist()
    if len(offsets) != len(names):
        raise InvalidRequest(
            f"names has {len(names)} items and offsets {len(offsets)}; each queue needs its offset", field="offsets"
        )
    if min(offsets) < 0:
        raise InvalidRequest(f"offsets has {min(offsets)}; the least it may be is 0", field="offsets")
    return dict(zip(names, offsets, strict=True))


def selection_of(document: dict[str, Any]) -> Selection:
    """By ``names``, ``pattern``, ``slots``, or the latter two. Raises ``InvalidRequest``, ``InvalidQueueName``."""
    if "names" in document:
        names = [check_queue_name(name) for name in document["names"]]
        return ByName(names, [queue_slot(name) for name in names])
    slots = BySlot([(int(first), int(end)) for first, end in document["slots"]]) if "slots" in document else None
    if "pattern" in document:
        return ByPattern(NamePattern(document["pattern"]), slots)
    assert slots is not None, "whoever parses it sees to it"
    return slots

"""From what a user asked for to offsets: where each queue starts and ends.

Pure functions over columns, one entry a queue; the cluster is asked by whoever calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lsmq.errors import Unavailable
from lsmq.topics import Topic, parse_ranges
from lsmq_pipeline.client import Bounds
from lsmq_pipeline.errors import DataLoss, InvalidOption
from lsmq_pipeline.given import json_object
from lsmq_pipeline.named_offsets import StreamPlaces
from lsmq_pipeline.offsets import TopicOffsets, from_document, is_document
from lsmq_pipeline.options import Edge, ReadOptions

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
EARLIEST, LATEST = -2, -1  # in explicit offsets, as in Spark's Kafka source
_log = logging.getLogger("lsmq")


def explicit_offsets(edge: Edge, topics: Sequence[Topic]) -> dict[str, I64] | None:
    """Offsets given one by one; None when they are ``earliest`` or ``latest``.

    Two forms: ``{"orders": {"0-9": 23, "10": -1}}`` with ranges of queues (-2 the earliest, -1 the latest, queues that
    are not named where :attr:`Edge.unnamed` says), and a document of :mod:`lsmq_pipeline.offsets`. Raises
    :class:`InvalidOption`.
    """
    if edge.offsets in ("earliest", "latest"):
        return None
    missing = EARLIEST if edge.unnamed == "earliest" else LATEST
    try:
        given = json_object(edge.offsets)
        if is_document(given):
            return _from_document(edge.option, given, topics)
        by_name = {topic.name: topic for topic in topics}
        unknown = given.keys() - by_name.keys()
        if unknown:
            raise ValueError(f"topic {sorted(unknown)[0]!r} is not among those read")
        return {name: _from_ranges(by_name[name], queues, missing) for name, queues in given.items()}
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidOption(
            f"option {edge.option} is neither earliest nor latest nor offsets such as "
            f'{{"orders": {{"0-9": 23, "10": -1}}}}: {error}',
            option=edge.option,
        ) from error


def _from_document(option: str, given: Mapping[str, Any], topics: Sequence[Topic]) -> dict[str, I64]:
    found = from_document(given)
    for topic in topics:
        entry = found.get(topic.name)
        if entry is not None and entry.topic_id != topic.id:
            raise InvalidOption(
                f"option {option} has offsets of a topic {topic.name!r} that was deleted and made anew since "
                f"(its id was {entry.topic_id}, now it is {topic.id})",
                option=option,
            )
        if entry is not None:
            check_has_queues(topic, len(entry.offsets))
    return {name: entry.offsets for name, entry in found.items()}


def _from_ranges(topic: Topic, queues: Mapping[str, int], missing: int) -> I64:
    offsets = np.full(topic.queues, missing, np.int64)
    for text, offset in queues.items():
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(f"queues {text} have offset {offset!r}; it is a number, -2 (earliest) or -1 (latest)")
        for part in parse_ranges(text):
            if part.stop > topic.queues:
                raise ValueError(f"topic {topic.name!r} has queues 0 to {topic.queues - 1}, not {part.stop - 1}")
            offsets[part.start : part.stop] = offset
    return offsets


def place(
    edge: Edge,
    topic: Topic,
    bounds: Bounds,
    explicit: I64 | None,
    at_time: I64 | None,
    chosen: Mask | None,
    *,
    fail_on_data_loss: bool,
) -> I64:
    """An offset for each queue: its time's (-1 for none), else the explicit one, else :attr:`Edge.unnamed`.

    Explicit ones of ``chosen`` queues outside the bounds raise :class:`DataLoss` with ``fail_on_data_loss``, and are
    moved inside without; where a read ends, one below the earliest does not matter. Raises ``InvalidOption`` for a
    queue that has no message of its time on where it needs one.
    """
    if explicit is None:
        offsets = bounds.earliest if edge.unnamed == "earliest" else bounds.latest
    else:
        offsets = explicit if len(explicit) == topic.queues else _grown(explicit, topic, bounds)
        offsets = np.where(offsets == EARLIEST, bounds.earliest, np.where(offsets == LATEST, bounds.latest, offsets))
        asked = np.True_ if chosen is None else chosen
        if edge.is_start:
            below = asked & (offsets < bounds.earliest)
            check_loss(topic, below, offsets, "earliest", bounds.earliest, fail_on_data_loss)
        check_loss(topic, asked & (offsets > bounds.latest), offsets, "latest", bounds.latest, fail_on_data_loss)
    if at_time is not None:
        timed = at_time >= 0
        if edge.needs_message:
            _check_messages(edge, topic, timed & (at_time >= bounds.latest))
        offsets = np.where(timed, at_time, offsets)
    placed: I64 = np.clip(offsets, bounds.earliest, bounds.latest)
    return placed


def times_of(edge: Edge, topic: Topic, chosen: Mask | None) -> I64 | None:
    """The times that the offsets of queues are to be found of: -1 where none is. None where there are none at all."""
    if edge.times is None:
        return None
    times = edge.times.of(topic)
    return times if chosen is None else np.where(chosen, times, -1)


def _check_messages(edge: Edge, topic: Topic, without: Mask) -> None:
    if not without.any():
        return
    assert edge.times is not None, "queues have a time"
    raise InvalidOption(
        f"option {edge.times.option}: {np.count_nonzero(without)} queues of topic {topic.name!r}, the first of them "
        f"{int(np.argmax(without))}, have no message that was stored then or later; set "
        "startingOffsetsByTimestampStrategy to latest to begin with what comes",
        option=edge.times.option,
    )


def _grown(explicit: I64, topic: Topic, bounds: Bounds) -> I64:
    """Offsets known of fewer queues than the topic has by now: the new ones from their beginning."""
    offsets = bounds.earliest.copy()
    known = min(len(explicit), topic.queues)
    offsets[:known] = explicit[:known]
    return offsets


def check_loss(topic: Topic, wrong: NDArray[Any], wanted: I64, bound: str, bounds: I64, fail: bool) -> None:
    """Raises :class:`DataLoss`, or warns, when there are queues that do not have the offset wanted of them."""
    count = int(np.count_nonzero(wrong))
    if not count:
        return
    queue = int(np.argmax(wrong))
    message = (
        f"{count} queues of topic {topic.name!r} do not have the offsets asked for: queue {queue} was to be read at "
        f"{wanted[queue]}, its {bound} is {bounds[queue]}"
    )
    if fail:
        raise DataLoss(
            f"{message}. Messages are gone, by retention or with a deleted topic; set failOnDataLoss to false to go on "
            "with what is there",
            topic=topic.name,
            queue=queue,
            wanted=int(wanted[queue]),
            **{bound: int(bounds[queue])},
        )
    _log.warning("%s; going on with what is there", message)


def chosen_queues(topic: Topic, options: ReadOptions) -> Mask | None:
    """Which queues of the topic are asked for; None when all are.

    Queues that it does not have are an error where they are assigned: option ``queues`` may be for a larger topic.
    """
    assigned = None if options.assigned is None else options.assigned.get(topic.name, ())
    for part in assigned or ():
        if part.stop > topic.queues:
            raise InvalidOption(
                f"option assign: topic {topic.name!r} has queues 0 to {topic.queues - 1}, not {part.stop - 1}",
                option="assign",
            )
    queues = options.queues if assigned is None else assigned
    if queues is None:
        return None
    chosen = np.zeros(topic.queues, np.bool_)
    for part in queues:
        chosen[part.start : part.stop] = True
    return chosen


def admit(start: I64, end: I64, limit: int) -> I64:
    """The end of a batch of at most ``limit`` messages: each queue gives its share of the backlog.

    What rounding leaves over goes to queues that have more, so a batch is always as large as it may be: to those first
    whose share was rounded to nothing, and where these are too many, to others of them in each batch. So no queue waits
    for as long as some have a backlog that never ends.
    """
    backlog = np.maximum(end - start, 0)
    total = int(backlog.sum())
    if total <= limit:
        return np.maximum(start, end)
    share: I64 = np.floor(backlog * (limit / total)).astype(np.int64)
    left = limit - int(share.sum())
    if left > 0:
        without = np.flatnonzero((share == 0) & (backlog > 0))
        if len(without) > left:
            turn = xxhash.xxh3_64_intdigest(start.tobytes() + end.tobytes()) % len(without)
            without = np.roll(without, -turn)[:left]
        share[without] += 1
        share[np.flatnonzero(share < backlog)[: left - len(without)]] += 1
    share += start
    return share


def same_topic(topic: Topic, known: StreamPlaces, *, fail_on_data_loss: bool) -> bool:
    """Whether offsets known of a topic are of this one. Raises :class:`DataLoss` if not, unless told to go on.

    Raises ``Unavailable`` where they are of more queues than it has.
    """
    if known.topic_id == topic.id:
        if isinstance(known, TopicOffsets):
            check_has_queues(topic, len(known.offsets))
        return True
    message = (
        f"topic {topic.name!r} was deleted and made anew (its id was {known.topic_id}, now it is {topic.id}): what was "
        "not read of the old one is gone"
    )
    if fail_on_data_loss:
        raise DataLoss(
            f"{message}. Set failOnDataLoss to false to go on with the new one from its beginning", topic=topic.name
        )
    _log.warning("%s; going on with the new one from its beginning", message)
    return False


def check_has_queues(topic: Topic, known: int) -> None:
    """Raises ``Unavailable`` where offsets are known of more queues than a topic has, so that none is forgotten."""
    if topic.queues < known:
        raise Unavailable(
            f"topic {topic.name!r} has {topic.queues} queues, and offsets are known of {known}: the node that was "
            "asked has not heard yet that the topic grew, so ask again; or the cluster was made again of a backup from "
            "before that: then begin anew, with another checkpoint or archive",
            topic=topic.name,
        )

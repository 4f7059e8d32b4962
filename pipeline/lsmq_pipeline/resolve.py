"""From what a user asked for to offsets: where each queue starts and ends.

Pure functions over columns, one entry a queue; the cluster is asked by whoever calls them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.topics import Topic, parse_ranges
from lsmq_pipeline.cluster import Bounds
from lsmq_pipeline.errors import DataLoss, InvalidOption
from lsmq_pipeline.offsets import TopicOffsets, from_document

I64 = NDArray[np.int64]
EARLIEST, LATEST = -2, -1  # in explicit offsets, as in Spark's Kafka source
_log = logging.getLogger("lsmq")


def explicit_offsets(option: str, text: str, topics: Sequence[Topic], missing: int) -> dict[str, I64] | None:
    """Offsets given one by one; None when the text is ``earliest`` or ``latest``.

    Two forms: ``{"orders": {"0-9": 23, "10": -1}}`` with ranges of queues (-2 the earliest, -1 the latest, queues that
    are not named ``missing``), and a document of :mod:`lsmq_pipeline.offsets`. Raises :class:`InvalidOption`.
    """
    if text in ("earliest", "latest"):
        return None
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("it is not an object")
        if "version" in given:
            return _from_document(option, given, topics)
        by_name = {topic.name: topic for topic in topics}
        unknown = given.keys() - by_name.keys()
        if unknown:
            raise ValueError(f"topic {sorted(unknown)[0]!r} is not among those read")
        return {name: _from_ranges(by_name[name], queues, missing) for name, queues in given.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"option {option} is neither earliest nor latest nor offsets such as "
            f'{{"orders": {{"0-9": 23, "10": -1}}}}: {error}',
            option=option,
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
    topic: Topic,
    bounds: Bounds,
    explicit: I64 | None,
    default: str,
    *,
    fail_on_data_loss: bool,
    may_be_lost: bool,
) -> I64:
    """An offset for each queue: the time's, else the explicit ones, else ``default``.

    Explicit ones outside the bounds raise :class:`DataLoss` with ``fail_on_data_loss``, and are moved inside without.
    ``may_be_lost`` says whether one below the earliest matters: it does where a read starts, not where it ends.
    """
    if bounds.at_time is not None:
        return bounds.at_time
    if explicit is None:
        return bounds.earliest if default == "earliest" else bounds.latest
    offsets = explicit if len(explicit) == topic.queues else _grown(explicit, topic, bounds)
    offsets = np.where(offsets == EARLIEST, bounds.earliest, np.where(offsets == LATEST, bounds.latest, offsets))
    if may_be_lost:
        check_loss(topic, offsets < bounds.earliest, offsets, "earliest", bounds.earliest, fail_on_data_loss)
    check_loss(topic, offsets > bounds.latest, offsets, "latest", bounds.latest, fail_on_data_loss)
    return np.clip(offsets, bounds.earliest, bounds.latest)


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


def select_queues(topic: Topic, queues: Sequence[range] | None) -> NDArray[np.bool_] | None:
    """Which queues of the topic are asked for; None when all are. Queues it does not have are no error."""
    if queues is None:
        return None
    chosen = np.zeros(topic.queues, np.bool_)
    for part in queues:
        chosen[part.start : part.stop] = True
    return chosen


def admit(start: I64, end: I64, limit: int) -> I64:
    """The end of a batch of at most ``limit`` messages: each queue gives its share of the backlog.

    What rounding leaves over goes to the first queues that have more, so a batch is always as large as it may be.
    """
    backlog = np.maximum(end - start, 0)
    total = int(backlog.sum())
    if total <= limit:
        return np.maximum(start, end)
    share: I64 = np.floor(backlog * (limit / total)).astype(np.int64)
    left = limit - int(share.sum())
    if left > 0:
        share[np.flatnonzero(share < backlog)[:left]] += 1
    share += start
    return share


def same_topic(topic: Topic, known: TopicOffsets, *, fail_on_data_loss: bool) -> bool:
    """Whether offsets known of a topic are of this one. Raises :class:`DataLoss` if not, unless told to go on."""
    if known.topic_id == topic.id:
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

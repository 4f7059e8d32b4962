"""Topics whose queues have names: which queues got messages between two places, and how far each of them goes.

What is known of queues elsewhere is columns with an entry a queue. Here they have entries for those queues alone that
are read, in order of the queues' numbers, and a topic stands beside whose routes count these entries.

Not supported: offsets and times of single queues. They are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.queue_names import NUMBER_BITS
from lsmq.topics import Topic
from lsmq_pipeline.client import Arrivals, PipelineClient
from lsmq_pipeline.errors import DataLoss, InvalidOption
from lsmq_pipeline.given import json_object
from lsmq_pipeline.named_offsets import ShardPlace, named_from_document
from lsmq_pipeline.offsets import is_document
from lsmq_pipeline.options import Edge, ReadOptions

I64 = NDArray[np.int64]
_log = logging.getLogger("lsmq")
#: Places in all shards, a time, ``earliest`` or ``latest``.
NamedEdge = Mapping[int, ShardPlace] | int | str
#: A place before all others.
BEGINNING = ShardPlace(0)


@dataclass(frozen=True, slots=True)
class NamedQueues:
    """Queues of ``topic`` in order of their numbers: ``[starts, ends)`` of each. ``names`` where they are asked for."""

    topic: Topic
    numbers: NDArray[np.uint32]
    names: tuple[str, ...]
    starts: I64
    ends: I64

    def by_place(self) -> Topic:
        """The topic with these queues alone: a route of it has those of a shard."""
        firsts = [int(self.numbers.searchsorted(place << NUMBER_BITS)) for place in range(len(self.topic.routes))]
        ends = [*firsts[1:], len(self.numbers)]
        routes = tuple(
            replace(route, first=first, end=end)
            for route, first, end in zip(self.topic.routes, firsts, ends, strict=True)
        )
        return replace(self.topic, queues=len(self.numbers), routes=routes)


def asked_topics(cluster: PipelineClient, options: ReadOptions, told: set[str]) -> list[Topic]:
    """Those to be read, at least one. Raises ``UnknownTopic`` where there is none, and as :func:`that_fit` does."""
    topics = cluster.topics(options.topics, options.topic_pattern)
    found = that_fit(topics, options, told)
    if not found:
        check_names(topics[0], options)
    return found


def that_fit(topics: Sequence[Topic], options: ReadOptions, told: set[str]) -> list[Topic]:
    """Those of a kind whose queues the options can say. Others that a pattern matches are passed over.

    A warning says so, unless they are among those that it was ``told`` of. Raises as :func:`check_names` does for a
    topic that is named itself.
    """
    found = []
    for topic in topics:
        try:
            check_names(topic, options)
        except InvalidOption as error:
            if options.topic_pattern is None:
                raise
            if topic.name not in told:
                _log.warning("topic %r is passed over: %s", topic.name, error.message)
                told.add(topic.name)
        else:
            found.append(topic)
    return found


def check_names(topic: Topic, options: ReadOptions) -> None:
    """Raises ``InvalidOption`` for options that the topic's kind of queues cannot obey."""
    if not topic.named:
        for name, given in (
            ("queueNames", options.queue_names),
            ("queuePattern", options.queue_pattern),
            ("queuePrefix", options.queue_prefix),
        ):
            if given is not None:
                raise InvalidOption(
                    f"option {name} is for topics whose queues have names; those of {topic.name!r} have numbers:"
                    " take option queues",
                    option=name,
                )
        return
    if options.queues is not None or options.assigned is not None:
        name = "queues" if options.queues is not None else "assign"
        raise InvalidOption(
            f"option {name} has numbers, and the queues of topic {topic.name!r} have names: take queueNames,"
            " queuePattern or queuePrefix",
            option=name,
        )


def places_at(edge: Edge, topic: Topic) -> NamedEdge:
    """Where reading of a named topic starts or ends.

    Raises ``InvalidOption`` for what is said of single queues, or of a topic that was made anew since.
    """
    if edge.times is not None:
        if edge.needs_message or topic.name in edge.times.by_topic:
            option = "startingOffsetsByTimestampStrategy" if edge.needs_message else edge.times.option
            raise InvalidOption(
                f"option {option} says something of single queues, and those of topic {topic.name!r} have names; take"
                " startingTimestamp and endingTimestamp, and strategy latest",
                option=option,
            )
        return edge.unnamed if edge.times.everywhere is None else max(0, edge.times.everywhere)
    if edge.offsets in ("earliest", "latest"):
        return edge.offsets
    given = _given(edge)
    if not is_document(given):
        if topic.name in given:
            raise InvalidOption(
                f"option {edge.option} has offsets by number, and the queues of topic {topic.name!r} have names; give"
                " a time, or the offsets of a checkpoint as they are",
                option=edge.option,
            )
        return edge.unnamed
    found = named_from_document(given).get(topic.name)
    if found is None:
        return edge.unnamed
    if found.topic_id != topic.id or found.places.keys() != set(shards_of(topic)):
        raise InvalidOption(
            f"option {edge.option} has offsets of a topic {topic.name!r} that was deleted and made anew since",
            option=edge.option,
        )
    return found.places


def _given(edge: Edge) -> dict[str, Any]:
    try:
        return json_object(edge.offsets)
    except ValueError as error:
        raise InvalidOption(
            f"option {edge.option} is neither earliest nor latest nor offsets: {error}", option=edge.option
        ) from error


def shards_of(topic: Topic) -> list[int]:
    """The shards that a named topic lies on, in order of its routes."""
    return [route.shard for route in topic.routes]


def picking(options: ReadOptions) -> dict[str, Any]:
    """Which queues the nodes are asked for; empty for all."""
    if options.queue_names is not None:
        return {"names": list(options.queue_names)}
    if options.queue_pattern is not None:
        return {"pattern": options.queue_pattern}
    return {} if options.queue_prefix is None else {"prefix": options.queue_prefix}


def queues_between(
    cluster: PipelineClient,
    topic: Topic,
    options: ReadOptions,
    edges: tuple[NamedEdge, NamedEdge],
    *,
    with_names: bool,
) -> NamedQueues:
    """The queues that options ask for, and what they have between two edges of a batch, as far as it is kept.

    An end at a time is what is there now where that is still to come.
    """
    start, end = edges
    futures = [
        cluster.arrivals(
            topic, shard, _place(start, shard), _place(end, shard), picking(options), with_names=with_names
        )
        for shard in shards_of(topic)
    ]
    fail = options.fail_on_data_loss if isinstance(start, Mapping) else None
    return joined(topic, [kept(topic, future.result(), fail) for future in futures])


def _place(edge: NamedEdge, shard: int) -> ShardPlace | None:
    if isinstance(edge, str):
        return None
    return ShardPlace(edge) if isinstance(edge, int) else edge[shard]


def kept(topic: Topic, arrivals: Arrivals, fail_on_data_loss: bool | None) -> Arrivals:
    """What is left. Raises ``DataLoss`` where that is not all, or warns; None does neither."""
    gone = arrivals.starts < arrivals.earliest
    if not gone.any():
        return arrivals
    if fail_on_data_loss is not None:
        at = int(np.argmax(gone))
        lost(
            f"{np.count_nonzero(gone)} queues of topic {topic.name!r} do not have the offsets asked for: the queue "
            f"with number {arrivals.queues[at]} was to be read at {arrivals.starts[at]}, its earliest is "
            f"{arrivals.earliest[at]}",
            topic,
            fail_on_data_loss,
        )
    return replace(arrivals, starts=np.maximum(arrivals.starts, np.minimum(arrivals.earliest, arrivals.ends)))


def lost(message: str, topic: Topic, fail_on_data_loss: bool) -> None:
    """Raises ``DataLoss``, or warns."""
    if fail_on_data_loss:
        raise DataLoss(
            f"{message}. Messages are gone, by retention or with a deleted queue; set failOnDataLoss to false to go on "
            "with what is there",
            topic=topic.name,
        )
    _log.warning("%s; going on with what is there", message)


def joined(topic: Topic, parts: Sequence[Arrivals]) -> NamedQueues:
    """What came to the queues of all shards, in order of their numbers; those that have nothing are left out."""
    numbers = np.concatenate([part.queues for part in parts])
    starts, ends = (np.concatenate([getattr(part, name) for part in parts]) for name in ("starts", "ends"))
    names = [name or "" for part in parts for name in part.names or ()]
    places = np.flatnonzero(starts < ends)
    places = places[np.argsort(numbers[places], kind="stable")]
    kept = tuple(names[place] for place in places.tolist()) if names else ()
    return NamedQueues(topic, numbers[places], kept, starts[places], ends[places])

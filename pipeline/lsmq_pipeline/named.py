"""Batch reads of topics whose queues have names: which queues there are, and how far each goes.

What is known of queues elsewhere is columns with an entry a queue. Here they have entries for those queues alone that
are read, in order of the queues' numbers, and a topic stands beside whose routes count these entries.

Not supported: streams; offsets and times of single queues. They are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lsmq.queue_names import NUMBER_BITS, compile_pattern, pattern_prefix
from lsmq.topics import Topic
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.options import ReadOptions

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NamedQueues:
    """Queues of ``topic`` in order of their numbers: ``[earliest, latest)`` of each."""

    topic: Topic
    numbers: NDArray[np.uint32]
    names: tuple[str, ...]
    earliest: I64
    latest: I64

    def by_place(self) -> Topic:
        """The topic with these queues alone: a route of it has those of a shard."""
        firsts = [int(self.numbers.searchsorted(place << NUMBER_BITS)) for place in range(len(self.topic.routes))]
        ends = [*firsts[1:], len(self.numbers)]
        routes = tuple(
            replace(route, first=first, end=end)
            for route, first, end in zip(self.topic.routes, firsts, ends, strict=True)
        )
        return replace(self.topic, queues=len(self.numbers), routes=routes)


def check_names(topic: Topic, options: ReadOptions) -> None:
    """Raises ``InvalidOption`` for options that the topic's kind of queues cannot obey."""
    if not topic.named:
        for name, given in (("queueNames", options.queue_names), ("queuePattern", options.queue_pattern)):
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
            f"option {name} has numbers, and the queues of topic {topic.name!r} have names: take queueNames or"
            " queuePattern",
            option=name,
        )
    for edge, whole in ((options.start, "earliest"), (options.end, "latest")):
        if edge.times is not None or edge.offsets != whole:
            raise InvalidOption(
                f"option {edge.option if edge.times is None else edge.times.option}: topic {topic.name!r} has queues"
                f" with names, which are read from the earliest to the latest; filter by stored_time instead",
                option=edge.option,
            )


def named_queues(cluster: PipelineClient, topic: Topic, options: ReadOptions) -> NamedQueues:
    """The queues that options ask for, as they are now."""
    pattern = None if options.queue_pattern is None else compile_pattern(options.queue_pattern)
    wanted = None if options.queue_names is None else frozenset(options.queue_names)
    found = sorted(
        (
            queue
            for queue in cluster.named_queues(topic, pattern_prefix(options.queue_pattern or ""))
            if (pattern is None or pattern.fullmatch(queue.name)) and (wanted is None or queue.name in wanted)
        ),
        key=lambda queue: queue.number,
    )
    return NamedQueues(
        topic,
        np.array([queue.number for queue in found], np.uint32),
        tuple(queue.name for queue in found),
        np.array([queue.earliest for queue in found], np.int64),
        np.array([queue.latest for queue in found], np.int64),
    )

"""Times at which a read starts or ends: one for all queues, or some for each topic's queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.topics import Topic, parse_ranges
from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.given import json_object, parse_time

I64 = NDArray[np.int64]

#: Different times for the queues of one topic: each is asked of every shard by a request of its own.
MAX_TIMES = 1_000
TIMES_BY_QUEUE = (
    'an object of topics, their queues and times such as {"orders": {"0-99": 1372636800000, "100": '
    '"2013-07-01T00:00:00Z"}}'
)


@dataclass(frozen=True, slots=True)
class TimesByQueue:
    """Milliseconds since 1970: ``everywhere``, or where that is None, of the ranges of queues in ``by_topic``."""

    option: str
    everywhere: int | None
    by_topic: Mapping[str, tuple[tuple[range, int], ...]] = field(default_factory=dict)

    def of(self, topic: Topic) -> I64:
        """The time of each queue, -1 where none is given. Raises ``InvalidOption`` for a queue that the topic lacks."""
        if self.everywhere is not None:
            return np.full(topic.queues, self.everywhere, np.int64)
        times = np.full(topic.queues, -1, np.int64)
        for queues, time_ms in self.by_topic.get(topic.name, ()):
            if queues.stop > topic.queues:
                raise InvalidOption(
                    f"option {self.option}: topic {topic.name!r} has queues 0 to {topic.queues - 1}, not "
                    f"{queues.stop - 1}",
                    option=self.option,
                )
            times[queues.start : queues.stop] = time_ms
        if len(np.unique(times)) > MAX_TIMES:
            raise InvalidOption(
                f"option {self.option} has {len(np.unique(times))} different times for topic {topic.name!r}, the limit "
                f"is {MAX_TIMES}; give offsets instead, or times that more queues share",
                option=self.option,
            )
        return times

    def check_topics(self, topics: set[str]) -> None:
        """Raises ``InvalidOption`` for a topic that is not among those read."""
        unknown = sorted(self.by_topic.keys() - topics)
        if unknown:
            raise InvalidOption(
                f"option {self.option}: topic {unknown[0]!r} is not among those read", option=self.option
            )


def parse_times_by_queue(text: str) -> dict[str, tuple[tuple[range, int], ...]]:
    """Times of ranges of queues of each topic. Raises ``ValueError``."""
    return {topic: tuple(_of_queues(topic, queues)) for topic, queues in json_object(text).items()}


def _of_queues(topic: str, queues: Any) -> list[tuple[range, int]]:
    if not isinstance(queues, dict):
        raise ValueError(f"the times of topic {topic!r} are not an object")
    found = []
    for places, moment in queues.items():
        if type(moment) is not int and not isinstance(moment, str):
            raise ValueError(f"queues {places} have time {moment!r}")
        found += [(part, parse_time(str(moment))) for part in parse_ranges(places)]
    return found

"""What a member of a consumer group knows of itself, as a state machine that two threads share.

The heartbeat thread sends :meth:`MemberState.beat` and tells what was answered; the consumer's event loop does what
follows from it and says what it gave up. A queue is *owned* from the moment the answer that names it was read until it
is given up for good; an owned queue that an answer does not name any more is *leaving*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lsmq import runtime
from lsmq._queue_ranges import NONE, contains, intersect, subtract, union
from lsmq.group_values import Assignment, Heartbeat, Ranges

ByTopic = Mapping[str, Ranges]


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """What is to be done: take over ``gained``, give up ``leaving`` in good order, drop ``lost``, which is gone."""

    gained: ByTopic = field(default_factory=dict)
    leaving: ByTopic = field(default_factory=dict)
    lost: ByTopic = field(default_factory=dict)


class MemberState:
    """Thread-safe. ``hello`` is the heartbeat to join with; ``patience_s`` how long giving up may take."""

    def __init__(self, hello: Heartbeat, patience_s: float | None) -> None:
        self._lock = runtime.Lock()
        self._beat = hello
        self.patience_s = patience_s
        self._leaving: list[tuple[float, str, Ranges]] = []  # by time of the order
        self._hint = 0
        self.topic_ids: dict[str, int] = {}
        #: How many queues a topic had when this member first heard of it. What it has grown by is new.
        self.first_queues: dict[str, int] = {}
        self.heartbeat_ms = 0
        self.waiting_for = 0
        self.standby = False

    @property
    def id(self) -> str:
        return self._beat.member

    @property
    def epoch(self) -> int:
        return self._beat.epoch

    @property
    def stalled(self) -> bool:
        return self._beat.stalled

    @property
    def version(self) -> int:
        return self._beat.version

    def beat(self) -> Heartbeat:
        """What to say now."""
        with self._lock:
            return replace(self._beat, epoch=max(self._beat.epoch, self._hint)) if self._beat.version else self._beat

    def owned(self, topic: str) -> Ranges:
        """All that nobody else may have yet."""
        return self._beat.owned.get(topic, NONE)

    def staying(self, topic: str) -> Ranges:
        """What is owned and not to be given up."""
        with self._lock:
            return self._staying(topic)

    def _staying(self, topic: str) -> Ranges:
        leaving = union(*(ranges for _, name, ranges in self._leaving if name == topic))
        return subtract(self._beat.owned.get(topic, NONE), leaving)

    def owns(self, topic: str, queue: int) -> bool:
        return contains(self.owned(topic), queue)

    # What happens

    def hear(self, answer: Assignment) -> AssignmentChange:
        """An answer was read."""
        with self._lock:
            owned = dict(self._beat.owned)
            lost: dict[str, Ranges] = {}
            for name, topic in answer.topics.items():
                if name in owned and self.topic_ids.get(name, topic.id) != topic.id:
                    lost[name] = owned.pop(name)
            self._leaving = [order for order in self._leaving if order[1] not in lost]
            for name, topic in answer.topics.items():
                if self.topic_ids.get(name) != topic.id:
                    self.first_queues[name] = topic.queues
            self.topic_ids |= {name: topic.id for name, topic in answer.topics.items()}
            gained: dict[str, Ranges] = {}
            leaving: dict[str, Ranges] = {}
            now = runtime.monotonic()
            for name in dict.fromkeys((*owned, *answer.assigned)):
                assigned = union(answer.assigned.get(name, NONE))
                mine = owned.get(name, NONE)
                if new := subtract(assigned, mine):
                    gained[name] = new
                    owned[name] = union(mine, new)
                on_its_way = union(*(ranges for _, topic_name, ranges in self._leaving if topic_name == name))
                if gone := subtract(subtract(mine, assigned), on_its_way):
                    leaving[name] = gone
                    self._leaving.append((now, name, gone))
            self._beat = replace(self._beat, epoch=answer.epoch, version=answer.version, owned=owned)
            self.heartbeat_ms, self.waiting_for = answer.heartbeat_ms, answer.waiting_for
            self.standby = answer.standby
            return AssignmentChange(gained, leaving, lost)

    def lose(self) -> AssignmentChange:
        """The group does not know this member any more: it has nothing, and joins again."""
        with self._lock:
            lost = {name: ranges for name, ranges in self._beat.owned.items() if ranges}
            self._beat = replace(self._beat, epoch=0, version=0, owned={})
            self._leaving = []
            self._hint = 0
            return AssignmentChange(lost=lost)

    def overdue(self) -> AssignmentChange:
        """Queues that were to be given up long ago are given up now, whatever is done with them still."""
        with self._lock:
            if not self._leaving or self.patience_s is None:
                return AssignmentChange()
            limit = runtime.monotonic() - self.patience_s
            lost: dict[str, Ranges] = {}
            for ordered_at, name, ranges in self._leaving:
                if ordered_at <= limit:
                    lost[name] = union(lost.get(name, NONE), ranges)
            for name, ranges in lost.items():
                self._give_up(name, ranges)
            return AssignmentChange(lost=lost)

    def give_up(self, topic: str, ranges: Ranges) -> None:
        """These queues are given up for good."""
        with self._lock:
            self._give_up(topic, ranges)

    def _give_up(self, topic: str, ranges: Ranges) -> None:
        owned = {**self._beat.owned, topic: subtract(self._beat.owned.get(topic, NONE), ranges)}
        self._beat = replace(self._beat, owned={name: left for name, left in owned.items() if left})
        self._leaving = [
            (at, name, left)
            for at, name, gone in self._leaving
            if (left := subtract(gone, ranges) if name == topic else gone)
        ]

    def still_leaving(self, topic: str, ranges: Ranges) -> Ranges:
        """Of queues that were to be given up, those that are not lost meanwhile."""
        with self._lock:
            return intersect(ranges, union(*(gone for _, name, gone in self._leaving if name == topic)))

    def must_be(self, epoch: int) -> None:
        """Somebody knows of a later generation; say so in the next heartbeat."""
        with self._lock:
            self._hint = max(self._hint, epoch)

    def stall(self, stalled: bool) -> bool:
        """A handler has not come back in time, or they all have; whether that is new."""
        with self._lock:
            changed = stalled != self._beat.stalled
            self._beat = replace(self._beat, stalled=stalled)
            return changed

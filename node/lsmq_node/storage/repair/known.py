"""What is known of a shard beside its messages while it is pieced together, and how surely.

Where something is lost, a queue is at least as long as what is left says. It is *sure* where it is known to be exactly
so long; the first entry of the log that proves it makes it sure again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lsmq.queue_names import SLOTS

from ..columns import I64
from ..state import NAMES_TOPIC, ShardState, StoredTopic, TopicState
from ..topic_options import TopicOptions


@dataclass(frozen=True, slots=True)
class TopicHint:
    """What others know of a topic: the queues ``[first, end)`` of it are of this shard."""

    topic: StoredTopic
    first: int
    end: int


class KnownShard:
    """A shard's state as far as it is known. One thread."""

    def __init__(self, hints: Mapping[int, TopicHint]) -> None:
        """``hints`` are by topic id, for topics of which the shard itself does not know the name any more."""
        self.state = ShardState()
        #: Whether all topics there are must be in the state; else one that is met was lost.
        self.catalog_whole = True
        #: Whether the ends and the deletions of queues in the checkpoint are all there.
        self.whole = True
        #: Ids of topics whose name is lost.
        self.nameless: set[int] = set()
        self._hints = hints
        self._sure: dict[int, NDArray[np.bool_]] = {}
        self._doubted: dict[int, NDArray[np.bool_]] = {}
        self._before_hole: dict[int, I64] = {}
        self._holed = False

    def adopt(self, topic_id: int, hint: TopicHint | None = None) -> TopicState:
        """The topic, which must have been there; with a name that says so where its own is lost."""
        state = self.state.topics.get(topic_id)
        if state is not None:
            return state
        if topic_id & NAMES_TOPIC:  # the log of another topic's names, which comes with that
            self.adopt(topic_id & ~NAMES_TOPIC, self._named_hint(topic_id & ~NAMES_TOPIC))
            if topic_id in self.state.topics:
                self.set_unsure(topic_id, 0, 1)
                return self.state.topics[topic_id]
        hint = hint or self._hints.get(topic_id)
        if hint is None:
            self.nameless.add(topic_id)
            hint = TopicHint(StoredTopic(topic_id, self.free_name(f"lost-found-{topic_id}"), 1), 0, 1)
        self.state.put_topic(hint.topic, hint.first, hint.end)
        self.set_unsure(topic_id, 0, hint.end - hint.first)
        return self.state.topics[topic_id]

    def _named_hint(self, topic_id: int) -> TopicHint | None:
        """What is to be said of a topic of which nobody knows more than that its queues have names."""
        if topic_id in self._hints or topic_id in self.state.topics:
            return None
        self.nameless.add(topic_id)
        options = TopicOptions(named=True)
        return TopicHint(StoredTopic(topic_id, self.free_name(f"lost-found-{topic_id}"), SLOTS, options), 0, 0)

    def free_name(self, name: str) -> str:
        """``name``, or one like it that no topic has."""
        while name in self.state.by_name:
            name += "-"
        return name

    def name(self, topic_id: int, name: str) -> None:
        """The name of a nameless topic follows from what else is known."""
        item = self.state.topics[topic_id]
        item.topic = replace(item.topic, name=name)
        self.learned(topic_id)

    def learned(self, topic_id: int) -> None:
        """The topic's own name has come to light."""
        if topic_id in self.nameless:
            self.nameless.remove(topic_id)
            self.state.by_name = {item.topic.name: item for item in self.state.topics.values()}

    def name_as(self, topic: StoredTopic) -> None:
        """Others know the nameless topic."""
        item = self.state.topics[topic.id]
        item.topic = topic if topic.named else replace(topic, queues=max(topic.queues, item.topic.queues))
        self.learned(topic.id)

    def cover(self, item: TopicState, end: int) -> None:
        """The topic has queues up to ``end``, whatever is known of it."""
        if end > item.end:
            begin = item.end - item.first
            topic = item.topic if item.named else replace(item.topic, queues=max(item.topic.queues, end))
            self.state.put_topic(topic, item.first, end)
            if self._holed or not self.catalog_whole:
                self.set_unsure(topic.id, begin, end - item.first)

    def sure(self, item: TopicState) -> NDArray[np.bool_]:
        """By row, whether the queue's end is exactly known. To be changed in place."""
        return _of(self._sure, item, True)

    def doubted(self, item: TopicState) -> NDArray[np.bool_]:
        """By row, whether log start and deletions of the queue are lost, or as they were earlier."""
        return _of(self._doubted, item, False)

    def set_unsure(self, topic_id: int, first: int, end: int) -> None:
        """Of the queues in these rows nobody knows how long they are, nor what of them was deleted."""
        item = self.state.topics[topic_id]
        self.sure(item)[first:end] = False
        self.doubted(item)[first:end] = True

    def raise_ends(self, item: TopicState, rows: I64, ends: I64) -> None:
        """These queues are so long at least."""
        np.maximum.at(item.next, rows, ends)
        item.committed[rows] = item.next[rows]

    def raise_to_commits(self) -> None:
        """What a group has committed was there."""
        for group, topic_id in self.state.offsets:
            item, offsets = self.state.topics.get(topic_id), self.state.offsets.get(group, topic_id)
            if item is not None and offsets is not None:
                known = min(offsets.row_count, len(item.next))
                committed = offsets.first(known) - 1
                rows = np.flatnonzero(committed > item.next[:known])
                self.raise_ends(item, rows, committed[rows])

    def hole(self) -> None:
        """Entries of the log are lost here: from now on nobody knows how long any queue is."""
        self._holed = True
        for topic_id, item in self.state.topics.items():
            if topic_id not in self._before_hole:
                self._before_hole[topic_id] = item.next.copy()
            self.sure(item)[:] = False

    def lost_from(self, item: TopicState, row: int) -> int | None:
        """From here on records of the queue may have been lost with a hole of the log; None: there was none."""
        if not self._holed:
            return None
        before = self._before_hole.get(item.topic.id)
        return 0 if before is None or row >= len(before) else int(before[row])


def _of(arrays: dict[int, NDArray[np.bool_]], item: TopicState, default: bool) -> NDArray[np.bool_]:
    """A topic's array of a flag a queue, as long as its other arrays."""
    found = arrays.get(item.topic.id)
    if found is None or len(found) < len(item.next):
        wider = np.full(len(item.next), default, np.bool_)
        if found is not None:
            wider[: len(found)] = found
        found = arrays[item.topic.id] = wider
    return found

"""By which pattern the members of a group read a named topic, as the shard of its queues was told.

It is told when members take over queues, with the fence of their generation, and is a document beside that, msgpack::

    key    "pattern/<group>"
    value  {"version": 1, "generation": number, "patterns": [[topic id, pattern], ...]}

It counts while the fence is of its generation: a release before, which leads in between, raises the fence alone. Then,
as where nothing was told, all queues are the group's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack
import numpy as np

from lsmq.errors import CorruptFile, InvalidQueueName, UnknownTopic

from .columns import U32
from .documents import Documents
from .known_names import NamesBehind
from .name_patterns import NamePattern

if TYPE_CHECKING:
    from .named_topics import NamedTopics

PREFIX: Final = "pattern/"
FENCE_PREFIX: Final = "fence/"
_VERSION: Final = 1
#: So many numbers are remembered, of all topics and patterns.
_REMEMBERED: Final = 1 << 22


def encode(generation: int, patterns: Mapping[int, str]) -> bytes | None:
    """The document; None where there is nothing to say."""
    rows = [[topic_id, pattern] for topic_id, pattern in sorted(patterns.items())]
    packed: bytes | None = None
    if rows:
        packed = msgpack.packb({"version": _VERSION, "generation": generation, "patterns": rows})
    return packed


def decode(body: bytes | None, fence: bytes | None) -> dict[int, str]:
    """By topic id, what the document says beside a fence; nothing where it does not count, or is of a later release."""
    if body is None or fence is None:
        return {}
    found = msgpack.unpackb(body)
    if found["version"] != _VERSION or found["generation"] != int(fence):
        return {}
    return dict(found["patterns"])


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The numbers whose names fit a pattern, ascending, with what has happened to names up to a version."""

    version: int
    numbers: U32


class GroupPatterns:
    """Thread-safe; in threads that may read the disk. Names are remembered that fit, so that only new ones cost."""

    def __init__(self, documents: Documents, named: NamedTopics) -> None:
        self._documents = documents
        self._named = named
        self._fitting: dict[tuple[int, str], _Fitting] = {}

    def of(self, group: str, topic_id: int) -> str | None:
        """By which pattern a group reads a topic here; None: all of it."""
        body = self._documents.get(PREFIX + group)
        return None if body is None else decode(body, self._documents.get(FENCE_PREFIX + group)).get(topic_id)

    def numbers(self, topic_id: int, pattern: str) -> U32 | None:
        """The numbers of a topic's queues that fit, ascending, with some that have no name any more.

        None where that cannot be known: the topic is gone, its log of names is damaged, or a later release has
        patterns of another kind.
        """
        try:
            found = self._look(topic_id, pattern)
        except (UnknownTopic, CorruptFile, InvalidQueueName):
            return None
        key, known = (topic_id, pattern), self._fitting
        known.pop(key, None)
        if sum(len(each.numbers) for each in list(known.values())) + len(found.numbers) > _REMEMBERED:
            known.clear()
        known[key] = found
        return found.numbers

    def _look(self, topic_id: int, pattern: str) -> _Fitting:
        names, fits = self._named.names(topic_id), NamePattern(pattern)
        known = self._fitting.get((topic_id, pattern))
        while True:
            names.refresh()
            if known is not None:
                changed, version = names.changed_since(known.version)
                if changed is not None:
                    return _Fitting(version, _exchanged(known.numbers, changed, fits.among(names, changed)))
            version = names.version
            try:
                return _Fitting(version, fits.among(names, names.all_numbers()))
            except NamesBehind:
                continue


def _exchanged(numbers: U32, gone: U32, fresh: U32) -> U32:
    """Without those that are gone, and with fresh ones; each ascending. Costs a copy where anything is."""
    if not len(gone):
        return numbers
    places = numbers.searchsorted(gone)
    there = places[numbers.take(places, mode="clip") == gone] if len(numbers) else places[:0]
    left = np.delete(numbers, there)
    return np.insert(left, left.searchsorted(fresh), fresh)

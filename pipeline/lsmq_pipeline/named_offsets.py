"""Up to where topics are read whose queues have names: a place a shard, however many names there are.

A *place* is a moment of the shard (``docs/http.md``), before which all is read that was stored before. Where a stream's
batch may not take all that came between two moments, it goes through the queues in order of their numbers: then a
place is both moments, and the queue and the offset in it that are reached.

In a document a place is ``[time_ms, messages]``, or with four fields more ``[.., until_ms, until_messages, queue,
offset]``; ``messages`` is how many of the shard lie before the place, -1 where nobody knows. Between two places there
are as many as the difference says, so it is noticed when some have gone before they were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsmq_pipeline.offsets import VERSION, TopicOffsets, from_document

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Before ``time_ms``; of queues below ``queue`` before ``until_ms``, and of that one up to ``offset``."""

    time_ms: int
    messages: int = UNKNOWN
    until_ms: int | None = None
    until_messages: int = UNKNOWN
    queue: int = 0
    offset: int = 0

    @property
    def until(self) -> ShardPlace | None:
        """The later of two moments that the place lies between."""
        return None if self.until_ms is None else ShardPlace(self.until_ms, self.until_messages)

    def asked(self) -> dict[str, int]:
        """As the nodes are asked for it."""
        if self.until_ms is None:
            return {"time_ms": self.time_ms}
        return {"time_ms": self.time_ms, "until_ms": self.until_ms, "queue": self.queue, "offset": self.offset}

    def to_list(self) -> list[int]:
        if self.until_ms is None:
            return [self.time_ms, self.messages]
        return [self.time_ms, self.messages, self.until_ms, self.until_messages, self.queue, self.offset]

    @classmethod
    def from_list(cls, fields: Any) -> ShardPlace:
        """The reverse of :meth:`to_list`. Raises ``ValueError``."""
        if not isinstance(fields, list) or len(fields) not in (2, 6) or any(type(each) is not int for each in fields):
            raise ValueError(f"{fields!r} is not a place in a shard such as [1372636800000, 17]")
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class NamedOffsets:
    """A place in each shard of a topic. ``topic_id`` tells the topic from one made anew under its name.

    ``start`` is where the batch of a stream that ends here reads from; None when that is where the one before ended.
    ``gone``: when a stream's batch ended here the topic was not there any more.
    """

    name: str
    topic_id: int
    places: Mapping[int, ShardPlace]
    start: Mapping[int, ShardPlace] | None = None
    gone: bool = False

    @property
    def is_unread(self) -> bool:
        """Whether a stream has begun with the topic and read nothing of it."""
        return self.start is not None and self.start == self.places

    def to_dict(self) -> dict[str, Any]:
        fields = {"id": self.topic_id, "shards": _packed(self.places)}
        start = {} if self.start is None else {"start": _packed(self.start)}
        return {**fields, **start, **({"gone": True} if self.gone else {})}

    @classmethod
    def from_dict(cls, name: str, fields: Mapping[str, Any]) -> NamedOffsets:
        """The reverse of :meth:`to_dict`. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
        start = fields.get("start")
        places = _unpacked(fields["shards"])
        begun = None if start is None else _unpacked(start)
        return cls(name, int(fields["id"]), places, begun, gone=bool(fields.get("gone")))


StreamPlaces = TopicOffsets | NamedOffsets


def named_from_document(document: Mapping[str, Any]) -> dict[str, NamedOffsets]:
    """What a document of offsets says of topics whose queues have names. Raises ``ValueError``."""
    if document.get("version") != VERSION:
        raise ValueError(f"offsets of version {document.get('version')!r}; this release reads {VERSION}")
    try:
        topics = document["topics"].items()
        return {str(name): NamedOffsets.from_dict(str(name), entry) for name, entry in topics if "shards" in entry}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a document of offsets: {error!r}") from error


def places_from_document(document: Mapping[str, Any]) -> dict[str, StreamPlaces]:
    """What a document of offsets says of all topics. Raises ``ValueError``."""
    return {**from_document(document), **named_from_document(document)}


def _packed(places: Mapping[int, ShardPlace]) -> dict[str, list[int]]:
    return {str(shard): places[shard].to_list() for shard in sorted(places)}


def _unpacked(fields: Mapping[str, Any]) -> dict[int, ShardPlace]:
    return {int(shard): ShardPlace.from_list(place) for shard, place in fields.items()}

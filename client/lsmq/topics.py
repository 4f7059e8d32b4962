"""What a node says of a topic: its queues, options and routes; and the offsets of its queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Literal, TypedDict

from lsmq.errors import LsmqError, UnknownQueue
from lsmq.queue_names import MAX_TOPIC_NAME, NAMED, NUMBER_BITS, SLOTS

DEFAULT_MAX_MESSAGE_BYTES = 1 << 20
DEAD_LETTER_SUFFIX = ".dlq"

Ack = Literal["quorum", "leader"]
"""When a write counts as stored: on the disk of every replica in sync, or of the leader alone."""

Flush = Literal["sync", "async"]
"""When a replica counts as having it: once it is on its disk, or once it is written, and on the disk a moment later."""


Overflow = Literal["refuse", "drop_oldest", "drop_newest", "drop_lowest_priority", "drop_nearest_deadline"]
OnDiskFull = Literal["refuse", "drop_oldest"]
"""What happens at a limit: new messages are refused, or the oldest make room."""


def dead_letter_topic(topic: str) -> str:
    """Where dead letters of a topic go unless its work queue says otherwise. It is never the topic itself."""
    room = MAX_TOPIC_NAME - len(DEAD_LETTER_SUFFIX)
    named = topic[:room] + DEAD_LETTER_SUFFIX
    return named if named != topic else topic[: room - 1] + DEAD_LETTER_SUFFIX


class TopicChanges(TypedDict, total=False):
    """Options of a topic that can be changed: what is left out stays, None takes one away."""

    retention_ms: int | None
    retention_bytes: int | None
    ack: Ack | None
    flush: Flush | None
    max_message_bytes: int | None
    dedupe_window_ms: int | Literal["forever"] | None
    retention_messages: int | None
    max_messages: int | None
    max_bytes: int | None
    queue_max_messages: int | None
    queue_max_bytes: int | None
    overflow: Overflow | None
    on_disk_full: OnDiskFull | None
    delete_consumed: bool | None
    ttl_ms: int | None
    expired_to: str | None
    dropped_to: str | None
    cleanup: Literal["delete", "compact"] | None
    delete_retention_ms: int | None


class QueueChanges(TypedDict, total=False):
    """Options of one queue: what is left out stays, ``"unlimited"`` is no limit, None has it follow its topic again."""

    retention_ms: int | Literal["unlimited"] | None
    retention_bytes: int | Literal["unlimited"] | None
    retention_messages: int | Literal["unlimited"] | None


# The id of the topic that a request means by its name. A node that knows another one under that name refuses.
TOPIC_ID_HEADER = "Lsmq-Topic-Id"
# And when it was created, in milliseconds: topics of two clusters may have the same id.
TOPIC_CREATED_HEADER = "Lsmq-Topic-Created"
#: In an answer to a fetch: what the next request goes on with.
FETCH_SESSION_HEADER = "Lsmq-Fetch-Session"
#: Of a fetch of queues by name: the shards, with commas between them, that whoever is asked is to read; where he does
#: not lead one of them now, he answers an error, and not with what he has of others.
FETCH_SHARDS_HEADER = "Lsmq-Fetch-Shards"
#: What is to become of a request for a shard that the node does not lead: ``pass``, ``redirect`` or ``refuse``.
FORWARD_HEADER = "Lsmq-Forward"


@dataclass(frozen=True, slots=True)
class Route:
    """Queues ``[first, end)`` of a topic live in ``shard``, led by the node at ``leader`` in ``epoch``.

    ``leader`` is ``None`` while the shard has none. ``followers`` are the other replicas in sync, as far as is known.
    """

    first: int
    end: int
    shard: int
    leader: str | None
    epoch: int
    followers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its node described it. ``routes`` are sorted and cover ``[0, queues)``.

    ``max_message_bytes`` is the limit in force: the topic's own, else the node's where it says so, else
    the default of 1 MiB. It counts key, tag and properties along with the body. ``max_batch_bytes`` is what the
    messages of one batch may have together, where the node says so.

    A ``named`` topic has a queue for each name that was used (:mod:`lsmq.queue_names`); its ``queues`` are the slots
    that names lie in, and so are those of its routes.
    """

    name: str
    id: int
    queues: int
    options: Mapping[str, Any]
    created_ms: int
    routes: tuple[Route, ...]
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_batch_bytes: int | None = None
    named: bool = False
    _firsts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", tuple(route.first for route in self.routes))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Topic:
        """The topic object of the HTTP API."""
        try:
            routes = tuple(
                sorted(
                    (
                        Route(
                            int(route["first"]),
                            int(route["end"]),
                            int(route["shard"]),
                            str(route["leader"]).rstrip("/") if route.get("leader") else None,
                            int(route["epoch"]),
                            tuple(str(url).rstrip("/") for url in route.get("followers") or ()),
                        )
                        for route in fields["routes"]
                    ),
                    key=lambda route: route.first,
                )
            )
            options = dict(fields.get("options") or {})
            limit = options.get("max_message_bytes") or fields.get("max_message_bytes")
            batch_limit = fields.get("max_batch_bytes")
            named = fields["queues"] == NAMED or bool(fields.get("named"))
            return cls(
                str(fields["name"]),
                int(fields["id"]),
                SLOTS if named else int(fields["queues"]),
                options,
                int(fields["created_ms"]),
                routes,
                int(limit or DEFAULT_MAX_MESSAGE_BYTES),
                None if batch_limit is None else int(batch_limit),
                named,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LsmqError(f"the node's answer is not a topic: {error!r} in {fields!r}") from error

    def to_dict(self) -> dict[str, Any]:
        """The same fields as the HTTP API's topic object."""
        return {
            "name": self.name,
            "id": self.id,
            "queues": NAMED if self.named else self.queues,
            "options": dict(self.options),
            "created_ms": self.created_ms,
            "routes": [{**asdict(route), "followers": list(route.followers)} for route in self.routes],
        }

    @property
    def key_queues(self) -> int:
        """How many queues the hash of a key chooses from: all, or with strict order those it was made with."""
        return int(self.options.get("key_queues") or self.queues)

    def check_queue(self, queue: int) -> None:
        """Raises ``UnknownQueue`` unless the topic has ``queue``."""
        if not 0 <= queue < self.queues:
            raise UnknownQueue(
                f"topic {self.name!r} has queues 0 to {self.queues - 1}, not {queue}",
                topic=self.name,
                queue=queue,
            )

    def route(self, queue: int) -> Route:
        """The route of ``queue``. Raises ``UnknownQueue`` when none covers it."""
        place = bisect_right(self._firsts, queue) - 1
        if place >= 0 and queue < self.routes[place].end:
            return self.routes[place]
        self.check_queue(queue)
        raise UnknownQueue(f"topic {self.name!r} has no route for queue {queue}", topic=self.name, queue=queue)

    def by_number(self) -> Topic:
        """The topic with routes of the numbers that its queues have: itself, unless they have names."""
        if not self.named:
            return self
        routes = tuple(
            replace(route, first=place << NUMBER_BITS, end=(place + 1) << NUMBER_BITS)
            for place, route in enumerate(self.routes)
        )
        return replace(self, queues=len(routes) << NUMBER_BITS, routes=routes, named=False)

    def is_same(self, other: Topic) -> bool:
        """Whether it is the topic itself, and not one that was made anew under its name."""
        return self.id == other.id and self.created_ms == other.created_ms

    @property
    def identity(self) -> dict[str, str]:
        """Headers of a request that means this topic, and no other one of its name, wherever it comes to."""
        return {TOPIC_ID_HEADER: str(self.id), TOPIC_CREATED_HEADER: str(self.created_ms)}

    def with_routes(self, routes: tuple[Route, ...]) -> Topic:
        """The topic with other routes."""
        return replace(self, routes=routes)

    def leader_of_shard(self, shard: int) -> str | None:
        """The URL of the node that leads ``shard``, as far as these routes know."""
        for route in self.routes:
            if route.shard == shard:
                return route.leader
        return None


def most_at_once(topic: Topic, messages: int, size_bytes: int) -> tuple[int, int]:
    """Of batches of so many messages and bytes, what fits into the empty topic; as bytes, into a queue."""
    options = topic.options
    limits = [topic.max_batch_bytes]
    if options.get("overflow", "refuse") == "refuse":
        limits += [options.get("max_bytes"), options.get("queue_max_bytes")]
        messages = min(messages, options.get("max_messages") or messages)
    return messages, min(size_bytes, *(limit or size_bytes for limit in limits))


def most_of_a_queue(topic: Topic) -> int | None:
    """How many messages of one queue a batch may have, not to be refused whole; None: any number."""
    options = topic.options
    return options.get("queue_max_messages") if options.get("overflow", "refuse") == "refuse" else None


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """How much a topic holds, over all its shards, and what has gone of it by itself.

    Attributes:
        messages: that can be read, or are about to be.
        size_bytes: about, as they lie in files and memory.
        dropped: messages that went, ever, by reason: ``expired``, ``overflow``, ``consumed``, ``disk``, and ``lapsed``,
            which expired by their time to live and were moved to another topic.
        refused: requests that were refused at a limit, since the leaders of now lead.
        groups: those with committed offsets, or as many of them as were asked for.
        group_count: how many there are.
    """

    messages: int
    size_bytes: int
    dropped: Mapping[str, int]
    refused: int
    groups: tuple[str, ...]
    group_count: int

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TopicUsage:
        """What the HTTP API says."""
        return cls(
            int(fields["messages"]),
            int(fields["bytes"]),
            {str(why): int(count) for why, count in fields["dropped"].items()},
            int(fields["refused"]),
            tuple(fields["groups"]),
            int(fields.get("group_count", len(fields["groups"]))),
        )


@dataclass(frozen=True, slots=True)
class NamedQueue:
    """A queue of a named topic.

    Attributes:
        earliest: the first offset kept.
        latest: the next to be written.
        count: messages that can be read.
        number: what messages' ids, positions and commits know it by. A name that is deleted and used again may have
            another.
    """

    name: str
    earliest: int
    latest: int
    count: int
    number: int

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> NamedQueue:
        """As the HTTP API has it."""
        return cls(
            str(fields["name"]),
            int(fields["earliest"]),
            int(fields["latest"]),
            int(fields["count"]),
            int(fields["number"]),
        )


@dataclass(frozen=True, slots=True)
class TopQueue:
    """One of the queues of a topic that come first in an order.

    Attributes:
        queue: its name, or its number where it has none.
        earliest: the first offset kept.
        latest: the next to be written.
        count: messages between them.
        in_per_s: messages that came in the last second; None unless queues are ordered by that.
        oldest_ms: when its first message was stored, in milliseconds; None where it is empty.
    """

    queue: str | int
    number: int
    earliest: int
    latest: int
    count: int
    in_per_s: float | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class TopQueues:
    """What comes first in an order of a topic's queues.

    Attributes:
        with_messages: how many queues of the topic have any.
        partial: there were too many to look at the age of each: only the deepest were.
    """

    queues: Sequence[TopQueue]
    with_messages: int
    partial: bool

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TopQueues:
        """As the HTTP API has it."""
        known = [each.name for each in dataclass_fields(TopQueue)]
        queues = [TopQueue(**{name: row[name] for name in known}) for row in fields["queues"]]
        return cls(queues, int(fields["with_messages"]), bool(fields["partial"]))


@dataclass(frozen=True, slots=True)
class Offsets:
    """Bounds of many queues, as parallel columns in the order of ``queues``.

    ``earliest`` is the first offset kept, ``latest`` the next to be written. ``at_time`` is the first
    offset stored at or after the time that was asked for, and empty when none was.
    """

    queues: Sequence[int]
    earliest: Sequence[int]
    latest: Sequence[int]
    at_time: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.queues)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Queue, earliest and latest of each queue."""
        return zip(self.queues, self.earliest, self.latest, strict=True)


def parse_ranges(text: str) -> list[range]:
    """Queue ranges as a user writes them: ``0-99,200`` holds queues 0 to 99 and 200.

    The ends are inclusive, as people count. Raises ``ValueError`` that says what is wrong.
    """
    ranges: list[range] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"queues are numbers and ranges such as 0-99,200; {part.strip()!r} is neither")
        start = int(first)
        stop = int(last) if dash else start
        if stop < start:
            raise ValueError(f"the range {part.strip()!r} ends before it starts")
        ranges.append(range(start, stop + 1))
    return ranges


def format_ranges(queues: Iterable[int]) -> list[str]:
    """Sorted ``queues`` as the parts of a range list: runs become ``first-last``."""
    if isinstance(queues, range) and queues.step == 1:
        return [_format_run(queues.start, queues.stop - 1)] if queues else []
    parts: list[str] = []
    first: int | None = None
    last = 0
    for queue in queues:
        if first is not None and queue == last + 1:
            last = queue
            continue
        if first is not None:
            parts.append(_format_run(first, last))
        first = last = queue
    if first is not None:
        parts.append(_format_run(first, last))
    return parts


def _format_run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"

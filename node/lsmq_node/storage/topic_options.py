"""How a topic behaves: its options, which stand in the log, in checkpoints and in what a cluster agrees on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from lsmq.errors import InvalidRequest

#: The value of ``dedupe_window_ms`` that means: for ever.
FOREVER: Final = "forever"
#: Values of ``overflow`` for which a queue is looked through: so its limit has one, too.
BY_RANK: Final = ("drop_lowest_priority", "drop_nearest_deadline")
MAX_RANKED: Final = 100_000
#: Options that name a topic to move messages to.
MOVING: Final = ("expired_to", "dropped_to")
#: Of ``dedupe_window_ms``: a hundred years.
MAX_WINDOW_MS: Final = 36_525 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How a topic behaves.

    Attributes:
        retention_ms: drop messages older than this; None keeps them.
        retention_bytes: drop the oldest beyond this many bytes of the topic, over all its shards; None keeps them.
        ack: ``quorum`` or ``leader``: when a write is acknowledged, unless the request says otherwise.
        flush: ``sync`` or ``async``: whether a message counts on a replica once it is on the disk, or once it is
            written, unless the request says otherwise; None as each node's ``flush_mode``.
        max_message_bytes: refuse larger messages; None takes the node's limit.
        key_queues: spread keys over this many queues, the first, for ever: strict order, whatever the topic grows to.
            None spreads them over all there are.
        retention_messages: keep the newest so many of each queue; None keeps them.
        max_messages, max_bytes: the topic holds no more, over all its shards; None is no limit.
        queue_max_messages, queue_max_bytes: no queue of it holds more.
        overflow: what happens at those limits: ``refuse`` what is new, ``drop_newest``, which takes it and drops it,
            ``drop_oldest``, or, of queues alone, ``drop_lowest_priority`` and ``drop_nearest_deadline``.
        on_disk_full: ``refuse`` what is new, or ``drop_oldest`` when the disk is nearly full.
        delete_consumed: what all groups of the topic have committed goes.
        dedupe_window_ms: a message whose deduplication id was stored in its queue within so long is not stored again;
            ``"forever"``, or None where ids are not taken.
        ttl_ms: messages that are stored from then on expire after so long, or after their own time to live if that is
            less; None lets those live that have none.
        expired_to: the name of a topic that what expires by its time to live is moved to (:mod:`lsmq_node.letters`);
            None lets it go.
        dropped_to: the same for what ``overflow`` drops.
        named: queues have names, and there are as many as names were used (:mod:`.topic_names`).
        forget_empty_ms: of a named topic, forget the name of a queue that had no message to be read for so long.
        cleanup: ``delete``: what expires goes; ``compact``: so does what a later message of its key supersedes.
        delete_retention_ms: of a compacted topic: how long a message is kept that says that its key is gone; None: a
            day.
        made_by: the principal who made it, where he may make only so many.
        revision: raised by each change of the others; of two, the higher one is the newer.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    ack: str = "quorum"
    flush: str | None = None
    max_message_bytes: int | None = None
    key_queues: int | None = None
    retention_messages: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    queue_max_messages: int | None = None
    queue_max_bytes: int | None = None
    overflow: str = "refuse"
    on_disk_full: str = "refuse"
    delete_consumed: bool = False
    ttl_ms: int | None = None
    expired_to: str | None = None
    dropped_to: str | None = None
    named: bool = False
    forget_empty_ms: int | None = None
    dedupe_window_ms: int | str | None = None
    cleanup: str = "delete"
    delete_retention_ms: int | None = None
    made_by: str | None = None
    revision: int = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopicOptions:
        """Raises ``InvalidRequest`` naming an unknown option or a bad value."""
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidRequest(
                    f"unknown topic option {name!r}; there are: {', '.join(known)}", option=name, field=name
                )
        for name in _WHOLE_NUMBERS:
            value = values.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidRequest(
                    f"topic option {name} must be a whole number above 0, not {value!r}", option=name, field=name
                )
        for name, choices in _CHOICES.items():
            value = values.get(name, choices[0])
            if value not in choices:
                allowed = " or ".join(map(repr, choices))
                raise InvalidRequest(f"topic option {name} must be {allowed}, not {value!r}", option=name, field=name)
        for name in MOVING:
            if values.get(name) is not None and not isinstance(values[name], str):
                raise InvalidRequest(f"topic option {name} must be the name of a topic", option=name, field=name)
        if not isinstance(values.get("delete_consumed", False), bool):
            raise InvalidRequest(
                "topic option delete_consumed must be true or false", option="delete_consumed", field="delete_consumed"
            )
        if values.get("delete_retention_ms") is not None and values.get("cleanup") != "compact":
            raise InvalidRequest(
                "topic option delete_retention_ms is for compacted topics: set cleanup to 'compact' as well",
                option="delete_retention_ms",
                field="delete_retention_ms",
            )
        options = cls(**{**values, "dedupe_window_ms": _window(values.get("dedupe_window_ms"))})
        options._check_named()
        options._check_ranked()
        if options.dropped_to is not None and options.overflow not in ("drop_oldest", *BY_RANK):
            raise InvalidRequest(
                f"dropped_to is for topics that drop what they had, and overflow is {options.overflow!r}: what is "
                "refused or dropped at once the producer is told. Set overflow to 'drop_oldest' as well",
                option="dropped_to",
                field="dropped_to",
            )
        return options

    def _check_ranked(self) -> None:
        if self.overflow not in BY_RANK:
            return
        for name in ("max_messages", "max_bytes", "queue_max_bytes"):
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    f"overflow {self.overflow!r} is for queue_max_messages alone, and {name} is {getattr(self, name)}; "
                    "leave it out, or let the oldest or newest go",
                    option=name,
                    field=name,
                )
        if self.queue_max_messages is not None and self.queue_max_messages > MAX_RANKED:
            raise InvalidRequest(
                f"queue_max_messages is {self.queue_max_messages}; with overflow {self.overflow!r}, for which queues "
                f"are looked through, it may be {MAX_RANKED} at most",
                option="queue_max_messages",
                field="queue_max_messages",
                limit=MAX_RANKED,
            )

    def _check_named(self) -> None:
        if self.named and self.key_queues is not None:
            raise InvalidRequest(
                "key_queues says how many queues keys are spread over; in a named topic each message names its queue",
                option="key_queues",
                field="key_queues",
            )
        if self.forget_empty_ms is not None and not self.named:
            raise InvalidRequest(
                "forget_empty_ms is for topics with named queues; create the topic with queues 'named'",
                option="forget_empty_ms",
                field="forget_empty_ms",
            )

    @property
    def moves(self) -> bool:
        """Whether messages may have to be moved before they go."""
        return self.expired_to is not None or self.dropped_to is not None

    @property
    def lets_go(self) -> bool:
        """Whether messages may go by themselves, so that somebody has to look."""
        return self.delete_consumed or self.on_disk_full == "drop_oldest" or self.is_limited

    @property
    def is_limited(self) -> bool:
        """Whether what the topic holds has a limit of any kind."""
        return (
            self.retention_ms is not None
            or self.retention_bytes is not None
            or self.retention_messages is not None
            or self.has_quota
        )

    @property
    def has_quota(self) -> bool:
        """Whether there is something that :mod:`.quotas` sees to."""
        limits = self.max_messages, self.max_bytes, self.queue_max_messages, self.queue_max_bytes
        return any(limit is not None for limit in limits)

    @property
    def needs_rest(self) -> bool:
        """Whether a shard has to know of the topic's others."""
        return (
            self.delete_consumed
            or self.on_disk_full == "drop_oldest"
            or self.retention_bytes is not None
            or self.max_messages is not None
            or self.max_bytes is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """But what is as it is where nobody has said it: as topics of earlier releases are written down."""
        found = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default or name in _ALWAYS_WRITTEN:
                found[name] = value
        return found

    def set(self) -> dict[str, Any]:
        """:meth:`to_dict` of what a user sets."""
        return {name: value for name, value in self.to_dict().items() if name not in ("made_by", "revision")}

    def altered(self, changes: Mapping[str, Any]) -> TopicOptions:
        """With some changed; None takes one away. Raises ``InvalidRequest`` as :meth:`from_dict`.

        The revision is the next one, unless nothing changes.
        """
        wanted = {name: _DEFAULTS.get(name) if value is None else value for name, value in changes.items()}
        found = self.from_dict({**asdict(self), **wanted})
        return found if found == self else replace(found, revision=self.revision + 1)


def _window(value: Any) -> int | str | None:
    """``dedupe_window_ms``: 0 is the same as none. Raises ``InvalidRequest``."""
    if value is None or value == FOREVER or (type(value) is int and 0 <= value <= MAX_WINDOW_MS):
        return value or None
    raise InvalidRequest(
        f"topic option dedupe_window_ms must be 0 to {MAX_WINDOW_MS} milliseconds, or {FOREVER!r}, not {value!r}",
        option="dedupe_window_ms",
        field="dedupe_window_ms",
        limit=MAX_WINDOW_MS,
    )


_WHOLE_NUMBERS = (
    "retention_ms",
    "retention_bytes",
    "max_message_bytes",
    "key_queues",
    "retention_messages",
    "max_messages",
    "max_bytes",
    "queue_max_messages",
    "queue_max_bytes",
    "ttl_ms",
    "forget_empty_ms",
    "delete_retention_ms",
)
#: The first is the default.
_CHOICES = {
    "ack": ("quorum", "leader"),
    "flush": (None, "sync", "async"),
    "overflow": ("refuse", "drop_oldest", "drop_newest", *BY_RANK),
    "on_disk_full": ("refuse", "drop_oldest"),
    "cleanup": ("delete", "compact"),
}
_DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(TopicOptions)}
#: Options that stand in what is written down even where nobody has set them.
_ALWAYS_WRITTEN = frozenset({"retention_ms", "retention_bytes", "ack", "max_message_bytes"})

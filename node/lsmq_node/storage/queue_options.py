"""What single queues of a topic keep, where that is not what the topic says.

A document for each such queue, in the shard that holds it, msgpack::

    key    "queue_options/<topic id>/<first half of the SHA-256 of the queue, in hex>"
    value  {"version": 1, "queue": number or name, options that are set: number, or "unlimited"}

Of a topic whose queues have names it is the name that has options: the number may be another queue's next. They go with
the topic (:meth:`.state.ShardState.drop_topic`), and with the queue where somebody deletes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import msgpack

from lsmq.errors import CorruptFile, InvalidRequest

PREFIX: Final = "queue_options/"
#: Queues of a shard that have options of their own, over all topics.
MAX_QUEUE_OPTIONS: Final = 10_000
#: The value of an option: there is no limit, whatever the topic says.
UNLIMITED: Final = "unlimited"
_VERSION: Final = 1

LimitValue = int | str | None
"""A number, ``UNLIMITED``, or None: as the topic has it."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a queue keeps.

    Attributes:
        retention_ms: drop its messages older than this.
        retention_bytes: drop its oldest beyond this many bytes of messages, header and body, of this queue. A topic has
            no such limit of each queue, so None and ``UNLIMITED`` are the same.
        retention_messages: keep its newest so many.
    """

    retention_ms: LimitValue = None
    retention_bytes: LimitValue = None
    retention_messages: LimitValue = None

    def altered(self, changes: Mapping[str, Any]) -> QueueOptions:
        """With some changed; None has one follow the topic. Raises ``InvalidRequest`` naming an unknown or bad one."""
        known = [item.name for item in fields(self)]
        for name, value in changes.items():
            if name not in known:
                raise InvalidRequest(f"unknown queue option {name!r}; there are: {', '.join(known)}", option=name)
            if value is not None and value != UNLIMITED and (type(value) is not int or value < 1):
                raise InvalidRequest(
                    f"queue option {name} must be a whole number above 0, or {UNLIMITED!r}, not {value!r}", option=name
                )
        return replace(self, **changes)

    def to_dict(self) -> dict[str, int | str]:
        """Those that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def key_of(topic_id: int, queue: int | str) -> str:
    """Of the document of a queue, said by its number, or by its name where queues have names."""
    named = queue.encode() if isinstance(queue, str) else b"%d" % queue
    return f"{PREFIX}{topic_id}/{hashlib.sha256(named).hexdigest()[:32]}"


def encode(queue: int | str, options: QueueOptions) -> bytes | None:
    """The document; None where the queue has nothing of its own."""
    set_ = options.to_dict()
    packed: bytes | None = msgpack.packb({"version": _VERSION, "queue": queue, **set_}) if set_ else None
    return packed


def decode(key: str, body: bytes) -> tuple[int | str, QueueOptions]:
    """Raises ``CorruptFile``."""
    try:
        found = msgpack.unpackb(body)
        if found.pop("version") != _VERSION:
            raise ValueError("of another version")
        return found.pop("queue"), QueueOptions(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"the document {key!r} cannot be read: {error}") from error


def topic_of(key: str) -> int:
    """The topic that a document's key is of."""
    return int(key.split("/", 2)[1])

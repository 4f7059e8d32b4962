"""What compacted topics cannot have: keys in two queues, and limits that count what is superseded."""

from __future__ import annotations

from lsmq.errors import InvalidRequest
from lsmq_node.storage import StoredTopic, TopicOptions
from lsmq_node.storage.queue_options import UNLIMITED, QueueOptions

_COUNTING = ("max_messages", "queue_max_messages", "retention_messages", "queue_max_bytes")
_COUNTING_OF_QUEUE = ("retention_messages", "retention_bytes")


def check_keys_stay(topic: StoredTopic, queues: int) -> None:
    """Whether a topic may have so many queues, which keys without a place of their own go to.

    Raises ``InvalidRequest`` for a compacted one: a key that moves leaves its value in the queue where it was, and that
    is its last one again when a deletion in the other queue has gone.
    """
    options = topic.options
    if topic.named or options.cleanup != "compact" or options.key_queues is not None or queues <= topic.queues:
        return
    raise InvalidRequest(
        f"topic {topic.name!r} is compacted and its keys would go to other queues, where old values of theirs stay "
        "and would come back as the latest; only one of strict order can grow. Make another with order 'strict' and "
        "move over to it",
        topic=topic.name,
        field="queues",
    )


def check_limits(options: TopicOptions, before: TopicOptions | None) -> None:
    """Whether a topic may be given these options; ``before``: those it has. What it has already is let be.

    Raises ``InvalidRequest`` for a compacted one with a limit that counts what later messages have superseded.
    """
    if options.cleanup != "compact":
        return
    for name in _COUNTING:
        limit = getattr(options, name)
        is_new = before is None or before.cleanup != "compact" or getattr(before, name) != limit
        if limit is not None and is_new:
            raise _counts_superseded(name, limit, "max_bytes or retention_bytes")


def check_own_limits(topic: StoredTopic, options: QueueOptions, before: QueueOptions) -> None:
    """:func:`check_limits` of a single queue."""
    if topic.options.cleanup != "compact":
        return
    for name in _COUNTING_OF_QUEUE:
        limit = getattr(options, name)
        if limit not in (None, UNLIMITED, getattr(before, name)):
            raise _counts_superseded(name, limit, "max_bytes or retention_bytes of the topic")


def _counts_superseded(name: str, limit: int, instead: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {limit} and cleanup 'compact': messages that a later one of their key replaced count until all "
        f"before them in their queue are gone, so one key that is never written again would fill it for ever. Leave "
        f"{name} out, or take {instead}",
        field=name,
    )

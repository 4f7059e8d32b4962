"""What compacted topics cannot have: keys in two queues."""

from __future__ import annotations

from lsmq.errors import InvalidRequest
from lsmq_node.storage import StoredTopic


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

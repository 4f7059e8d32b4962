"""Where letters go, messages that are moved to another topic instead of being lost: one with a queue in each shard, so
that a letter is stored in the shard that its message comes from, in one piece of the log with that message's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsmq.errors import InvalidRequest, UnknownTopic
from lsmq_node.storage import Topic, TopicOptions
from lsmq_node.storage.state import check_topic_name

if TYPE_CHECKING:
    from .broker import Broker


def check_expired_to(broker: Broker, name: str, options: TopicOptions) -> None:
    """Whether what expires in a topic of this name may be moved as its options say.

    One that is not there is made with the first letter. Raises ``InvalidTopicName``, ``InvalidRequest`` for a topic
    that cannot take letters, or from which they would come back.
    """
    following, way = options.expired_to, [name]
    while following is not None:
        way.append(following)
        if following == name:
            raise InvalidRequest(
                f"expired_to is {options.expired_to!r}, and what expires would come back to where it was: "
                f"{' to '.join(way)}; choose another topic",
                field="expired_to",
                topic=name,
            )
        if following in way[:-1]:
            return
        check_topic_name(following)
        target = broker.topology.topics.find(following)
        if target is None:
            return
        if len(way) == 2:
            check_target(broker, target, "expired_to")
        following = target.options.expired_to


async def letter_topic(broker: Broker, name: str) -> Topic:
    """The topic, made where there is none: with a queue for each shard. Raises what making one raises."""
    try:
        return await broker.topic(name)
    except UnknownTopic:
        topic, _ = await broker.create_topic(name, broker.topology.shard_count, TopicOptions())
        return topic


def letter_queue(broker: Broker, topic: Topic, shard: int, option: str) -> int:
    """The queue that takes the letters of a shard. ``option`` has named the topic.

    Raises ``InvalidRequest`` for a topic that cannot take letters of every shard.
    """
    check_target(broker, topic, option)
    return next(part.first for part in broker.ranges(topic) if part.shard == shard)


def check_target(broker: Broker, topic: Topic, option: str) -> None:
    """Raises ``InvalidRequest`` for a topic that cannot take letters of every shard."""
    if topic.named:
        raise named_for_letters(topic, option)
    count = broker.topology.shard_count
    if len({part.shard for part in broker.ranges(topic)}) < count:
        raise too_few_queues(topic, count, option)


def letter_limit(broker: Broker, topic: Topic) -> int:
    """Bytes that a letter may have there."""
    limit = broker.config.max_message_bytes
    own = topic.options.max_message_bytes
    return limit if own is None else min(limit, own)


def named_for_letters(topic: Topic, option: str) -> InvalidRequest:
    """A topic that letters would have to choose names in."""
    return InvalidRequest(
        f"topic {topic.name!r} has queues with names, and dead letters have none: delete it, so that it is made anew, "
        f"or choose another ({option})",
        topic=topic.name,
    )


def too_few_queues(topic: Topic, shards: int, option: str) -> InvalidRequest:
    """A topic that cannot take letters of every shard."""
    return InvalidRequest(
        f"topic {topic.name!r} has {topic.queues} queues; one for dead letters needs at least {shards}, one for each "
        f"shard. Delete it, so that it is made anew, or choose another ({option})",
        topic=topic.name,
        queues=topic.queues,
        limit=shards,
    )

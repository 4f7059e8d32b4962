"""Where letters go, messages that are moved to another topic instead of being lost: one with a queue in each shard, so
that a letter is stored in the shard that its message comes from, in one piece of the log with that message's end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lsmq.errors import InvalidRequest, InvalidTopicName, UnknownTopic
from lsmq_node.storage import StoredTopic, TopicOptions
from lsmq_node.storage.state import check_topic_name
from lsmq_node.storage.topic_options import MOVING

if TYPE_CHECKING:
    from .broker import Broker


Besides = Callable[[StoredTopic], Iterable[str]]
"""Where else messages of a topic go than its options say."""


def _nowhere(topic: StoredTopic) -> Iterable[str]:
    return ()


async def besides_options(broker: Broker, asked: Mapping[str, Any]) -> Besides:
    """By what a topic's work queues say, where messages are to be moved by the options that are ``asked`` for."""
    return await broker.dead_letters() if any(asked.get(option) is not None for option in MOVING) else _nowhere


async def no_dead_letters() -> Besides:
    """Of a broker without work queues."""
    return _nowhere


def check_moving(broker: Broker, name: str, options: TopicOptions, besides: Besides) -> None:
    """Whether messages of a topic of this name may be moved as its options say.

    A topic to move to that is not there is made with the first letter. Raises ``InvalidTopicName``, ``InvalidRequest``
    for one that cannot take letters, or from which they would come back.
    """
    for option, target in _targets(options):
        check_letters(broker, name, option, target, besides)


def check_letters(broker: Broker, name: str, option: str, target: str, besides: Besides = _nowhere) -> None:
    """:func:`check_moving` from the topic ``name`` to ``target``, which ``option`` says."""
    try:
        check_topic_name(target)
    except InvalidTopicName as error:
        raise InvalidTopicName(f"{option}: {error.message}", **{**error.details, "field": option}) from error
    known = broker.topology.topics.find(target)
    if known is not None:
        check_target(broker, known, option)
    way = _way_back(broker, name, (name, target), besides)
    if way is not None:
        raise InvalidRequest(
            f"{option} is {target!r}, and what is moved there would come back to where it was: {' to '.join(way)}; "
            "choose another topic",
            field=option,
            topic=name,
        )


def _targets(options: TopicOptions) -> list[tuple[str, str]]:
    return [(option, target) for option in MOVING if (target := getattr(options, option)) is not None]


def _way_back(broker: Broker, name: str, way: tuple[str, ...], besides: Besides) -> tuple[str, ...] | None:
    """On from the end of ``way``, which messages are moved along, to where it began; None where they do not come."""
    seen, ways = {way[-1]}, [way]
    while ways:
        way = ways.pop()
        if way[-1] == name:
            return way
        known = broker.topology.topics.find(way[-1])
        if known is None:
            continue
        for target in (*(target for _, target in _targets(known.options)), *besides(known)):
            if target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return None


async def letter_topic(broker: Broker, name: str, shard: int) -> StoredTopic:
    """The topic that takes the letters of a shard, made where there is none: with a queue for each shard.

    One that was made before there was this shard is spread to it. Raises what making and spreading raise.
    """
    try:
        topic = await broker.topic(name)
    except UnknownTopic:
        topic, _ = await broker.create_topic(name, broker.topology.shard_count, TopicOptions())
    held = {part.shard for part in broker.ranges(topic)}
    if shard not in held and not topic.named and len(held) >= broker.topology.home_shards:
        return await broker.spread_topic(name)
    return topic


def letter_queue(broker: Broker, topic: StoredTopic, shard: int, option: str) -> int:
    """The queue that takes the letters of a shard. ``option`` has named the topic.

    Raises ``InvalidRequest`` for a topic that cannot take letters of every shard.
    """
    check_target(broker, topic, option)
    found = next((part.first for part in broker.ranges(topic) if part.shard == shard), None)
    if found is None:
        raise too_few_queues(topic, broker.topology.shard_count, option)
    return found


def check_target(broker: Broker, topic: StoredTopic, option: str) -> None:
    """Raises ``InvalidRequest`` for a topic that cannot take letters of every shard."""
    if topic.named:
        raise named_for_letters(topic, option)
    count = broker.topology.home_shards
    if len({part.shard for part in broker.ranges(topic)}) < count:
        raise too_few_queues(topic, count, option)


def letter_limit(broker: Broker, topic: StoredTopic) -> int:
    """Bytes that a letter may have there."""
    limit = broker.config.max_message_bytes
    own = topic.options.max_message_bytes
    return limit if own is None else min(limit, own)


def named_for_letters(topic: StoredTopic, option: str) -> InvalidRequest:
    """A topic that letters would have to choose names in."""
    return InvalidRequest(
        f"topic {topic.name!r} has queues with names, and dead letters have none: delete it, so that it is made anew, "
        f"or choose another ({option})",
        topic=topic.name,
    )


def too_few_queues(topic: StoredTopic, shards: int, option: str) -> InvalidRequest:
    """A topic that cannot take letters of every shard."""
    return InvalidRequest(
        f"topic {topic.name!r} has {topic.queues} queues; one for dead letters needs at least {shards}, one for each "
        f"shard. Delete it, so that it is made anew, or choose another ({option})",
        topic=topic.name,
        queues=topic.queues,
        limit=shards,
    )

"""Whether a topic is the one that a caller means, who may have learned of it long ago, or elsewhere."""

from __future__ import annotations

from lsmq.errors import TopicReplaced, Unavailable, UnknownTopic

from ..storage.state import StoredTopic


def check_meant(topic: StoredTopic, id: int | None, created_ms: int | None) -> None:
    """``id`` and ``created_ms``: what the caller knows of it.

    Raises ``TopicReplaced`` where it was made anew since; ``Unavailable`` where the caller knows a later one than this
    node does, or one of another cluster.
    """
    if id is None or id == topic.id:
        if created_ms not in (None, topic.created_ms):
            raise Unavailable(
                f"topic {topic.name!r} was created at {topic.created_ms} here, and the one that is meant at"
                f" {created_ms}: this node is of another cluster, or of one that was founded anew",
                topic=topic.name,
                sent=False,
            )
        return
    if id > topic.id:
        raise Unavailable(f"this node does not know topic {topic.name!r} with the id {id} yet", sent=False)
    raise TopicReplaced(
        f"topic {topic.name!r} was deleted and made anew: its id was {id}, now it is {topic.id}",
        topic=topic.name,
        expected_id=id,
        id=topic.id,
    )


def deleted(name: str, id: int) -> UnknownTopic:
    """A topic that somebody knew, who is told no more of it."""
    return UnknownTopic(f"topic {name!r} was deleted meanwhile", topic=name, topic_id=id)

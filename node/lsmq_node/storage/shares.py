"""A topic's limits, and the part of them that is a shard's: pure rules.

A topic lies on several shards, and a limit is the topic's. What the other shards hold is told to a store by its node,
which asks their leaders; a store that is a topic's only one needs nothing of that. While it is not known, a shard has
the whole limit to itself: then more may stay than the limit says, and nothing goes that need not.
"""

from __future__ import annotations

from dataclasses import dataclass

from .losses import Losses


@dataclass(frozen=True, slots=True)
class Holding:
    """What a shard holds of a topic: messages that can be read, and about how many bytes they have."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rest:
    """What the other shards hold of a topic.

    Attributes:
        shards: how many others there are.
        wanting: how many of those have refused something lately.
        wants: whether this shard has.
        groups: those with committed offsets of the topic there; None where that is not known by now.
    """

    messages: int = 0
    size_bytes: int = 0
    shards: int = 0
    wanting: int = 0
    wants: bool = False
    groups: frozenset[str] | None = frozenset()


ALONE = Rest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a shard can say of a topic.

    Attributes:
        gone: by :class:`.LossReason`, how many messages went by themselves, ever.
        refused: batches that were refused at a limit, since this node leads the shard.
        groups: those with committed offsets.
    """

    holding: Holding
    gone: Losses
    refused: int
    groups: frozenset[str]

    @classmethod
    def of_nothing(cls) -> Usage:
        """Of a topic that the shard does not have yet."""
        return cls(Holding(), {}, 0, frozenset())


def kept_share(limit: int, own: int, rest: int) -> int:
    """Of a limit that is kept by dropping what is old: as the messages lie. What is over goes everywhere alike."""
    total = own + rest
    return limit if total <= limit else limit * own // total


def allowed_share(limit: int, own: int, held: int, rest: Rest) -> int:
    """Of a limit beyond which nothing is taken: what a shard has, and a part of what is left.

    That is for those who have lately refused something, and where nobody has, even parts for all. ``held``: by the
    other shards.
    """
    left = max(0, limit - own - held)
    if rest.wants:
        return own + -(-left // (rest.wanting + 1))
    return own if rest.wanting else own + left // (rest.shards + 1)

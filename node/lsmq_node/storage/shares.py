"""A topic's limits, and the part of them that is a shard's: pure rules.

A topic lies on several shards, and a limit is the topic's. What the other shards hold is told to a store by its node,
which asks their leaders; a store that is a topic's only one needs nothing of that. While it is not known, a shard has
the whole limit to itself: then more may stay than the limit says, and nothing goes that need not.

Where what is old is dropped, shards do so at the same time, each by what it has heard of the others, which is from
before. That no more goes than is over, a shard tells with what it holds its *floor*: the limit lets it go no lower. It
is the shard's part of the limit, as the messages lie by what it knows (:func:`kept_share`). A shard lets go down to
what the floors of the others leave of the limit, and not below its own: so whatever each has heard, what stays is the
limit at least. Once all have heard of the same, their floors are the limit, and so is what stays. A shard may tell a
lower floor at any time, and is bound by the higher one until each of the others has said that it has heard of a later
one: what a shard tells is numbered, and with it goes which number of each other shard it knows (:class:`ToldFloors`).
Another leader does not know what is bound by the one before, so it numbers anew, under a name of its own, and has the
whole limit until all have heard of it. No time is measured for that. What goes for another reason, as it is consumed or
purged, binds nobody: the others know of it with the next that they hear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .losses import Losses

_ALL = 1 << 62
#: So many floors are remembered, while others do not say that they have heard of later ones.
_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class Holding:
    """What a shard holds of a topic: messages that can be read, and about how many bytes they have."""

    messages: int = 0
    size_bytes: int = 0


Stamp = tuple[str, int]
"""Of what a shard has told: the name of its leadership, and the number."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of a topic on a shard.

    Attributes:
        floor: a limit lets it hold no less.
        stamp: of this one.
        heard: of each other shard the stamp of what is known of it. None where nothing can be let go, or told.
    """

    holding: Holding = Holding()
    floor: Holding = Holding()
    stamp: Stamp = ("", 0)
    heard: Mapping[int, Stamp] | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """What the other shards hold of a topic.

    Attributes:
        others: what each has told, by their numbers.
        place: how many of those have lower numbers than this shard.
        heard: all of them have heard what this shard has told under this number, or later.
        wanting: how many of the others have refused something lately.
        wants: whether this shard has.
        groups: those with committed offsets of the topic there; None where that is not known by now.
    """

    others: Mapping[int, Measurement] = field(default_factory=dict)
    place: int = 0
    heard: int = _ALL
    wanting: int = 0
    wants: bool = False
    groups: frozenset[str] | None = frozenset()

    @property
    def messages(self) -> int:
        return sum(each.holding.messages for each in self.others.values())

    @property
    def size_bytes(self) -> int:
        return sum(each.holding.size_bytes for each in self.others.values())


ALONE = Rest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a shard can say of a topic.

    Attributes:
        gone: by :class:`.LossReason`, how many messages went by themselves, ever.
        refused: batches that were refused at a limit, since this node leads the shard.
        groups: those with committed offsets.
    """

    measured: Measurement
    gone: Losses
    refused: int
    groups: frozenset[str]

    @property
    def holding(self) -> Holding:
        return self.measured.holding

    @classmethod
    def of_nothing(cls) -> Usage:
        """Of a topic that the shard does not have yet."""
        return cls(Measurement(), {}, 0, frozenset())


class ToldFloors:
    """What a shard has told of a topic while it leads, as far as others may count on it."""

    def __init__(self) -> None:
        self._number = 0
        self._floors: list[tuple[int, Holding]] = []

    def note(self, floor: Holding) -> int:
        """The number under which it is told."""
        self._number += 1
        if self._floors and (len(self._floors) == _REMEMBERED or self._floors[-1][1] == floor):
            last = self._floors.pop()[1]
            floor = Holding(max(floor.messages, last.messages), max(floor.size_bytes, last.size_bytes))
        self._floors.append((self._number, floor))
        return self._number

    def floor(self, heard: int) -> Holding:
        """What others that have heard of so much count on."""
        self._floors = [each for each in self._floors if each[0] >= heard]
        each = [floor for _, floor in self._floors]
        return Holding(
            max((floor.messages for floor in each), default=0), max((floor.size_bytes for floor in each), default=0)
        )


def kept_share(limit: int, own: int, others: Sequence[int], place: int) -> int:
    """Of a limit that is kept by dropping what is old, the part of a shard that holds ``own``, the ``place``-th one:
    as the messages lie. What is over goes everywhere alike.

    All parts are the limit together. As all are rounded down, what is left goes by D'Hondt's rule, one by one to where
    most messages come upon each that stays. By that a shard's part is never less where it holds more or another less.
    """
    held = [*others[:place], own, *others[place:]]
    total = sum(held)
    if total <= limit:
        return limit
    parts = [limit * each // total for each in held]
    for _ in range(limit - sum(parts)):
        chosen = 0
        for at in range(1, len(held)):
            if held[at] * (parts[chosen] + 1) > held[chosen] * (parts[at] + 1):
                chosen = at
        parts[chosen] += 1
    return parts[place]


def rest_of(
    shard: int,
    leadership: str,
    others: Mapping[int, Measurement],
    *,
    wanting: int = 0,
    wants: bool = False,
    groups: frozenset[str] | None = frozenset(),
) -> Rest:
    """What a shard, under this ``leadership``, is told once each of the others has told something."""
    heard = [each.heard.get(shard, ("", 0)) for each in others.values() if each.heard is not None]
    return Rest(
        {number: others[number] for number in sorted(others)},
        sum(number < shard for number in others),
        min((number if name == leadership else 0 for name, number in heard), default=_ALL),
        wanting,
        wants,
        groups,
    )


def allowed_share(limit: int, own: int, held: int, rest: Rest) -> int:
    """Of a limit beyond which nothing is taken: what a shard has, and a part of what is left.

    That is for those who have lately refused something, and where nobody has, even parts for all. ``held``: by the
    other shards.
    """
    left = max(0, limit - own - held)
    if rest.wants:
        return own + -(-left // (rest.wanting + 1))
    return own if rest.wanting else own + left // (len(rest.others) + 1)

"""What of a group is durable: its generation, its members, and who should own which queues.

A plan is one document, ``group/<name>``, in the shard of the group (see ``docs/formats/documents.md``). It is written
before anybody is told of it. Beside the shares it says who *may still hold* queues that are another's now: these go to
their new owners only when that member has given them up, or is gone, whoever coordinates then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lsmq_node.machines import documents

from .ranges import NONE, RangePairs, flat, from_flat

VERSION = 1
KEY_PREFIX = "group/"


class Mode(StrEnum):
    """How a group's members share messages. Names are on disk."""

    CLUSTERED = "clustered"  # each queue has one owner
    BROADCAST = "broadcast"  # every member gets everything
    WORK_QUEUE = "work_queue"  # members compete for single messages, and own nothing
    PUSH = "push"  # the broker sends


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as it described itself.

    Attributes:
        id: chosen by the client, a new one for each consumer object.
        static_id: survives restarts; one member at a time has it.
        topics: it subscribes to, sorted.
        pattern: by which it does, in each of them; None: to all queues.
        client: who it says it is, and from where.
    """

    id: str
    static_id: str | None
    session_ms: int
    topics: tuple[str, ...]
    client: str = ""
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic's shares. ``pending`` is what members may hold beyond theirs."""

    id: int
    queues: int
    shares: Mapping[str, RangePairs]
    pending: Mapping[str, RangePairs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Of one generation. Never changed: the next one is another object.

    ``patterns`` has, by topic, that by which its members subscribe, or the last ones did; it is the same for all.
    ``changes`` counts what happened to the group in this coordinator's time, up to this plan; it is not stored.
    """

    generation: int = 0
    mode: Mode = Mode.CLUSTERED
    members: Mapping[str, MemberSpec] = field(default_factory=dict)
    topics: Mapping[str, TopicPlan] = field(default_factory=dict)
    changes: int = 0
    patterns: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The document."""
        subscribed = {name for member in self.members.values() for name in member.topics}
        names = sorted(subscribed.union(self.topics, self.patterns))
        number = {name: at for at, name in enumerate(names)}

        def of(member: str, column: Callable[[TopicPlan], Mapping[str, RangePairs]]) -> list[Any]:
            return [
                [number[name], flat(ranges)]
                for name, topic in self.topics.items()
                if (ranges := column(topic).get(member, NONE))
            ]

        patterns = [[number[name], pattern] for name, pattern in sorted(self.patterns.items())]
        return documents.pack(
            {
                "version": VERSION,
                "mode": self.mode.value,
                "generation": self.generation,
                "names": names,
                "topics": [[number[name], topic.id, topic.queues] for name, topic in self.topics.items()],
                "members": [
                    [
                        member.id,
                        member.static_id,
                        member.session_ms,
                        member.client,
                        [number[name] for name in member.topics],
                        of(member.id, lambda topic: topic.shares),
                        of(member.id, lambda topic: topic.pending),
                    ]
                    for member in self.members.values()
                ],
                **({"patterns": patterns} if patterns else {}),
            }
        )

    @classmethod
    def decode(cls, body: bytes, key: str) -> GenerationPlan:
        """Raises ``UnsupportedFormat`` for a newer one, ``CorruptFile`` for what is none."""
        return documents.decode(body, key, "group", VERSION, cls._of)

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> GenerationPlan:
        names = fields["names"]
        members: dict[str, MemberSpec] = {}
        shares: dict[str, dict[str, RangePairs]] = {}
        pending: dict[str, dict[str, RangePairs]] = {}
        patterns = {names[at]: pattern for at, pattern in fields.get("patterns", ())}
        for id, static_id, session_ms, client, topics, owned, held in fields["members"]:
            subscribed = tuple(names[at] for at in topics)
            pattern = next((patterns.get(name) for name in subscribed), None)
            members[id] = MemberSpec(id, static_id, session_ms, subscribed, client, pattern)
            for column, rows in ((shares, owned), (pending, held)):
                for at, numbers in rows:
                    column.setdefault(names[at], {})[id] = from_flat(numbers)
        found = {
            names[at]: TopicPlan(topic_id, queues, shares.get(names[at], {}), pending.get(names[at], {}))
            for at, topic_id, queues in fields["topics"]
        }
        return cls(fields["generation"], Mode(fields["mode"]), members, found, patterns=patterns)


def group_key(name: str) -> str:
    return KEY_PREFIX + name

"""What members and operators of consumer groups say and are told: values of :mod:`lsmq.groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lsmq import runtime
from lsmq._known_fields import of_known

Ranges = tuple[range, ...]
"""Queues: ranges in order, disjoint, none of them empty."""

DEFAULT_SESSION_MS = 10_000
DEFAULT_MAX_HANDLER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The leader of the group's shard; ``leader`` is its URL, ``None`` while there is none."""

    shard: int
    leader: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a member says. ``epoch`` and ``version`` are of the last answer; 0 to join.

    Attributes:
        member: :func:`new_member_id`, one for each consumer object.
        owned: by topic; all that was assigned and is not given up.
        static_id: survives restarts: whoever comes with it within the session gets the same queues.
        stalled: a handler has not come back in time.
        client: who this is, for people.
        mode: ``clustered`` or ``broadcast``.
        pattern: which queues of the topics it reads, as all members do; ``None``: all.
    """

    member: str
    topics: tuple[str, ...]
    epoch: int = 0
    version: int = 0
    owned: Mapping[str, Ranges] = field(default_factory=dict)
    static_id: str | None = None
    session_ms: int = DEFAULT_SESSION_MS
    stalled: bool = False
    client: str | None = None
    mode: str = "clustered"
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """Another ``id`` than before: the topic was made anew, and offsets known of it mean nothing."""

    id: int
    queues: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member is told; see ``docs/groups.md``.

    Attributes:
        heartbeat_ms: the next heartbeat is due within this time; or hold one for as long.
        assigned: by topic. What it owned and is not here is to be given up.
        waiting_for: queues of its own that others still have to give up.
        standby: there are more members than queues.
    """

    member: str
    epoch: int
    version: int
    heartbeat_ms: int
    assigned: Mapping[str, Ranges]
    topics: Mapping[str, AssignedTopic]
    waiting_for: int
    standby: bool


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in a topic.

    Attributes:
        queues: of the topic, or of the parts asked for.
        lag: messages that wait to be read. Where nothing is committed, all that are kept count.
        behind: queues with any.
        uncommitted: queues that nothing is committed for.
        uncommitted_lag: of ``lag``, what waits in those; 0 where nodes of a release before are asked.
        uncommitted_behind: of ``behind``, those; likewise.
        largest: the most of one queue.
        committed_largest: the most of one that something is committed for; ``largest`` likewise.
        by_part: the lag of each part asked for.
        last_commit_age_ms: age of the last commit; ``None``: none that the leaders know of.
    """

    topic: str
    queues: int
    lag: int
    behind: int
    uncommitted: int
    largest: int
    by_part: tuple[int, ...]
    last_commit_age_ms: int | None
    uncommitted_lag: int = 0
    uncommitted_behind: int = 0
    committed_largest: int = 0


@dataclass(frozen=True, slots=True)
class PastLag:
    """How far a group was behind in a topic, in all its queues, as the leaders of its shards remember it.

    Attributes:
        every_ms: between two samples.
        lags: messages that waited, oldest first, the last one a moment ago; of an hour at most. ``None``: what a part
            of it was is not known.
    """

    topic: str
    every_ms: int
    lags: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live member as its coordinator sees it. ``pending``: queues it holds that are others' by now."""

    id: str
    static_id: str | None
    client: str
    session_ms: int
    topics: tuple[str, ...]
    assigned: Mapping[str, Ranges]
    queues: int
    pending: int
    heartbeat_age_ms: int
    stalled: bool


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it. ``state``: empty, recovering, rebalancing or stable. ``patterns``: by topic,
    that by which its members subscribe, or the last ones did."""

    group: str
    mode: str
    state: str
    generation: int
    shard: int
    topics: tuple[str, ...]
    members: tuple[GroupMember, ...]
    patterns: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: ranges as pairs, the end not included."""
        found = asdict(self)
        for member in found["members"]:
            member["assigned"] = {
                topic: [[part.start, part.stop] for part in ranges] for topic, ranges in member["assigned"].items()
            }
        return found


@dataclass(frozen=True, slots=True)
class GroupStream:
    """A stream that the node at ``node`` pushes messages to, of the queues that it leads.

    ``unacknowledged`` of them were sent, of ``credit`` that may be; ``silent_ms``: since when none was acknowledged,
    while there are any.
    """

    node: str
    id: str
    subscriber: str | None
    topic: str
    mode: str
    queues: int
    unacknowledged: int
    credit: int
    silent_ms: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """``members`` and ``generation`` are 0 for a group that only has committed offsets."""

    group: str
    mode: str = "clustered"
    state: str = "empty"
    generation: int = 0
    members: int = 0
    stalled: int = 0


def new_member_id() -> str:
    """A random id, for one consumer object."""
    return runtime.token_hex(8)


def to_pairs(ranges: Iterable[range]) -> list[list[int]]:
    """Ranges as requests have them."""
    return [[part.start, part.stop] for part in ranges]


def from_pairs(pairs: Iterable[Sequence[int]]) -> Ranges:
    """The inverse of :func:`to_pairs`."""
    return tuple(range(first, end) for first, end in pairs)


def assignment_from_dict(fields: Mapping[str, Any]) -> Assignment:
    """The answer to a heartbeat."""
    return Assignment(
        str(fields["member"]),
        int(fields["epoch"]),
        int(fields["version"]),
        int(fields["heartbeat_ms"]),
        {topic: from_pairs(pairs) for topic, pairs in fields["assigned"].items()},
        {topic: of_known(AssignedTopic, found) for topic, found in fields["topics"].items()},
        int(fields["waiting_for"]),
        bool(fields["standby"]),
    )


def coordinator_from_dict(fields: Mapping[str, Any]) -> Coordinator:
    """Who coordinates a group, as a node says it."""
    leader = str(fields["leader"]).rstrip("/") if fields.get("leader") else None
    return Coordinator(int(fields["shard"]), leader, int(fields["epoch"]))


def lag_from_dict(topic: str, ranges: int, fields: Mapping[str, Any]) -> GroupLag:
    """How far a group is behind at one leader, in all and in each of so many ranges."""
    age, by_range = fields["last_commit_age_ms"], tuple(int(lag) for lag in fields["by_range"])
    if len(by_range) != ranges:
        raise ValueError(f"{len(by_range)} ranges where {ranges} were asked for")
    counts = {name: int(fields[name]) for name in ("queues", "lag", "behind", "uncommitted", "largest")}
    rest = {"uncommitted_lag": 0, "uncommitted_behind": 0, "committed_largest": counts["largest"]}
    counts |= {name: int(fields.get(name, of_before)) for name, of_before in rest.items()}
    return GroupLag(topic, **counts, by_part=by_range, last_commit_age_ms=None if age is None else int(age))


def description_from_dict(fields: Mapping[str, Any]) -> GroupDescription:
    """A group as its coordinator says it."""
    members = tuple(
        of_known(
            GroupMember,
            {
                **member,
                "topics": tuple(member["topics"]),
                "assigned": {topic: from_pairs(pairs) for topic, pairs in member["assigned"].items()},
            },
        )
        for member in fields["members"]
    )
    topics = tuple(topic["topic"] for topic in fields["topics"])
    return of_known(GroupDescription, {**fields, "topics": topics, "members": members})


def portions(ranges: Ranges, max_queues: int, max_ranges: int) -> list[Ranges]:
    """Ranges in portions of what one request may name."""
    found: list[list[range]] = [[]]
    room = max_queues
    for part in ranges:
        while part:
            piece = part[:room]
            found[-1].append(piece)
            part, room = part[room:], room - len(piece)
            if not room or len(found[-1]) == max_ranges:
                found.append([])
                room = max_queues
    return [tuple(portion) for portion in found if portion]

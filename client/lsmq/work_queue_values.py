"""How a work queue behaves, and how far it is: values of :meth:`lsmq.WorkQueue.describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lsmq._known_fields import of_known
from lsmq._paths import group_path
from lsmq._reading import following_page
from lsmq._retries import Deadline
from lsmq.client import Client
from lsmq.errors import UnexpectedAnswer
from lsmq.messages import Message
from lsmq.topics import Topic

_COUNTS = ("undelivered", "new", "ready", "waiting", "blocked", "in_flight", "dead")
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class WorkQueueSettings:
    """What :meth:`lsmq.WorkQueue.configure` sets. ``dead_letter``: None where it is the default."""

    max_deliveries: int
    visibility_ms: int
    retry_first_ms: int
    retry_max_ms: int
    dead_letter: str | None
    delete_on_ack: bool
    order: str
    fair_by: str
    weights: Mapping[str, int]
    max_in_flight_per: int | None
    max_rate_per: float | None
    priority_ageing_ms: int | None


@dataclass(frozen=True, slots=True)
class WorkQueueState:
    """Of all shards together, each at the moment it was asked.

    Attributes:
        dead_letter_topic: where messages go that failed for the last time.
        undelivered: messages that wait to be delivered: ``new``, ``ready``, ``waiting`` and ``blocked`` together.
        new: never delivered.
        ready: to be delivered again.
        waiting: to be delivered again, and not due yet.
        blocked: they wait for another message of their key.
        in_flight: delivered and not settled.
        dead: on their way to the dead letters.
    """

    group: str
    topic: str
    dead_letter_topic: str
    settings: WorkQueueSettings
    undelivered: int = 0
    new: int = 0
    ready: int = 0
    waiting: int = 0
    blocked: int = 0
    in_flight: int = 0
    dead: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PoppedMessage:
    """A message as a pop gives it, and the delivery's receipt."""

    message: Message
    deliveries: int
    receipt: str
    visibility_ms: int
    shard: int


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that somebody has, and has not settled yet.

    Attributes:
        queue: its number, or its name.
        deliveries: how often it was delivered, this time included.
        until_ms: when its visibility ends unless it is extended, in milliseconds since 1970.
        receipt: names the delivery.
    """

    queue: int | str
    offset: int
    id: str
    shard: int
    deliveries: int
    until_ms: int
    receipt: str


class _ShardRow(NamedTuple):
    """What a shard's leader says of it."""

    shard: int
    settings: WorkQueueSettings
    counts: Mapping[str, int]


def _shard_rows(fields: Mapping[str, Any]) -> tuple[str, list[_ShardRow]]:
    """The topic of dead letters, and the shards."""
    rows = [
        _ShardRow(
            int(row["shard"]), of_known(WorkQueueSettings, row["settings"]), {name: int(row[name]) for name in _COUNTS}
        )
        for row in fields["shards"]
    ]
    return str(fields["dead_letter_topic"]), rows


async def list_held(client: Client, topic: str, group: str, limit: int) -> list[HeldMessage]:
    """Up to so many, by shard, queue and offset. Raises ``UnknownGroup`` where it is no work queue."""
    found: list[HeldMessage] = []
    params = {"topic": topic}
    while len(found) < limit:
        params["limit"] = str(min(limit - len(found), _PAGE))
        path, deadline = f"{group_path(group)}/held", client._deadline()
        answer, _ = await client._router.ask_any("GET", path, params=params, deadline=deadline)
        page, following = answer.parsed(
            lambda value: ([of_known(HeldMessage, each) for each in value["messages"]], value["next"])
        )
        found += page
        after = following_page(following, params.get("after"))
        if after is None:
            break
        params["after"] = after
    return found


async def describe_work_queue(client: Client, topic: str, group: str, deadline: Deadline) -> WorkQueueState:
    """Asked of the leaders of all the topic's shards. Raises ``UnknownGroup`` where it is no work queue."""

    async def ask(known: Topic) -> WorkQueueState:
        path, params = f"{group_path(group)}/work-queue", {"topic": topic}
        missing = {route.shard for route in known.routes}
        rows: list[_ShardRow] = []
        dead_letter_topic = ""
        while missing:
            answer = await client._router.ask_leader(known, min(missing), "GET", path, params=params, deadline=deadline)
            dead_letter_topic, said = answer.parsed(_shard_rows)
            if not any(row.shard in missing for row in said):
                raise UnexpectedAnswer(f"{answer.url} said nothing of shard {min(missing)}, which it leads")
            rows += [row for row in said if row.shard in missing]
            missing -= {row.shard for row in rows}
        counts = {name: sum(row.counts[name] for row in rows) for name in _COUNTS}
        return WorkQueueState(group, topic, dead_letter_topic, rows[0].settings, **counts)

    return await client._with_topic(topic, ask)

"""Consumer groups as their members and operators ask for them: heartbeats, fences, commits, lag.

This is the protocol of ``docs/groups.md`` and no more: who owns what when, and when to do what, is up to the caller.
A group is coordinated by the leader of one shard; requests find it, and find it again when it has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from lsmq import runtime
from lsmq._known_fields import of_known
from lsmq._paths import group_path
from lsmq._queue_ranges import intersect
from lsmq._reading import all_pages, read
from lsmq._retries import Backoff, Deadline
from lsmq._router import POLL_SILENCE_S, SILENCE_S
from lsmq._transport import Response
from lsmq._wire_values import MAX_OFFSETS_QUEUES, offset_by_queue
from lsmq.client import Client, _together
from lsmq.errors import (
    GroupHasMembers,
    InvalidRequest,
    LsmqError,
    NotLeader,
    Unavailable,
    UnknownGroup,
    UnknownMember,
)
from lsmq.group_values import (
    AssignedTopic,
    Assignment,
    Coordinator,
    GroupDescription,
    GroupLag,
    GroupMember,
    GroupStream,
    GroupSummary,
    Heartbeat,
    PastLag,
    Ranges,
    assignment_from_dict,
    coordinator_from_dict,
    description_from_dict,
    lag_from_dict,
    new_member_id,
    portions,
    to_pairs,
)
from lsmq.queue_names import compile_pattern, pattern_prefix
from lsmq.topics import Route, Topic, format_ranges

__all__ = [
    "AssignedTopic",
    "Assignment",
    "Coordinator",
    "Group",
    "GroupDescription",
    "GroupLag",
    "GroupMember",
    "GroupStream",
    "GroupSummary",
    "Heartbeat",
    "PastLag",
    "Ranges",
    "list_groups",
    "new_member_id",
]

ResetTo = Literal["earliest", "latest"] | datetime | int | Mapping[int, int] | Mapping[str, int]
"""An end of each queue, a moment (a number is milliseconds since 1970), or offsets by queue."""

T = TypeVar("T")
_RANGES_A_REQUEST = 200
_LOOK_TIMEOUT_S = 1.0
_MAX_LOOKS = 8
_LAST = "\U0010ffff"


class Group:
    """One group, asked through a client. Cheap; remembers who coordinates."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._path = group_path(name)
        self._router = client._router
        self._shard: int | None = None
        self._looks: set[asyncio.Task[None]] = set()

    # The coordinator

    async def coordinator(self, *, deadline_ms: int | None = None) -> Coordinator:
        """Who coordinates the group, asked afresh of any node."""
        answer, _ = await self._router.ask_any("GET", f"{self._path}/coordinator", deadline=self._deadline(deadline_ms))
        return self._learn(answer)

    def _learn(self, answer: Response) -> Coordinator:
        found = answer.parsed(coordinator_from_dict)
        self._shard = found.shard
        self._router.table.learn_leader(found.shard, found.leader, found.epoch)
        return found

    async def heartbeat(self, beat: Heartbeat, *, wait_ms: int = 0, deadline_ms: int | None = None) -> Assignment:
        """Join, or stay. Held up to ``wait_ms`` while nothing is new. Tried again until the deadline.

        Raises ``UnknownMember``: drop all queues and join again; ``StaleGeneration``: another process has the static
        id; ``GroupModeMismatch``, ``GroupPatternMismatch``, ``TooManyMembers``, ``UnknownTopic``.
        """
        value = {**self._beat(beat), "wait_ms": wait_ms}
        answer = await self._ask("POST", f"{self._path}/heartbeat", deadline_ms, value=value, held_ms=wait_ms)
        return answer.parsed(assignment_from_dict)

    async def leave(self, beat: Heartbeat, *, deadline_ms: int | None = None) -> None:
        """Go, having given up everything. Who is not known any more is gone."""
        try:
            await self._ask("POST", f"{self._path}/heartbeat", deadline_ms, value={**self._beat(beat), "leave": True})
        except UnknownMember:
            return

    def _beat(self, beat: Heartbeat) -> dict[str, Any]:
        return {
            "member": beat.member,
            "static_id": beat.static_id,
            "topics": list(beat.topics),
            "epoch": beat.epoch,
            "version": beat.version,
            "owned": {topic: to_pairs(ranges) for topic, ranges in beat.owned.items() if ranges},
            "session_ms": beat.session_ms,
            "stalled": beat.stalled,
            "client": beat.client,
            "mode": beat.mode,
            **({} if beat.pattern is None else {"pattern": beat.pattern}),  # Releases before do not know it.
        }

    async def describe(self) -> GroupDescription:
        """Members and what they own. Raises ``UnknownGroup`` for one that never had any."""
        return (await self._ask("GET", self._path)).parsed(description_from_dict)

    async def streams(self) -> list[GroupStream]:
        """Streams that messages are pushed to, a row for each node that sends to one. No error when there are none."""
        pages = await list_at_leaders(
            self.client,
            f"{self._path}/streams",
            lambda url, page: [of_known(GroupStream, {**fields, "node": url}) for fields in page["streams"]],
        )
        return [stream for page in pages for stream in page]

    async def topics(self) -> list[str]:
        """Topics that the group has committed offsets of, or works on, in order; none where there is no such group."""
        pages = await list_at_leaders(self.client, f"{self._path}/topics", lambda _, page: list(page["topics"]))
        return sorted({str(topic) for page in pages for topic in page})

    async def declare(self, mode: str) -> None:
        """Make the group with this mode, or see that it has it. Raises ``GroupModeMismatch``."""
        await self._ask("PUT", self._path, value={"mode": mode})

    async def delete(self, *, force: bool = False) -> None:
        """Forget the group: its offsets in all shards, then its members and generation.

        Raises ``GroupHasMembers`` unless ``force``. After an error some of it may be gone: do it again.
        """
        if not force and await self._live_members():
            await self._ask("DELETE", self._path, params={"force": "false"})  # raises
        shards = await read(
            self.client, "GET", "/v1/cluster", lambda cluster: [int(shard["id"]) for shard in cluster["shards"]]
        )
        await _together(
            self._ask("DELETE", f"{self._path}/offsets", params={"shard": str(shard)}, shard=shard) for shard in shards
        )
        try:
            await self._ask("DELETE", self._path, params={"force": "true" if force else "false"})
        except UnknownGroup:
            return

    async def reset(
        self,
        topic: str,
        to: ResetTo,
        queues: Iterable[int] | Iterable[str] | None = None,
        *,
        force: bool = False,
    ) -> dict[int, int]:
        """Have the group go on from somewhere else in ``queues``, or in all; the offset that each has now.

        A time means the first message stored at or after it; with offsets by queue ``queues`` is left out. Queues that
        nothing was ever sent to are left alone. Durable on return. Members that live go on from where they are until
        they are started again: raises ``GroupHasMembers`` unless ``force``. A group that is not there yet begins there.
        In a named topic queues may be said by name, and what is returned goes by their numbers; all are those that the
        group reads, where it reads by a pattern.
        """
        known = await self.client.topic(topic)
        if isinstance(to, str) and to not in ("earliest", "latest"):
            raise InvalidRequest(f"to is {to!r}; it must be 'earliest', 'latest', a time, or offsets by queue")
        if isinstance(to, Mapping):
            if queues is not None:
                raise InvalidRequest("the queues stand in the mapping of offsets; leave queues out")
            offsets = dict(zip(await self.client._numbers(topic, to), to.values(), strict=True))
        else:
            chosen: Sequence[int] | None = None
            if queues is not None:
                chosen = await self.client._numbers(topic, queues)
            elif known.named:
                chosen = await self._numbers_read(topic)
            bounds = await self.client.offsets(topic, chosen, at_time=None if isinstance(to, str) else to)
            targets = bounds.earliest if to == "earliest" else bounds.latest if to == "latest" else bounds.at_time
            offsets = {
                queue: target
                for queue, target, latest in zip(bounds.queues, targets, bounds.latest, strict=True)
                if latest > 0
            }
        if not force and (members := await self._live_members()):
            raise GroupHasMembers(
                f"group {self.name!r} has {members} live members, which go on from where they are: stop them first, or"
                " say force=True",
                group=self.name,
                members=members,
            )
        await self.client.commit_offsets(self.name, topic, offsets, reset=True)
        return offsets

    async def _numbers_read(self, topic: str) -> list[int]:
        """Of queues with names, those that the group reads."""
        pattern = await self._pattern(topic) or "**"
        queues = await self.client.queues(topic, prefix=pattern_prefix(pattern))
        return [queue.number for queue in queues if compile_pattern(pattern).fullmatch(queue.name)]

    async def _pattern(self, topic: str) -> str | None:
        """By which its members read a topic, or the last ones did; ``None`` where they read all of it."""
        if "/" in self.name:  # The offsets of a member of a broadcast group, which nobody coordinates.
            return None
        try:
            return (await self.describe()).patterns.get(topic)
        except UnknownGroup:
            return None

    async def _live_members(self) -> int:
        """Those that go on from the group's offsets; of ``<group>/<static id>`` the member that has this id."""
        group, _, static_id = self.name.partition("/")
        try:
            members = (await Group(self.client, group).describe()).members
        except UnknownGroup:
            return 0
        return sum(static_id in ("", member.static_id) for member in members)

    # Where the queues are

    async def fence(
        self, topic: str, ranges: Ranges, *, member: str, epoch: int, deadline_ms: int | None = None
    ) -> dict[int, int]:
        """Take over queues: commits below ``epoch`` count no more. The committed offset of each queue that has one.

        Raises ``StaleGeneration`` when somebody newer was faster, ``FencedMember`` and ``UnknownMember`` unless the
        group has given the queues to the member, ``TopicReplaced``, ``UnknownQueue``.
        """

        async def take(known: Topic, route: Route, own: Ranges) -> dict[int, int]:
            found: dict[int, int] = {}
            for part in portions(own, MAX_OFFSETS_QUEUES, _RANGES_A_REQUEST):
                value = {"topic": topic, "queues": to_pairs(part), "member": member, "epoch": epoch}
                answer = await self._router.ask_leader(
                    known,
                    route.shard,
                    "POST",
                    f"{self._path}/fence",
                    value=value,
                    deadline=self._deadline(deadline_ms),
                )
                found.update(answer.parsed(offset_by_queue))
            return found

        parts = await self._where_they_are(topic, ranges, take)
        return {queue: offset for part in parts for queue, offset in part.items()}

    async def commit(
        self, topic: str, offsets: Mapping[int, int], *, member: str, epoch: int, deadline_ms: int | None = None
    ) -> None:
        """Commit as a member. Durable on return.

        Raises ``StaleGeneration``: heartbeat, and if the queues are still its own, commit again with the new
        generation; ``FencedMember``: a queue is not its own; ``UnknownMember``: join again. Each shard's offsets are
        committed for themselves.
        """
        deadline = self._deadline(deadline_ms)
        if not offsets:
            return
        await self.client._with_topic(
            topic,
            lambda known: self.client._commit_offsets(
                self.name, known, offsets, reset=False, deadline=deadline, member=member, epoch=epoch
            ),
            of_places=True,
        )

    async def lag(self, topic: str, parts: Sequence[Ranges] | None = None) -> GroupLag:
        """How far the group is behind, in all and in each of ``parts``, which are disjoint."""
        return await self.client._with_topic(topic, lambda known: self._lag(known, parts))

    async def _lag(self, known: Topic, parts: Sequence[Ranges] | None) -> GroupLag:
        wanted = [(range(known.queues),)] if parts is None else list(parts)
        pieces = sorted(
            ((piece.start, piece.stop, at) for at, part in enumerate(wanted) for piece in part),
            key=lambda item: item[0],
        )
        by_part = [0] * len(wanted)
        sums = ("queues", "lag", "behind", "uncommitted", "uncommitted_lag", "uncommitted_behind")
        columns = dict.fromkeys((*sums, "largest", "committed_largest"), 0)
        ages: list[int] = []

        async def count(route: Route) -> None:
            own = [
                (max(first, route.first), min(end, route.end), at)
                for first, end, at in pieces
                if first < route.end and end > route.first
            ]
            for start in range(0, len(own), _RANGES_A_REQUEST):
                some = own[start : start + _RANGES_A_REQUEST]
                text = ",".join(part for first, end, _ in some for part in format_ranges(range(first, end)))
                answer = await self._router.ask_leader(
                    known,
                    route.shard,
                    "GET",
                    f"{self._path}/lag",
                    params={"topic": known.name, "ranges": text},
                    deadline=self._deadline(None),
                )
                said = answer.parsed(partial(lag_from_dict, known.name, len(some)))
                for name, so_far in columns.items():
                    more: int = getattr(said, name)
                    columns[name] = so_far + more if name in sums else max(so_far, more)
                for (_, _, at), lag in zip(some, said.by_part, strict=True):
                    by_part[at] += lag
                if said.last_commit_age_ms is not None:
                    ages.append(said.last_commit_age_ms)

        await _together(count(route) for route in known.routes)
        return GroupLag(known.name, **columns, by_part=tuple(by_part), last_commit_age_ms=min(ages, default=None))

    async def past_lag(self, topic: str) -> PastLag:
        """How far the group was behind in the last hour. Only where all nodes run this release; empty before."""
        answer = await self._ask("GET", f"{self._path}/lag/history", params={"topic": topic})
        return answer.parsed(lambda fields: PastLag(topic, int(fields["every_ms"]), tuple(fields["lags"])))

    async def _where_they_are(
        self, name: str, ranges: Ranges, ask: Callable[[Topic, Route, Ranges], Awaitable[T]]
    ) -> list[T]:
        async def work(topic: Topic) -> list[T]:
            for part in ranges:
                topic.check_queue(part[-1])
            cuts = ((route, intersect(ranges, (range(route.first, route.end),))) for route in topic.routes)
            return await _together(ask(topic, route, own) for route, own in cuts if own)

        return await self.client._with_topic(name, work)

    # Within

    def _deadline(self, deadline_ms: int | None) -> Deadline:
        return Deadline(self.client.deadline_ms if deadline_ms is None else deadline_ms)

    async def _ask(
        self,
        method: str,
        path: str,
        deadline_ms: int | None = None,
        *,
        held_ms: int = 0,
        shard: int | None = None,
        **request: Any,
    ) -> Response:
        """Ask the leader of ``shard`` (the group's, when left out), whoever that is, until it answers."""
        deadline, backoff = self._deadline(deadline_ms), Backoff()
        url: str | None = None

        async def attempt() -> Response:
            nonlocal url
            url = None
            number = self._shard if shard is None else shard
            if number is None:
                number = (await self.coordinator(deadline_ms=int(1000 * deadline.remaining_s()) + 1)).shard
            url = self._router.table.leadership(number).url
            if url is None:
                raise Unavailable(f"shard {number} has no leader now", shard=number, sent=False)
            return await self._router.attempt(
                None,
                url,
                (number,),
                method,
                path,
                timeout_s=deadline.attempt_s(self._router.request_timeout_s) + held_ms / 1000,
                silence_s=POLL_SILENCE_S if held_ms else SILENCE_S,
                look=partial(self._look, url),
                **request,
            )

        async def recover(error: LsmqError) -> None:
            if shard is not None:
                await self._look_for_leaders()
            elif not (isinstance(error, NotLeader) and error.details.get("leader")):
                self._look(url)
            await backoff.pause(deadline)

        return await self._router.until_answered(method, path, deadline, attempt, recover, held=held_ms > 0)

    def _look(self, beside: str | None) -> None:
        """Begin to ask another node who coordinates."""
        urls = [url for url in self._router.urls if url != beside] or self._router.urls
        if urls and len(self._looks) < _MAX_LOOKS:
            task = self._router._refresher.spawn(
                self._look_at(runtime.random.choice(urls)), f"lsmq look for group {self.name}"
            )
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)

    async def _look_at(self, url: str) -> None:
        try:
            self._learn(
                await self._router._transport.request(
                    "GET", f"{url}{self._path}/coordinator", timeout_s=_LOOK_TIMEOUT_S
                )
            )
        except LsmqError:
            return

    async def _look_for_leaders(self) -> None:
        """Learn who leads any shard: of the topics, one may have queues there; else the cluster says so."""
        for shard, leader, epoch in await read(self.client, "GET", "/v1/cluster", _leaderships):
            self._router.table.learn_leader(shard, leader, epoch)


async def list_groups(client: Client) -> list[GroupSummary]:
    """All groups of the cluster, by name; of nodes that lead a shard. Tried again until the client's deadline."""
    return await _find_groups(client)


async def find_group(client: Client, name: str) -> GroupSummary | None:
    """A group as :func:`list_groups` has it, however many there are; None where there is none."""
    return next((found for found in await _find_groups(client, name) if found.group == name), None)


async def _find_groups(client: Client, only: str | None = None) -> list[GroupSummary]:
    deadline, backoff = Deadline(client.deadline_ms), Backoff()
    return await client._router.until_answered(
        "GET", "/v1/groups", deadline, lambda: _list_groups(client, only), lambda error: backoff.pause(deadline)
    )


async def _list_groups(client: Client, only: str | None) -> list[GroupSummary]:
    found: dict[str, GroupSummary] = {}
    for names, summaries in await list_at_leaders(client, "/v1/groups", _group_page, only):
        for name in names:
            found.setdefault(name, GroupSummary(name))
        for summary in summaries:
            known = found.get(summary.group)
            if known is None or summary.generation >= known.generation:
                found[summary.group] = summary
    return [summary for _, summary in sorted(found.items())]


def _group_page(url: str, page: Mapping[str, Any]) -> tuple[list[str], list[GroupSummary]]:
    """Names, and what is known of some."""
    return [str(name) for name in page["groups"]], [of_known(GroupSummary, each) for each in page["details"]]


async def list_at_leaders(
    client: Client, path: str, parse: Callable[[str, Mapping[str, Any]], T], only: str | None = None
) -> list[T]:
    """All pages of a list, of each node that leads a shard, as ``parse`` reads them; it is given the node's URL.
    ``only``: where lists are by name, no more of each than one entry, that of this name if there is one."""
    transport, timeout_s = client._router._transport, client.request_timeout_ms / 1000

    async def pages_of(url: str) -> list[T]:
        def ask(params: dict[str, str]) -> Awaitable[Response]:
            return transport.request("GET", f"{url}{path}", params=params, timeout_s=timeout_s)

        if not only:
            return await all_pages(ask, partial(parse, url))
        just_before = f"{only[:-1]}{chr(ord(only[-1]) - 1)}{_LAST}"
        return [(await ask({"after": just_before, "limit": "1"})).parsed(partial(parse, url))]

    leaders = await _leaders(client)
    found = await _together(pages_of(url) for url in leaders)
    return [page for pages in found for page in pages]


async def _leaders(client: Client) -> list[str]:
    """URLs of the nodes that lead shards."""
    found = await read(client, "GET", "/v1/cluster", _leaderships)
    return sorted({leader for _, leader, _ in found if leader is not None})


def _leaderships(cluster: Mapping[str, Any]) -> list[tuple[int, str | None, int]]:
    """Shards of a cluster, each with the URL of its leader and the epoch."""
    urls = {node["id"]: str(node["url"]).rstrip("/") for node in cluster["nodes"]}
    return [(int(shard["id"]), urls.get(shard["leader"]), int(shard["epoch"])) for shard in cluster["shards"]]

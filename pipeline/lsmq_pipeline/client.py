"""Blocking access to a cluster, for drivers and tasks: topics, bounds of queues, record batches in and out.

What goes to a shard finds its leader, waits for failovers and is tried again until the deadline of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lsmq import Client
from lsmq.errors import LsmqError, ProducerFenced, ReadElsewhere, UnknownTopic
from lsmq.groups import Group, GroupLag
from lsmq.loop_thread import LoopThread
from lsmq.shard_requests import ShardRequests
from lsmq.topics import Topic
from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.named_offsets import ShardPlace
from lsmq_pipeline.options import ConnectionOptions

I64 = NDArray[np.int64]

_HIGHEST_EPOCH = 2**32 - 1
_UNPINNED = 2**31  # above any number that is pinned
_FETCH_PATH = "/v1/topics/{topic}/fetch"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all queues of a topic: first offset kept, and next to be written."""

    earliest: I64
    latest: I64


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of some queues of a named topic on a shard the offsets ``[starts, ends)``, which came between two places.

    Attributes:
        queues: their numbers, ascending.
        earliest: below these nothing is left.
        names: None where nobody asked; None of a queue that was deleted.
        messages: how many came to all queues of the shard, these or others.
        exact: whether ``messages`` counts right where some have gone since.
    """

    queues: NDArray[np.uint32]
    starts: I64
    ends: I64
    earliest: I64
    names: list[str | None] | None
    messages: int
    exact: bool

    @property
    def wanted(self) -> int:
        """How many came to these queues."""
        return int((self.ends - self.starts).sum())

    @classmethod
    def none(cls) -> Arrivals:
        empty = np.empty(0, np.int64)
        return cls(np.empty(0, np.uint32), empty, empty, empty, None, 0, exact=True)


@dataclass(frozen=True, slots=True)
class Want:
    """One fetch: messages of these queues (ascending) from these offsets on."""

    queues: NDArray[Any]
    offsets: I64
    max_messages: int
    max_bytes: int
    wait_ms: int = 0
    picks: Mapping[str, Any] = field(default_factory=dict)  # tag, type and filter, where not all are wanted


class PipelineClient:
    """A client in an event loop of its own. Close it, or use it in a ``with`` block."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        given = bool(connection.url or connection.zookeeper)
        self._client = Client(
            connection.url if given else None,
            zookeeper=connection.zookeeper if given else None,
            cluster=connection.cluster,
            deadline_ms=connection.deadline_ms,
            request_timeout_ms=connection.request_timeout_ms,
            token_file=connection.token_file,
        )
        self._shards = ShardRequests(self._client)
        self._loop = LoopThread()
        self._elsewhere: dict[int, str] = {}
        self._follower_reads: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; requests under way fail."""
        try:
            self._loop.call(self._client.close())
        finally:
            self._loop.stop()

    # Topics

    def topic(self, name: str) -> Topic:
        """The topic, asked afresh. Raises ``UnknownTopic``."""
        return self._loop.call(self._client.topic(name))

    def create_topic(self, name: str, queues: int) -> Topic:
        """The topic as it is, made if it is not there."""
        with suppress(UnknownTopic):
            return self.topic(name)
        return self._loop.call(self._client.create_topic(name, queues=queues))

    def topics(self, names: Sequence[str], pattern: str | None) -> list[Topic]:
        """The topics of these names, or all whose whole name matches the pattern. Raises ``UnknownTopic``."""
        if pattern is None:
            return [self.topic(name) for name in names]
        matches = re.compile(pattern)
        found = [topic for topic in self._loop.call(self._client.topics()) if matches.fullmatch(topic.name)]
        if not found:
            raise UnknownTopic(f"no topic matches the pattern {pattern!r}", pattern=pattern)
        return found

    def existing(self, names: Sequence[str], pattern: str | None) -> list[Topic]:
        """As :meth:`topics`, those that are there; perhaps none."""
        found: list[Topic] = []
        for name in names if pattern is None else [None]:
            with suppress(UnknownTopic):
                found += self.topics((), pattern) if name is None else [self.topic(name)]
        return found

    def note_moment(self, topic: Topic, shard: int) -> Future[tuple[int, int]]:
        """Begin to note a moment of a shard of a named topic; the result: its time, and the messages before it."""
        return self._loop.submit(self._note_moment(topic, shard))

    async def _note_moment(self, topic: Topic, shard: int) -> tuple[int, int]:
        found = await self._shards.note_moment(topic, shard)
        return int(found["time_ms"]), int(found["messages"])

    def arrivals(
        self,
        topic: Topic,
        shard: int,
        since: ShardPlace | None,
        until: ShardPlace | None,
        picking: Mapping[str, Any],
        *,
        with_names: bool = False,
        pages: int | None = None,
    ) -> Future[Arrivals]:
        """Begin to ask what came to queues of a named topic between two places, None for all that is kept or there.

        ``picking``: ``names``, a ``pattern`` or a ``prefix``, of those alone. Of at most so many ``pages``.
        """
        value = {**picking, "with_names": with_names}
        if since is not None:
            value["since"] = since.asked()
        if until is not None:
            value["until"] = until.asked()
        return self._loop.submit(self._arrivals(topic, shard, value, pages))

    async def _arrivals(self, topic: Topic, shard: int, value: dict[str, Any], pages: int | None) -> Arrivals:
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            page = await self._shards.arrivals(topic, shard, {**value, "after": after})
            found.append(page)
            if page["next"] is None or len(found) == pages:
                break
            after = page["next"]
        queues = np.frombuffer(b"".join(page["queues"] for page in found), "<u4")
        starts, ends, earliest = (
            np.frombuffer(b"".join(page[name] for page in found), "<i8") for name in ("starts", "ends", "earliest")
        )
        names = [name for page in found for name in page["names"]] if value["with_names"] else None
        return Arrivals(
            queues, starts, ends, earliest, names, int(page["messages"]), exact=all(page["exact"] for page in found)
        )

    def bounds(self, topic: Topic) -> Bounds:
        """Bounds of all queues of just this topic; raises ``TopicReplaced`` when it was made anew.

        Raises ``InvalidOption`` for a topic whose queues have names, which come and go.
        """
        if topic.named:
            raise InvalidOption(
                f"topic {topic.name!r} has queues with names: these are read and written, but not by jobs that "
                "archive, replay or audit. Leave it out",
                option="topic",
            )
        found = self._loop.call(self._shards.offsets(topic))
        return Bounds(np.array(found.earliest, np.int64), np.array(found.latest, np.int64))

    def offsets_at(self, topic: Topic, times: I64) -> I64:
        """Of each queue that has a time (milliseconds, -1 for none) the first offset stored then or later, -1 else.

        That is the queue's end where there is none yet. Each different time is a request to each shard.
        """
        offsets = np.full(topic.queues, -1, np.int64)
        for time_ms in np.unique(times[times >= 0]).tolist():
            queues = np.flatnonzero(times == time_ms).tolist()
            found = self._loop.call(self._shards.offsets(topic, queues, time_ms))
            offsets[np.array(found.queues, np.int64)] = found.at_time
        return offsets

    def bounds_of(self, topic: Topic, queues: Sequence[int]) -> tuple[I64, I64]:
        """Earliest and latest offset of some queues, ascending."""
        found = self._loop.call(self._shards.offsets(topic, queues))
        return np.array(found.earliest, np.int64), np.array(found.latest, np.int64)

    def lag(self, group: str, topic: Topic) -> GroupLag:
        """How far a group is behind in all of a topic."""
        return self._loop.call(Group(self._client, group).lag(topic.name))

    def groups(self) -> list[str]:
        """The groups that have committed offsets."""
        return self._loop.call(self._client.groups())

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed of a topic."""
        return self._loop.call(self._client.committed_offsets(group, topic))

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit offsets for a group."""
        self._loop.call(self._client.commit_offsets(group, topic, offsets))

    def ask(self, path: str) -> Any:
        """``GET`` of any node."""
        return self._loop.call(self._client.ask("GET", path))

    def ask_node(self, url: str, path: str) -> Any:
        """``GET`` of one node."""
        return self._loop.call(self._shards.ask_node(url, path))

    @property
    def urls(self) -> list[str]:
        """All nodes known."""
        return self._client.urls

    # Reading

    def offers_follower_reads(self) -> bool:
        """Whether the nodes' fetch takes ``from``, as their OpenAPI document says."""
        if self._follower_reads is None:
            document = self.ask("/v1/openapi.json")
            parameters = document.get("paths", {}).get(_FETCH_PATH, {}).get("post", {}).get("parameters", [])
            self._follower_reads = any(parameter.get("name") == "from" for parameter in parameters)
        return self._follower_reads

    def fetch(
        self, topic: Topic, shard: int, want: Want, read_from: str | None, node: str | None = None
    ) -> Future[bytes]:
        """Begin to fetch; the result is record batches one after another, nothing when there is nothing.

        ``read_from`` is passed on to the nodes; None asks the leader in words every node understands. With ``node``
        that one is asked and no other, whatever it is to the shard.
        """
        return self._loop.submit(self._fetch(topic, shard, want, read_from, node))

    async def _fetch(self, topic: Topic, shard: int, want: Want, read_from: str | None, node: str | None) -> bytes:
        value = {
            "queues": want.queues.astype("<u4").tobytes(),
            "offsets": want.offsets.astype("<i8").tobytes(),
            "max_messages": want.max_messages,
            "max_bytes": want.max_bytes,
            "wait_ms": want.wait_ms,
            **want.picks,
        }
        if node is not None:
            source = None if read_from is None else "any"
            return await self._shards.fetch_at(node.rstrip("/"), topic, value, source)
        if (found := await self._fetch_elsewhere(topic, shard, value, read_from)) is not None:
            return found
        try:
            return await self._shards.fetch(topic, shard, value, read_from)
        except ReadElsewhere as error:
            if not isinstance(url := error.details.get("url"), str):
                raise
            self._elsewhere[shard] = url.rstrip("/")
        found = await self._fetch_elsewhere(topic, shard, value, read_from)
        return await self._shards.fetch(topic, shard, value, None) if found is None else found

    async def _fetch_elsewhere(
        self, topic: Topic, shard: int, value: dict[str, Any], read_from: str | None
    ) -> bytes | None:
        """What the follower answers that the leader named last; None where there is none. One that is gone, behind or
        no follower any more is no reason to fail: the leader knows another one, or answers."""
        url = self._elsewhere.get(shard)
        if url is None:
            return None
        try:
            return await self._shards.fetch_at(url, topic, value, read_from)
        except LsmqError:
            self._elsewhere.pop(shard, None)
            return None

    # Writing

    def pinned(self, topic: Topic, producer_id: int, number: int) -> int:
        """``number``, or the one that was pinned under this id of a producer before; durably.

        It is how far an epoch, which only grows, is below the highest there may be. So it is asked first with an epoch
        below that of any number; of those who pin at the same moment the smallest number counts.
        """
        first = topic.routes[0].shard
        try:
            for epoch in (_HIGHEST_EPOCH - _UNPINNED, _HIGHEST_EPOCH - number):
                self._loop.call(self._shards.take_producer(topic, first, producer_id, epoch))
        except ProducerFenced as error:
            return _HIGHEST_EPOCH - int(error.details["latest"])
        return number

    def send(self, topic: Topic, shard: int, packed: bytes, ack: str | None, flush: str | None) -> Future[bool]:
        """Begin to send one record batch of queues of one shard; the result: whether it had been stored before."""
        return self._loop.submit(self._shards.store(topic, shard, packed, ack, flush))

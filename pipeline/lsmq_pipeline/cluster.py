"""Blocking access to a cluster, for drivers and tasks: topics, bounds of queues, record batches in and out.

The only module of the pipeline that reaches into the client's inner parts: its router knows leaders, waits for
failovers and retries until a deadline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from lsmq import Client
from lsmq._keeper import topic_path
from lsmq._loop_thread import LoopThread
from lsmq._retry import Deadline
from lsmq._transport import BATCH, BATCHES, MSGPACK, Answer
from lsmq.errors import LsmqError, UnknownTopic
from lsmq.topics import Topic
from lsmq_pipeline.options import Connection

T = TypeVar("T")
I64 = NDArray[np.int64]

_FETCH_PATH = "/v1/topics/{topic}/fetch"
_ELSEWHERE = "read_elsewhere"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all queues of a topic: first offset kept, and next to be written."""

    earliest: I64
    latest: I64


@dataclass(frozen=True, slots=True)
class Want:
    """One fetch: messages of these queues (ascending) from these offsets on."""

    queues: NDArray[Any]
    offsets: I64
    max_messages: int
    max_bytes: int
    wait_ms: int = 0


class _Loop(LoopThread):
    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class Cluster:
    """A client in an event loop of its own. Close it, or use it in a ``with`` block."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        given = bool(connection.url or connection.zookeeper)
        self._client = Client(
            connection.url if given else None,
            zookeeper=connection.zookeeper if given else None,
            cluster=connection.cluster,
            deadline_ms=connection.deadline_ms,
            request_timeout_ms=connection.request_timeout_ms,
        )
        self._loop = _Loop()
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
        """The topic, made if it is not there."""
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

    def bounds(self, topic: Topic) -> Bounds:
        """Bounds of all queues of just this topic; raises ``TopicReplaced`` when it was made anew."""
        found = self._loop.call(self._client._offsets(topic, None, None))
        return Bounds(np.array(found.earliest, np.int64), np.array(found.latest, np.int64))

    def offsets_at(self, topic: Topic, times: I64) -> I64:
        """Of each queue that has a time (milliseconds, -1 for none) the first offset stored then or later, -1 else.

        That is the queue's end where there is none yet. Each different time is a request to each shard.
        """
        offsets = np.full(topic.queues, -1, np.int64)
        for time_ms in np.unique(times[times >= 0]).tolist():
            queues = np.flatnonzero(times == time_ms).tolist()
            found = self._loop.call(self._client._offsets(topic, queues, time_ms))
            offsets[np.array(found.queues, np.int64)] = found.at_time
        return offsets

    def bounds_of(self, topic: Topic, queues: Sequence[int]) -> tuple[I64, I64]:
        """Earliest and latest offset of some queues, ascending."""
        found = self._loop.call(self._client._offsets(topic, queues, None))
        return np.array(found.earliest, np.int64), np.array(found.latest, np.int64)

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
        timeout_s = self._connection.request_timeout_ms / 1000
        return self._loop.call(self._client._transport.request("GET", url + path, timeout_s=timeout_s)).value()

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
        }
        if node is not None and read_from is not None:
            read_from = "any"
        query = f"?{urlencode({'from': read_from})}" if read_from is not None else ""
        path = f"{topic_path(topic.name)}/fetch{query}"
        request = {"value": value, "content_type": MSGPACK, "accept": BATCHES}
        if node is not None:
            return (await self._ask_node(topic, node.rstrip("/"), path, request)).body
        elsewhere = self._elsewhere.get(shard)
        if elsewhere is not None:
            try:
                return (await self._ask_node(topic, elsewhere, path, request)).body
            except LsmqError:
                # A follower that is gone or behind is no reason to fail: the leader knows another one, or answers.
                self._elsewhere.pop(shard, None)
        try:
            return (await self._ask_leader(topic, shard, path, request)).body
        except LsmqError as error:
            url = error.details.get("url")
            if error.details.get("remote_code", error.code) != _ELSEWHERE or not isinstance(url, str):
                raise
            self._elsewhere[shard] = url.rstrip("/")
            return (await self._ask_node(topic, self._elsewhere[shard], path, request)).body

    async def _ask_node(self, topic: Topic, url: str, path: str, request: dict[str, Any]) -> Answer:
        timeout_s = self._connection.request_timeout_ms / 1000
        return await self._client._transport.request(
            "POST", url + path, timeout_s=timeout_s, topic_id=topic.id, **request
        )

    async def _ask_leader(self, topic: Topic, shard: int, path: str, request: dict[str, Any]) -> Answer:
        deadline = Deadline(self._connection.deadline_ms)
        return await self._client._router.ask_leader(topic, shard, "POST", path, deadline=deadline, **request)

    # Writing

    def send(self, topic: Topic, shard: int, packed: bytes, ack: str | None) -> Future[Answer]:
        """Begin to send one record batch of queues of one shard, the same bytes until they are stored."""
        query = f"?{urlencode({'ack': ack})}" if ack else ""
        request = {"body": packed, "content_type": BATCH, "accept": BATCH}
        return self._loop.submit(self._ask_leader(topic, shard, f"{topic_path(topic.name)}/batches{query}", request))

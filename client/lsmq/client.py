"""The client: knows the nodes, keeps the routes of topics, and runs the requests of the control plane."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from lsmq._retry import Backoff, Deadline
from lsmq._transport import Answer, Transport
from lsmq.errors import InvalidRequest, LsmqError, StoreBusy, TopicExists, UnknownTopic
from lsmq.record_batch import Message
from lsmq.topics import Offsets, Topic, format_ranges

DEFAULT_URL = "http://127.0.0.1:7600"
DEFAULT_DEADLINE_MS = 30_000
DEFAULT_REQUEST_TIMEOUT_MS = 10_000
DEFAULT_CONNECT_TIMEOUT_MS = 3_000

_MAX_LEARNED_NODES = 1024
_MAX_RANGES_TEXT = 4_000  # characters; a request line ends at 8 KiB
_MAX_OFFSETS_QUEUES = 100_000  # queues whose offsets one request asks for or commits
_log = logging.getLogger("lsmq")


class Client:
    """A connection to a cluster, shared by any number of producers and consumers.

    ``urls`` is the URL of one node or of several; any node that answers will do, since it tells the routes
    to the others. Left out, the environment variable ``LSMQ_URL`` (several separated by commas) counts, and
    then ``http://127.0.0.1:7600``.

    Every method that asks a node tries again on failures that may pass, on other nodes where it knows any,
    until ``deadline_ms`` is over; then it raises the last error. ``request_timeout_ms`` bounds one attempt.

    Use it as ``async with Client() as client``; it belongs to one event loop.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
    ) -> None:
        if urls is None:
            urls = os.environ.get("LSMQ_URL") or DEFAULT_URL
        parts = urls.split(",") if isinstance(urls, str) else list(urls)
        self._seeds = [_normal_url(part) for part in parts if part.strip()]
        if not self._seeds:
            raise InvalidRequest("a client needs the URL of a node, such as http://127.0.0.1:7600")
        if min(deadline_ms, request_timeout_ms, connect_timeout_ms) <= 0:
            raise InvalidRequest("deadline_ms, request_timeout_ms and connect_timeout_ms must be above 0")
        self.deadline_ms = deadline_ms
        self.request_timeout_ms = request_timeout_ms
        self._transport = Transport(connect_timeout_ms=connect_timeout_ms)
        self._learned: dict[str, None] = {}
        self._current = self._seeds[0]
        self._topics: dict[str, Topic] = {}
        self._refreshing: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Close producers and consumers first; what they still do will fail."""
        await self._transport.close()

    @property
    def urls(self) -> list[str]:
        """All nodes known: those given, then those that routes named."""
        return [*self._seeds, *(url for url in self._learned if url not in self._seeds)]

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        exist_ok: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        ack: str | None = None,
        max_message_bytes: int | None = None,
    ) -> Topic:
        """Create a topic and return it; durable on return.

        A topic that is there with the same options is returned as well unless ``exist_ok`` is false.
        Raises ``TopicExists`` otherwise, and ``InvalidTopicName``.
        """
        options = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "ack": ack,
            "max_message_bytes": max_message_bytes,
        }
        value = {"queues": queues, **{key: option for key, option in options.items() if option is not None}}
        answer, repeated = await self._call("PUT", topic_path(name), value=value)
        topic = self._remember(Topic.from_dict(answer.value()))
        if answer.status == 200 and not exist_ok and not repeated:
            raise TopicExists(f"topic {name!r} exists already", topic=name)
        return topic

    async def topics(self) -> list[Topic]:
        """All topics, as the node that answers knows them."""
        answer, _ = await self._call("GET", "/v1/topics")
        return [Topic.from_dict(fields) for fields in answer.value()["topics"]]

    async def topic(self, name: str) -> Topic:
        """The topic called ``name``, asked afresh. Raises ``UnknownTopic``."""
        answer, _ = await self._call("GET", topic_path(name))
        return self._remember(Topic.from_dict(answer.value()))

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic and all its messages. Raises ``UnknownTopic`` unless ``missing_ok``."""
        self._topics.pop(name, None)
        _, _ = await self._call("DELETE", topic_path(name), accept_repeated=UnknownTopic, missing_ok=missing_ok)

    async def offsets(
        self, topic: str, queues: Iterable[int] | None = None, *, at_time: datetime | int | None = None
    ) -> Offsets:
        """Earliest and latest offset of ``queues`` (all, when left out), in ascending order of queue.

        With ``at_time`` (a datetime, or milliseconds since 1970) also the first offset stored at or after it.
        """
        described = await self.routes(topic)
        wanted = range(described.queues) if queues is None else sorted(set(queues))
        for queue in (wanted[0], wanted[-1]) if wanted else ():
            described.check_queue(queue)
        columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        for route in described.routes:
            owned = wanted[bisect_left(wanted, route.first) : bisect_left(wanted, route.end)]
            for chunk in chunks_of_ranges(owned):
                params = {"queues": chunk}
                if at_time is not None:
                    params["time_ms"] = str(to_ms(at_time))
                path = f"{topic_path(topic)}/offsets"
                answer, _ = await self._call("GET", path, params=params, shard=(topic, route.shard))
                fields = answer.value()
                for column, name in zip(columns, ("queues", "earliest", "latest", "at_time"), strict=True):
                    column.extend(integers(fields.get(name, ()), "I" if name == "queues" else "q"))
        return Offsets(*columns)

    async def message(self, id: str) -> Message:
        """The message with this id. Raises ``UnknownMessage``."""
        answer, _ = await self._call("GET", f"/v1/messages/{quote(id, safe='')}")
        fields = answer.value()
        fields = fields.get("message", fields)
        return message_from_dict(fields)

    # Groups

    async def groups(self) -> list[str]:
        """Names of the groups that have committed offsets."""
        answer, _ = await self._call("GET", "/v1/groups")
        return [str(group["name"] if isinstance(group, dict) else group) for group in answer.value()["groups"]]

    async def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Committed offset of each queue of ``topic`` that ``group`` has committed one for."""
        answer, _ = await self._call("GET", f"/v1/groups/{quote(group, safe='')}/offsets", params={"topic": topic})
        fields = answer.value()
        return dict(zip(integers(fields["queues"], "I"), integers(fields["offsets"], "q"), strict=True))

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], *, reset: bool = False) -> None:
        """Commit for ``group`` the next offset to read of each queue; durable on return.

        A commit that lies before an earlier one changes nothing unless ``reset``. Raises
        ``OffsetOutOfRange`` for an offset beyond the end of its queue.
        """
        queues = list(offsets)
        for start in range(0, len(queues), _MAX_OFFSETS_QUEUES):
            part = queues[start : start + _MAX_OFFSETS_QUEUES]
            value = {
                "topic": topic,
                "queues": little_endian("I", part),
                "offsets": little_endian("q", [offsets[queue] for queue in part]),
                "reset": reset,
            }
            await self._call("POST", f"/v1/groups/{quote(group, safe='')}/offsets", value=value)

    async def status(self) -> dict[str, Any]:
        """What the node says of itself: version, uptime, shards."""
        answer, _ = await self._call("GET", "/v1/status")
        value: dict[str, Any] = answer.value()
        return value

    # Routes, for producers and consumers

    async def routes(self, name: str, *, than: Topic | None = None, deadline: Deadline | None = None) -> Topic:
        """The topic with its routes: the known ones, or newer ones than ``than``.

        Callers that find their routes stale at the same time share one request.
        """
        known = self._topics.get(name)
        if known is not None and known is not than:
            return known
        lock = self._refreshing.setdefault(name, asyncio.Lock())
        async with lock:
            known = self._topics.get(name)
            if known is not None and known is not than:
                return known
            answer, _ = await self._call("GET", topic_path(name), deadline=deadline)
            return self._remember(Topic.from_dict(answer.value()))

    async def send_once(self, method: str, url: str, *, timeout_s: float, **request: Any) -> Answer:
        """One attempt at the node ``url``, for callers that keep their own count of attempts."""
        return await self._transport.request(method, url, timeout_s=timeout_s, **request)

    def _remember(self, topic: Topic) -> Topic:
        self._topics[topic.name] = topic
        for route in topic.routes:
            if route.leader and len(self._learned) < _MAX_LEARNED_NODES:
                self._learned[route.leader] = None
        return topic

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        value: Any = None,
        deadline: Deadline | None = None,
        accept_repeated: type[LsmqError] | None = None,
        missing_ok: bool = False,
        shard: tuple[str, int] | None = None,
    ) -> tuple[Answer, bool]:
        """Ask any node until one answers; whether an earlier attempt may have been carried out as well.

        With ``shard`` (topic name and shard) only the shard's leader is asked, as the routes name it.
        ``accept_repeated`` is the error that means "done before": it counts as success when an earlier
        attempt may have done it, or with ``missing_ok``.
        """
        deadline = deadline or Deadline(self.deadline_ms)
        backoff = Backoff()
        repeated = False
        failures_in_row = 0
        while True:
            url = self._current if shard is None else await self._leader(*shard, deadline)
            timeout_s = min(self.request_timeout_ms / 1000, max(deadline.remaining_s(), 0.05))
            try:
                answer = await self._transport.request(
                    method, url + path, timeout_s=timeout_s, params=params, value=value
                )
                return answer, repeated
            except LsmqError as error:
                if accept_repeated is not None and isinstance(error, accept_repeated) and (repeated or missing_ok):
                    return Answer(204, "", {}, b""), repeated
                if not error.retriable:
                    raise
                if deadline.passed:
                    raise _give_up(error, method, path, deadline) from error
                repeated = repeated or maybe_carried_out(error)
                _log.debug("request failed, trying again: %s %s%s: %s", method, url, path, error)
            if shard is not None:
                await backoff.pause(deadline)
                await self.routes(shard[0], than=self._topics.get(shard[0]), deadline=deadline)
                continue
            self._next_node(url)
            failures_in_row += 1
            if failures_in_row % len(self.urls) == 0 or len(self.urls) == 1:
                await backoff.pause(deadline)

    async def _leader(self, name: str, shard: int, deadline: Deadline) -> str:
        """The leader of a shard; any node while it has none, whose refusal then says so."""
        topic = await self.routes(name, deadline=deadline)
        return topic.leader_of_shard(shard) or self._current

    def _next_node(self, failed: str) -> None:
        """Prefer the node after ``failed``, unless another task has moved on already."""
        if self._current == failed:
            urls = self.urls
            place = urls.index(failed) if failed in urls else -1
            self._current = urls[(place + 1) % len(urls)]


def maybe_carried_out(error: LsmqError) -> bool:
    """Whether the node may have done what was asked although this error came of it."""
    return bool(error.details.get("sent", not isinstance(error, StoreBusy)))


def _give_up(error: LsmqError, method: str, path: str, deadline: Deadline) -> LsmqError:
    message = f"{method} {path} had no success within {deadline.total_ms / 1000:g} s; last: {error.message}"
    return type(error)(message, **error.details)


def _normal_url(text: str) -> str:
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        split = urlsplit(url)
        usable = split.scheme in ("http", "https") and split.hostname and split.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequest(f"{text!r} is not the URL of a node; it looks like http://127.0.0.1:7600")
    return url.rstrip("/")


def topic_path(name: str) -> str:
    return f"/v1/topics/{quote(name, safe='')}"


def to_ms(moment: datetime | int) -> int:
    """Milliseconds since 1970 of a datetime (one without a zone is local time) or of such a number."""
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    return moment


def chunks_of_ranges(queues: Sequence[int]) -> list[str]:
    """Sorted ``queues`` as range lists, each short enough in text and queues for one request."""
    chunks: list[str] = []
    for start in range(0, len(queues), _MAX_OFFSETS_QUEUES):
        text = ""
        for part in format_ranges(queues[start : start + _MAX_OFFSETS_QUEUES]):
            if text and len(text) + len(part) >= _MAX_RANGES_TEXT:
                chunks.append(text)
                text = ""
            text = f"{text},{part}" if text else part
        chunks.append(text)
    return chunks


def little_endian(typecode: str, values: Iterable[int]) -> bytes:
    """Integers as little-endian bytes: ``I`` 32 bits unsigned, ``q`` 64 bits signed."""
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def integers(column: bytes | Sequence[int], typecode: str) -> Sequence[int]:
    """A column of an answer, which comes as a list or as little-endian bytes."""
    if not isinstance(column, bytes):
        return column
    values = array(typecode)
    values.frombytes(column)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def message_from_dict(fields: Mapping[str, Any]) -> Message:
    """A message of the msgpack API."""
    body = fields["body"]
    return Message(
        topic=str(fields.get("topic", "")),
        queue=int(fields["queue"]),
        offset=int(fields["offset"]),
        id=str(fields["id"]),
        body=body.encode() if isinstance(body, str) else bytes(body),
        key=fields.get("key"),
        tag=fields.get("tag"),
        priority=int(fields.get("priority") or 0),
        properties=fields.get("properties") or {},
        stored_ms=int(fields.get("stored_ms") or 0),
    )

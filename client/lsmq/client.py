"""The client: knows the nodes, keeps the routes of topics, and runs the requests of the control plane."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from lsmq._lifecycle import AsyncCloseable
from lsmq._outages import OnOutage, Outages
from lsmq._paths import group_path, quoted, topic_path
from lsmq._retries import Deadline
from lsmq._route_documents import DiskCopy, default_cache_directory
from lsmq._route_table import RouteSource
from lsmq._router import Router
from lsmq._transport import Response, Transport
from lsmq._wire_values import (
    MAX_OFFSETS_QUEUES,
    all_pages,
    chunks_of_ranges,
    integers,
    little_endian,
    message_from_dict,
    to_ms,
)
from lsmq.errors import (
    InvalidRequest,
    TopicExists,
    TopicReplaced,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
    ZooKeeperNotInstalled,
)
from lsmq.record_batch import Message, parse_message_id
from lsmq.topics import Ack, Offsets, Route, Topic

DEFAULT_URL = "http://127.0.0.1:7600"
DEFAULT_CLUSTER = "lsmq"
DEFAULT_REFRESH_S = 30.0
DEFAULT_DEADLINE_MS = 30_000
DEFAULT_REQUEST_TIMEOUT_MS = 10_000
DEFAULT_CONNECT_TIMEOUT_MS = 3_000

T = TypeVar("T")
Place = tuple[int, int]
"""A queue and an offset."""

_DELETED_A_REQUEST = 500


class Client(AsyncCloseable):
    """A connection to a cluster, shared by any number of producers and consumers.

    ``urls`` is the URL of one node or of several; any node that answers will do, since it tells the routes
    to the others. ``zookeeper`` (``"host:port,host:port/chroot"``) finds the nodes of the ``cluster`` of that
    name without any URL, and needs ``lsmq[zookeeper]``. With neither, the environment counts: ``LSMQ_URL``
    (several separated by commas), ``LSMQ_ZOOKEEPER`` and ``LSMQ_CLUSTER``; and then ``http://127.0.0.1:7600``.

    Routes are looked at again every ``refresh_s``, and at once when a leader does not answer or is none any
    more. What ZooKeeper said is kept in ``cache_dir`` (left out: in ``~/.cache/lsmq``; empty: nowhere), for a
    start while ZooKeeper is away.

    Every method that asks a node tries again on failures that may pass, on other nodes where it knows any,
    until ``deadline_ms`` is over; then it raises the last error. ``request_timeout_ms`` bounds one attempt.
    A node that does not answer is not waited for where another one can. Consumers and work queues go on for ever.

    What has had no success for a second is told of in a warning (logger ``lsmq``), then after twice as long each time,
    at most once a minute, and once more when it succeeds again. ``on_outage`` is called then as well, in the event
    loop, with an :class:`lsmq.Outage`: for all that is done with this client, by its producers and consumers, too.

    Use it as ``async with Client() as client``; it belongs to one event loop.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        zookeeper: str | None = None,
        cluster: str | None = None,
        refresh_s: float = DEFAULT_REFRESH_S,
        cache_dir: str | Path | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
        on_outage: OnOutage | None = None,
    ) -> None:
        self._outages = Outages(on_outage)
        if urls is None and zookeeper is None:
            zookeeper = os.environ.get("LSMQ_ZOOKEEPER") or None
            urls = os.environ.get("LSMQ_URL") or (DEFAULT_URL if zookeeper is None else "")
        parts = urls.split(",") if isinstance(urls, str) else list(urls or ())
        seeds = [_normal_url(part) for part in parts if part.strip()]
        if not seeds and not zookeeper:
            raise InvalidRequest("a client needs the URL of a node, such as http://127.0.0.1:7600, or a ZooKeeper")
        if min(deadline_ms, request_timeout_ms, connect_timeout_ms, refresh_s) <= 0:
            raise InvalidRequest("deadline_ms, request_timeout_ms, connect_timeout_ms and refresh_s must be above 0")
        self.deadline_ms = deadline_ms
        self.request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._transport = Transport(connect_timeout_ms=connect_timeout_ms)
        source = None
        if zookeeper:
            cluster = cluster or os.environ.get("LSMQ_CLUSTER") or DEFAULT_CLUSTER
            source = _zookeeper_source(zookeeper, cluster, refresh_s, cache_dir)
        self._router = Router(
            self._transport,
            seeds,
            request_timeout_ms=request_timeout_ms,
            refresh_s=refresh_s,
            source=source,
            outages=self._outages,
        )

    async def close(self) -> None:
        """Close the connections. Close producers and consumers first; what they still do will fail."""
        await self._router.close()
        await self._transport.close()

    @property
    def urls(self) -> list[str]:
        """All nodes known: those given, then those that routes named."""
        return self._router.urls

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        exist_ok: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        ack: Ack | None = None,
        max_message_bytes: int | None = None,
        order: Literal["ordinary", "strict"] | None = None,
    ) -> Topic:
        """Create a topic and return it; durable on return.

        With ``order="strict"`` a key stays in its queue even when the topic grows.
        A topic that is there with the same options is returned as well unless ``exist_ok`` is false.
        Raises ``TopicExists`` otherwise, and ``InvalidTopicName``.
        """
        options = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "ack": ack,
            "max_message_bytes": max_message_bytes,
            "order": order,
        }
        value = {"queues": queues, **{key: option for key, option in options.items() if option is not None}}
        answer, repeated = await self._router.ask_any("PUT", topic_path(name), value=value, deadline=self._deadline())
        topic = self._router.table.learn_topic(Topic.from_dict(answer.value()))
        if answer.status == 200 and not exist_ok and not repeated:
            raise TopicExists(f"topic {name!r} exists already", topic=name)
        return topic

    async def grow_topic(self, name: str, queues: int) -> Topic:
        """Give a topic more queues, durably; those there are stay where they are. Nothing happens if it has as many.

        Raises ``UnknownTopic``, and ``InvalidRequest`` where it has more: a topic can only grow.
        """
        path = f"{topic_path(name)}/queues"
        answer, _ = await self._router.ask_any("PUT", path, value={"queues": queues}, deadline=self._deadline())
        return self._router.table.learn_topic(Topic.from_dict(answer.value()))

    async def topics(self) -> list[Topic]:
        """All topics, as the node that answers knows them."""
        deadline = self._deadline()

        async def ask(params: dict[str, str]) -> Response:
            return (await self._router.ask_any("GET", "/v1/topics", params=params, deadline=deadline))[0]

        return [
            self._router.table.learn_leaders(Topic.from_dict(fields))
            for page in await all_pages(ask)
            for fields in page["topics"]
        ]

    async def topic(self, name: str) -> Topic:
        """The topic called ``name``, asked afresh. Raises ``UnknownTopic``."""
        return await self._router.topic(name, self._deadline())

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic and all its messages. Raises ``UnknownTopic`` unless ``missing_ok``."""
        self._router.table.forget_topic(name)
        await self._router.ask_any(
            "DELETE",
            topic_path(name),
            deadline=self._deadline(),
            accept_repeated=UnknownTopic,
            missing_ok=missing_ok,
        )

    async def trim_topic(self, name: str, offsets: Mapping[int, int]) -> None:
        """Delete, for every group, the messages of each queue that lie below its offset. Durable on return.

        Raises ``OffsetOutOfRange`` for an offset beyond the end of its queue. Each shard's queues are trimmed for
        themselves: after an error some may be and others not.
        """
        await self._delete(name, offsets.items(), before=True)

    async def delete_messages(self, topic: str, places: Iterable[Place]) -> None:
        """Delete, for every group, the messages at these places, each a queue and an offset. Durable on return.

        What was deleted before is no error.
        """
        await self._delete(topic, places, before=False)

    async def _delete(self, name: str, places: Iterable[Place], *, before: bool) -> None:
        """What lies at these places, or ``before`` each."""
        ordered = sorted(places)

        async def work(topic: Topic) -> None:
            path = f"{topic_path(name)}/delete"
            await self._send_places(topic, path, ordered, _DELETED_A_REQUEST, {"before": before})

        await self._with_topic(name, work)

    async def _send_places(
        self,
        topic: Topic,
        path: str,
        places: Sequence[Place],
        most: int,
        more: Mapping[str, Any],
        deadline: Deadline | None = None,
    ) -> None:
        """Post sorted places as columns to the leaders of their queues, at ``most`` so many in a request.

        ``deadline``: of all together; when left out, each has its own.
        """
        owners = [queue for queue, _ in places]

        async def send(route: Route) -> None:
            owned = places[bisect_left(owners, route.first) : bisect_left(owners, route.end)]
            for start in range(0, len(owned), most):
                queues, offsets = zip(*owned[start : start + most], strict=True)
                columns = {"queues": little_endian("I", queues), "offsets": little_endian("q", offsets)}
                await self._router.ask_leader(
                    topic, route.shard, "POST", path, value={**columns, **more}, deadline=deadline or self._deadline()
                )

        for queue in (owners[0], owners[-1]) if places else ():
            topic.check_queue(queue)
        await _together(send(route) for route in topic.routes)

    async def offsets(
        self, topic: str, queues: Iterable[int] | None = None, *, at_time: datetime | int | None = None
    ) -> Offsets:
        """Earliest and latest offset of ``queues`` (all, when left out), in ascending order of queue.

        With ``at_time`` (a datetime, or milliseconds since 1970) also the first offset stored at or after it.
        """
        wanted = None if queues is None else queues if isinstance(queues, range) else sorted(set(queues))
        return await self._with_topic(topic, lambda known: self._offsets(known, wanted, at_time))

    async def _offsets(self, topic: Topic, queues: Sequence[int] | None, at_time: datetime | int | None) -> Offsets:
        """:meth:`offsets` of just this topic: raises ``TopicReplaced`` when it was made anew."""
        path = f"{topic_path(topic.name)}/offsets"
        deadline = self._deadline()

        async def ask(route: Route, owned: Sequence[int]) -> list[Mapping[str, Any]]:
            answers = []
            for chunk in chunks_of_ranges(owned):
                params = {"queues": chunk}
                if at_time is not None:
                    params["time_ms"] = str(to_ms(at_time))
                answer = await self._router.ask_leader(
                    topic, route.shard, "GET", path, params=params, deadline=deadline
                )
                answers.append(answer.value())
            return answers

        columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        for answers in await _of_each_shard(topic, range(topic.queues) if queues is None else queues, ask):
            for fields in answers:
                for column, name in zip(columns, ("queues", "earliest", "latest", "at_time"), strict=True):
                    column.extend(integers(fields.get(name, ()), "I" if name == "queues" else "q"))
        return Offsets(*columns)

    async def message(self, id: str) -> Message:
        """The message with this id. Raises ``UnknownMessage``."""
        try:
            topic_id, queue, _ = parse_message_id(id)
        except ValueError as error:
            raise UnknownMessage(f"{id!r} is not a message id, which has 32 hex digits", id=id) from error
        topic = self._router.table.topic_by_id(topic_id)
        if topic is None:
            topic = next((found for found in await self.topics() if found.id == topic_id), None)
        if topic is None or not 0 <= queue < topic.queues:
            missing = f"no topic has the id {topic_id}" if topic is None else f"{topic.name!r} has no queue {queue}"
            raise UnknownMessage(f"no message has the id {id}: {missing}", id=id)
        self._router.table.learn_topic(topic)
        path = f"/v1/messages/{quoted(id)}"
        try:
            answer = await self._router.ask_leader(
                topic, topic.route(queue).shard, "GET", path, deadline=self._deadline()
            )
        except (TopicReplaced, UnknownTopic) as error:
            raise UnknownMessage(f"no message has the id {id}: its topic {topic.name!r} is deleted", id=id) from error
        fields = answer.value()
        return message_from_dict(fields.get("message", fields))

    # Groups

    async def groups(self) -> list[str]:
        """Names of the groups that have committed offsets."""
        deadline = self._deadline()
        holders: dict[int, Topic] = {}
        for topic in await self.topics():
            for route in topic.routes:
                if route.shard not in holders:
                    holders[route.shard] = self._router.table.learn_topic(topic)

        async def pages_of(shard: int, topic: Topic) -> list[Mapping[str, Any]]:
            return await all_pages(
                lambda params: self._router.ask_leader(
                    topic, shard, "GET", "/v1/groups", params=params, deadline=deadline
                )
            )

        found = await _together(pages_of(shard, topic) for shard, topic in holders.items())
        return sorted({str(group) for pages in found for page in pages for group in page["groups"]})

    async def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Committed offset of each queue of ``topic`` that ``group`` has committed one for."""
        return await self._with_topic(topic, lambda known: self._committed_offsets(group, known))

    async def _committed_offsets(self, group: str, topic: Topic) -> dict[int, int]:
        path = f"{group_path(group)}/offsets"
        deadline = self._deadline()

        async def ask(route: Route, owned: Sequence[int]) -> dict[int, int]:
            found: dict[int, int] = {}
            for chunk in chunks_of_ranges(owned):
                params = {"topic": topic.name, "queues": chunk}
                answer = await self._router.ask_leader(
                    topic, route.shard, "GET", path, params=params, deadline=deadline
                )
                fields = answer.value()
                found.update(zip(integers(fields["queues"], "I"), integers(fields["offsets"], "q"), strict=True))
            return found

        parts = await _of_each_shard(topic, range(topic.queues), ask)
        return {queue: offset for part in parts for queue, offset in part.items()}

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], *, reset: bool = False) -> None:
        """Commit for ``group`` the next offset to read of each queue; durable on return.

        A commit that lies before an earlier one changes nothing unless ``reset``. Raises
        ``OffsetOutOfRange`` for an offset beyond the end of its queue. Each shard's offsets are committed for
        themselves: after an error some may be and others not.
        """
        await self._with_topic(topic, lambda known: self._commit_offsets(group, known, offsets, reset=reset))

    async def _commit_offsets(
        self,
        group: str,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        reset: bool,
        deadline: Deadline | None = None,
        **member: str | int,
    ) -> None:
        """:meth:`commit_offsets` of just this topic; ``member`` and ``epoch`` are of a member that commits."""
        path = f"{group_path(group)}/offsets"
        more = {"topic": topic.name, "reset": reset, **member}
        await self._send_places(
            topic, path, sorted(offsets.items()), MAX_OFFSETS_QUEUES, more, deadline or self._deadline()
        )

    # The nodes

    async def status(self) -> dict[str, Any]:
        """What the node says of itself: version, uptime, shards."""
        value: dict[str, Any] = await self.ask("GET", "/v1/status")
        return value

    async def ask(self, method: str, path: str, value: Any = None) -> Any:
        """Ask any node that answers for something of the HTTP API that has no method here; the answer's value.

        A request that changes something may be carried out more than once, by more than one node.
        """
        answer, _ = await self._router.ask_any(method, path, value=value, deadline=self._deadline())
        return answer.value() if answer.body else None

    # Within

    def _twin(self) -> Client:
        """A client with the same settings for another event loop, which knows the nodes that this one knows."""
        twin = Client(
            self.urls,
            deadline_ms=self.deadline_ms,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
        )
        twin._outages.warn = False  # Whoever has a twin says by itself what fails there.
        return twin

    def _deadline(self) -> Deadline:
        return Deadline(self.deadline_ms)

    async def _with_topic(self, name: str, work: Callable[[Topic], Awaitable[T]]) -> T:
        """Do ``work`` with the topic as it is known, and once more if it turns out to have changed."""
        known = await self._router.known(name, self._deadline())
        try:
            return await work(known)
        except (TopicReplaced, UnknownQueue):
            fresh = await self.topic(name)
            if fresh.is_same(known) and fresh.queues == known.queues:
                raise
            return await work(fresh)


async def _of_each_shard(
    topic: Topic, queues: Sequence[int], ask: Callable[[Route, Sequence[int]], Awaitable[T]]
) -> list[T]:
    """Ask for the sorted ``queues`` of each route, all at a time; the answers in the order of queues."""
    for queue in (queues[0], queues[-1]) if queues else ():
        topic.check_queue(queue)
    parts = (
        (route, queues[bisect_left(queues, route.first) : bisect_left(queues, route.end)]) for route in topic.routes
    )
    return await _together(ask(route, owned) for route, owned in parts if owned)


async def _together(works: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order, or the first error; then nothing goes on."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _zookeeper_source(hosts: str, cluster: str, refresh_s: float, cache_dir: str | Path | None) -> RouteSource:
    try:
        from lsmq._zookeeper import ZooKeeperRoutes
    except ModuleNotFoundError as error:
        raise ZooKeeperNotInstalled(
            f'routes from ZooKeeper need {error.name}, which is not installed; run: pip install "lsmq[zookeeper]"',
            missing=error.name,
        ) from error
    directory = default_cache_directory() if cache_dir is None else Path(cache_dir) if cache_dir else None
    copy = None if directory is None else DiskCopy(directory, hosts, cluster)
    return ZooKeeperRoutes(hosts, cluster, refresh_s=refresh_s, copy=copy)


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

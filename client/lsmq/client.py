"""The client: knows the nodes, keeps the routes of topics, and runs the requests of the control plane."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack
from urllib.parse import urlsplit

from lsmq._arguments import check_offsets, check_queues, check_times, sorted_queues
from lsmq._asking import Asking
from lsmq._bundles import Bundles
from lsmq._credentials import Credentials
from lsmq._deletes import DeleteRequests, Place
from lsmq._extras import tracing_of, zookeeper_source
from lsmq._lifecycle import AsyncCloseable
from lsmq._outages import OnOutage, Outages
from lsmq._paths import group_path, quoted, topic_path
from lsmq._reading import all_pages
from lsmq._retries import Deadline
from lsmq._router import Router
from lsmq._single_queues import QueueRequests
from lsmq._tls import ClientTls
from lsmq._transport import Response, Transport
from lsmq._wire_values import (
    MAX_OFFSETS_QUEUES,
    bounds_columns,
    chunks_of_ranges,
    found_messages,
    little_endian,
    message_from_dict,
    offset_by_queue,
    search_params,
    to_ms,
)
from lsmq.errors import (
    InvalidRequest,
    TopicExists,
    TopicReplaced,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.filters import MessageFilter
from lsmq.messages import FoundMessages, Key, due_of_id
from lsmq.record_batch import Message, parse_message_id
from lsmq.topics import Ack, Flush, Offsets, OnDiskFull, Overflow, Route, Topic, TopicChanges, TopicUsage

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from lsmq._heartbeats import HeartbeatThread

DEFAULT_URL = "http://127.0.0.1:7600"
DEFAULT_CLUSTER = "lsmq"
DEFAULT_REFRESH_S = 30.0
DEFAULT_DEADLINE_MS = 30_000
DEFAULT_REQUEST_TIMEOUT_MS = 10_000
DEFAULT_CONNECT_TIMEOUT_MS = 3_000

T = TypeVar("T")


class Client(DeleteRequests, QueueRequests, Asking, AsyncCloseable):
    """A connection to a cluster, shared by any number of producers and consumers.

    ``urls`` is the URL of one node or of several; any node that answers will do, since it tells the routes
    to the others. ``zookeeper`` (``"host:port,host:port/chroot"``) finds the nodes of the ``cluster`` of that
    name without any URL, by TLS with ``tls://`` before it, and needs ``lsmq[zookeeper]``. With neither, the
    environment counts: ``LSMQ_URL`` (several separated by commas), ``LSMQ_ZOOKEEPER`` and ``LSMQ_CLUSTER``; and then
    ``http://127.0.0.1:7600``.

    Nodes whose URL begins with ``https://``, and ZooKeeper at ``tls://``, are believed by the authorities in the PEM
    file ``ca`` (left out: those of the system), and shown the certificate ``cert`` with its private ``cert_key``; or
    ``LSMQ_CA``, ``LSMQ_CERT`` and ``LSMQ_CERT_KEY`` in the environment. Files are read again when they change.

    Routes are looked at again every ``refresh_s``, and at once when a leader does not answer or is none any more. What
    ZooKeeper said is kept in ``cache_dir`` (left out: ``~/.cache/lsmq``; empty: nowhere), for starts without it.

    Every method that asks a node tries again on failures that may pass, on other nodes where it knows any,
    until ``deadline_ms`` is over; then it raises the last error. ``request_timeout_ms`` bounds one attempt.
    A node that does not answer is not waited for where another one can. Consumers and work queues go on for ever.

    What has had no success for a second is told of in a warning (logger ``lsmq``), then after twice as long each time,
    at most once a minute, and once more when it succeeds again. ``on_outage`` is called then as well, in the event
    loop, with an :class:`lsmq.Outage`: for all that is done with this client, by its producers and consumers, too.

    Nodes that want to know who asks are shown a ``token``: better the one in ``token_file``, a file of mode 600 that is
    read again when a node takes the token no longer. With neither, the environment counts: ``LSMQ_TOKEN``, then
    ``LSMQ_TOKEN_FILE`` (``docs/security.md``).

    With ``tracing`` (True: the process's own, or a tracer provider of OpenTelemetry) what is sent and received makes
    spans, and messages carry their traces; needs ``lsmq[otel]`` (``docs/tracing.md``).

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
        token: str | Callable[[], str] | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        cert_key: str | Path | None = None,
        tracing: bool | TracerProvider = False,
    ) -> None:
        self._tracing = tracing_of(tracing)
        self._outages = Outages(on_outage)
        if urls is None and zookeeper is None:
            zookeeper = os.environ.get("LSMQ_ZOOKEEPER") or None
            urls = os.environ.get("LSMQ_URL") or (DEFAULT_URL if zookeeper is None else "")
        parts = urls.split(",") if isinstance(urls, str) else list(urls or ())
        seeds = [normal_url(part) for part in parts if part.strip()]
        if not seeds and not zookeeper:
            raise InvalidRequest("a client needs the URL of a node, such as http://127.0.0.1:7600, or a ZooKeeper")
        check_times(deadline_ms=deadline_ms, request_timeout_ms=request_timeout_ms, or_inf=True)
        check_times(connect_timeout_ms=connect_timeout_ms, refresh_s=refresh_s)
        self.deadline_ms, self.request_timeout_ms = deadline_ms, request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._credentials = Credentials.given(token, token_file)
        self._tls_files = ca, cert, cert_key
        tls = ClientTls(ca, cert, cert_key)
        self._transport = Transport(connect_timeout_ms=connect_timeout_ms, credentials=self._credentials, tls=tls)
        source = None
        if zookeeper:
            cluster = cluster or os.environ.get("LSMQ_CLUSTER") or DEFAULT_CLUSTER
            source = zookeeper_source(zookeeper, cluster, refresh_s, cache_dir, tls)
        self._router = Router(
            self._transport,
            seeds,
            request_timeout_ms=request_timeout_ms,
            refresh_s=refresh_s,
            source=source,
            outages=self._outages,
        )
        self._bundles = Bundles(self._router)
        self._heartbeats: HeartbeatThread | None = None

    async def close(self) -> None:
        """Close the connections. Close producers and consumers first: what they still do fails; members leave."""
        async with AsyncExitStack() as closing:  # The last first, and all of them though one is cancelled.
            closing.push_async_callback(self._transport.close)
            closing.push_async_callback(self._router.close)
            closing.push_async_callback(self._bundles.close)
            for part in (self._requests, self._heartbeats):
                if part is not None:
                    closing.push_async_callback(part.close)

    def _left_open(self) -> str:
        return f"a client of {', '.join(self.urls[:1])}" if self._transport.is_open else ""

    @property
    def urls(self) -> list[str]:
        """All nodes known: those given, then those that routes named."""
        return self._router.urls

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        queues: int | Literal["named"] = 1,
        exist_ok: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        ack: Ack | None = None,
        flush: Flush | None = None,
        max_message_bytes: int | None = None,
        dedupe_window_ms: int | Literal["forever"] | None = None,
        order: Literal["ordinary", "strict"] | None = None,
        ttl_ms: int | None = None,
        expired_to: str | None = None,
        dropped_to: str | None = None,
        retention_messages: int | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        queue_max_messages: int | None = None,
        queue_max_bytes: int | None = None,
        overflow: Overflow | None = None,
        on_disk_full: OnDiskFull | None = None,
        delete_consumed: bool | None = None,
        forget_empty_ms: int | None = None,
        cleanup: Literal["delete", "compact"] | None = None,
        delete_retention_ms: int | None = None,
    ) -> Topic:
        """Create a topic and return it; durable on return. ``docs/retention.md`` says what stays and what goes.

        With ``queues="named"`` it has a queue for each name that is used, and those need not be made before; with
        ``forget_empty_ms`` names are forgotten that had no message to be read for so long.
        With ``flush="async"`` its messages are acknowledged before they are on the disk (``docs/replication.md``).
        With ``ttl_ms`` its messages are delivered for so long, or for their own time to live if that is less; with
        ``expired_to`` they go to that topic then, and with ``dropped_to`` what ``overflow`` drops. With
        ``order="strict"`` a key stays in its queue even when the topic grows. With ``cleanup="compact"`` of each key
        the last message is kept: see :meth:`latest`.
        A topic that is there with the same options is returned as well unless ``exist_ok`` is false. Raises
        ``TopicExists`` otherwise, and ``InvalidTopicName``.
        """
        options = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "ack": ack,
            "flush": flush,
            "max_message_bytes": max_message_bytes,
            "dedupe_window_ms": dedupe_window_ms or None,
            "order": order,
            "ttl_ms": ttl_ms,
            "expired_to": expired_to,
            "dropped_to": dropped_to,
            "retention_messages": retention_messages,
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "queue_max_messages": queue_max_messages,
            "queue_max_bytes": queue_max_bytes,
            "overflow": overflow,
            "on_disk_full": on_disk_full,
            "delete_consumed": delete_consumed,
            "forget_empty_ms": forget_empty_ms,
            "cleanup": cleanup,
            "delete_retention_ms": delete_retention_ms,
        }
        value = {"queues": queues, **{key: option for key, option in options.items() if option is not None}}
        answer, repeated = await self._router.ask_any("PUT", topic_path(name), value=value, deadline=self._deadline())
        topic = self._router.table.learn_topic(answer.parsed(Topic.from_dict))
        if answer.status == 200 and not exist_ok and not repeated:
            raise TopicExists(f"topic {name!r} exists already; give another name, or leave out exist_ok", topic=name)
        return topic

    async def grow_topic(self, name: str, queues: int) -> Topic:
        """Give a topic more queues, durably; those there are stay where they are. Nothing happens if it has as many.

        Raises ``UnknownTopic``, and ``InvalidRequest`` where it has more: a topic can only grow.
        """
        path = f"{topic_path(name)}/queues"
        answer, _ = await self._router.ask_any("PUT", path, value={"queues": queues}, deadline=self._deadline())
        return self._router.table.learn_topic(answer.parsed(Topic.from_dict))

    async def spread_topic(self, name: str, *, keys: Literal["stay", "move"] = "stay") -> Topic:
        """Have a topic use shards that came after it: with new queues there, durably; those there are stay as they are.

        ``keys`` stay in their queues, for ever, as in a topic of strict order, or move to others, as when it grows.
        Nothing happens where it uses all. Raises ``UnknownTopic``, and ``InvalidRequest`` for named queues.
        """
        path = f"{topic_path(name)}/spread"
        answer, _ = await self._router.ask_any("POST", path, value={"keys": keys}, deadline=self._deadline())
        return self._router.table.learn_topic(answer.parsed(Topic.from_dict))

    async def alter_topic(self, name: str, **changes: Unpack[TopicChanges]) -> Topic:
        """Change options of a topic, such as :class:`lsmq.TopicChanges` names: None takes one away.

        Durable on return; leaders obey it within a moment. Raises ``UnknownTopic``, ``InvalidRequest``.
        """
        answer, _ = await self._router.ask_any("PATCH", topic_path(name), value=changes, deadline=self._deadline())
        return self._router.table.learn_topic(answer.parsed(Topic.from_dict))

    async def topics(self) -> list[Topic]:
        """All topics, as the node that answers knows them."""

        async def ask(params: dict[str, str]) -> Response:
            return (await self._router.ask_any("GET", "/v1/topics", params=params, deadline=self._deadline()))[0]

        pages = await all_pages(ask, lambda page: [Topic.from_dict(fields) for fields in page["topics"]])
        return [self._router.table.learn_leaders(topic) for page in pages for topic in page]

    async def topic(self, name: str) -> Topic:
        """The topic called ``name``, asked afresh. Raises ``UnknownTopic``."""
        return await self._router.topic(name, self._deadline())

    async def topic_usage(self, name: str, *, groups: int | None = None) -> TopicUsage:
        """How much a topic holds, what has gone of it by itself, and so many of its ``groups`` (nodes of a release
        before refuse that), or all. Raises ``UnknownTopic``."""
        path, params = f"{topic_path(name)}/usage", {} if groups is None else {"groups": str(groups)}
        answer, _ = await self._router.ask_any("GET", path, params=params, deadline=self._deadline())
        return answer.parsed(TopicUsage.from_dict)

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
        check_queues(owners)
        check_offsets(offset for _, offset in places)

        async def send(route: Route) -> None:
            owned = places[bisect_left(owners, route.first) : bisect_left(owners, route.end)]
            for start in range(0, len(owned), most):
                queues, offsets = zip(*owned[start : start + most], strict=True)
                columns = {"queues": little_endian("I", queues), "offsets": little_endian("q", offsets)}
                await self._router.ask_leader(
                    topic, route.shard, "POST", path, value={**columns, **more}, deadline=deadline or self._deadline()
                )

        numbered = topic.by_number()
        for queue in (owners[0], owners[-1]) if places else ():
            numbered.check_queue(queue)
        await _together(send(route) for route in numbered.routes)

    async def offsets(
        self, topic: str, queues: Iterable[int] | None = None, *, at_time: datetime | int | None = None
    ) -> Offsets:
        """Earliest and latest offset of ``queues`` (all, when left out), in ascending order of queue.

        With ``at_time`` (a datetime, or milliseconds since 1970) also the first offset stored at or after it. In a
        named topic queues have numbers, too, which are to be given; :meth:`queues` lists all with their names.
        """
        wanted = None if queues is None else sorted_queues(queues)
        return await self._with_topic(topic, lambda known: self._offsets(known, wanted, at_time))

    async def _offsets(self, topic: Topic, queues: Sequence[int] | None, at_time: datetime | int | None) -> Offsets:
        """:meth:`offsets` of just this topic: raises ``TopicReplaced`` when it was made anew."""
        if queues is None and topic.named:
            raise InvalidRequest(
                f"topic {topic.name!r} has queues with names: queues() lists them; or say which, by their numbers"
            )
        path = f"{topic_path(topic.name)}/offsets"

        async def ask(route: Route, owned: Sequence[int]) -> list[list[Sequence[int]]]:
            answers = []
            for chunk in chunks_of_ranges(owned):
                params = {"queues": chunk}
                if at_time is not None:
                    params["time_ms"] = str(to_ms(at_time))
                answer = await self._router.ask_leader(
                    topic, route.shard, "GET", path, params=params, deadline=self._deadline()
                )
                answers.append(answer.parsed(bounds_columns))
            return answers

        columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        numbered = topic.by_number()
        for answers in await _of_each_shard(numbered, range(topic.queues) if queues is None else queues, ask):
            for answer in answers:
                for column, part in zip(columns, answer, strict=True):
                    column.extend(part)
        return Offsets(*columns)

    async def message(self, id: str) -> Message:
        """The message with this id. Raises ``UnknownMessage``."""
        try:
            topic_id, queue, _ = parse_message_id(id)
        except ValueError as error:
            raise UnknownMessage(f"{id!r} is not a message id, which has 32 hex digits", id=id) from error
        if due_of_id(id) is not None:
            raise UnknownMessage(
                f"{id!r} is the id of a message that was sent to come later: DelayedMessages(client, topic).get(id) "
                "gives it until then; in its queue it has another id",
                id=id,
            )
        topic = self._router.table.topic_by_id(topic_id)
        if topic is None:
            topic = next((found for found in await self.topics() if found.id == topic_id), None)
        numbered = None if topic is None else topic.by_number()
        if topic is None or numbered is None or not 0 <= queue < numbered.queues:
            missing = f"no topic has the id {topic_id}" if topic is None else f"{topic.name!r} has no queue {queue}"
            raise UnknownMessage(f"no message has the id {id}: {missing}", id=id)
        self._router.table.learn_topic(topic)
        path = f"/v1/messages/{quoted(id)}"
        try:
            answer = await self._router.ask_leader(
                topic, numbered.route(queue).shard, "GET", path, deadline=self._deadline()
            )
        except (TopicReplaced, UnknownTopic) as error:
            raise UnknownMessage(f"no message has the id {id}: its topic {topic.name!r} is deleted", id=id) from error
        return answer.parsed(lambda fields: message_from_dict(fields.get("message", fields)))

    async def find_messages(
        self,
        topic: str,
        key: Key | None = None,
        *,
        from_time: datetime | int | None = None,
        to_time: datetime | int | None = None,
        limit: int = 32,
        after: str | None = None,
        queue: int | str | None = None,
        tag: str | Sequence[str] | None = None,
        type: str | Sequence[str] | None = None,
        filter: str | None = None,
        explain: bool = False,
    ) -> FoundMessages:
        """Messages of a key, newest first, of all queues or of one, by number or name: a page of up to ``limit``.

        ``from_time`` and ``to_time`` (milliseconds since 1970, or a ``datetime``) bound when they were stored, the
        second not included. ``tag``, ``type`` and ``filter`` pick some of them, as for a consumer; without a key all
        that these pick, or a time does, are found, queue after queue and in each the oldest first, by looking through
        the topic.
        ``after`` is the ``next`` of the page before. Any node answers, for all shards.

        Raises ``UnknownTopic``, ``UnknownQueue``, ``InvalidFilter``, ``InvalidRequest``.
        """
        if isinstance(queue, str):
            queue = (await self.queue(topic, queue)).number
        params = search_params(
            key, from_time=from_time, to_time=to_time, limit=limit, after=after, queue=queue, explain=explain
        )
        if (picked := MessageFilter.of(tag, type, filter)) is not None:
            params |= picked.to_query()
        path = f"{topic_path(topic)}/messages"
        answer, _ = await self._router.ask_any("GET", path, deadline=self._deadline(), params=params)
        return answer.parsed(lambda fields: found_messages(topic, fields))

    async def latest(self, topic: str, key: Key, *, queue: int | str | None = None) -> Message | None:
        """The last message of a key, in all queues or in one: its value, where the topic is used as a table.

        None where there is none, or the last one says that the key is gone. Raises as :meth:`find_messages`.
        """
        after: str | None = None
        while True:
            found = await self.find_messages(topic, key, limit=1, after=after, queue=queue)
            if found.messages:
                return None if found.messages[0].delete else found.messages[0]
            after = found.next
            if after is None:
                return None

    # Groups

    async def groups(self) -> list[str]:
        """Names of the groups that have committed offsets."""
        holders: dict[int, Topic] = {}
        for topic in await self.topics():
            for route in topic.routes:
                if route.shard not in holders:
                    holders[route.shard] = self._router.table.learn_topic(topic)

        async def pages_of(shard: int, topic: Topic) -> list[list[str]]:
            return await all_pages(
                lambda params: self._router.ask_leader(
                    topic, shard, "GET", "/v1/groups", params=params, deadline=self._deadline()
                ),
                lambda page: [str(group) for group in page["groups"]],
            )

        found = await _together(pages_of(shard, topic) for shard, topic in holders.items())
        return sorted({group for pages in found for page in pages for group in page})

    async def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Committed offset of each queue of ``topic`` that ``group`` has committed one for.

        Of a named topic by the queues' numbers, which :meth:`queues` says beside their names.
        """
        return await self._with_topic(topic, lambda known: self._committed_offsets(group, known))

    async def _committed_offsets(self, group: str, topic: Topic) -> dict[int, int]:
        path = f"{group_path(group)}/offsets"
        which = "slots" if topic.named else "queues"

        async def ask(route: Route, owned: Sequence[int]) -> dict[int, int]:
            found: dict[int, int] = {}
            for chunk in chunks_of_ranges(owned):
                params = {"topic": topic.name, which: chunk}
                answer = await self._router.ask_leader(
                    topic, route.shard, "GET", path, params=params, deadline=self._deadline()
                )
                found.update(answer.parsed(offset_by_queue))
            return found

        parts = await _of_each_shard(topic, range(topic.queues), ask)
        return {queue: offset for part in parts for queue, offset in part.items()}

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], *, reset: bool = False) -> None:
        """Commit for ``group`` the next offset to read of each queue; durable on return.

        A commit that lies before an earlier one changes nothing unless ``reset``. Raises
        ``OffsetOutOfRange`` for an offset beyond the end of its queue. Each shard's offsets are committed for
        themselves: after an error some may be and others not.
        """
        await self._with_topic(
            topic, lambda known: self._commit_offsets(group, known, offsets, reset=reset), of_places=True
        )

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
        ca, cert, cert_key = self._tls_files
        twin = Client(
            self.urls,
            deadline_ms=self.deadline_ms,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            **self._credentials.given_as(),
            ca=ca,
            cert=cert,
            cert_key=cert_key,
        )
        twin._tracing = self._tracing
        twin._outages.warn, twin._told = False, True  # Whoever has a twin says by itself what fails there.
        return twin

    def _deadline(self) -> Deadline:
        return Deadline(self.deadline_ms)

    async def _with_topic(self, name: str, work: Callable[[Topic], Awaitable[T]], *, of_places: bool = False) -> T:
        """Do ``work`` with the topic as it is known, and once more if it turns out to have changed.

        ``of_places``: it is about offsets, which mean nothing in one that was made anew: raises ``TopicReplaced`` then.
        """
        known = await self._router.known(name, self._deadline())
        try:
            return await work(known)
        except (TopicReplaced, UnknownQueue) as error:
            fresh = await self.topic(name)
            if (fresh.is_same(known) and fresh.queues == known.queues) or (of_places and type(error) is TopicReplaced):
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


def normal_url(text: str) -> str:
    """The URL of a node as it is used, such as of ``host:7600``. Raises ``InvalidRequest``."""
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

"""Finds the node to ask: any, or a shard's leader; and does not wait on the dead.

A node that is gone refuses the connection, and the next one is asked. A node that is *paused* or cut off takes the
request and never answers; waiting for the timeout would cost its clients ten seconds for an election that takes one.
So nothing is waited for in silence:

- a request that **any node** can answer is given to the next one as well after ``HEDGE_S``, and the first answer
  counts;
- while a **shard's leader** is silent, the other nodes are asked who leads it now. Once they name another, the
  request is given up, as one whose answer was lost.

What ``not_leader`` answers say is used at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from typing import Any, TypeVar

from lsmq import runtime
from lsmq._leader_watch import LeaderWatch
from lsmq._outages import Attempts, Outages
from lsmq._paths import topic_path
from lsmq._retries import Backoff, Deadline, give_up, maybe_carried_out
from lsmq._route_refresher import RouteRefresher
from lsmq._route_table import RouteSource
from lsmq._transport import Response, Transport
from lsmq.errors import (
    CorruptFile,
    DiskFull,
    LsmqError,
    NotLeader,
    ShardStopped,
    StoreBusy,
    TimedOut,
    TopicReplaced,
    Unavailable,
    UnknownQueue,
    WrongPort,
)
from lsmq.topics import Topic

T = TypeVar("T")
DoneBefore = type[LsmqError] | tuple[type[LsmqError], ...]

HEDGE_S = 0.4
HEDGE_WRITE_S = 2.0
SILENCE_S = 0.25  # A leader that takes a write answers sooner, mostly.
_NO_NODE_MS = 250  # Then it is said that no node is known, and waited again.
POLL_SILENCE_S = 1.0  # A long poll is silent by nature; looking around costs a request each time.
_log = logging.getLogger("lsmq")


class Router:
    """One for each client. Belongs to the loop of its first request."""

    def __init__(
        self,
        transport: Transport,
        seeds: Sequence[str],
        *,
        request_timeout_ms: int,
        refresh_s: float,
        source: RouteSource | None = None,
        outages: Outages | None = None,
    ) -> None:
        self.outages = outages or Outages(warn=False)
        self.request_timeout_s = request_timeout_ms / 1000
        self._transport = transport
        self._refresher = RouteRefresher(transport, seeds, refresh_s=refresh_s, source=source)
        self.table = self._refresher.table
        self.follow = self._refresher.follow
        self.unfollow = self._refresher.unfollow
        self.glance = self._refresher.glance
        self.close = self._refresher.close
        self.check_loop = transport.check_loop
        self._current = ""

    @property
    def urls(self) -> list[str]:
        """All nodes known: those given, then those that routes named."""
        return self._refresher.urls

    @property
    def answered_last(self) -> str:
        """The URL of the node that answered what any node could; empty before one did."""
        return self._current

    # Routes

    async def topic(self, name: str, deadline: Deadline) -> Topic:
        """The topic, asked afresh. Raises ``UnknownTopic``."""
        answer, _ = await self.ask_any("GET", topic_path(name), deadline=deadline)
        return self.table.learn_topic(answer.parsed(Topic.from_dict))

    async def known(self, name: str, deadline: Deadline) -> Topic:
        """The topic with the routes known by now; asked for when there are none."""
        self._refresher.start()
        return self.table.topic(name) or await self.topic(name, deadline)

    # Any node

    async def ask_any(
        self,
        method: str,
        path: str,
        *,
        deadline: Deadline,
        accept_repeated: DoneBefore = (),
        accept_reasons: Container[str] = (),
        **request: Any,
    ) -> tuple[Response, bool]:
        """Ask any node until one answers; whether another attempt may have been carried out as well.

        ``accept_repeated`` are errors that mean "done before": they count as success when another attempt may have
        done it. So do ``accept_reasons``, of errors that say a ``reason``.
        """
        self._refresher.start()
        backoff = Backoff()
        hedge_s = HEDGE_S if method == "GET" else HEDGE_WRITE_S
        repeated = False
        under_way: dict[asyncio.Task[Response], str] = {}
        asked_in_round: set[str] = set()
        attempts = Attempts(self.outages, f"{method} {path}", began_s=runtime.monotonic())
        last: LsmqError | None = None
        try:
            while True:
                url = await self._next_node(asked_in_round, deadline, attempts)
                if url is not None:
                    asked_in_round.add(url)
                    timeout_s = deadline.attempt_s(self.request_timeout_s)
                    work = self._transport.request(method, url + path, timeout_s=timeout_s, **request)
                    under_way[asyncio.create_task(work)] = url
                patience_s = hedge_s if any(other not in asked_in_round for other in self.urls) else None
                done, _ = await asyncio.wait(under_way, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                repeated = repeated or len(under_way) > 1
                for task in done:
                    url = under_way.pop(task)
                    try:
                        answer = task.result()
                        self._current = url
                        attempts.passed()
                        return answer, repeated
                    except LsmqError as error:
                        reason = error.details.get("reason")
                        if repeated and (isinstance(error, accept_repeated) or reason in accept_reasons):
                            return Response(204, "", {}, b""), repeated
                        is_last = not under_way and all(other in asked_in_round for other in self.urls)
                        if isinstance(error, WrongPort) and not is_last:
                            continue  # Routes name ports for clients alone; it may be right where the caller said.
                        if not error.retriable:
                            raise
                        if deadline.passed:
                            raise give_up(error, method, path, deadline) from error
                        repeated = repeated or maybe_carried_out(error)
                        last = error
                        _log.debug("request failed, trying again: %s %s%s: %s", method, url, path, error)
                if not under_way and all(url in asked_in_round for url in self.urls):
                    if last is not None:
                        attempts.failed(last)
                    await backoff.pause(deadline)
                    asked_in_round.clear()
        finally:
            attempts.end()
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _next_node(self, asked: set[str], deadline: Deadline, attempts: Attempts) -> str | None:
        """The node to ask next, beginning with the one that answered last; ``None`` when all were asked."""
        while not (urls := self.urls):
            try:
                await self._refresher.first_node(Deadline(min(1000 * deadline.remaining_s(), _NO_NODE_MS)))
            except Unavailable as error:
                if deadline.passed:
                    raise
                attempts.failed(error)
        if self._current not in urls:
            self._current = urls[0]
        place = urls.index(self._current)
        return next((url for url in urls[place:] + urls[:place] if url not in asked), None)

    # A shard's leader

    async def ask_leader(
        self,
        topic: Topic,
        shard: int,
        method: str,
        path: str,
        *,
        deadline: Deadline,
        accept_repeated: DoneBefore = (),
        **request: Any,
    ) -> Response:
        """Ask the leader of ``shard``, whoever that is, until it answers. ``accept_repeated`` as in :meth:`ask_any`.

        Raises ``TopicReplaced`` when ``topic`` is not the topic of its name any more.
        """
        backoff = Backoff()
        url: str | None = None
        repeated = False

        async def attempt() -> Response:
            nonlocal url
            url = None
            url = self.leader(await self.current(topic, deadline), shard)
            timeout_s = deadline.attempt_s(self.request_timeout_s)
            try:
                return await self.attempt(topic, url, (shard,), method, path, timeout_s=timeout_s, **request)
            except accept_repeated:
                if not repeated:
                    raise
                return Response(204, "", {}, b"")

        async def recover(error: LsmqError) -> None:
            nonlocal repeated
            repeated = repeated or maybe_carried_out(error)
            await self.recover(topic, (shard,), url, error, backoff, deadline)

        return await self.until_answered(method, path, deadline, attempt, recover)

    async def until_answered(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        attempt: Callable[[], Awaitable[T]],
        recover: Callable[[LsmqError], Awaitable[object]],
        *,
        held: bool = False,
    ) -> T:
        """The result of the first ``attempt`` that does not fail in a way that may pass; ``recover`` after the others.

        ``held``: an attempt may take long without anything being wrong.
        """
        began_s = None if held else runtime.monotonic()
        with Attempts(self.outages, f"{method} {path}", began_s=began_s) as attempts:
            while True:
                try:
                    result = await attempt()
                    attempts.passed()
                    return result
                except LsmqError as error:
                    if not self.worth_retrying(error):
                        raise
                    if deadline.passed:
                        raise give_up(error, method, path, deadline) from error
                    _log.debug("request failed, trying again: %s %s: %s", method, path, error)
                    attempts.failed(error)
                    await recover(error)

    async def current(self, topic: Topic, deadline: Deadline) -> Topic:
        """The topic with the routes known by now. Raises ``TopicReplaced`` when it was made anew."""
        known = await self.known(topic.name, deadline)
        if not known.is_same(topic):
            raise replaced(topic, known)
        return known

    def leader(self, topic: Topic, shard: int) -> str:
        """The URL of the shard's leader. Raises ``Unavailable`` when none is known."""
        url = topic.leader_of_shard(shard)
        if url is None:
            raise Unavailable(f"shard {shard} of topic {topic.name!r} has no leader now", shard=shard, sent=False)
        return url

    async def attempt(
        self,
        topic: Topic | None,
        url: str,
        shards: Sequence[int],
        method: str,
        path: str,
        *,
        timeout_s: float,
        silence_s: float = SILENCE_S,
        look: Callable[[], None] | None = None,
        **request: Any,
    ) -> Response:
        """One request to the node ``url``, which leads ``shards`` (of the topic), as far as is known.

        While the node is silent ``look`` asks others who leads; where it is left out, one of them for the topic. Raises
        ``TimedOut`` as soon as a shard is known to be led by another, besides what a request raises. What a
        ``not_leader`` answer says is known afterwards.
        """
        self._refresher.start()
        if topic is not None:
            look = look or partial(self._refresher.glance, topic.name, beside=url)
            request.setdefault("topic", topic)
        assert look is not None
        try:
            async with LeaderWatch(self.table, partial(self._moved, shards, url), look, silence_s):
                return await self._transport.request(method, url + path, timeout_s=timeout_s, **request)
        except NotLeader as error:
            self.heed(error, shards)
            raise
        except TimeoutError:
            raise TimedOut(
                f"{url} had not answered when another node was found to lead shard {', '.join(map(str, shards))}",
                url=url,
                sent=True,
            ) from None

    async def ask_follower(
        self, topic: Topic, url: str, method: str, path: str, *, timeout_s: float, stall_s: float, **request: Any
    ) -> Response:
        """One request to a node that follows. Raises ``TimedOut`` when nothing comes for ``stall_s`` as well."""
        self._refresher.start()
        return await self._transport.request(
            method, url + path, timeout_s=timeout_s, stall_s=stall_s, topic=topic, **request
        )

    def _moved(self, shards: Sequence[int], url: str | None) -> bool:
        """Whether one of ``shards`` is known to be led by another node than ``url``."""
        return any(self.table.leadership(shard).url not in (url, None) for shard in shards)

    def heed(self, error: NotLeader, shards: Sequence[int]) -> None:
        """What such an answer of a node that was asked as the leader of ``shards`` says is known from now on."""
        shard = error.details.get("shard", shards[0] if len(shards) == 1 else None)
        leader = error.details.get("leader_url") or error.details.get("leader")
        epoch = error.details.get("epoch")
        if isinstance(shard, int) and isinstance(epoch, int):
            known = isinstance(leader, str) and "://" in leader
            self.table.learn_leader(shard, str(leader).rstrip("/") if known else None, epoch)

    async def recover(
        self,
        topic: Topic,
        shards: Sequence[int],
        url: str | None,
        error: LsmqError,
        backoff: Backoff,
        deadline: Deadline,
    ) -> None:
        """After a failed attempt at ``url``: return when it makes sense to try again.

        At once where another leader is known; else after a pause, in which others are asked for one.
        """
        if isinstance(error, StoreBusy | DiskFull):
            await backoff.pause(deadline)
            return
        if self._moved(shards, url) and backoff.skip():
            return
        news = asyncio.Event()

        def notice() -> None:
            if self._moved(shards, url):
                news.set()

        self.table.listen(notice)
        try:
            self._refresher.look_around(topic.name, beside=url)
            if await backoff.pause(deadline, news):
                backoff.skip()
        finally:
            self.table.unlisten(notice)

    def worth_retrying(self, error: LsmqError) -> bool:
        """Whether it may pass. A shard that stopped, or is damaged, is taken over by another node, if there is one.

        And a node may not have heard yet that a topic has grown.
        """
        if isinstance(error, UnknownQueue):
            known = self.table.topic(str(error.details.get("topic")))
            return known is not None and int(error.details.get("queues", known.queues)) < known.queues
        return error.retriable or (isinstance(error, ShardStopped | CorruptFile) and len(self.urls) > 1)


def replaced(old: Topic, new: Topic) -> TopicReplaced:
    return TopicReplaced(
        f"topic {old.name!r} was deleted and made anew (its id was {old.id}, now it is {new.id}); what is known of its"
        " offsets and queues holds no more: make a new producer or consumer",
        topic=old.name,
        expected_id=old.id,
        id=new.id,
    )

"""Held streams to all nodes that lead queues of a topic, made anew when one ends or leadership moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from lsmq._background import Background
from lsmq._outages import Attempts
from lsmq._push_link import PushLink, is_reset
from lsmq._ranges import NONE, subtract, union
from lsmq._retry import Backoff, Deadline, give_up
from lsmq.client import Client
from lsmq.errors import LsmqError, NotLeader
from lsmq.group_values import Ranges
from lsmq.topics import Topic

_LEADERLESS_S = 0.1
_log = logging.getLogger("lsmq")


class Audience(Protocol):
    """Who is told what comes."""

    def messages(self, link: PushLink, fields: Sequence[Mapping[str, Any]]) -> None:
        """Messages as the HTTP API has them, those of a queue in order."""

    def lost(self, ranges: Ranges, *, reset: bool) -> None:
        """What came of these queues and is not acknowledged will come again, here or elsewhere."""

    def gained(self) -> None:
        """Other queues than before are sent here."""

    def late(self, pairs: Sequence[tuple[int, int]]) -> None:
        """These acknowledgements came when their queues were not sent here any more: the messages come again."""


class PushStreams:
    """Belongs to one event loop. ``params`` are those of each stream's request."""

    def __init__(
        self,
        client: Client,
        topic: Topic,
        group: str,
        params: Mapping[str, str],
        audience: Audience,
        deadline_ms: float,
    ) -> None:
        self.topic = topic
        self.links: dict[str, PushLink] = {}  # by URL
        self.reconnects = 0
        self._client = client
        self._router = client._router
        self._path = f"/v1/groups/{quote(group, safe='')}/push"
        self._params = {**params, "topic": topic.name, "scope": "node"}
        self._audience = audience
        self._deadline_ms = deadline_ms
        self._attempts = Attempts(self._router.outages, f"streams of topic {topic.name!r}")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def queues(self) -> Ranges:
        """What is sent here now."""
        return union(*(link.queues for link in self.links.values()))

    async def run(self) -> None:
        """Until cancelled. Raises an error that does not pass, and one that has not passed before the deadline."""
        self._router.follow(self.topic.name)
        self._router.table.listen(self._changed.set)
        background = Background()
        try:
            await background.until(self._hold(background))
        finally:
            await background.end()
            self._attempts.end()
            self._router.table.unlisten(self._changed.set)
            self._router.unfollow(self.topic.name)

    async def _hold(self, background: Background) -> None:
        """A stream to each node that leads queues, as they change."""
        while True:
            self._changed.clear()
            topic = await self._router.current(self.topic, Deadline(self._deadline_ms))
            leaders = {route.leader for route in topic.routes if route.leader is not None}
            for url in leaders - self._tasks.keys():
                self._tasks[url] = background.begin(self._keep(url), f"lsmq push stream from {url}")
            for url in self._tasks.keys() - leaders:
                background.drop(self._tasks.pop(url))
                self._attempts.passed((url,))  # It leads nothing any more: others are tried.
            if any(route.leader is None for route in topic.routes):
                self._router._keeper.look_around(topic.name, beside=None)
                await asyncio.sleep(_LEADERLESS_S)
            else:
                await self._changed.wait()

    async def close(self) -> None:
        """Let nodes commit what was acknowledged. End :meth:`run` afterwards."""
        await asyncio.gather(*(link.close() for link in self.links.values()))

    async def _keep(self, url: str) -> None:
        """Hold a stream to this node as long as it leads anything."""
        backoff, deadline = Backoff(), Deadline(self._deadline_ms)
        while True:
            link = PushLink(self._client._transport, url, self.topic, self._heard, lambda: self._glance(url))
            self.links[url] = link
            error: LsmqError | None = None
            try:
                await link.run(self._path, self._params, self._router.request_timeout_s)
                return
            except LsmqError as failure:
                error = failure
            finally:
                if self.links.get(url) is link:  # Not another one, begun when the node led queues again.
                    del self.links[url]
                self._lose(link, link.queues, reset=error is not None and is_reset(error))
            if link.queues:
                backoff, deadline = Backoff(), Deadline(self._deadline_ms)
            if not error.retriable:
                raise error
            if deadline.passed:
                raise give_up(error, "GET", f"{url}{self._path}", deadline) from error
            _log.info("stream from %s ended: %s; coming again", url, error)
            self._attempts.failed(error, (url,))
            self.reconnects += 1
            if isinstance(error, NotLeader):
                self._router._heed(error, ())
            self._router._keeper.look_around(self.topic.name, beside=url)
            await backoff.pause(deadline)

    def _glance(self, url: str) -> None:
        self._router._keeper.glance(self.topic.name, beside=url)

    def _heard(self, link: PushLink, kind: str, value: Any) -> None:
        if kind == "messages":
            self._audience.messages(link, value)
        elif kind == "late":
            self._audience.late([(queue, offset) for queue, offset in value])
        elif kind == "queues":
            self._attempts.passed((link.url,))
            lost = subtract(value, link.queues)
            self._lose(link, lost, reset=False)
            if lost:
                self._router._keeper.look_around(self.topic.name, beside=None)
            self._audience.gained()

    def _lose(self, link: PushLink, ranges: Ranges, *, reset: bool) -> None:
        """Unless another node sends them here by now."""
        others = union(*(other.queues for other in self.links.values() if other is not link))
        gone = subtract(ranges, others)
        if gone != NONE:
            self._audience.lost(gone, reset=reset)

"""Keeps routes fresh: asks nodes and ZooKeeper for them, on a timer and when somebody finds his stale."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import urlencode

from lsmq import runtime
from lsmq._paths import topic_path
from lsmq._reading import all_pages
from lsmq._retries import Deadline
from lsmq._route_documents import RouteDocuments
from lsmq._route_table import RouteSource, RouteTable
from lsmq._transport import Response, Transport
from lsmq.background_tasks import BackgroundTasks
from lsmq.errors import ClientClosed, InvalidRequest, LsmqError, Unavailable
from lsmq.topics import Topic

_ROUTE_TIMEOUT_S = 1.0
_NODES_PER_LOOK = 4
#: With the longest names, as many as the head of a request may be long.
_NAMES_PER_LOOK = 25
_RESTART_S = 1.0
_log = logging.getLogger("lsmq")


class RouteRefresher:
    """Owns the table of a client, the tasks that fill it, and the ``source`` besides nodes where there is one."""

    def __init__(
        self, transport: Transport, seeds: Sequence[str], *, refresh_s: float, source: RouteSource | None
    ) -> None:
        self._followed: Counter[str] = Counter()
        self.table = RouteTable(self._followed)
        self._transport = transport
        self._seeds = list(seeds)
        self._refresh_s = refresh_s
        self._source = source
        self._asking: set[tuple[str, str]] = set()
        self._background = BackgroundTasks(self._broke)
        self._refreshing: asyncio.Task[None] | None = None
        self._started = False
        self._closed = False

    @property
    def urls(self) -> list[str]:
        """All nodes known: those given, then those that routes named."""
        return [*self._seeds, *(url for url in self.table.urls if url not in self._seeds)]

    def start(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed; make a new one")
        if not self._started:
            self._started = True
            if self._source is not None:
                self._source.start(self._heard_documents)
            self._refresh()

    def _refresh(self) -> None:
        if not self._closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = self.spawn(self._refresh_for_ever(), "lsmq routes", lasting=True)

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, lasting: bool = False) -> asyncio.Task[None]:
        """What goes wrong is logged: whoever needs a route asks for it anyway, and refreshing begins anew."""
        return self._background.begin(work, name, lasting=lasting)

    def _broke(self, error: Exception) -> None:
        if isinstance(error, LsmqError):  # It was cancelled, as all is when a loop ends before its client is closed.
            _log.debug("looking for routes was cut off: %s", error)
        else:
            _log.error("looking for routes broke, it begins anew", exc_info=error)
        # Later: a loop that is about to end must not find another task.
        asyncio.get_running_loop().call_later(_RESTART_S, self._refresh)

    async def close(self) -> None:
        """Stop asking. Returns once no task and no thread of its own is left."""
        self._closed = True
        await self._background.end()
        source, self._source = self._source, None
        if source is not None and self._started:
            await source.stop()

    # Being kept

    def follow(self, name: str) -> None:
        """Keep the routes of this topic fresh, until :meth:`unfollow` was called as often."""
        self._followed[name] += 1
        if self._source is not None and self._followed[name] == 1:
            self._source.follow(name)

    def unfollow(self, name: str) -> None:
        self._followed[name] -= 1
        if self._followed[name] > 0:
            return
        del self._followed[name]
        if self._source is not None:
            self._source.unfollow(name)

    def _heard_documents(self, documents: RouteDocuments) -> None:
        if not self._closed:
            self.table.learn_documents(documents)

    # Asking

    async def first_node(self, deadline: Deadline) -> None:
        """Wait until ZooKeeper, or the copy of what it said, has named a node."""
        news = asyncio.Event()
        self.table.listen(news.set)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while not self.table.urls:
                    news.clear()
                    await news.wait()
        except TimeoutError:
            assert self._source is not None
            raise Unavailable(f"no node is known: {self._source.trouble()}", sent=False) from None
        finally:
            self.table.unlisten(news.set)

    def look_around(self, name: str, *, beside: str | None) -> None:
        """Begin to ask some nodes, all at a time, for the topic's routes, and ZooKeeper.

        The node ``beside`` which to look is not asked, if there are others. What they tell is in the table.
        """
        if self._source is not None:
            self._source.look()
        self._ask_some(name, self._others(beside) or self.urls, _NODES_PER_LOOK)

    def glance(self, name: str, *, beside: str) -> None:
        """Begin to ask one other node, if there is any.

        Whoever is silent may be so because it has too much to do, like the others.
        """
        self._ask_some(name, self._others(beside), 1)

    def _others(self, beside: str | None) -> list[str]:
        return [url for url in self.urls if url != beside]

    def _ask_some(self, name: str, urls: Sequence[str], count: int) -> None:
        """Ask some of ``urls`` that are not being asked already: of those, some may never answer."""
        idle = [url for url in urls if (name, url) not in self._asking]
        for url in runtime.random.sample(idle, min(count, len(idle))):
            if not self._closed:
                self._asking.add((name, url))
                self.spawn(self._ask_routes(name, url), f"lsmq look for {name}")

    async def _ask_routes(self, name: str, url: str) -> None:
        try:
            answer = await self._transport.request("GET", url + topic_path(name), timeout_s=_ROUTE_TIMEOUT_S)
            self.table.learn_topic(answer.parsed(Topic.from_dict))
        except LsmqError as error:
            _log.debug("no routes from a node: node=%s topic=%s error=%s", url, name, error)
        finally:
            self._asking.discard((name, url))

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s * runtime.random.uniform(0.9, 1.1))
            names = list(self._followed)
            for first in range(0, len(names), _NAMES_PER_LOOK):
                if self.urls:
                    await self._ask_routes_of(names[first : first + _NAMES_PER_LOOK], runtime.random.choice(self.urls))

    async def _ask_routes_of(self, names: Sequence[str], url: str) -> None:
        """As :meth:`_ask_routes` for each, at once."""

        async def ask(more: dict[str, str]) -> Response:
            query = urlencode({"names": ",".join(names), **more})
            return await self._transport.request("GET", f"{url}/v1/topics?{query}", timeout_s=_ROUTE_TIMEOUT_S)

        try:
            for topics in await all_pages(ask, lambda page: [Topic.from_dict(fields) for fields in page["topics"]]):
                for topic in topics:
                    self.table.learn_topic(topic)
        except InvalidRequest:  # An older node, which knows no names there.
            for name in names:
                await self._ask_routes(name, url)
        except LsmqError as error:
            _log.debug("no routes from a node: node=%s topics=%s error=%s", url, len(names), error)

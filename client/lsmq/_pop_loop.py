"""Getting tasks of a work queue: one held pop at each node that leads shards of the topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lsmq._outages import Attempts
from lsmq._paths import group_path
from lsmq._retries import Backoff, Deadline, give_up, was_held
from lsmq._router import POLL_SILENCE_S
from lsmq._wire_values import message_from_dict
from lsmq.errors import LsmqError, Unavailable
from lsmq.filters import MessageFilter
from lsmq.topics import Topic
from lsmq.work_queue_values import PoppedMessage

if TYPE_CHECKING:
    from lsmq.client import Client

_log = logging.getLogger("lsmq")

#: Nodes answer a pop within this time, or have nothing and hold it.
_AT_ONCE_S = 0.5
#: Who does not want pops to be held asks again and again, and not faster than this.
_LEAST_S = 0.005
#: A pop that ends so soon is waited for, to ask the node for all of its shards in one.
_SOON_MS = 100


class _Held(NamedTuple):
    """A pop at a node (None: at nobody), for some of the shards that it leads."""

    url: str | None
    shards: tuple[int, ...]
    wait_ms: int
    until: float


def popped_from_dict(topic: Topic, fields: Mapping[str, Any]) -> PoppedMessage:
    """Of the HTTP API."""
    return PoppedMessage(
        message_from_dict({**fields, "topic": topic.name}),
        int(fields["deliveries"]),
        str(fields["receipt"]),
        int(fields["visibility_ms"]),
        int(fields["shard"]),
    )


TopicsFound = Callable[[Topic, PoppedMessage, float], None]


class PopLoop:
    """Pops as long as something is wanted, and gives what comes to ``found``."""

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        *,
        wanted: Callable[[], int],
        found: TopicsFound,
        visibility_ms: int | None,
        wait_ms: int,
        deadline_ms: float,
        order: str | None = None,
        picked: MessageFilter | None = None,
    ) -> None:
        """``wanted``: how many more there may be now. ``picked``: only such messages.
        ``found`` gets topic, message and when it was asked for."""
        self._client = client
        self._topic = topic
        self._path = f"{group_path(group)}/pop"
        self._wanted = wanted
        self._found = found
        self._visibility_ms = visibility_ms
        self._wait_ms = wait_ms
        self._deadline_ms = deadline_ms
        self._order = order
        self._picked = {} if picked is None else picked.to_dict()
        self._room = asyncio.Event()
        self._attempts = Attempts(client._router.outages, f"taking work of topic {topic!r}")
        self._failing: Deadline | None = None
        self._backoffs: dict[str | None, Backoff] = {}
        self._asked: dict[asyncio.Task[Any], float] = {}  # pops that wait for their answers, and since when

    def look(self) -> None:
        """More may be wanted now."""
        self._room.set()

    async def run(self) -> None:
        """Pop until cancelled. Raises what does not pass, and what has not passed in ``deadline_ms``."""
        router = self._client._router
        router.follow(self._topic)
        pops: dict[asyncio.Task[None], _Held] = {}
        room: asyncio.Task[Any] | None = None
        try:
            # Asked afresh: what was known before may have been deleted, and made anew.
            topic = await router.topic(self._topic, Deadline(self._deadline_ms))
            while True:
                topic = await router.current(topic, Deadline(self._deadline_ms))
                if self._wanted() > 0:
                    for held in self._to_hold(topic, pops.values()):
                        pops[asyncio.create_task(self._pop(topic, held))] = held
                if room is None:
                    self._room.clear()
                    room = asyncio.create_task(self._room.wait())
                done, _ = await asyncio.wait({room, *pops}, return_when=asyncio.FIRST_COMPLETED)
                if room in done:
                    room = None
                for pop in [pop for pop in pops if pop in done]:
                    del pops[pop]
                    pop.result()
        finally:
            try:
                await self._last_answers()
            finally:
                left = [*pops, *([] if room is None else [room])]
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                self._attempts.end()
                router.unfollow(self._topic)

    def _to_hold(self, topic: Topic, held: Collection[_Held]) -> list[_Held]:
        """Pops for the shards that none is held for where they are led now.

        A node that comes to lead more shards while it holds a pop is asked for these beside it, for as long as that
        is held; then for all of them at once, as ever.
        """
        now, found = asyncio.get_running_loop().time(), []
        for url, shards in _by_leader(topic).items():
            here = [each for each in held if each.url == url]
            missing = tuple(shard for shard in shards if not any(shard in each.shards for each in here))
            left_ms = min((round(1000 * (each.until - now)) for each in here), default=self._wait_ms)
            if missing and (not here or left_ms > _SOON_MS):
                found.append(_Held(url, missing, left_ms, now + left_ms / 1000))
        return found

    async def _last_answers(self) -> None:
        """Let come what may be on its way, so that it is given back: a pop is answered at once, or held.

        What an answer brings to whom does not read it any more stays hidden until its visibility ends. To whom is
        gone when there is something a node gives nothing.
        """
        if self._asked:
            over = max(self._asked.values()) + _AT_ONCE_S
            await asyncio.wait(self._asked, timeout=max(0.0, over - asyncio.get_running_loop().time()))

    async def _pop(self, topic: Topic, held: _Held) -> None:
        router, url, shards = self._client._router, held.url, held.shards
        backoff = self._backoffs.setdefault(url, Backoff())
        asked_at = asyncio.get_running_loop().time()
        try:
            if url is None:
                raise Unavailable(f"shard {shards[0]} of topic {topic.name!r} has no leader now", sent=False)
            value: dict[str, Any] = {
                "topic": topic.name,
                "shards": list(shards),
                "max": max(1, self._wanted()),
                "wait_ms": held.wait_ms,
                **self._picked,
            }
            if self._visibility_ms is not None:
                value["visibility_ms"] = self._visibility_ms
            if self._order is not None:
                value["order"] = self._order
            tracing = self._client._tracing
            span = None if tracing is None else tracing.receiving(topic.name)
            timeout_s = router.request_timeout_s + held.wait_ms / 1000
            pop = asyncio.current_task()
            assert pop is not None
            self._asked[pop] = asked_at
            try:
                answer = await router.attempt(
                    topic,
                    url,
                    shards,
                    "POST",
                    self._path,
                    timeout_s=timeout_s,
                    silence_s=POLL_SILENCE_S,
                    value=value,
                    trace=None if tracing is None or span is None else tracing.carried(span),
                )
            finally:
                del self._asked[pop]
        except LsmqError as error:
            if not router.worth_retrying(error):
                raise
            if was_held(error, asyncio.get_running_loop().time() - asked_at):
                self._failing = None
                self._attempts.passed(shards)
            if self._failing is None:
                self._failing = Deadline(self._deadline_ms)
            if self._failing.passed:
                raise give_up(error, "POST", self._path, self._failing) from error
            _log.debug("request failed, trying again: POST %s%s: %s", url, self._path, error)
            self._attempts.failed(error, shards)
            await router.recover(topic, shards, url, error, backoff, self._failing)
            return
        self._failing = None
        self._attempts.passed(shards)
        messages = answer.parsed(lambda fields: [popped_from_dict(topic, each) for each in fields["messages"]])
        if tracing is not None and span is not None and messages:
            tracing.received(span, (popped.message for popped in messages))
        for popped in messages:
            self._found(topic, popped, asked_at)
        took_s = asyncio.get_running_loop().time() - asked_at
        if messages or took_s > max(held.wait_ms / 2000, _LEAST_S):
            backoff.reset()
        else:
            await backoff.pause()  # It was not held, by a node that stops, or what stands between.


class Waiting:
    """Those who wait for something to change, and look again when it does: all, or as many as it is for."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}  # who has waited longest comes first

    def wake(self) -> None:
        """All look again."""
        while self._futures:
            self.wake_one()

    def wake_one(self) -> None:
        """There is something for one: who has waited longest looks. Who is cancelled by then has another one look."""
        while self._futures:
            future, _ = next(iter(self._futures.items()))
            del self._futures[future]
            if not future.done():
                future.set_result(None)
                return

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake_one()
            raise
        finally:
            self._futures.pop(future, None)


def _by_leader(topic: Topic) -> dict[str | None, tuple[int, ...]]:
    """Shards by the node that leads them; None for those that nobody does."""
    found: dict[str | None, list[int]] = {}
    for route in topic.routes:
        found.setdefault(route.leader, []).append(route.shard)
    return {url: tuple(shards) for url, shards in found.items()}

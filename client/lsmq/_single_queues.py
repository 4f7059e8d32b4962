"""What a client asks of single queues: to give them options; where they have names also to list, describe, declare,
trim and delete them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar, Unpack

from lsmq._paths import queue_path, topic_path
from lsmq._reading import following_page
from lsmq._retries import Deadline
from lsmq._router import Router
from lsmq.errors import InvalidRequest, UnknownQueue
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq.topics import NamedQueue, QueueChanges, Topic, TopQueues

T = TypeVar("T")
_LISTED_A_REQUEST = 1_000


class QueueRequests:
    """The part of a client that is about single queues."""

    _router: Router

    @abstractmethod
    def _deadline(self) -> Deadline: ...

    @abstractmethod
    async def _with_topic(self, name: str, work: Callable[[Topic], Awaitable[T]]) -> T: ...

    async def queues(
        self, topic: str, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[NamedQueue]:
        """Queues of a named topic in order of names: those that begin with ``prefix``, after the name ``after``.

        At most ``limit``; all, when that is left out. Raises ``UnknownTopic``.
        """
        found: list[NamedQueue] = []
        while limit is None or len(found) < limit:
            params = {"prefix": prefix} if prefix else {}
            if after is not None:
                params["after"] = after
            params["limit"] = str(_LISTED_A_REQUEST if limit is None else min(limit - len(found), _LISTED_A_REQUEST))
            path = f"{topic_path(topic)}/queues"
            answer, _ = await self._router.ask_any("GET", path, params=params, deadline=self._deadline())
            page, following = answer.parsed(
                lambda page: ([NamedQueue.from_dict(each) for each in page["queues"]], page["next"])
            )
            found += page
            after = following_page(following, after)
            if after is None:
                break
        return found

    async def top_queues(
        self, topic: str, *, by: Literal["depth", "rate", "age"] = "depth", limit: int = 100
    ) -> TopQueues:
        """The queues of any topic with the most messages, or the most new ones in a second, or the oldest one.

        By age at most 10,000 queues of each shard are looked at, the deepest. Raises ``UnknownTopic``, ``Unavailable``.
        """
        params = {"by": by, "limit": str(limit)}
        path = f"{topic_path(topic)}/top-queues"
        answer, _ = await self._router.ask_any("GET", path, params=params, deadline=self._deadline())
        return answer.parsed(TopQueues.from_dict)

    async def queue(self, topic: str, name: str) -> NamedQueue:
        """A queue of a named topic. Raises ``UnknownQueue``."""
        return await self._ask_queue("GET", topic, name, NamedQueue.from_dict)

    async def declare_queue(self, topic: str, name: str) -> NamedQueue:
        """Have a queue of that name in a named topic, durably, before anything is sent to it.

        Raises ``InvalidQueueName``, ``TooManyQueues``.
        """
        return await self._ask_queue("PUT", topic, name, NamedQueue.from_dict)

    async def delete_queue(self, topic: str, name: str, *, missing_ok: bool = False) -> None:
        """Delete a queue of a named topic with its messages. Raises ``UnknownQueue`` unless ``missing_ok``."""
        try:
            await self._ask_queue("DELETE", topic, name, lambda _: None, accept_repeated=UnknownQueue)
        except UnknownQueue:
            if not missing_ok:
                raise

    async def trim_queue(self, topic: str, name: str, before: int) -> NamedQueue:
        """Delete, for every group, the messages of a queue that lie below offset ``before``. Durable on return.

        Raises ``UnknownQueue``, and ``OffsetOutOfRange`` for an offset beyond its end.
        """
        return await self._ask_queue("POST", topic, name, NamedQueue.from_dict, "/trim", value={"before": before})

    async def alter_queue(self, topic: str, queue: int | str, **changes: Unpack[QueueChanges]) -> QueueChanges:
        """Have a queue keep more or less than its topic says: see :class:`lsmq.QueueChanges`. Returns what is set now.

        ``queue`` is its number, or its name where queues have names. Durable on return. Raises ``UnknownQueue``,
        ``InvalidRequest``, ``TooManyQueues``.
        """
        return await self._queue_options("PATCH", topic, queue, changes)

    async def queue_options(self, topic: str, queue: int | str) -> QueueChanges:
        """What was set of a queue by :meth:`alter_queue`. Raises ``UnknownQueue``."""
        return await self._queue_options("GET", topic, queue)

    async def _queue_options(
        self, method: str, topic: str, queue: int | str, changes: QueueChanges | None = None
    ) -> QueueChanges:
        async def work(known: Topic) -> Any:
            if known.named != isinstance(queue, str):
                have = f"the queues of topic {topic!r} have {'names' if known.named else 'numbers'}"
                raise InvalidRequest(f"queue is {queue!r}, and {have}", field="queue")
            if isinstance(queue, str):
                shard = known.route(queue_slot(check_queue_name(queue))).shard
            else:
                shard = known.route(queue).shard
            path, deadline = queue_path(topic, str(queue)), self._deadline()
            answer = await self._router.ask_leader(known, shard, method, path, value=changes, deadline=deadline)
            return answer.parsed(lambda fields: fields.get("options", {}))

        found: QueueChanges = await self._with_topic(topic, work)
        return found

    async def _numbers(self, topic: str, queues: Iterable[int] | Iterable[str] | None) -> list[int]:
        """The numbers of queues that are said by name or number; of all, when they are left out."""
        if queues is None:
            return [queue.number for queue in await self.queues(topic)]
        return [queue if isinstance(queue, int) else (await self.queue(topic, queue)).number for queue in queues]

    async def _ask_queue(
        self, method: str, topic: str, name: str, parse: Callable[[Any], T], after: str = "", **request: Any
    ) -> T:
        """Ask the leader of the shard that the name lies in; what ``parse`` makes of the answer."""

        async def work(known: Topic) -> T:
            if not known.named:
                raise InvalidRequest(
                    f"the queues of topic {topic!r} have numbers, not names: "
                    "offsets(), trim_topic() and purge_topic() take these"
                )
            path = queue_path(topic, check_queue_name(name)) + after
            shard = known.route(queue_slot(name)).shard
            answer = await self._router.ask_leader(known, shard, method, path, deadline=self._deadline(), **request)
            return answer.parsed(parse) if answer.body else parse(None)

        return await self._with_topic(topic, work)

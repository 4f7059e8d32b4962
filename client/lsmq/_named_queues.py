"""What a client asks of queues that have names: to list, describe, declare, trim and delete them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

from lsmq._paths import queue_path, topic_path
from lsmq._retries import Deadline
from lsmq._router import Router
from lsmq.errors import InvalidRequest, UnknownQueue
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq.topics import NamedQueue, Topic, TopQueues

T = TypeVar("T")
_LISTED_A_REQUEST = 1_000


class NamedQueueRequests:
    """The part of a client that is about queues of named topics."""

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
        deadline = self._deadline()
        found: list[NamedQueue] = []
        while limit is None or len(found) < limit:
            params = {"prefix": prefix} if prefix else {}
            if after is not None:
                params["after"] = after
            params["limit"] = str(_LISTED_A_REQUEST if limit is None else min(limit - len(found), _LISTED_A_REQUEST))
            path = f"{topic_path(topic)}/queues"
            answer, _ = await self._router.ask_any("GET", path, params=params, deadline=deadline)
            page = answer.value()
            found += map(NamedQueue.from_dict, page["queues"])
            if page["next"] is None:
                break
            after = str(page["next"])
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
        return TopQueues.from_dict(answer.value())

    async def queue(self, topic: str, name: str) -> NamedQueue:
        """A queue of a named topic. Raises ``UnknownQueue``."""
        return NamedQueue.from_dict(await self._ask_queue("GET", topic, name))

    async def declare_queue(self, topic: str, name: str) -> NamedQueue:
        """Have a queue of that name in a named topic, durably, before anything is sent to it.

        Raises ``InvalidQueueName``, ``TooManyQueues``.
        """
        return NamedQueue.from_dict(await self._ask_queue("PUT", topic, name))

    async def delete_queue(self, topic: str, name: str, *, missing_ok: bool = False) -> None:
        """Delete a queue of a named topic with its messages. Raises ``UnknownQueue`` unless ``missing_ok``.

        Where the answer was lost and the request is sent again, it may be raised though this call has deleted it.
        """
        try:
            await self._ask_queue("DELETE", topic, name)
        except UnknownQueue:
            if not missing_ok:
                raise

    async def trim_queue(self, topic: str, name: str, before: int) -> NamedQueue:
        """Delete, for every group, the messages of a queue that lie below offset ``before``. Durable on return.

        Raises ``UnknownQueue``, and ``OffsetOutOfRange`` for an offset beyond its end.
        """
        return NamedQueue.from_dict(await self._ask_queue("POST", topic, name, "/trim", {"before": before}))

    async def _numbers(self, topic: str, queues: Iterable[int] | Iterable[str] | None) -> list[int]:
        """The numbers of queues that are said by name or number; of all, when they are left out."""
        if queues is None:
            return [queue.number for queue in await self.queues(topic)]
        return [queue if isinstance(queue, int) else (await self.queue(topic, queue)).number for queue in queues]

    async def _ask_queue(self, method: str, topic: str, name: str, after: str = "", value: Any = None) -> Any:
        """Ask the leader of the shard that the name lies in; the answer's value."""
        path = queue_path(topic, check_queue_name(name)) + after

        async def work(known: Topic) -> Any:
            if not known.named:
                raise InvalidRequest(f"the queues of topic {topic!r} have numbers, not names")
            shard = known.route(queue_slot(name)).shard
            answer = await self._router.ask_leader(known, shard, method, path, value=value, deadline=self._deadline())
            return answer.value() if answer.body else None

        return await self._with_topic(topic, work)

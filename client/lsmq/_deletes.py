"""What a client asks to be deleted: topics, single messages, the beginnings of queues, or all there is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from lsmq._arguments import check_offsets, check_queues, sorted_queues
from lsmq._paths import topic_path
from lsmq._reading import following_page
from lsmq._retries import Deadline
from lsmq._router import Router
from lsmq._wire_values import to_ms
from lsmq.errors import InvalidRequest, TopicReplaced, UnknownTopic
from lsmq.topics import Topic, format_ranges

T = TypeVar("T")
Place = tuple[int, int]
"""A queue and an offset."""

_DELETED_A_REQUEST = 500


class DeleteRequests:
    """The part of a client that deletes topics and messages."""

    _router: Router

    @abstractmethod
    def _deadline(self) -> Deadline: ...

    @abstractmethod
    async def _with_topic(self, name: str, work: Callable[[Topic], Awaitable[T]], *, of_places: bool = False) -> T: ...

    @abstractmethod
    async def _send_places(
        self,
        topic: Topic,
        path: str,
        places: Sequence[Place],
        most: int,
        more: Mapping[str, Any],
        deadline: Deadline | None = None,
    ) -> None: ...

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a topic and all its messages. Raises ``UnknownTopic`` unless ``missing_ok``."""
        deadline = self._deadline()
        self._router.table.forget_topic(name)
        with suppress(*([UnknownTopic] if missing_ok else [])):
            meant = await self._router.topic(name, deadline)
            self._router.table.forget_topic(name)
            # By its id: whoever asks twice deletes no other one that was made under its name in between.
            gone = UnknownTopic, TopicReplaced
            await self._router.ask_any("DELETE", topic_path(name), deadline=deadline, accept_repeated=gone, topic=meant)

    async def trim_topic(
        self,
        name: str,
        offsets: Mapping[int, int] | None = None,
        *,
        before: datetime | int | None = None,
        queues: Iterable[int] | None = None,
    ) -> None:
        """Delete, for every group, the messages of each queue that lie below its offset. Durable on return.

        Or, with ``before`` (a datetime, or milliseconds since 1970), what was stored before then: of ``queues``, or of
        all of the topic.

        Raises ``OffsetOutOfRange`` for an offset beyond the end of its queue. Queues are trimmed in pieces: after an
        error some may be and others not.
        """
        if (offsets is None) == (before is None):
            raise InvalidRequest("trim_topic takes offsets or before, one of the two; purge_topic deletes all there is")
        if offsets is not None and queues is not None:
            raise InvalidRequest("offsets names the queues already; leave queues out")
        if offsets is not None:
            await self._delete(name, offsets.items(), before=True)
        elif before is not None:
            await self._trim(name, "trim", {"before_ms": to_ms(before)}, queues)

    async def purge_topic(self, name: str, *, queues: Iterable[int] | None = None) -> int:
        """Delete, for every group, all messages of ``queues``, or of the whole topic, that are there by now.

        Durable on return. The topic, its offsets and its groups stay. Returns how many went. Raises ``UnknownQueue``;
        as :meth:`trim_topic` it works in pieces.
        """
        return await self._trim(name, "purge", {}, queues)

    async def _trim(self, name: str, operation: str, how: dict[str, Any], queues: Iterable[int] | None) -> int:
        """Piece by piece, each with a deadline of its own; how many messages went."""
        # Asked afresh: whoever asks twice deletes nothing of one that was made under the name in between.
        topic, messages = await self._router.topic(name, self._deadline()), 0
        if queues is not None:
            if topic.named:
                raise InvalidRequest(
                    f"topic {name!r} has queues with names, of which all are trimmed so or none: trim_queue() trims one"
                )
            wanted = sorted_queues(queues)
            if not wanted:
                return 0
            for queue in (wanted[0], wanted[-1]):
                topic.check_queue(queue)
            how = {**how, "queues": ",".join(format_ranges(wanted))}
        path, after = f"{topic_path(name)}/{operation}", None
        while True:
            value, deadline = how if after is None else {**how, "after": after}, self._deadline()
            answer, _ = await self._router.ask_any("POST", path, value=value, deadline=deadline, topic=topic)
            trimmed, following = answer.parsed(lambda fields: (int(fields["messages"]), fields["next"]))
            messages += trimmed
            after = following_page(following, after)
            if after is None:
                return messages

    async def delete_messages(self, topic: str, places: Iterable[Place]) -> None:
        """Delete, for every group, the messages at these places, each a queue and an offset. Durable on return.

        What was deleted before is no error.
        """
        await self._delete(topic, places, before=False)

    async def _delete(self, name: str, places: Iterable[Place], *, before: bool) -> None:
        """What lies at these places, or ``before`` each."""
        ordered = list(places)
        check_queues(queue for queue, _ in ordered)  # Before they are sorted, which not all can be.
        check_offsets(offset for _, offset in ordered)
        ordered.sort()

        async def work(topic: Topic) -> None:
            path = f"{topic_path(name)}/delete"
            await self._send_places(topic, path, ordered, _DELETED_A_REQUEST, {"before": before})

        await self._with_topic(name, work, of_places=True)

"""Messages that are to come later, until they do: seen, cancelled, put at another time.

::

    sent = await producer.send_and_wait("pay", delay_ms=86_400_000)
    delayed = DelayedMessages(client, "reminders")
    await delayed.cancel(sent.id)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lsmq._paths import quoted, topic_path
from lsmq._reading import each_of_pages, read
from lsmq._receipts import Sent
from lsmq._wire_values import (
    content_fields,
    message_from_dict,
    queue_number,
)
from lsmq.client import Client
from lsmq.errors import InvalidRequest, UnknownMessage
from lsmq.messages import Message, parse_message_id

_PAGE = 500


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is not due yet.

    Attributes:
        id: by which it can be cancelled. In its queue the message has another one.
        due_ms: when it comes, milliseconds since 1970.
        message: what comes. Its offset is -1: it has none yet; nor has it an id. In a named topic it has the
            ``queue_name``, and its queue is -1: which number the queue has is seen when it comes.
    """

    id: str
    due_ms: int
    message: Message

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], topic: str) -> DelayedMessage:
        message = message_from_dict({**fields, "topic": topic, "offset": -1})
        return cls(
            str(fields["id"]),
            int(fields["due_ms"]),
            replace(message, topic_id=0, queue=queue_number(fields["queue"]), offset=-1),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes that are no text are base64, under a name that ends in ``_b64``."""
        message = self.message
        return {
            "id": self.id,
            "due_ms": self.due_ms,
            "topic": message.topic,
            "queue": message.queue if message.queue_name is None else message.queue_name,
            "stored_ms": message.stored_ms,
            **content_fields(message),
        }


class DelayedMessages:
    """Those of one topic. All methods raise ``UnknownTopic``."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self._path = f"{topic_path(topic)}/delayed"

    def read(self) -> AsyncGenerator[DelayedMessage, None]:
        """All that are pending, those that are due next first. What becomes due meanwhile is passed over."""
        return each_of_pages(self.client, f"{self._path}?max={_PAGE}", "messages", self._info)

    def _info(self, fields: Mapping[str, Any]) -> DelayedMessage:
        return DelayedMessage.from_dict(fields, self.topic)

    async def get(self, id: str) -> DelayedMessage:
        """Raises ``UnknownMessage``, or ``AlreadyDelivered`` for one that has come."""
        return await read(self.client, "GET", self._one(id), self._info)

    async def cancel(self, id: str) -> None:
        """It never comes; durable on return. Raises ``UnknownMessage``, or ``AlreadyDelivered`` where it was due: it
        has come then, unless it was cancelled before, as by this request where its first answer was lost."""
        await self.client._router.ask_any(
            "DELETE", self._one(id), deadline=self.client._deadline(), accept_repeated=UnknownMessage
        )

    async def reschedule(self, id: str, *, delay_ms: int | None = None, deliver_at_ms: int | None = None) -> Sent:
        """It comes then; durable on return. Give one of the two, as with sending. An id says when a message is due, so
        it has the new one that is returned.

        Raises ``UnknownMessage``, or ``AlreadyDelivered`` for one that has come, or ``InvalidRequest``. After an answer
        that was lost the message may be under an id that nobody was told: look for it with :meth:`read`.
        """
        given = {"delay_ms": delay_ms, "deliver_at_ms": deliver_at_ms}
        value = {name: each for name, each in given.items() if each is not None}
        if len(value) != 1:
            raise InvalidRequest("give one of delay_ms and deliver_at_ms: when the message is to come")
        return await read(self.client, "PUT", self._one(id), _rescheduled, value)

    def _one(self, id: str) -> str:
        return f"{self._path}/{quoted(id)}"


def _rescheduled(fields: Mapping[str, Any]) -> Sent:
    offset, queue, own = fields["offset"], fields["queue"], str(fields["id"])
    name = queue if isinstance(queue, str) else None
    if offset is None:
        return Sent(queue_number(queue), -1, 0, name, later_id=own)
    topic_id, number, _ = parse_message_id(own)
    return Sent(number, int(offset), topic_id, name)

"""Schedules: messages of a topic again and again, at the times that cron expressions say.

::

    schedules = Schedules(client, "reports")
    await schedules.put("daily", "0 9 * * 1-5", "make the report", tz="Europe/Berlin")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from lsmq._message_parts import Body
from lsmq._paths import quoted, topic_path
from lsmq._reading import all_pages, each_of_pages, read
from lsmq._transaction import message_fields
from lsmq._transport import Response
from lsmq._wire_values import (
    content_fields,
    message_from_dict,
    queue_number,
)
from lsmq.client import Client
from lsmq.errors import InvalidRequest, UnknownSchedule
from lsmq.messages import Message, MessageOptions, message_id

_PAGE = 200


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule.

    Attributes:
        next_ms: the next time, milliseconds since 1970.
        last_ms: the time before; 0 where there was none.
        count: how many times there were.
        message: what is sent, without offset and id; in a named topic its queue is -1, and ``queue_name`` says which.
            What comes has the properties ``schedule``, the name, and ``scheduled_ms``, the time, besides.
        ttl_ms: how long each lives, milliseconds; 0 where they do not expire.
    """

    name: str
    cron: str
    tz: str
    created_ms: int
    next_ms: int
    last_ms: int
    count: int
    message: Message
    ttl_ms: int = 0

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], topic: str) -> ScheduleInfo:
        given = {**fields["message"], "topic": topic, "offset": -1, "id": message_id(0, 0, 0)}
        return cls(
            name=str(fields["name"]),
            cron=str(fields["cron"]),
            tz=str(fields["tz"]),
            created_ms=int(fields["created_ms"]),
            next_ms=int(fields["next_ms"]),
            last_ms=int(fields["last_ms"]),
            count=int(fields["count"]),
            message=replace(message_from_dict(given), topic_id=0, queue=queue_number(given["queue"]), offset=-1),
            ttl_ms=int(given.get("ttl_ms") or 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes that are no text are base64, under a name that ends in ``_b64``."""
        message = self.message
        return {
            "name": self.name,
            "cron": self.cron,
            "tz": self.tz,
            "topic": message.topic,
            "created_ms": self.created_ms,
            "next_ms": self.next_ms,
            "last_ms": self.last_ms,
            "count": self.count,
            "queue": message.queue if message.queue_name is None else message.queue_name,
            **content_fields(message),
            **({"ttl_ms": self.ttl_ms} if self.ttl_ms else {}),
        }


class Schedules:
    """Those of one topic. All methods raise ``UnknownTopic``."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self._path = f"{topic_path(topic)}/schedules"

    async def put(
        self, name: str, cron: str, body: Body, *, tz: str = "UTC", **options: Unpack[MessageOptions]
    ) -> ScheduleInfo:
        """Send a message at each time of ``cron`` by the clocks of ``tz``; in place of a schedule of that name.

        ``options`` as with :meth:`lsmq.Producer.send`, but for delays, ``expires_at_ms`` and ``dedupe_id``. All
        messages go to one queue.
        Durable on return.
        Raises ``InvalidRequest`` for what is no cron expression or time zone, ``TooManySchedules``.
        """
        if options.get("delay_ms") is not None or options.get("deliver_at_ms") is not None:
            raise InvalidRequest("a schedule says itself when its messages come; leave out delay_ms and deliver_at_ms")
        message = message_fields(self.topic, body, **options)
        if "expires_at_ms" in message:
            raise InvalidRequest(
                "the messages of a schedule come again and again, and expires_at_ms is one moment; give ttl_ms",
                field="expires_at_ms",
            )
        del message["topic"]
        value = {"cron": cron, "tz": tz, "message": message}
        return await read(self.client, "PUT", self._one(name), self._info, value)

    async def get(self, name: str) -> ScheduleInfo:
        """Raises ``UnknownSchedule``."""
        return await read(self.client, "GET", self._one(name), self._info)

    def read(self) -> AsyncGenerator[ScheduleInfo, None]:
        """All there are, by name."""
        return each_of_pages(self.client, f"{self._path}?max={_PAGE}", "schedules", self._info)

    def _info(self, fields: Mapping[str, Any]) -> ScheduleInfo:
        return ScheduleInfo.from_dict(fields, self.topic)

    async def delete(self, name: str) -> None:
        """Durable on return; a message that is due within a second may still come. Raises ``UnknownSchedule``."""
        await self.client._router.ask_any(
            "DELETE", self._one(name), deadline=self.client._deadline(), accept_repeated=UnknownSchedule
        )

    def _one(self, name: str) -> str:
        return f"{self._path}/{quoted(name)}"


async def list_schedules(client: Client) -> tuple[list[ScheduleInfo], list[str]]:
    """Those of all topics, by topic and name, as far as the caller may read these; and the others with schedules."""

    def parsed(page: Mapping[str, Any]) -> tuple[list[ScheduleInfo], list[str]]:
        return [ScheduleInfo.from_dict(each, each["topic"]) for each in page["schedules"]], page["not_readable"]

    async def ask(params: dict[str, str]) -> Response:
        return (await client._router.ask_any("GET", "/v1/schedules", params=params, deadline=client._deadline()))[0]

    pages = await all_pages(ask, parsed)
    found = {(each.message.topic, each.name): each for some, _ in pages for each in some}
    return [found[which] for which in sorted(found)], sorted({name for _, hidden in pages for name in hidden})

"""Schemas of schedules."""

from __future__ import annotations

from .schema import Limit, Schema, integer, list_of, object_of, text
from .schemas import COUNT, MESSAGE, MESSAGE_TO_SEND, NEXT, QUEUE, TEXT, TIME_MS

NAME: Schema = text(
    "A schedule's name has 1 to 200 letters, digits, dots, underscores and hyphens, and is neither '.' nor '..'",
    pattern=r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}",
)
MAX: Schema = integer(1, Limit("max_messages_per_request"), default=Limit("max_messages_per_request", 100))
#: A schedule says itself when its messages come, ids are not for messages that come later, and a moment is over once.
_NOT_SCHEDULED = ("delay_ms", "deliver_at_ms", "expires_at_ms", "dedupe_id")
_CRON = text("`minute hour day-of-month month day-of-week`, or such as `@daily`.", maxLength=200)
_TZ = text("The time zone whose clocks count, such as `Europe/Berlin`.", maxLength=100, default="UTC")
PUT: Schema = object_of(
    {
        "cron": _CRON,
        "tz": _TZ,
        "message": {
            **MESSAGE_TO_SEND,
            "properties": {
                name: each for name, each in MESSAGE_TO_SEND["properties"].items() if name not in _NOT_SCHEDULED
            },
        },
    },
    required=("cron", "message"),
)
_HIDDEN = ("offset", "id", "stored_ms")
SCHEDULE: Schema = object_of(
    {
        "name": NAME,
        "cron": _CRON,
        "tz": _TZ,
        "queue": QUEUE,
        "created_ms": TIME_MS,
        "next_ms": {**TIME_MS, "description": "The next time, milliseconds since 1970."},
        "last_ms": {**TIME_MS, "description": "The time before; 0: there was none."},
        "count": {**COUNT, "description": "How many times there were."},
        "message": {
            **MESSAGE,
            "properties": {
                **{name: each for name, each in MESSAGE["properties"].items() if name not in _HIDDEN},
                "ttl_ms": MESSAGE_TO_SEND["properties"]["ttl_ms"],
            },
            "required": [name for name in MESSAGE["required"] if name not in _HIDDEN],
        },
    }
)
ALL_SCHEDULES: Schema = object_of(
    {
        "schedules": list_of(object_of({"topic": TEXT, **SCHEDULE["properties"]})),
        "not_readable": list_of(TEXT, description="Topics with schedules that are left out."),
        "next": NEXT,
    }
)
SCHEDULES: Schema = object_of(
    {"schedules": list_of(SCHEDULE), "next": text("Go on behind this name; null at the end.", null=True)}
)

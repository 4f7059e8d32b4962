"""Schemas of delayed messages."""

from __future__ import annotations

from lsmq.messages import LAST_DUE_MS, MAX_DELAY_MS

from .schema import Limit, Schema, integer, list_of, object_of, text, time_ms
from .schemas import DUE_MS, MESSAGE, QUEUE

ID: Schema = text("Id of a delayed message.", maxLength=32)
MAX: Schema = integer(1, Limit("max_messages_per_request"), default=Limit("max_messages_per_request", 100))
_NO_OFFSET: Schema = {"type": ["integer", "null"], "description": "Null: it is in no queue yet."}
DELAYED_MESSAGE: Schema = {
    **MESSAGE,
    "properties": {**MESSAGE["properties"], "offset": _NO_OFFSET, "due_ms": DUE_MS},
    "required": [*MESSAGE["required"], "due_ms"],
}
PENDING: Schema = object_of({"messages": list_of(DELAYED_MESSAGE), "next": text("Where to go on.", null=True)})
CANCELLED: Schema = object_of({"cancelled": ID})
RESCHEDULE: Schema = object_of(
    {
        "delay_ms": integer(0, MAX_DELAY_MS, "So long after now; 0 for at once."),
        "deliver_at_ms": time_ms(0, LAST_DUE_MS, "In place of `delay_ms`: when, milliseconds since 1970."),
    },
    required=(),
)
RESCHEDULED: Schema = object_of(
    {"queue": QUEUE, "offset": _NO_OFFSET, "id": text("Its id from now on."), "due_ms": DUE_MS},
    required=("queue", "offset", "id"),
)

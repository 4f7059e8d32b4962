"""The schemas of work queues."""

from __future__ import annotations

from lsmq_node.workqueue.receipts import TEXT_LENGTH
from lsmq_node.workqueue.settings import MAX_DELAY_MS, MAX_DELIVERIES, MAX_VISIBILITY_MS, MIN_VISIBILITY_MS, Settings

from .schema import Limit, Schema, flag, integer, list_of, object_of, text
from .schemas import COUNT, QUEUE, TEXT, TIME_MS

_DEFAULTS = Settings()
_MAX_REASON = 500
_DEFAULT_MESSAGES = 10
_DEFAULT_BYTES = 1 << 20

VISIBILITY: Schema = integer(MIN_VISIBILITY_MS, MAX_VISIBILITY_MS, "How long the message is hidden from others.")
DELAY: Schema = integer(0, MAX_DELAY_MS, "When it may be delivered again; without it the settings say.")
SETTINGS_FIELDS: dict[str, Schema] = {
    "max_deliveries": integer(
        1,
        MAX_DELIVERIES,
        "A message delivered so often without success becomes a dead letter.",
        default=_DEFAULTS.max_deliveries,
    ),
    "visibility_ms": {**VISIBILITY, "default": _DEFAULTS.visibility_ms},
    "retry_first_ms": integer(
        0,
        MAX_DELAY_MS,
        "Delay after the first negative acknowledgement; it doubles with each.",
        default=_DEFAULTS.retry_first_ms,
    ),
    "retry_max_ms": integer(0, MAX_DELAY_MS, "The longest delay.", default=_DEFAULTS.retry_max_ms),
    "dead_letter": text(
        "Topic of dead letters; null: the topic's name with `.dlq`. It is made where there is none.", null=True
    ),
    "delete_on_ack": flag(
        "Delete what is settled, for every group: each queue begins at its first open message.",
        default=_DEFAULTS.delete_on_ack,
    ),
}
_MAX_SHARDS = 1_024
SHARDS: Schema = list_of(
    integer(0, _MAX_SHARDS - 1), maxItems=_MAX_SHARDS, description="Shards meant; those led here, when left out."
)


POP: Schema = object_of(
    {
        "topic": TEXT,
        "max": integer(
            1, Limit("max_messages_per_request"), default=Limit("max_messages_per_request", _DEFAULT_MESSAGES)
        ),
        "max_bytes": integer(
            1,
            Limit("max_response_bytes"),
            "About this many bytes; one message comes whatever its size.",
            default=Limit("max_response_bytes", _DEFAULT_BYTES),
        ),
        "visibility_ms": VISIBILITY,
        "wait_ms": integer(
            0, Limit("max_wait_ms"), "How long to wait for the first message when there is none.", default=0
        ),
        "shards": SHARDS,
    },
    required=("topic",),
)

POPPED: Schema = object_of(
    {
        "messages": list_of(
            {
                "type": "object",
                "properties": {
                    "queue": QUEUE,
                    "offset": COUNT,
                    "id": TEXT,
                    "key": text(null=True),
                    "tag": text(null=True),
                    "properties": {"type": "object"},
                    "priority": COUNT,
                    "stored_ms": TIME_MS,
                    "body": TEXT,
                    "shard": {**COUNT, "description": "At whose leader it is to be settled."},
                    "receipt": TEXT,
                    "deliveries": {**COUNT, "description": "Which delivery it is, from 1, as far as is known."},
                    "visibility_ms": {**COUNT, "description": "How long it is hidden from others, from now on."},
                },
                "required": ["queue", "offset", "id", "shard", "receipt", "deliveries", "visibility_ms"],
                "additionalProperties": True,
            },
            description="As in reading messages, with what it takes to settle them.",
        )
    }
)


_RECEIPTS: Schema = list_of(text(maxLength=4 * TEXT_LENGTH), minItems=1, maxItems=Limit("max_messages_per_request"))


def _settling(**more: Schema) -> Schema:
    """What names receipts; ``more`` may be left out."""
    return object_of({"topic": TEXT, "receipts": _RECEIPTS, **more}, required=("topic", "receipts"))


ACK: Schema = _settling()
NACK: Schema = _settling(
    delay_ms=DELAY,
    reason=text("Kept with a dead letter.", maxLength=_MAX_REASON),
    dead_letter=flag("Do not try again.", default=False),
    release=flag("It was not looked at: the delivery does not count.", default=False),
)
EXTEND: Schema = _settling(visibility_ms=VISIBILITY)
SETTLED: Schema = object_of(
    {
        "done": {**COUNT, "description": "Receipts that counted. Durable."},
        "refused": list_of(
            object_of(
                {
                    "index": {**COUNT, "description": "Place in `receipts`."},
                    "code": {"enum": ["receipt_expired", "unknown_receipt"]},
                    "message": TEXT,
                }
            )
        ),
    }
)
CONFIGURE: Schema = object_of({"topic": TEXT, "shards": SHARDS, **SETTINGS_FIELDS}, required=("topic",))
WORK_QUEUE: Schema = object_of(
    {
        "group": TEXT,
        "topic": TEXT,
        "dead_letter_topic": TEXT,
        "shards": list_of(
            object_of(
                {
                    "shard": COUNT,
                    "settings": object_of(SETTINGS_FIELDS),
                    "in_flight": {**COUNT, "description": "Delivered and not settled."},
                    "waiting": {**COUNT, "description": "Not due yet."},
                    "ready": {**COUNT, "description": "To be delivered again."},
                    "dead": {**COUNT, "description": "On their way to the dead letters."},
                    "new": {**COUNT, "description": "Never delivered."},
                    "undelivered": {**COUNT, "description": "`ready`, `waiting` and `new` together."},
                }
            )
        ),
    }
)

"""The schemas of work queues."""

from __future__ import annotations

from lsmq_node.config import NodeConfig
from lsmq_node.workqueue.receipts import TEXT_LENGTH
from lsmq_node.workqueue.settings import MAX_DELAY_MS, MAX_DELIVERIES, MAX_VISIBILITY_MS, MIN_VISIBILITY_MS, Settings

from .schema import Schema
from .schemas import COUNT, QUEUE, TEXT, TIME_MS, _list, _object

_DEFAULTS = Settings()
_MAX_REASON = 500
DEFAULT_MESSAGES = 10
DEFAULT_BYTES = 1 << 20

VISIBILITY: Schema = {
    "type": "integer",
    "minimum": MIN_VISIBILITY_MS,
    "maximum": MAX_VISIBILITY_MS,
    "description": "How long the message is hidden from others.",
}
DELAY: Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_DELAY_MS,
    "description": "When it may be delivered again; without it the settings say.",
}
SETTINGS_FIELDS: dict[str, Schema] = {
    "max_deliveries": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_DELIVERIES,
        "default": _DEFAULTS.max_deliveries,
        "description": "A message delivered so often without success becomes a dead letter.",
    },
    "visibility_ms": {**VISIBILITY, "default": _DEFAULTS.visibility_ms},
    "retry_first_ms": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_DELAY_MS,
        "default": _DEFAULTS.retry_first_ms,
        "description": "Delay after the first negative acknowledgement; it doubles with each.",
    },
    "retry_max_ms": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_DELAY_MS,
        "default": _DEFAULTS.retry_max_ms,
        "description": "The longest delay.",
    },
    "dead_letter": {
        "type": ["string", "null"],
        "description": "Topic of dead letters; null: the topic's name with `.dlq`. It is made where there is none.",
    },
    "delete_on_ack": {
        "type": "boolean",
        "default": _DEFAULTS.delete_on_ack,
        "description": "Delete what is settled, for every group: each queue begins at its first open message.",
    },
}
_MAX_SHARDS = 1_024
SHARDS: Schema = _list(
    {"type": "integer", "minimum": 0, "maximum": _MAX_SHARDS - 1},
    maxItems=_MAX_SHARDS,
    description="Shards meant; those led here, when left out.",
)


def pop(config: NodeConfig) -> Schema:
    return _object(
        {
            "topic": TEXT,
            "max": {
                "type": "integer",
                "minimum": 1,
                "maximum": config.max_messages_per_request,
                "default": min(DEFAULT_MESSAGES, config.max_messages_per_request),
            },
            "max_bytes": {
                "type": "integer",
                "minimum": 1,
                "maximum": config.max_response_bytes,
                "default": min(DEFAULT_BYTES, config.max_response_bytes),
                "description": "About this many bytes; one message comes whatever its size.",
            },
            "visibility_ms": VISIBILITY,
            "wait_ms": {
                "type": "integer",
                "minimum": 0,
                "maximum": config.max_wait_ms,
                "default": 0,
                "description": "How long to wait for the first message when there is none.",
            },
            "shards": SHARDS,
        },
        required=("topic",),
    )


POPPED: Schema = _object(
    {
        "messages": _list(
            {
                "type": "object",
                "properties": {
                    "queue": QUEUE,
                    "offset": COUNT,
                    "id": TEXT,
                    "key": {"type": ["string", "null"]},
                    "tag": {"type": ["string", "null"]},
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


def settle(config: NodeConfig, **more: Schema) -> Schema:
    """What names receipts; ``more`` may be left out."""
    receipts = _list(
        {"type": "string", "maxLength": 4 * TEXT_LENGTH}, minItems=1, maxItems=config.max_messages_per_request
    )
    return _object({"topic": TEXT, "receipts": receipts, **more}, required=("topic", "receipts"))


def nack(config: NodeConfig) -> Schema:
    return settle(
        config,
        delay_ms=DELAY,
        reason={**TEXT, "maxLength": _MAX_REASON, "description": "Kept with a dead letter."},
        dead_letter={"type": "boolean", "default": False, "description": "Do not try again."},
        release={
            "type": "boolean",
            "default": False,
            "description": "It was not looked at: the delivery does not count.",
        },
    )


def extend(config: NodeConfig) -> Schema:
    return settle(config, visibility_ms=VISIBILITY)


SETTLED: Schema = _object(
    {
        "done": {**COUNT, "description": "Receipts that counted. Durable."},
        "refused": _list(
            _object(
                {
                    "index": {**COUNT, "description": "Place in `receipts`."},
                    "code": {"enum": ["receipt_expired", "unknown_receipt"]},
                    "message": TEXT,
                }
            )
        ),
    }
)
CONFIGURE: Schema = _object({"topic": TEXT, "shards": SHARDS, **SETTINGS_FIELDS}, required=("topic",))
WORK_QUEUE: Schema = _object(
    {
        "group": TEXT,
        "topic": TEXT,
        "dead_letter_topic": TEXT,
        "shards": _list(
            _object(
                {
                    "shard": COUNT,
                    "settings": _object(SETTINGS_FIELDS),
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

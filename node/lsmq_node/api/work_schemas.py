"""The schemas of work queues."""

from __future__ import annotations

from lsmq_node.workqueue.ledger import MAX_OPEN
from lsmq_node.workqueue.receipts import TEXT_LENGTH
from lsmq_node.workqueue.settings import (
    MAX_DELAY_MS,
    MAX_DELIVERIES,
    MAX_PROPERTY_NAME_BYTES,
    MAX_RATE,
    MAX_VISIBILITY_MS,
    MAX_WEIGHT,
    MIN_RATE,
    MIN_VISIBILITY_MS,
    FairBy,
    Order,
    WorkSettings,
)

from .filters import FILTER_FIELDS
from .schema import Limit, Schema, flag, integer, list_of, object_of, text
from .schemas import COUNT, MESSAGE, QUEUE_OR_NAME, TEXT, TIME_MS

_DEFAULTS = WorkSettings()
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
    "order": {
        "enum": [order.value for order in Order],
        "default": _DEFAULTS.order.value,
        "description": "With `key`: of each key of a queue one message at a time is handed out, in order; the next one "
        "when that is settled. With `priority`: higher ones first.",
    },
    "fair_by": text(
        "What takes turns: `queue`, or the `key`, `tag` or `type` of messages, or a property of theirs, such as "
        "`properties.customer`.",
        default=_DEFAULTS.fair_by.value,
        minLength=1,
        maxLength=len(FairBy.PROPERTY.value) + MAX_PROPERTY_NAME_BYTES,
    ),
    "weights": {
        "type": "object",
        "additionalProperties": integer(1, MAX_WEIGHT),
        "default": {},
        "description": "Messages in a turn, by number of the queue, key, tag, type or value; 1 for all others.",
    },
    "max_in_flight_per": integer(
        1,
        MAX_OPEN,
        "Messages of one queue, key, tag, type or value that may be in flight in each shard; null: any number.",
        null=True,
    ),
    "priority_ageing_ms": integer(
        1,
        MAX_DELAY_MS,
        "With order `priority`: a message that waits counts one higher for each such time; null: it never does.",
        null=True,
    ),
    "max_rate_per": {
        "type": ["number", "null"],
        "minimum": MIN_RATE,
        "maximum": MAX_RATE,
        "description": "Deliveries of one queue, key, tag, type or value a second, in each shard, whatever its weight; "
        "null: any number.",
    },
}
_MAX_SHARDS = 1_024
_SHARDS: Schema = list_of(integer(0, _MAX_SHARDS - 1), maxItems=_MAX_SHARDS)


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
        "shards": {**_SHARDS, "description": "Shards meant, which one node leads; those led here, when left out."},
        "order": {
            "enum": [order.value for order in Order],
            "description": "What the caller relies on: refused where the work queue has another order.",
        },
        **FILTER_FIELDS,
    },
    required=("topic",),
)

_DELIVERY: dict[str, Schema] = {
    "shard": {**COUNT, "description": "At whose leader it is to be settled."},
    "receipt": TEXT,
    "deliveries": {**COUNT, "description": "Which delivery it is, from 1, as far as is known."},
    "visibility_ms": {**COUNT, "description": "How long it is hidden from others, from now on."},
}
POPPED: Schema = object_of(
    {
        "messages": list_of(
            object_of(
                {**MESSAGE["properties"], **_DELIVERY},
                required=(*MESSAGE["required"], *_DELIVERY),
            ),
            description="As in reading messages, with what it takes to settle them.",
        ),
        "other_leaders": list_of(
            TEXT,
            "URLs of the nodes that lead the topic's other shards, where `shards` names none: what is there is not in "
            "this answer.",
        ),
    },
    required=("messages",),
)


_RECEIPTS: Schema = list_of(text(maxLength=4 * TEXT_LENGTH), minItems=1, maxItems=Limit("max_messages_per_request"))


def _settling(**more: Schema) -> Schema:
    """What names receipts; ``more`` may be left out."""
    return object_of({"topic": TEXT, "receipts": _RECEIPTS, **more}, required=("topic", "receipts"))


ACK: Schema = _settling()
NACK: Schema = _settling(
    delay_ms={**DELAY, "description": DELAY["description"] + " Not with `dead_letter`."},
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
HELD: Schema = object_of(
    {
        "messages": list_of(
            object_of(
                {
                    "queue": QUEUE_OR_NAME,
                    "offset": COUNT,
                    "id": TEXT,
                    "shard": COUNT,
                    "deliveries": {**COUNT, "description": "Deliveries of the message, this one included."},
                    "until_ms": {**TIME_MS, "description": "When its visibility ends unless it is extended."},
                    "receipt": text("Settles the delivery, as its consumer does."),
                }
            ),
            description="By shard, queue and offset.",
        ),
        "next": text("To go on from as `after`; null: that was all.", null=True),
    }
)
CONFIGURE: Schema = object_of(
    {"topic": TEXT, "shards": {**_SHARDS, "description": "Shards meant; all, when left out."}, **SETTINGS_FIELDS},
    required=("topic",),
)
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
                    "blocked": {**COUNT, "description": "They wait for another message of their key."},
                    "dead": {**COUNT, "description": "On their way to the dead letters."},
                    "new": {**COUNT, "description": "Never delivered."},
                    "undelivered": {**COUNT, "description": "`ready`, `waiting`, `blocked` and `new` together."},
                }
            )
        ),
    }
)

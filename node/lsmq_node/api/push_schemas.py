"""The schemas of held streams."""

from __future__ import annotations

from lsmq_node.push.options import MAX_CREDIT, MAX_CREDIT_BYTES

from .schema import Schema, integer, list_of, object_of, text
from .schemas import COUNT, NEXT, OFFSET, QUEUE

#: Queues that one frame or request acknowledges.
MAX_ACKS = 10_000

_PAIR: Schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"anyOf": [QUEUE, OFFSET]}}
ACKS: Schema = list_of(
    _PAIR,
    maxItems=MAX_ACKS,
    description="Pairs of queue and offset: the queue's messages up to this offset, it included, are handled.",
)
CREDIT: Schema = integer(0, MAX_CREDIT, "So many messages may be sent and not acknowledged; 0 pauses.")
CREDIT_BYTES: Schema = integer(1, MAX_CREDIT_BYTES, "So many bytes of them; a larger message comes alone.")
ACKNOWLEDGE: Schema = object_of({"ack": ACKS, "credit": CREDIT, "credit_bytes": CREDIT_BYTES}, required=())
ACKNOWLEDGED: Schema = object_of({"unacknowledged": COUNT})

STREAMS: Schema = object_of(
    {
        "streams": list_of(
            object_of(
                {
                    "id": text(),
                    "subscriber": text(null=True),
                    "topic": text(),
                    "mode": {"enum": ["clustered", "broadcast"]},
                    "queues": {**COUNT, "description": "So many of those that this node leads are sent to it."},
                    "unacknowledged": {**COUNT, "description": "Messages that were sent and are not acknowledged."},
                    "credit": {**COUNT, "description": "The most of them there may be."},
                    "silent_ms": {**COUNT, "description": "Since when none was acknowledged, while there are any."},
                }
            )
        ),
        "next": NEXT,
    }
)

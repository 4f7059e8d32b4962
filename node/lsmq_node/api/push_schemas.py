"""The schemas of held streams."""

from __future__ import annotations

from lsmq_node.push.options import MAX_CREDIT, MAX_CREDIT_BYTES

from .schema import Schema
from .schemas import OFFSET, QUEUE, _list, _object

#: Queues that one frame or request acknowledges.
MAX_ACKS = 10_000

_PAIR: Schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"anyOf": [QUEUE, OFFSET]}}
ACKS: Schema = _list(
    _PAIR,
    maxItems=MAX_ACKS,
    description="Pairs of queue and offset: the queue's messages up to this offset, it included, are handled.",
)
CREDIT: Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_CREDIT,
    "description": "So many messages may be sent and not acknowledged; 0 pauses.",
}
CREDIT_BYTES: Schema = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_CREDIT_BYTES,
    "description": "So many bytes of them; a larger message comes alone.",
}
ACKNOWLEDGE: Schema = _object({"ack": ACKS, "credit": CREDIT, "credit_bytes": CREDIT_BYTES}, required=())
ACKNOWLEDGED: Schema = _object({"unacknowledged": {"type": "integer", "minimum": 0}})

_COUNT: Schema = {"type": "integer", "minimum": 0}
STREAMS: Schema = _object(
    {
        "streams": _list(
            _object(
                {
                    "id": {"type": "string"},
                    "subscriber": {"type": ["string", "null"]},
                    "topic": {"type": "string"},
                    "mode": {"enum": ["clustered", "broadcast"]},
                    "queues": {**_COUNT, "description": "So many of those that this node leads are sent to it."},
                    "unacknowledged": {**_COUNT, "description": "Messages that were sent and are not acknowledged."},
                    "credit": {**_COUNT, "description": "The most of them there may be."},
                    "silent_ms": {**_COUNT, "description": "Since when none was acknowledged, while there are any."},
                }
            )
        )
    }
)

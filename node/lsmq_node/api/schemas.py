"""The schemas of bodies. The limits of a node's configuration stand in them by name."""

from __future__ import annotations

from typing import Any

from .schema import Limit, Said, Schema, flag, integer, list_of, object_of, text

TEXT: Schema = text()
COUNT: Schema = integer(0)
OFFSET: Schema = integer(0, 2**63 - 1)
QUEUE: Schema = integer(0, 2**32 - 1)
ACK: Schema = {
    "enum": ["quorum", "leader"],
    "description": "When to answer: once the in-sync set has the message, or once the leader has it. "
    "With one node both mean: committed as the flush mode promises.",
}
TIME_MS: Schema = integer(0, 2**63 - 1)


ERROR: Schema = object_of(
    {
        "error": {
            "type": "object",
            "properties": {
                "code": text("Stable name of the error, for programs."),
                "message": text("What is wrong, the limit and the remedy."),
                "retriable": flag("The same request may succeed later."),
                "refresh_route": flag("Ask for the topic's routes again first."),
            },
            "required": ["code", "message", "retriable", "refresh_route"],
            "additionalProperties": True,
            "description": "Errors add fields of their own, such as `earliest`, `latest`, `limit`, `field`.",
        }
    }
)

TOPIC_OPTIONS: dict[str, Any] = {
    "retention_ms": integer(1, 2**63 - 1, "Messages older than this are dropped; null keeps them for ever.", null=True),
    "retention_bytes": integer(
        1, 2**63 - 1, "The oldest messages are dropped when the topic holds more than this; null: no limit.", null=True
    ),
    "ack": {**ACK, "description": "What an acknowledgement of this topic means when a request does not say."},
    "max_message_bytes": integer(1, 2**31 - 1, "Largest message of this topic; null: the node's limit.", null=True),
    "key_queues": integer(
        1, 2**31 - 1, "Keys go to so many queues, the first, for ever: that is strict order. null: to all.", null=True
    ),
}

ROUTE: Schema = object_of(
    {
        "first": {**QUEUE, "description": "First queue of the range."},
        "end": {**COUNT, "description": "The queue after the last of the range."},
        "shard": COUNT,
        "leader": text("URL of the node to write to and read from."),
        "epoch": COUNT,
        "followers": {
            "type": "array",
            "items": text(),
            "description": "URLs of the replicas in sync beside the leader: ask them with `from=follower`.",
        },
    }
)

TOPIC: Schema = object_of(
    {
        "name": TEXT,
        "id": COUNT,
        "queues": integer(1),
        "options": {"type": "object", "properties": TOPIC_OPTIONS},
        "created_ms": TIME_MS,
        "max_message_bytes": integer(
            None, description="The limit in force: the topic's own, else the node's. Key, tag and properties count."
        ),
        "max_batch_bytes": integer(None, description="Bytes that the messages of one batch may have together."),
        "routes": list_of(ROUTE),
    }
)
#: Members of one page of a list.
MAX_LISTED = 1_000
NEXT: Schema = text("`after` of the next page; null: there is none.", null=True)
TOPICS: Schema = object_of({"topics": list_of(TOPIC), "next": NEXT})

PRODUCER: Schema = object_of(
    {
        "id": integer(1, 2**63 - 1, "Random number a producer chooses once."),
        "sequence": integer(0, 2**32 - 1, "Requests of this producer to this shard, counted from 0."),
        "epoch": integer(0, 2**32 - 1, default=0),
    },
    required=("id", "sequence"),
    description="Makes the request idempotent: the same id and sequence again give the first answer.",
)

SENT: Schema = object_of({"results": list_of(object_of({"queue": QUEUE, "offset": OFFSET, "id": TEXT}))})

_BODY = {
    "body": text("The body as text; in msgpack also as bin.", or_bin=True),
    "body_b64": text("The body in base64, for bytes that are not text."),
}
_KEY = {
    "key": text("Messages of one key go to one queue, in order. In msgpack also as bin.", or_bin=True, null=True),
    "key_b64": text("The key in base64, for bytes that are not text."),
}
_TAG = text("A label, kept with the message and given with it.", null=True)
#: Of one message.
MAX_PROPERTIES = 1_000
_PROPERTIES = {"type": ["object", "null"], "additionalProperties": text(), "maxProperties": MAX_PROPERTIES}
HEADER: Schema = object_of(
    {
        "name": TEXT,
        "value": text("The value as text; in msgpack also as bin.", or_bin=True),
        "value_b64": text("The value in base64, for bytes that are not text."),
    },
    required=("name",),
    description="One of `value` and `value_b64`.",
)
_HEADERS = list_of(
    HEADER, maxItems=MAX_PROPERTIES, description="Names and bytes in order; a name may come more than once."
)
_DELETE = flag("The message says that its key is gone; it has no body.")

MESSAGE: Schema = object_of(
    {
        "queue": QUEUE,
        "offset": OFFSET,
        "id": TEXT,
        "key": text(or_bin=True, null=True),
        "key_b64": text("The key in base64, where it is not text."),
        "tag": text(null=True),
        "priority": COUNT,
        "properties": {"type": "object", "additionalProperties": text()},
        "headers": _HEADERS,
        "delete": _DELETE,
        "stored_ms": TIME_MS,
        **_BODY,
        "header_b64": text("Instead of key, tag and properties when a header cannot be read."),
    },
    required=("queue", "offset", "id", "key", "tag", "priority", "properties", "stored_ms"),
)
MESSAGES: Schema = object_of(
    {"messages": list_of(MESSAGE), "next_offset": {**OFFSET, "description": "The offset to ask for next."}}
)

BOUNDS: Schema = object_of(
    {"queue": QUEUE, "earliest": OFFSET, "latest": OFFSET, "offset": OFFSET}, required=("queue", "earliest", "latest")
)
OFFSETS: Schema = object_of(
    {"queues": list_of(QUEUE), "earliest": list_of(OFFSET), "latest": list_of(OFFSET), "at_time": list_of(OFFSET)},
    required=("queues", "earliest", "latest"),
)
COMMITTED: Schema = object_of({"queues": list_of(QUEUE), "offsets": list_of(OFFSET)})
COMMIT_ANSWER: Schema = object_of({"committed": COUNT})
HEALTH: Schema = object_of(
    {
        "status": {"enum": ["ok", "failing"]},
        "reasons": list_of(TEXT),
        "warnings": list_of(
            TEXT, description="Damage found on the disk; members of groups that are stalled; parts that do not run."
        ),
    },
    required=("status", "reasons"),
)
CLUSTER: Schema = object_of(
    {
        "cluster": text("Name; null for a node of its own.", null=True),
        "version": integer(0, description="Of the agreed state."),
        "control_leader": text("Node that leads the control plane.", null=True),
        "nodes": list_of(
            object_of(
                {
                    "id": TEXT,
                    "url": TEXT,
                    "internal_url": text(null=True),
                    "voter": flag(),
                    "state": {"enum": ["active", "draining", "removed"]},
                    "alive": flag("null: not known here.", null=True),
                    "problems": list_of(TEXT, description="What is wrong with it, as it says itself; empty: nothing."),
                    "clock_ms": {
                        "type": ["number", "null"],
                        "description": "How far its wall clock is ahead of the cluster's middle one. null: not known.",
                    },
                    "shards_led": COUNT,
                    "replicas": COUNT,
                }
            )
        ),
        "shards": list_of(
            object_of(
                {
                    "id": COUNT,
                    "leader": text(null=True),
                    "epoch": COUNT,
                    "in_sync": list_of(TEXT),
                    "replicas": list_of(TEXT),
                    "adding": list_of(TEXT, description="Replicas that are being filled."),
                    "target": list_of(TEXT, description="What a move under way ends in; empty: none."),
                    "problem": text("Why nobody leads it, and what helps.", null=True),
                    "revived": list_of(
                        object_of(
                            {"epoch": COUNT, "node": TEXT, "incarnation": COUNT, "known_lsn": COUNT, "at_ms": COUNT}
                        ),
                        description="When an operator chose a leader although acknowledged messages may be lost, and "
                        "up to where the log was known to have been in sync; the latest last.",
                    ),
                }
            )
        ),
    }
)
AGREED: Schema = object_of({"version": COUNT}, additionalProperties=True)
REPLICAS: Schema = object_of({"replicas": list_of(TEXT, minItems=1, maxItems=7)})
LEADER: Schema = object_of({"node": TEXT})
REVIVAL: Schema = object_of(
    {"node": TEXT, "accept_loss": {"const": True, "description": "Acknowledged messages may be lost."}},
    required=("node", "accept_loss"),
)

STATUS: Schema = object_of(
    {
        "version": TEXT,
        "uptime_s": {"type": "number", "minimum": 0},
        "data_dir": TEXT,
        "pid": COUNT,
        "shards": list_of({"type": "object"}),
        "waiters": COUNT,
        "inflight_bytes": COUNT,
        "config": {"type": "object"},
    }
)

_TOPIC_QUEUES = integer(1, Limit("max_queues_per_topic"), "Number of queues. Idle queues cost nothing.")
CREATE_TOPIC: Schema = object_of(
    {
        "queues": _TOPIC_QUEUES,
        **TOPIC_OPTIONS,
        "order": text(
            "`strict`: a key stays in its queue when the topic grows, as `key_queues` set to `queues` says.",
            enum=["ordinary", "strict"],
        ),
    },
    required=("queues",),
)
GROW_TOPIC: Schema = object_of(
    {"queues": {**_TOPIC_QUEUES, "description": "How many queues it is to have; not fewer than it has."}}
)

MESSAGE_TO_SEND: Schema = object_of(
    {
        "queue": {**QUEUE, "type": ["integer", "null"], "description": "Without it the key's hash decides."},
        **_KEY,
        "tag": _TAG,
        "priority": integer(0, 255, default=0),
        "delay_ms": integer(0, 0, "Reserved: this release delivers at once.", default=0),
        "properties": _PROPERTIES,
        "headers": _HEADERS,
        "delete": {**_DELETE, "default": False},
        **_BODY,
    },
    required=(),
    description=Said("One of `body` and `body_b64`, or `delete` with a key; up to {max_message_bytes} bytes."),
)
SEND: Schema = object_of(
    {
        "messages": list_of(MESSAGE_TO_SEND, minItems=1, maxItems=Limit("max_messages_per_request")),
        "ack": ACK,
        "producer": PRODUCER,
    },
    required=("messages",),
)


def packed_list(items: Schema, width: str, most: Limit | None = None) -> Schema:
    """Numbers in a list, or in msgpack as bin."""
    bounds: dict[str, Any] = {} if most is None else {"minItems": 1, "maxItems": most}
    least: dict[str, Any] = {} if most is None else {"minLength": 1}
    return {"anyOf": [list_of(items, **bounds), text(f"msgpack bin: {width}.", or_bin=True, **least)]}


def queues_and_offsets(most: str) -> dict[str, Schema]:
    """Fields that name queues and an offset of each; ``most``: the setting that says how many."""
    return {
        "queues": packed_list(QUEUE, "u32 little-endian, one after another", Limit(most)),
        "offsets": packed_list(OFFSET, "i64 little-endian, as many as queues", Limit(most)),
    }


WAIT_MS: Schema = integer(0, Limit("max_wait_ms"), default=0)
FETCH: Schema = object_of(
    {
        **queues_and_offsets("max_queues_per_request"),
        "max_messages": integer(
            1, description=Said("At most this many messages; the limit is {max_messages_per_request}.")
        ),
        "max_bytes": integer(1, description=Said("About this many bytes, and never more than {max_response_bytes}.")),
        "wait_ms": WAIT_MS,
        "keep": flag("Answer with a `session` to go on with.", default=False),
        "session": text("In place of queues and offsets: go on where the answer that named it ended.", maxLength=64),
    },
    required=(),
)
DELETE_MESSAGES: Schema = object_of(
    {
        **queues_and_offsets("max_messages_per_request"),
        "before": flag(
            "Delete all messages of each queue below its offset, instead of the one there. Cheaper.", default=False
        ),
    },
    required=("queues", "offsets"),
)
DELETED: Schema = object_of({"deleted": COUNT})

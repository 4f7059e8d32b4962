"""The schemas of bodies, with the limits of this node's configuration in them."""

from __future__ import annotations

from typing import Any

from lsmq_node.config import NodeConfig

from .schema import BIN, Schema

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
QUEUE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
ACK: Schema = {
    "enum": ["quorum", "leader"],
    "description": "When to answer: once the in-sync set has the message, or once the leader has it. "
    "With one node both mean: committed as the flush mode promises.",
}
TIME_MS: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}


def _object(properties: dict[str, Any], required: tuple[str, ...] | None = None, **rest: Any) -> dict[str, Any]:
    names = list(properties) if required is None else list(required)
    return {
        "type": "object",
        "properties": properties,
        **({"required": names} if names else {}),
        "additionalProperties": False,
        **rest,
    }


def _list(items: Schema, **rest: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **rest}


ERROR: Schema = _object(
    {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "Stable name of the error, for programs."},
                "message": {"type": "string", "description": "What is wrong, the limit and the remedy."},
                "retriable": {"type": "boolean", "description": "The same request may succeed later."},
                "refresh_route": {
                    "type": "boolean",
                    "description": "Ask for the topic's routes again first.",
                },
            },
            "required": ["code", "message", "retriable", "refresh_route"],
            "additionalProperties": True,
            "description": "Errors add fields of their own, such as `earliest`, `latest`, `limit`, `field`.",
        }
    }
)

TOPIC_OPTIONS: dict[str, Any] = {
    "retention_ms": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2**63 - 1,
        "description": "Messages older than this are dropped; null keeps them for ever.",
    },
    "retention_bytes": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2**63 - 1,
        "description": "The oldest messages are dropped when the topic holds more than this; null: no limit.",
    },
    "ack": {**ACK, "description": "What an acknowledgement of this topic means when a request does not say."},
    "max_message_bytes": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2**31 - 1,
        "description": "Largest message of this topic; null: the node's limit.",
    },
    "key_queues": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2**31 - 1,
        "description": "Keys go to so many queues, the first, for ever: that is strict order. null: to all.",
    },
}

ROUTE: Schema = _object(
    {
        "first": {**QUEUE, "description": "First queue of the range."},
        "end": {**COUNT, "description": "The queue after the last of the range."},
        "shard": COUNT,
        "leader": {"type": "string", "description": "URL of the node to write to and read from."},
        "epoch": COUNT,
        "followers": {
            "type": "array",
            "items": {"type": "string"},
            "description": "URLs of the replicas in sync beside the leader: ask them with `from=follower`.",
        },
    }
)

TOPIC: Schema = _object(
    {
        "name": TEXT,
        "id": COUNT,
        "queues": {"type": "integer", "minimum": 1},
        "options": {"type": "object", "properties": TOPIC_OPTIONS},
        "created_ms": TIME_MS,
        "max_message_bytes": {
            "type": "integer",
            "description": "The limit in force: the topic's own, else the node's. Key, tag and properties count.",
        },
        "max_batch_bytes": {
            "type": "integer",
            "description": "Bytes that the messages of one batch may have together.",
        },
        "routes": _list(ROUTE),
    }
)
#: Members of one page of a list.
MAX_LISTED = 1_000
NEXT: Schema = {"type": ["string", "null"], "description": "`after` of the next page; null: there is none."}
TOPICS: Schema = _object({"topics": _list(TOPIC), "next": NEXT})

PRODUCER: Schema = _object(
    {
        "id": {
            "type": "integer",
            "minimum": 1,
            "maximum": 2**63 - 1,
            "description": "Random number a producer chooses once.",
        },
        "sequence": {
            "type": "integer",
            "minimum": 0,
            "maximum": 2**32 - 1,
            "description": "Requests of this producer to this shard, counted from 0.",
        },
        "epoch": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
    },
    required=("id", "sequence"),
    description="Makes the request idempotent: the same id and sequence again give the first answer.",
)

SENT: Schema = _object({"results": _list(_object({"queue": QUEUE, "offset": OFFSET, "id": TEXT}))})

_BODY = {
    "body": {"type": "string", BIN: True, "description": "The body as text; in msgpack also as bin."},
    "body_b64": {"type": "string", "description": "The body in base64, for bytes that are not text."},
}
_KEY = {
    "key": {
        "type": ["string", "null"],
        BIN: True,
        "description": "Messages of one key go to one queue, in order. In msgpack also as bin.",
    },
    "key_b64": {"type": "string", "description": "The key in base64, for bytes that are not text."},
}
_TAG = {"type": ["string", "null"], "description": "A label consumers can filter by."}
#: Of one message.
MAX_PROPERTIES = 1_000
_PROPERTIES = {
    "type": ["object", "null"],
    "additionalProperties": {"type": "string"},
    "maxProperties": MAX_PROPERTIES,
}
HEADER: Schema = _object(
    {
        "name": TEXT,
        "value": {"type": "string", BIN: True, "description": "The value as text; in msgpack also as bin."},
        "value_b64": {"type": "string", "description": "The value in base64, for bytes that are not text."},
    },
    required=("name",),
    description="One of `value` and `value_b64`.",
)
_HEADERS = _list(
    HEADER, maxItems=MAX_PROPERTIES, description="Names and bytes in order; a name may come more than once."
)
_DELETE = {"type": "boolean", "description": "The message says that its key is gone; it has no body."}

MESSAGE: Schema = _object(
    {
        "queue": QUEUE,
        "offset": OFFSET,
        "id": TEXT,
        "key": {"type": ["string", "null"], BIN: True},
        "key_b64": {"type": "string", "description": "The key in base64, where it is not text."},
        "tag": {"type": ["string", "null"]},
        "priority": COUNT,
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "headers": _HEADERS,
        "delete": _DELETE,
        "stored_ms": TIME_MS,
        **_BODY,
        "header_b64": {
            "type": "string",
            "description": "Instead of key, tag and properties when a header cannot be read.",
        },
    },
    required=("queue", "offset", "id", "key", "tag", "priority", "properties", "stored_ms"),
)
MESSAGES: Schema = _object(
    {
        "messages": _list(MESSAGE),
        "next_offset": {**OFFSET, "description": "The offset to ask for next."},
    }
)

BOUNDS: Schema = _object(
    {"queue": QUEUE, "earliest": OFFSET, "latest": OFFSET, "offset": OFFSET},
    required=("queue", "earliest", "latest"),
)
OFFSETS: Schema = _object(
    {"queues": _list(QUEUE), "earliest": _list(OFFSET), "latest": _list(OFFSET), "at_time": _list(OFFSET)},
    required=("queues", "earliest", "latest"),
)
COMMITTED: Schema = _object({"queues": _list(QUEUE), "offsets": _list(OFFSET)})
COMMIT_ANSWER: Schema = _object({"committed": COUNT})
HEALTH: Schema = _object(
    {
        "status": {"enum": ["ok", "failing"]},
        "reasons": _list(TEXT),
        "warnings": _list(
            TEXT, description="Damage found on the disk; members of groups that are stalled; parts that do not run."
        ),
    },
    required=("status", "reasons"),
)
CLUSTER: Schema = _object(
    {
        "cluster": {"type": ["string", "null"], "description": "Name; null for a node of its own."},
        "version": {"type": "integer", "minimum": 0, "description": "Of the agreed state."},
        "control_leader": {"type": ["string", "null"], "description": "Node that leads the control plane."},
        "nodes": _list(
            _object(
                {
                    "id": TEXT,
                    "url": TEXT,
                    "internal_url": {"type": ["string", "null"]},
                    "voter": {"type": "boolean"},
                    "state": {"enum": ["active", "draining", "removed"]},
                    "alive": {"type": ["boolean", "null"], "description": "null: not known here."},
                    "problems": _list(TEXT, description="What is wrong with it, as it says itself; empty: nothing."),
                    "clock_ms": {
                        "type": ["number", "null"],
                        "description": "How far its wall clock is ahead of the cluster's middle one. null: not known.",
                    },
                    "shards_led": COUNT,
                    "replicas": COUNT,
                }
            )
        ),
        "shards": _list(
            _object(
                {
                    "id": COUNT,
                    "leader": {"type": ["string", "null"]},
                    "epoch": COUNT,
                    "in_sync": _list(TEXT),
                    "replicas": _list(TEXT),
                    "adding": _list(TEXT, description="Replicas that are being filled."),
                    "target": _list(TEXT, description="What a move under way ends in; empty: none."),
                    "problem": {"type": ["string", "null"], "description": "Why nobody leads it, and what helps."},
                    "revived": _list(
                        _object(
                            {
                                "epoch": COUNT,
                                "node": TEXT,
                                "incarnation": COUNT,
                                "known_lsn": COUNT,
                                "at_ms": COUNT,
                            }
                        ),
                        description="When an operator chose a leader although acknowledged messages may be lost, and "
                        "up to where the log was known to have been in sync; the latest last.",
                    ),
                }
            )
        ),
    }
)
AGREED: Schema = _object({"version": COUNT}, additionalProperties=True)
REPLICAS: Schema = _object({"replicas": _list(TEXT, minItems=1, maxItems=7)})
LEADER: Schema = _object({"node": TEXT})
REVIVAL: Schema = _object(
    {"node": TEXT, "accept_loss": {"const": True, "description": "Acknowledged messages may be lost."}},
    required=("node", "accept_loss"),
)

STATUS: Schema = _object(
    {
        "version": TEXT,
        "uptime_s": {"type": "number", "minimum": 0},
        "data_dir": TEXT,
        "pid": COUNT,
        "shards": _list({"type": "object"}),
        "waiters": COUNT,
        "inflight_bytes": COUNT,
        "config": {"type": "object"},
    }
)


def create_topic(config: NodeConfig) -> Schema:
    queues = {
        "type": "integer",
        "minimum": 1,
        "maximum": config.max_queues_per_topic,
        "description": "Number of queues. Idle queues cost nothing.",
    }
    order = {
        "type": "string",
        "enum": ["ordinary", "strict"],
        "description": "`strict`: a key stays in its queue when the topic grows, as `key_queues` set to `queues` says.",
    }
    return _object({"queues": queues, **TOPIC_OPTIONS, "order": order}, required=("queues",))


def grow_topic(config: NodeConfig) -> Schema:
    queues = {
        "type": "integer",
        "minimum": 1,
        "maximum": config.max_queues_per_topic,
        "description": "How many queues it is to have; not fewer than it has.",
    }
    return _object({"queues": queues}, required=("queues",))


def message_to_send(config: NodeConfig) -> Schema:
    return _object(
        {
            "queue": {
                **QUEUE,
                "type": ["integer", "null"],
                "description": "Without it the key's hash decides.",
            },
            **_KEY,
            "tag": _TAG,
            "priority": {"type": "integer", "minimum": 0, "maximum": 255, "default": 0},
            "delay_ms": {
                "type": "integer",
                "minimum": 0,
                "maximum": 0,
                "default": 0,
                "description": "Reserved: this release delivers at once.",
            },
            "properties": _PROPERTIES,
            "headers": _HEADERS,
            "delete": {**_DELETE, "default": False},
            **_BODY,
        },
        required=(),
        description=f"One of `body` and `body_b64`, or `delete` with a key; up to {config.max_message_bytes} bytes.",
    )


def send(config: NodeConfig) -> Schema:
    limit = config.max_messages_per_request
    return _object(
        {
            "messages": _list(message_to_send(config), minItems=1, maxItems=limit),
            "ack": ACK,
            "producer": PRODUCER,
        },
        required=("messages",),
    )


def _packed(items: Schema, width: str, limit: int) -> dict[str, Any]:
    return {
        "anyOf": [
            _list(items, minItems=1, maxItems=limit),
            {"type": "string", BIN: True, "minLength": 1, "description": f"msgpack bin: {width}."},
        ]
    }


def fetch(config: NodeConfig) -> Schema:
    limit = config.max_queues_per_request
    return _object(
        {
            "queues": _packed(QUEUE, "u32 little-endian, one after another", limit),
            "offsets": _packed(OFFSET, "i64 little-endian, as many as queues", limit),
            "max_messages": {
                "type": "integer",
                "minimum": 1,
                "description": f"At most this many messages; the limit is {config.max_messages_per_request}.",
            },
            "max_bytes": {
                "type": "integer",
                "minimum": 1,
                "description": f"About this many bytes, and never more than {config.max_response_bytes}.",
            },
            "wait_ms": {"type": "integer", "minimum": 0, "maximum": config.max_wait_ms, "default": 0},
            "keep": {"type": "boolean", "default": False, "description": "Answer with a `session` to go on with."},
            "session": {
                "type": "string",
                "maxLength": 64,
                "description": "In place of queues and offsets: go on where the answer that named it ended.",
            },
        },
        required=(),
    )

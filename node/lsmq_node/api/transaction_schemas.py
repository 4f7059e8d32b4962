"""The schemas of producer groups and transactions."""

from __future__ import annotations

from lsmq_node.config import NodeConfig
from lsmq_node.transactions import State

from .group_schemas import MAX_SESSION_MS, MEMBER_ID, MIN_SESSION_MS
from .schema import Schema
from .schemas import COUNT, NEXT, TEXT, TIME_MS, _list, _object, message_to_send

MAX_REFERENCE = 256
MAX_POSITION = 1024
MIN_CHECK_MS, MAX_CHECK_MS = 100, 24 * 3_600_000
MAX_CHECKS = 1_000

NAME: Schema = {
    "type": "string",
    "pattern": "[A-Za-z0-9._-]{1,200}",
    "description": "A name has 1 to 200 letters, digits, dots, underscores and hyphens",
}
TRANSACTION_ID: Schema = {
    "type": "string",
    "pattern": "[A-Za-z0-9._:-]{1,120}",
    "description": "As the answer to its first messages said it",
}
STATE: Schema = {"enum": [state.value for state in State]}
NUMBER: Schema = {"type": "integer", "minimum": 1, "maximum": 2**53}

TRANSACTION: Schema = _object(
    {
        "transaction": TEXT,
        "group": TEXT,
        "state": STATE,
        "delivered": {"type": "boolean", "description": "Finished: consumers see all of it, or never will."},
        "member": {**TEXT, "description": "Who began it."},
        "reference": {**TEXT, "description": "What the application calls it."},
        "sequence": {**TEXT, "description": "The sequence it belongs to; empty: none."},
        "position": {**TEXT, "description": "How far the sequence is with it."},
        "parts": COUNT,
        "messages": {"type": "object", "additionalProperties": COUNT, "description": "By topic, how many."},
        "size_bytes": COUNT,
        "begun_ms": TIME_MS,
        "check_after_ms": COUNT,
        "check_every_ms": COUNT,
        "checks": {**COUNT, "description": "How often a member was asked about it."},
        "max_checks": COUNT,
        "decided_ms": {**TIME_MS, "description": "0: it is open."},
        "decided_by": {**TEXT, "description": "A member's id, `operator` or `broker`."},
        "waiting_shards": _list(COUNT, description="Shards that have not got their part yet."),
    }
)
TRANSACTIONS: Schema = _object({"transactions": _list(TRANSACTION)})

HEARTBEAT: Schema = _object(
    {
        "member": MEMBER_ID,
        "join": {"type": "boolean", "default": False, "description": "Make it known if it is not."},
        "leave": {"type": "boolean", "default": False},
        "checks": {
            "type": "boolean",
            "default": False,
            "description": "When it joins: whether it can be asked about transactions of members that are gone.",
        },
        "session_ms": {
            "type": "integer",
            "minimum": MIN_SESSION_MS,
            "maximum": MAX_SESSION_MS,
            "default": 10_000,
            "description": "When it joins: after so long in silence it is taken for dead.",
        },
        "wait_ms": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_SESSION_MS,
            "default": 0,
            "description": "Hold the answer while there is nothing to ask, at most so long and at most `heartbeat_ms`.",
        },
        "client": {"type": ["string", "null"], "maxLength": 200, "description": "Who it is, for people."},
    },
    required=("member",),
)
CHECKS: Schema = _object(
    {
        "member": TEXT,
        "heartbeat_ms": {**COUNT, "description": "Send the next heartbeat within this time."},
        "checks": _list(TRANSACTION, description="Commit them or roll them back, or let them be if that is not known."),
    }
)

GROUP: Schema = _object(
    {
        "group": TEXT,
        "shard": COUNT,
        "open": COUNT,
        "undelivered": {**COUNT, "description": "Committed, and not in all their shards yet."},
        "members": _list(
            _object(
                {
                    "id": TEXT,
                    "client": TEXT,
                    "session_ms": COUNT,
                    "checks": {"type": "boolean"},
                    "heartbeat_age_ms": COUNT,
                    "transactions": {**COUNT, "description": "Number of the last one it began."},
                }
            )
        ),
        "sequences": _list(
            _object({"sequence": TEXT, "epoch": COUNT, "position": {"type": ["string", "null"]}, "member": TEXT})
        ),
    }
)
GROUPS: Schema = _object(
    {
        "groups": _list(_object({"group": TEXT, "shard": COUNT, "members": COUNT, "unfinished": COUNT})),
        "next": NEXT,
    }
)
SEQUENCE: Schema = _object(
    {
        "sequence": TEXT,
        "epoch": {**COUNT, "description": "Begin transactions of the sequence with it."},
        "position": {"type": ["string", "null"], "description": "As the last commit said; null: none has."},
    }
)
TAKE: Schema = _object({"member": MEMBER_ID})


def messages(config: NodeConfig) -> Schema:
    message = message_to_send(config)
    with_topic = {**message, "properties": {"topic": TEXT, **message["properties"]}, "required": ["topic"]}
    return _list(with_topic, minItems=1, maxItems=config.max_messages_per_request)


def begin(config: NodeConfig) -> Schema:
    return _object(
        {
            "member": MEMBER_ID,
            "number": {**NUMBER, "description": "Counts the transactions of the member, from 1."},
            "messages": messages(config),
            "reference": {"type": "string", "maxLength": MAX_REFERENCE, "default": ""},
            "check_after_ms": {
                "type": "integer",
                "minimum": MIN_CHECK_MS,
                "maximum": MAX_CHECK_MS,
                "default": 30_000,
                "description": "When it is not decided by then, a member is asked.",
            },
            "check_every_ms": {
                "type": "integer",
                "minimum": MIN_CHECK_MS,
                "maximum": MAX_CHECK_MS,
                "default": 30_000,
            },
            "max_checks": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_CHECKS,
                "default": 20,
                "description": "Asked so often in vain, it is rolled back.",
            },
            "sequence": {**NAME, "type": ["string", "null"]},
            "sequence_epoch": {**COUNT, "default": 0},
            "position": {
                "type": "string",
                "maxLength": MAX_POSITION,
                "default": "",
                "description": "How far the sequence is when this is committed.",
            },
        },
        required=("member", "number", "messages"),
    )


def add(config: NodeConfig) -> Schema:
    return _object(
        {
            "part": {**NUMBER, "description": "Counts the requests of the transaction; its beginning was 0."},
            "messages": messages(config),
        }
    )


def decide(config: NodeConfig) -> Schema:
    return _object(
        {
            "member": {**MEMBER_ID, "type": ["string", "null"], "description": "Who decides; absent: an operator."},
            "wait_ms": {
                "type": "integer",
                "minimum": 0,
                "maximum": config.max_wait_ms,
                "default": 0,
                "description": "Answer when all its shards have it, at most so much later.",
            },
        },
        required=(),
    )

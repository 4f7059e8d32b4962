"""The schemas of consumer groups."""

from __future__ import annotations

from lsmq_node.config import NodeConfig
from lsmq_node.groups import Mode
from lsmq_node.groups.group import MAX_TOPICS

from .schema import BIN, Schema
from .schemas import COUNT, NEXT, OFFSET, QUEUE, TEXT, _list, _object, _packed

MIN_SESSION_MS = 1_000
MAX_SESSION_MS = 300_000
#: Ranges of one topic in one request.
MAX_RANGES = 10_000

MEMBER_ID: Schema = {
    "type": "string",
    "pattern": "[A-Za-z0-9._:-]{1,100}",
    "description": "An id has 1 to 100 letters, digits, dots, underscores, colons and hyphens",
}
MODE: Schema = {"enum": [mode.value for mode in Mode]}
MEMBER_MODE: Schema = {"enum": [Mode.CLUSTERED.value, Mode.BROADCAST.value]}
RANGE: Schema = _list(
    COUNT, minItems=2, maxItems=2, description="Queues from the first number up to, not with, the second."
)
RANGES: Schema = _list(RANGE, maxItems=MAX_RANGES)
EPOCH: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53, "description": "Generation of the group."}

COORDINATOR: Schema = _object(
    {
        "shard": COUNT,
        "leader": {"type": ["string", "null"], "description": "URL of the node to ask; null while there is none."},
        "epoch": COUNT,
    }
)

HEARTBEAT: Schema = _object(
    {
        "member": MEMBER_ID,
        "static_id": {**MEMBER_ID, "type": ["string", "null"]},
        "topics": _list(TEXT, minItems=1, maxItems=MAX_TOPICS, description="Topics it subscribes to."),
        "epoch": {**EPOCH, "description": "`epoch` of the last answer; 0 to join.", "default": 0},
        "version": {
            "type": "integer",
            "minimum": 0,
            "maximum": 2**63 - 1,
            "default": 0,
            "description": "`version` of the last answer; 0 to join.",
        },
        "owned": {
            "type": "object",
            "additionalProperties": RANGES,
            "maxProperties": MAX_TOPICS,
            "description": "By topic: the queues it was assigned and has not given up.",
        },
        "session_ms": {
            "type": "integer",
            "minimum": MIN_SESSION_MS,
            "maximum": MAX_SESSION_MS,
            "default": 10_000,
            "description": "After so long without a heartbeat its queues go to others.",
        },
        "wait_ms": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_SESSION_MS,
            "default": 0,
            "description": "Hold the answer while nothing is new, at most so long and at most `heartbeat_ms`.",
        },
        "mode": {**MEMBER_MODE, "default": Mode.CLUSTERED.value},
        "stalled": {"type": "boolean", "default": False, "description": "A handler has not come back in time."},
        "leave": {"type": "boolean", "default": False, "description": "It has given up everything and goes."},
        "client": {"type": ["string", "null"], "maxLength": 200, "description": "Who it is, for people."},
    },
    required=("member", "topics"),
)

ASSIGNMENT: Schema = _object(
    {
        "member": TEXT,
        "epoch": COUNT,
        "version": COUNT,
        "heartbeat_ms": {**COUNT, "description": "Send the next heartbeat within this time."},
        "assigned": {
            "type": "object",
            "additionalProperties": RANGES,
            "description": "By topic. What it owned and is not here is to be given up.",
        },
        "topics": {
            "type": "object",
            "additionalProperties": _object({"id": COUNT, "queues": COUNT}),
            "description": "Another id than before: the topic was made anew.",
        },
        "waiting_for": {**COUNT, "description": "Queues of its own that others still have to give up."},
        "standby": {
            "type": "boolean",
            "description": "There are more members than queues; it gets some when one goes.",
        },
    }
)

MEMBER: Schema = _object(
    {
        "id": TEXT,
        "static_id": {"type": ["string", "null"]},
        "client": TEXT,
        "session_ms": COUNT,
        "topics": _list(TEXT),
        "assigned": {"type": "object", "additionalProperties": _list(RANGE)},
        "queues": COUNT,
        "pending": {**COUNT, "description": "Queues it holds that are others' by now."},
        "heartbeat_age_ms": COUNT,
        "stalled": {"type": "boolean"},
    }
)
GROUP_STATE: Schema = {"enum": ["empty", "recovering", "rebalancing", "stable"]}
GROUP: Schema = _object(
    {
        "group": TEXT,
        "mode": MODE,
        "state": GROUP_STATE,
        "generation": COUNT,
        "shard": COUNT,
        "topics": _list(_object({"topic": TEXT, "id": COUNT, "queues": COUNT, "members": COUNT})),
        "members": _list(MEMBER),
    }
)
GROUPS: Schema = _object(
    {
        "groups": _list(TEXT, description="Those with committed offsets in the shards at this node, and `details`."),
        "details": _list(
            _object(
                {
                    "group": TEXT,
                    "mode": MODE,
                    "state": GROUP_STATE,
                    "generation": COUNT,
                    "members": COUNT,
                    "stalled": COUNT,
                }
            ),
            description="Those that this node coordinates.",
        ),
        "next": NEXT,
    }
)
DECLARE: Schema = _object({"mode": MODE})
FENCE: Schema = _object(
    {
        "topic": TEXT,
        "queues": _list(RANGE, minItems=1, maxItems=MAX_RANGES),
        "member": {**MEMBER_ID, "description": "Who takes them over."},
        "epoch": EPOCH,
    }
)


def _column(items: Schema, width: str) -> Schema:
    packed = {"type": "string", BIN: True, "description": f"msgpack bin: {width} little-endian."}
    return {"anyOf": [_list(items), packed]}


COMMITTED: Schema = _object(
    {"queues": _column(QUEUE, "u32"), "offsets": _column(OFFSET, "i64")},
    description="Those queues that have a committed offset.",
)
LAG: Schema = _object(
    {
        "queues": COUNT,
        "lag": {**COUNT, "description": "Messages that wait to be read."},
        "behind": {**COUNT, "description": "Queues with any."},
        "uncommitted": {**COUNT, "description": "Queues that nothing is committed for; all that is kept there waits."},
        "largest": {**COUNT, "description": "The most of one queue."},
        "by_range": _list(COUNT, description="Of each range, cut where shards begin."),
        "last_commit_age_ms": {
            "type": ["integer", "null"],
            "description": "Age of the last commit for the topic here; null: none since this node leads.",
        },
    }
)


def commit(config: NodeConfig) -> Schema:
    limit = config.max_queues_per_request
    return _object(
        {
            "topic": TEXT,
            "queues": _packed(QUEUE, "u32 little-endian, one after another", limit),
            "offsets": _packed(OFFSET, "i64 little-endian, as many as queues", limit),
            "reset": {
                "type": "boolean",
                "default": False,
                "description": "Offsets may go back; without it a lower one has no effect.",
            },
            "member": {**MEMBER_ID, "type": ["string", "null"], "description": "The member that commits; see `epoch`."},
            "epoch": {**EPOCH, "description": "With `member`: the generation it has heard of last."},
        },
        required=("topic", "queues", "offsets"),
    )

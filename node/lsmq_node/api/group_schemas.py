"""The schemas of consumer groups."""

from __future__ import annotations

from lsmq_node.broker.requests import ReadStart
from lsmq_node.groups import Mode
from lsmq_node.groups.group import MAX_TOPICS

from .schema import Schema, flag, integer, list_of, object_of, text
from .schemas import COUNT, NEXT, OFFSET, QUEUE, QUEUE_OR_NAME, TEXT, TIME_MS, packed_list, queues_and_offsets

MIN_SESSION_MS = 1_000
MAX_SESSION_MS = 300_000
#: Ranges of one topic in one request.
MAX_RANGES = 10_000

MEMBER_ID: Schema = text(
    "An id has 1 to 100 letters, digits, dots, underscores, colons and hyphens", pattern="[A-Za-z0-9._:-]{1,100}"
)
MODE: Schema = {"enum": [mode.value for mode in Mode]}
MEMBER_MODE: Schema = {"enum": [Mode.CLUSTERED.value, Mode.BROADCAST.value]}
RANGE: Schema = list_of(
    COUNT, minItems=2, maxItems=2, description="Queues from the first number up to, not with, the second."
)
RANGES: Schema = list_of(RANGE, maxItems=MAX_RANGES)
EPOCH: Schema = integer(0, 2**53, "Generation of the group.")

COORDINATOR: Schema = object_of(
    {"shard": COUNT, "leader": text("URL of the node to ask; null while there is none.", null=True), "epoch": COUNT}
)

HEARTBEAT: Schema = object_of(
    {
        "member": MEMBER_ID,
        "static_id": {**MEMBER_ID, "type": ["string", "null"]},
        "topics": list_of(TEXT, minItems=1, maxItems=MAX_TOPICS, description="Topics it subscribes to."),
        "pattern": text(
            "Which queues of these topics it subscribes to, such as `agents.*.inbox`, where they have names; as all "
            "members do. null: to all.",
            null=True,
        ),
        "epoch": {**EPOCH, "description": "`epoch` of the last answer; 0 to join.", "default": 0},
        "version": integer(0, 2**63 - 1, "`version` of the last answer; 0 to join.", default=0),
        "owned": {
            "type": "object",
            "additionalProperties": RANGES,
            "maxProperties": MAX_TOPICS,
            "description": "By topic: the queues it was assigned and has not given up.",
        },
        "session_ms": integer(
            MIN_SESSION_MS, MAX_SESSION_MS, "After so long without a heartbeat its queues go to others.", default=10_000
        ),
        "wait_ms": integer(
            0,
            MAX_SESSION_MS,
            "Hold the answer while nothing is new, at most so long and at most `heartbeat_ms`.",
            default=0,
        ),
        "mode": {**MEMBER_MODE, "default": Mode.CLUSTERED.value},
        "stalled": flag("A handler has not come back in time.", default=False),
        "leave": flag("It has given up everything and goes.", default=False),
        "client": text("Who it is, for people.", maxLength=200, null=True),
    },
    required=("member", "topics"),
)

ASSIGNMENT: Schema = object_of(
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
            "additionalProperties": object_of({"id": COUNT, "queues": COUNT}),
            "description": "Another id than before: the topic was made anew.",
        },
        "waiting_for": {**COUNT, "description": "Queues of its own that others still have to give up."},
        "standby": flag("There are more members than queues; it gets some when one goes."),
    }
)

MEMBER: Schema = object_of(
    {
        "id": TEXT,
        "static_id": text(null=True),
        "client": TEXT,
        "session_ms": COUNT,
        "topics": list_of(TEXT),
        "assigned": {"type": "object", "additionalProperties": list_of(RANGE)},
        "queues": COUNT,
        "pending": {**COUNT, "description": "Queues it holds that are others' by now."},
        "heartbeat_age_ms": COUNT,
        "stalled": flag(),
    }
)
GROUP_STATE: Schema = {"enum": ["empty", "recovering", "rebalancing", "stable"]}
GROUP: Schema = object_of(
    {
        "group": TEXT,
        "mode": MODE,
        "state": GROUP_STATE,
        "generation": COUNT,
        "shard": COUNT,
        "topics": list_of(object_of({"topic": TEXT, "id": COUNT, "queues": COUNT, "members": COUNT})),
        "patterns": {
            "type": "object",
            "additionalProperties": TEXT,
            "description": "By topic: that by which its members subscribe, or the last ones did.",
        },
        "members": list_of(MEMBER),
    }
)
GROUPS: Schema = object_of(
    {
        "groups": list_of(TEXT, description="Those with committed offsets in the shards at this node, and `details`."),
        "details": list_of(
            object_of(
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
TOPICS_OF_GROUP: Schema = object_of({"topics": list_of(TEXT), "next": NEXT})
DECLARE: Schema = object_of({"mode": MODE})
FENCE: Schema = object_of(
    {
        "topic": TEXT,
        "queues": list_of(RANGE, minItems=1, maxItems=MAX_RANGES),
        "member": {**MEMBER_ID, "description": "Who takes them over."},
        "epoch": EPOCH,
    }
)


COMMITTED: Schema = object_of(
    {"queues": packed_list(QUEUE, "u32 little-endian"), "offsets": packed_list(OFFSET, "i64 little-endian")},
    description="Those queues that have a committed offset.",
)
LAG: Schema = object_of(
    {
        "queues": COUNT,
        "lag": {**COUNT, "description": "Messages that wait to be read."},
        "behind": {**COUNT, "description": "Queues with any."},
        "uncommitted": {**COUNT, "description": "Queues that nothing is committed for; all that is kept there waits."},
        "uncommitted_lag": {**COUNT, "description": "Of `lag`, what waits in those."},
        "uncommitted_behind": {**COUNT, "description": "Of `behind`, those."},
        "largest": {**COUNT, "description": "The most of one queue."},
        "committed_largest": {**COUNT, "description": "The most of one that something is committed for."},
        "by_range": list_of(COUNT, description="Of each range, cut where shards begin."),
        "last_commit_age_ms": integer(
            None, description="Age of the last commit for the topic here; null: none since this node leads.", null=True
        ),
    }
)

LAG_HISTORY: Schema = object_of(
    {
        "every_ms": COUNT,
        "lags": list_of(
            integer(0, null=True),
            "Messages that waited, a sample every `every_ms`, of an hour at most, oldest first, the last of just now. "
            "null: what a part of it was is not known.",
        ),
    }
)


RESET_WHERE: dict[str, Schema] = {
    "to": {
        "enum": [ReadStart.EARLIEST.value, ReadStart.LATEST.value],
        "description": "The first message kept, or the end.",
    },
    "offset": {**OFFSET, "description": "Or this offset, within what is kept and what there is."},
    "time_ms": {**TIME_MS, "description": "Or the first message stored then or later; the end where there is none."},
    "queues": text("Only these, such as `0-99,200`, of a topic whose queues have numbers.", maxLength=10_000),
    "after": text("`next` of the answer before.", pattern="[0-9]{1,4}:[0-9]{1,10}"),
}
RESET: Schema = object_of(
    {
        "topic": TEXT,
        **RESET_WHERE,
        "force": flag("Though members live, which go on from where they are.", default=False),
    },
    required=("topic",),
)
RESET_MOVE: Schema = object_of(
    {
        "queue": QUEUE_OR_NAME,
        "earliest": OFFSET,
        "latest": OFFSET,
        "committed": {**OFFSET, "type": ["integer", "null"]},
        "to": OFFSET,
    }
)
RESET_ANSWER: Schema = object_of(
    {
        "queues": {**COUNT, "description": "Whose offset changes."},
        "read_again": {**COUNT, "description": "Messages that the group has passed and reads again, by their offsets."},
        "skipped": {**COUNT, "description": "Messages that the group has not read and does not, by their offsets."},
        "moves": list_of(RESET_MOVE, description="The first hundred of these queues."),
        "next": text("There are more queues: ask again with this as `after`. null: these were the last.", null=True),
    }
)
COMMIT: Schema = object_of(
    {
        "topic": TEXT,
        **queues_and_offsets("max_queues_per_request"),
        "reset": flag("Offsets may go back; without it a lower one has no effect.", default=False),
        "member": {**MEMBER_ID, "type": ["string", "null"], "description": "The member that commits; see `epoch`."},
        "epoch": {**EPOCH, "description": "With `member`: the generation it has heard of last."},
    },
    required=("topic", "queues", "offsets"),
)

"""The schemas of producer groups and transactions."""

from __future__ import annotations

from lsmq_node.transactions import TransactionState

from .group_schemas import MAX_SESSION_MS, MEMBER_ID, MIN_SESSION_MS
from .schema import Limit, Schema, flag, integer, list_of, object_of, text
from .schemas import COUNT, MESSAGE_TO_SEND, NEXT, TEXT, TIME_MS

MAX_REFERENCE = 256
MAX_POSITION = 1024
MIN_CHECK_MS, MAX_CHECK_MS = 100, 24 * 3_600_000
MAX_CHECKS = 1_000

NAME: Schema = text(
    "A name has 1 to 200 letters, digits, dots, underscores and hyphens, and is neither '.' nor '..'",
    pattern=r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}",
)
TRANSACTION_ID: Schema = text("As the answer to its first messages said it", pattern="[A-Za-z0-9._:-]{1,120}")
STATE: Schema = {"enum": [state.value for state in TransactionState]}
NUMBER: Schema = integer(1, 2**53)

TRANSACTION: Schema = object_of(
    {
        "transaction": TEXT,
        "group": TEXT,
        "state": STATE,
        "delivered": flag("Finished: consumers see all of it, or never will."),
        "member": {**TEXT, "description": "Who began it."},
        "reference": {**TEXT, "description": "What the application calls it."},
        "sequence": {**TEXT, "description": "The sequence it belongs to; empty: none."},
        "position": {**TEXT, "description": "How far the sequence is with it."},
        "parts": COUNT,
        "messages": {
            "type": "object",
            "additionalProperties": COUNT,
            "description": "By topic, of those that one may describe: how many.",
        },
        "size_bytes": COUNT,
        "begun_ms": TIME_MS,
        "check_after_ms": COUNT,
        "check_every_ms": COUNT,
        "checks": {**COUNT, "description": "How often a member was asked about it."},
        "max_checks": COUNT,
        "decided_ms": {**TIME_MS, "description": "0: it is open."},
        "decided_by": {**TEXT, "description": "A member's id, `operator` or `broker`."},
        "waiting_shards": list_of(COUNT, description="Shards that have not got their part yet."),
    }
)
TRANSACTIONS: Schema = object_of({"transactions": list_of(TRANSACTION), "next": NEXT})

HEARTBEAT: Schema = object_of(
    {
        "member": MEMBER_ID,
        "join": flag("Make it known if it is not.", default=False),
        "leave": flag(default=False),
        "checks": flag(
            "When it joins: whether it can be asked about transactions of members that are gone.", default=False
        ),
        "session_ms": integer(
            MIN_SESSION_MS,
            MAX_SESSION_MS,
            "When it joins: after so long in silence it is taken for dead.",
            default=10_000,
        ),
        "wait_ms": integer(
            0,
            MAX_SESSION_MS,
            "Hold the answer while there is nothing to ask, at most so long and at most `heartbeat_ms`.",
            default=0,
        ),
        "client": text("Who it is, for people.", maxLength=200, null=True),
    },
    required=("member",),
)
CHECKS: Schema = object_of(
    {
        "member": TEXT,
        "heartbeat_ms": {**COUNT, "description": "Send the next heartbeat within this time."},
        "checks": list_of(
            TRANSACTION, description="Commit them or roll them back, or let them be if that is not known."
        ),
    }
)

GROUP: Schema = object_of(
    {
        "group": TEXT,
        "shard": COUNT,
        "open": COUNT,
        "undelivered": {**COUNT, "description": "Committed, and not in all their shards yet."},
        "members": list_of(
            object_of(
                {
                    "id": TEXT,
                    "client": TEXT,
                    "session_ms": COUNT,
                    "checks": flag(),
                    "heartbeat_age_ms": COUNT,
                    "transactions": {**COUNT, "description": "Number of the last one it began."},
                }
            )
        ),
        "sequences": list_of(
            object_of({"sequence": TEXT, "epoch": COUNT, "position": text(null=True), "member": TEXT})
        ),
    }
)
GROUPS: Schema = object_of(
    {"groups": list_of(object_of({"group": TEXT, "shard": COUNT, "members": COUNT, "unfinished": COUNT})), "next": NEXT}
)
SEQUENCE: Schema = object_of(
    {
        "sequence": TEXT,
        "epoch": {**COUNT, "description": "Begin transactions of the sequence with it."},
        "position": text("As the last commit said; null: none has.", null=True),
    }
)
TAKE: Schema = object_of(
    {
        "member": MEMBER_ID,
        "epoch": integer(
            1,
            2**53 - 1,
            "The epoch that is to begin, refused where it has begun: so a request that comes late, and once more, does "
            "nothing. null: the next one.",
            null=True,
            default=None,
        ),
    },
    required=("member",),
)


_MESSAGES: Schema = list_of(
    {**MESSAGE_TO_SEND, "properties": {"topic": TEXT, **MESSAGE_TO_SEND["properties"]}, "required": ["topic"]},
    minItems=1,
    maxItems=Limit("max_messages_per_request"),
)


BEGIN: Schema = object_of(
    {
        "member": MEMBER_ID,
        "number": {**NUMBER, "description": "Counts the transactions of the member, from 1."},
        "messages": _MESSAGES,
        "reference": text(maxLength=MAX_REFERENCE, default=""),
        "check_after_ms": integer(
            MIN_CHECK_MS, MAX_CHECK_MS, "When it is not decided by then, a member is asked.", default=30_000
        ),
        "check_every_ms": integer(MIN_CHECK_MS, MAX_CHECK_MS, default=30_000),
        "max_checks": integer(1, MAX_CHECKS, "Asked so often in vain, it is rolled back.", default=20),
        "sequence": {**NAME, "type": ["string", "null"]},
        "sequence_epoch": {**COUNT, "default": 0},
        "position": text("How far the sequence is when this is committed.", maxLength=MAX_POSITION, default=""),
    },
    required=("member", "number", "messages"),
)

ADD: Schema = object_of(
    {
        "part": {**NUMBER, "description": "Counts the requests of the transaction; its beginning was 0."},
        "messages": _MESSAGES,
    }
)

DECIDE: Schema = object_of(
    {
        "member": {**MEMBER_ID, "type": ["string", "null"], "description": "Who decides; absent: an operator."},
        "wait_ms": integer(
            0, Limit("max_wait_ms"), "Answer when all its shards have it, at most so much later.", default=0
        ),
    },
    required=(),
)

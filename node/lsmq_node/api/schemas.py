"""The schemas of bodies. The limits of a node's configuration stand in them by name."""

from __future__ import annotations

from typing import Any

from lsmq.messages import LAST_DUE_MS, MAX_DEDUPE_ID_BYTES, MAX_DELAY_MS, MAX_PRIORITY, MAX_TTL_MS
from lsmq.queue_names import NAMED, SLOTS
from lsmq_node.storage.producers import LAST_EPOCH, LAST_SEQUENCE
from lsmq_node.storage.queue_options import UNLIMITED
from lsmq_node.storage.topic_options import MAX_WINDOW_MS

from .schema import Limit, Said, Schema, flag, integer, list_of, object_of, text, time_ms

TEXT: Schema = text()
COUNT: Schema = integer(0)
OFFSET: Schema = integer(0, 2**63 - 1)
QUEUE: Schema = integer(0, 2**32 - 1)
#: Of a message, a path or an answer: the number of a queue, or its name in a topic with named queues.
QUEUE_OR_NAME: Schema = {"anyOf": [QUEUE, TEXT]}
ACK: Schema = {
    "enum": ["quorum", "leader"],
    "description": "When to answer: once the in-sync set has the message, or once the leader has it. "
    "With one node both mean: committed as the flush mode promises.",
}
FLUSH: Schema = {
    "enum": ["sync", "async"],
    "description": "When a replica counts as having the message: once it is on its disk, or once it is written, and on "
    "the disk within `flush_interval_ms`. Where neither request nor topic says so, the node's `flush_mode` does.",
}
TIME_MS: Schema = time_ms(0, 2**63 - 1)
#: Of several topics, in one request.
_MAX_BATCHES = 1_000


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
    "retention_messages": integer(1, 2**63 - 1, "Of each queue the newest so many are kept; null: all.", null=True),
    "max_messages": integer(1, 2**63 - 1, "The topic holds no more messages, see `overflow`; null: any.", null=True),
    "max_bytes": integer(1, 2**63 - 1, "The topic holds no more bytes, see `overflow`; null: any.", null=True),
    "queue_max_messages": integer(1, 2**63 - 1, "No queue holds more messages, see `overflow`; null: any.", null=True),
    "queue_max_bytes": integer(1, 2**63 - 1, "No queue holds more bytes, see `overflow`; null: any.", null=True),
    "overflow": {
        "enum": ["refuse", "drop_oldest", "drop_newest", "drop_lowest_priority", "drop_nearest_deadline"],
        "description": "At these limits of a topic and of its queues: refuse new messages (507 "
        "`quota_exceeded`), drop the oldest, or take new ones and drop them; at `queue_max_messages` alone also those "
        "of the lowest priority, or those that expire next.",
    },
    "on_disk_full": {
        "enum": ["refuse", "drop_oldest"],
        "description": "When the disk is nearly full: refuse new messages, or drop the oldest that no group waits for.",
    },
    "delete_consumed": flag("Messages go once all groups of the topic have committed them.", null=True),
    "ack": {**ACK, "description": "What an acknowledgement of this topic means when a request does not say."},
    "flush": {
        "enum": ["sync", "async", None],
        "description": "When a replica counts as having a message of this topic, when a request does not say; null: as "
        "each node's `flush_mode` says.",
    },
    "max_message_bytes": integer(1, 2**31 - 1, "Largest message of this topic; null: the node's limit.", null=True),
    "key_queues": integer(
        1, 2**31 - 1, "Keys go to so many queues, the first, for ever: that is strict order. null: to all.", null=True
    ),
    "dedupe_window_ms": {
        "anyOf": [integer(0, MAX_WINDOW_MS), {"enum": ["forever", None]}],
        "description": "The second message with one `dedupe_id` in a queue is not stored within so long; `forever`. "
        "0 or null: ids are refused.",
    },
    "ttl_ms": integer(
        1,
        MAX_TTL_MS,
        "Messages stored from then on are delivered for so long, or for their own ttl_ms if less. null: for ever.",
        null=True,
    ),
    "expired_to": text(
        "What expires by its time to live is moved to this topic; it is made with the first, where there is none. "
        "null: it goes.",
        null=True,
    ),
    "dropped_to": text("The same for what `overflow` drops of what was there; not with `drop_newest`.", null=True),
    "forget_empty_ms": integer(
        1,
        2**63 - 1,
        "Where queues are named: the name of a queue without messages for so long is forgotten. null: never.",
        null=True,
    ),
    "cleanup": text(
        "`compact`: of each key the last message is kept, in each queue. `delete`: messages go when they expire.",
        enum=["delete", "compact"],
    ),
    "delete_retention_ms": integer(
        1,
        2**63 - 1,
        "Of a compacted topic: a message that says that its key is gone is kept so long; null: a day.",
        null=True,
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
        "queues": {"anyOf": [integer(1), {"enum": [NAMED]}]},
        "named": flag("Queues have names; the ranges of the routes are of the slots that names lie in."),
        "options": object_of(TOPIC_OPTIONS, required=()),
        "revision": integer(0, description="How often its options were altered."),
        "created_ms": TIME_MS,
        "made_by": text("The principal who made it, where he may make only so many."),
        "max_message_bytes": integer(
            None, description="The limit in force: the topic's own, else the node's. Key, tag and properties count."
        ),
        "max_batch_bytes": integer(None, description="Bytes that the messages of one batch may have together."),
        "routes": list_of(ROUTE),
    },
    required=(
        "name",
        "id",
        "queues",
        "options",
        "created_ms",
        "max_message_bytes",
        "max_batch_bytes",
        "routes",
    ),
)
#: Members of one page of a list: where nothing is said, and at most.
LISTED = 1_000
MAX_LISTED = 10_000
NEXT: Schema = text("`after` of the next page; null: there is none.", null=True)
TOPICS: Schema = object_of({"topics": list_of(TOPIC), "next": NEXT})

PRODUCER: Schema = object_of(
    {
        "id": integer(1, 2**63 - 1, "Random number a producer chooses once."),
        "sequence": integer(0, LAST_SEQUENCE, "Requests of this producer to this shard, counted from 0."),
        "epoch": integer(0, LAST_EPOCH, default=0),
    },
    required=("id", "sequence"),
    description="Makes the request idempotent: the same id and sequence again give the first answer.",
)

DUE_MS: Schema = integer(0, LAST_DUE_MS, "When it comes into its queue, milliseconds since 1970.")
SENT: Schema = object_of(
    {
        "results": list_of(
            object_of(
                {
                    "queue": QUEUE_OR_NAME,
                    "offset": {
                        **OFFSET,
                        "type": ["integer", "null"],
                        "description": "Null while it is not due, or if it was dropped.",
                    },
                    "id": text(
                        "Of a delayed message: by which it can be cancelled, until it is due. Null if it was dropped.",
                        null=True,
                    ),
                    "due_ms": DUE_MS,
                    "dropped": flag("Not stored, since there was no room: the topic's `overflow` is `drop_newest`."),
                    "duplicate": flag("Not stored: this is the place of the first message with its `dedupe_id`."),
                },
                required=("queue", "offset", "id"),
            )
        )
    }
)

_BODY = {
    "body": text("The body as text; in msgpack also as bin.", or_bin=True),
    "body_b64": text("The body in base64, for bytes that are not text."),
}
_KEY = {
    "key": text("Messages of one key go to one queue, in order. In msgpack also as bin.", or_bin=True, null=True),
    "key_b64": text("The key in base64, for bytes that are not text."),
}
_TAG = text("A label, kept with the message and given with it; readers may pick by it.", null=True)
_TYPE = text("What kind of message it is; readers may pick by it.", null=True)
TTL_MS: Schema = integer(
    1, MAX_TTL_MS, "It is delivered for so long after it was stored, and not afterwards. null: for ever.", null=True
)
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
        "queue": QUEUE_OR_NAME,
        "offset": OFFSET,
        "id": TEXT,
        "key": text(or_bin=True, null=True),
        "key_b64": text("The key in base64, where it is not text."),
        "tag": text(null=True),
        "type": text("Where it has one."),
        "priority": COUNT,
        "subpriority": {**COUNT, "description": "Where it has one above 0."},
        "properties": {"type": "object", "additionalProperties": text()},
        "headers": _HEADERS,
        "delete": _DELETE,
        "stored_ms": TIME_MS,
        "expires_ms": {**TIME_MS, "description": "From when on it is not delivered, where it expires."},
        **_BODY,
        "header_b64": text("Instead of key, tag and properties when a header cannot be read."),
    },
    required=("queue", "offset", "id", "key", "tag", "priority", "properties", "stored_ms"),
)
MESSAGES: Schema = object_of(
    {"messages": list_of(MESSAGE), "next_offset": {**OFFSET, "description": "The offset to ask for next."}}
)

NUMBER: Schema = {**QUEUE, "description": "Where queues are named: what ids, batches and commits know it by."}


def _own_limit(what: str) -> Schema:
    return {
        "anyOf": [integer(1, 2**63 - 1), {"enum": [UNLIMITED, None]}],
        "description": f"{what} `unlimited`: no limit, whatever the topic says. null: as the topic says.",
    }


QUEUE_OPTIONS: dict[str, Schema] = {
    "retention_ms": _own_limit("Messages of the queue older than this are dropped."),
    "retention_bytes": _own_limit("Its oldest are dropped when its messages have more bytes than this."),
    "retention_messages": _own_limit("Its newest so many are kept."),
}
ALTER_QUEUE: Schema = object_of(QUEUE_OPTIONS, required=())
BOUNDS: Schema = object_of(
    {
        "queue": QUEUE_OR_NAME,
        "name": {**TEXT, "description": "Where queues are named."},
        "earliest": OFFSET,
        "latest": OFFSET,
        "count": {**COUNT, "description": "Where queues are named: what lies between the two."},
        "number": NUMBER,
        "offset": OFFSET,
        "options": object_of(
            QUEUE_OPTIONS, required=(), description="What the queue has of its own. Left out where it has nothing."
        ),
    },
    required=("queue", "earliest", "latest"),
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
_DISK: Schema = object_of(
    {
        "path": TEXT,
        "problem": text("Why it cannot be used.", null=True),
        "size_bytes": COUNT,
        "free_bytes": COUNT,
        "shards": list_of(COUNT, "That lie there; none while that cannot be seen."),
    }
)
_PROCESS: Schema = object_of(
    {
        "name": text("Its id in the cluster."),
        "url": text("Where it says its own status."),
        "pid": integer(1, None, "While it runs.", null=True),
        "problem": text("Why it does not run, or that it hangs; and what helps.", null=True),
    }
)
STATUS: Schema = object_of(
    {
        "version": TEXT,
        "uptime_s": {"type": "number", "minimum": 0},
        "data_dir": text("The first of `disks`, which has what is the node's and not a shard's."),
        "disks": list_of(_DISK),
        "pid": COUNT,
        "processes": list_of(_PROCESS, "Of a node of several: all of them, this one among them. Else none."),
        "shards": list_of({"type": "object"}),
        "waiters": COUNT,
        "inflight_bytes": COUNT,
        "config": {"type": "object"},
    }
)

_TOPIC_QUEUES = integer(1, Limit("max_queues_per_topic"), "Number of queues. Idle queues cost nothing.")
_NAMED = {"enum": [NAMED], "description": "A queue for each name that is used."}
CREATE_TOPIC: Schema = object_of(
    {
        "queues": {"anyOf": [_TOPIC_QUEUES, _NAMED]},
        **TOPIC_OPTIONS,
        "order": text(
            "`strict`: a key stays in its queue when the topic grows, as `key_queues` set to `queues` says.",
            enum=["ordinary", "strict"],
        ),
    },
    required=("queues",),
)
#: What a topic has for ever, or is changed in another way: and how.
UNALTERABLE = {
    "queues": "PUT /v1/topics/{topic}/queues with a larger number gives it more; with fewer, make another topic",
    "key_queues": "keys would change their queues; make another topic, and move over to it",
    "order": "keys would change their queues; make another topic, and move over to it",
}
ALTER_TOPIC: Schema = object_of(
    {
        name: {**schema, "type": ["string", "null"], "enum": list(dict.fromkeys((*schema["enum"], None)))}
        if "enum" in schema
        else schema
        for name, schema in TOPIC_OPTIONS.items()
        if name not in UNALTERABLE
    },
    required=(),
)
GROW_TOPIC: Schema = object_of(
    {"queues": {**_TOPIC_QUEUES, "description": "How many queues it is to have; not fewer than it has."}}
)
SPREAD_TOPIC: Schema = object_of(
    {
        "keys": text(
            "`stay`: keys keep their queues, for ever, as in a topic of strict order. `move`: they go to others, as "
            "when the topic grows; of strict order it stays as it is.",
            enum=["stay", "move"],
            default="stay",
        )
    },
    required=(),
)

MESSAGE_TO_SEND: Schema = object_of(
    {
        "queue": {
            "anyOf": [QUEUE, TEXT, {"type": "null"}],
            "description": "Without it the key's hash decides. Its name where queues are named: then it must be given.",
        },
        **_KEY,
        "tag": _TAG,
        "type": _TYPE,
        "priority": integer(0, MAX_PRIORITY, default=0),
        "subpriority": integer(0, MAX_PRIORITY, "Decides between messages of one priority.", default=0),
        "ttl_ms": TTL_MS,
        "expires_at_ms": time_ms(
            1,
            LAST_DUE_MS,
            "In place of `ttl_ms`: from when on it is not delivered, milliseconds since 1970; not over yet.",
            null=True,
        ),
        "delay_ms": integer(
            0,
            MAX_DELAY_MS,
            "The message comes into its queue so long after it was stored: see docs/delayed-messages.md.",
            default=0,
        ),
        "deliver_at_ms": time_ms(
            0,
            LAST_DUE_MS,
            "In place of `delay_ms`: when it comes, milliseconds since 1970; at once where that has passed.",
        ),
        "properties": _PROPERTIES,
        "headers": _HEADERS,
        "delete": {**_DELETE, "default": False},
        "dedupe_id": text(
            "The second message with this id in the queue is not stored, within the topic's `dedupe_window_ms`. Up to "
            "255 bytes. With neither queue nor key it decides the queue.",
            null=True,
            minLength=1,
            maxLength=MAX_DEDUPE_ID_BYTES,
        ),
        **_BODY,
    },
    required=(),
    description=Said("One of `body` and `body_b64`, or `delete` with a key; up to {max_message_bytes} bytes."),
)
SEND: Schema = object_of(
    {
        "messages": list_of(MESSAGE_TO_SEND, minItems=1, maxItems=Limit("max_messages_per_request")),
        "ack": ACK,
        "flush": FLUSH,
        "producer": PRODUCER,
    },
    required=("messages",),
)


def packed_list(items: Schema, width: str, most: Limit | None = None) -> Schema:
    """Numbers in a list, or in msgpack as bin."""
    bounds: dict[str, Any] = {} if most is None else {"minItems": 1, "maxItems": most}
    least: dict[str, Any] = {} if most is None else {"minLength": 1}
    return {"anyOf": [list_of(items, **bounds), text(f"msgpack bin: {width}.", or_bin=True, **least)]}


SEND_BATCHES: Schema = object_of(
    {
        "batches": list_of(
            object_of(
                {
                    "topic": text("Name of the topic."),
                    "topic_id": integer(0, null=True, description="Its id: no other topic of the name is meant."),
                    "topic_created_ms": integer(
                        0, null=True, description="When it was created: no topic of another cluster is meant."
                    ),
                    "batch": text("msgpack bin: a batch as it is sent to the topic alone.", or_bin=True),
                },
                required=("topic", "batch"),
            ),
            minItems=1,
            maxItems=_MAX_BATCHES,
        )
    }
)

STORED_BATCHES: Schema = object_of(
    {
        "results": list_of(
            {
                "anyOf": [
                    object_of(
                        {
                            "batch": text(
                                "msgpack bin: what a batch that is sent alone is answered with.", or_bin=True
                            ),
                            "duplicate": flag("The producer's batch had been stored before."),
                        }
                    ),
                    ERROR,
                ]
            }
        )
    }
)


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
        "names": list_of(
            text(),
            "Where queues are named, in place of `queues`: these, there or to come; with `offsets` or `start`.",
            minItems=1,
            maxItems=Limit("max_queues_per_request"),
        ),
        "pattern": text("The same for all queues whose names fit, such as `agents.*.inbox` and `agents.**`."),
        "slots": list_of(
            list_of(integer(0, SLOTS), minItems=2, maxItems=2),
            "The same for all queues whose names lie in these half-open ranges of slots and fit a `pattern` beside it.",
            minItems=1,
            maxItems=SLOTS,
        ),
        "start": {
            "enum": ["earliest", "latest", "committed"],
            "description": "Where reading begins; of queues that come later it is always their earliest message.",
        },
        "group": text("The group whose committed offsets are meant."),
        "reset": {
            "enum": ["earliest", "latest"],
            "default": "earliest",
            "description": "Where the group has committed nothing.",
        },
        "numbers": packed_list(QUEUE, "u32 little-endian, one after another", Limit("max_queues_per_request")),
        "with_names": flag(
            "With `start` at the latest: say the names of all these queues with where they end. `names` always does.",
            default=False,
        ),
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
_AFTER = text("Go on where an earlier answer ended: its `next`.", null=True, pattern="[0-9]{1,9}:[0-9]{1,10}")
_SOME_QUEUES = text("Such as `0-99,200`; all queues of the topic without it.", null=True, maxLength=65_536)
TRIM: Schema = object_of(
    {
        "before_ms": {**TIME_MS, "description": "What was stored before this time goes."},
        "offset": {**OFFSET, "description": "Or what lies below this offset, of the queues that `queues` names."},
        "queues": _SOME_QUEUES,
        "after": _AFTER,
    },
    required=(),
)
PURGE: Schema = object_of({"queues": _SOME_QUEUES, "after": _AFTER}, required=())
USAGE: Schema = object_of(
    {
        "messages": integer(0, description="That can be read, over all shards; those in line count."),
        "bytes": integer(0, description="About: bodies, keys and properties, and what they take in files beside."),
        "dropped": object_of(
            {
                "expired": integer(0, description="By retention."),
                "overflow": integer(0, description="The oldest made room at a limit."),
                "consumed": integer(0, description="All groups had committed them."),
                "disk": integer(0, description="The oldest made room on a disk that was nearly full."),
                "lapsed": integer(0, description="Their time to live was over, and they were moved to `expired_to`."),
            },
            description="Messages that went by themselves, ever.",
        ),
        "refused": integer(0, description="Requests refused at a limit, since the leaders of now lead."),
        "groups": list_of(TEXT, description="With committed offsets, by name."),
        "group_count": integer(0, description="How many there are, be they all listed or not."),
    }
)
TRIMMED: Schema = object_of(
    {
        "messages": integer(0, description="So many went."),
        "next": text("There is more to do: ask again with this as `after`. null: all is done.", null=True),
    }
)
DELETED: Schema = object_of({"deleted": COUNT})

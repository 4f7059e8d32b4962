"""Finding messages by key: each shard that may have some is asked, here or at its leader; the answers are merged."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from aiohttp import web
from yarl import URL

from lsmq.errors import (
    InvalidFilter,
    InvalidQueueName,
    InvalidRequest,
    NotLeader,
    TopicReplaced,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.queue_names import check_queue_name
from lsmq.record_batch import key_hash, parse_message_id
from lsmq_node.broker import Fetched
from lsmq_node.broker.read_redirects import ReadFrom
from lsmq_node.storage import END, KeyQuery, Position, Slice, StoredTopic
from lsmq_node.storage.sieve import Picked

from . import schemas
from .codec import answer, answer_format
from .filters import FILTER_PARAMETERS, filter_of_query
from .forwarding import asked_at_leader
from .naming import by_name
from .rendering import RENDERED_TIMES, render
from .routing import Call, Content, Parameter, Routes
from .schema import integer, list_of, object_of, text
from .search import search_messages

#: Of a shard, so many blocks are looked into in a request; the next page goes on there.
MAX_BLOCKS = 256
MAX_FOUND = 1_000
_CURSOR = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})")

ROUTES = Routes("messages")
_FOUND = object_of(
    {
        "messages": list_of(schemas.MESSAGE),
        "next": text("What the next page comes `after`; null where there is nothing more.", null=True),
        "explain": list_of(
            object_of(
                {
                    "shard": schemas.COUNT,
                    "memtables": integer(0, description="Looked through."),
                    "tables": integer(0, description="Asked which of their blocks may hold the key."),
                    "tables_passed_over": integer(0, description="Of other topics, queues or times."),
                    "tables_without_keys": integer(0, description="Looked through, since nothing says where keys are."),
                    "blocks": integer(0, description="Looked into."),
                    "looked_at": integer(0, description="Messages that were looked at, where no key is given."),
                    "bytes": integer(0, description="Of the messages that were found, where no key is given."),
                    "messages": integer(0, description="Read: given, unless deleted, or of another key."),
                },
                required=("shard",),
            )
        ),
    },
    required=("messages", "next"),
)


@ROUTES.get(
    "/v1/topics/{topic}/messages",
    Content(
        "By key newest first, else by queue, in each the oldest first. A page may be short, or empty, where `next` "
        "says that there may be more.",
        _FOUND,
    ),
    parameters=(
        Parameter(
            "key", text(), "The key, as text. Without `key` and `key_b64`, a time or one of the filters is given."
        ),
        Parameter("key_b64", text(), "The key in base64."),
        Parameter("from_ms", schemas.TIME_MS, "Stored at or after it."),
        Parameter("to_ms", schemas.TIME_MS, "Stored before it."),
        Parameter("limit", integer(1, MAX_FOUND, default=32), "At most so many."),
        Parameter("after", text(), "`next` of the page before."),
        Parameter("queue", schemas.QUEUE, "In this queue alone, by its `number` if it has a name. Without it in all."),
        Parameter("queue_name", text(), "In this queue alone, of a topic whose queues have names."),
        Parameter("shard", integer(0, 1_023), "In the queues of this shard alone."),
        *FILTER_PARAMETERS,
        Parameter("explain", {**integer(0, 1), "default": 0}, "With 1 the answer says what each shard looked at."),
    ),
    errors=(UnknownTopic, UnknownQueue, InvalidQueueName, InvalidFilter, NotLeader, TopicReplaced),
)
async def find_messages(call: Call) -> web.StreamResponse:
    """Find messages by key, or by what they have, or by when they were stored.

    By key newest first, over all queues, in pages. Costs the blocks that hold messages of the key, not what the topic
    holds. Without a key all of these times that `tag`, `type` and `filter` pick: looks through the topic, about 131,072
    messages a page.
    """
    query, topic, broker = call.query, await call.topic(), call.broker
    name = query["queue_name"]
    if name is not None:
        query["queue"] = await _number(call, topic)
        query["queue_name"] = None  # Whoever else is asked is told the number.
    shards = sorted({part.shard for part in broker.ranges(topic)})
    if query["queue"] is not None:
        broker.admission.queue(topic, query["queue"])
        shards = [broker.shard_of(topic, query["queue"])]
    parts_of_page = len(shards)  # Also of one that is asked for a part alone.
    if query["shard"] is not None:
        if query["shard"] not in shards:
            raise InvalidRequest(f"shard is {query['shard']}; of what is asked for, there are {shards}", field="shard")
        shards = [query["shard"]]
    by_time = query["from_ms"] is not None or query["to_ms"] is not None
    if query["key"] is None and query["key_b64"] is None and (by_time or filter_of_query(query) is not None):
        return answer(call.request, _only_of(name, await search_messages(call, topic, shards)))
    key = _key(query)
    most_bytes = broker.config.max_response_bytes
    asked = KeyQuery(
        topic_id=topic.id,
        key_hash=key_hash(key),
        limit=query["limit"],
        max_bytes=max(1, most_bytes // parts_of_page),
        max_blocks=MAX_BLOCKS,
        from_ms=query["from_ms"] or 0,
        to_ms=END.stored_ms if query["to_ms"] is None else query["to_ms"],
        before=_position(query["after"]) or END,
        queue=query["queue"],
        picked=None if (picks := filter_of_query(query)) is None else Picked(picks, exact=True),
    )
    found_bytes = min(most_bytes, asked.limit * broker.admission.max_message_bytes(topic))
    call.hold.resize_within(RENDERED_TIMES * found_bytes)
    parts = await asyncio.gather(*(_in_shard(call, topic, shard, asked, key) for shard in shards))
    messages, reached = _merged(parts, asked.limit)
    found: dict[str, Any] = {"messages": messages, "next": None if reached is None else _cursor(reached)}
    if query["explain"]:
        found["explain"] = [each for part in parts for each in part["explain"]]
    return answer(call.request, _only_of(name, found))


def _only_of(name: str | None, found: dict[str, Any]) -> dict[str, Any]:
    """What was looked for by the number of the queue with a name: that may have become another's meanwhile."""
    if name is not None:
        found["messages"] = [message for message in found["messages"] if message["queue"] == name]
    return found


@ROUTES.get(
    "/v1/topics/{topic}/table/{key}",
    Content("The message.", schemas.MESSAGE),
    parameters=(Parameter("key", text(), "The key, as text."),),
    errors=(UnknownTopic, UnknownMessage, NotLeader, TopicReplaced),
)
async def get_latest(call: Call) -> web.StreamResponse:
    """The last message of a key: its value, where the topic is used as a table.

    Of all queues. Where the last message says that the key is gone there is none.
    """
    topic, key = await call.topic(), _bytes_of(call.path("key"))
    shards = sorted({part.shard for part in call.broker.ranges(topic)})
    before = END
    while True:
        asked = KeyQuery(topic.id, key_hash(key), 1, 1, MAX_BLOCKS, before=before)
        call.hold.resize_within(len(shards) * RENDERED_TIMES * call.broker.admission.max_message_bytes(topic))
        messages, reached = _merged(
            await asyncio.gather(*(_in_shard(call, topic, shard, asked, key) for shard in shards)), 1
        )
        if messages and not messages[0].get("delete"):
            return answer(call.request, messages[0])
        if messages or reached is None:
            raise UnknownMessage(
                f"topic {topic.name!r} has no message of this key, or the last one says that it is gone",
                topic=topic.name,
                key=call.path("key"),
            )
        before = reached


async def _number(call: Call, topic: StoredTopic) -> int:
    """Of the queue that the query names. Raises ``NotLeader``, so that its leader answers, and ``UnknownQueue``."""
    if not topic.named or call.query["queue"] is not None:
        reason = "queue is given as well" if topic.named else f"topic {topic.name!r} has queues with numbers"
        raise InvalidRequest(f"queue_name cannot be obeyed: {reason}", field="queue_name")
    return await call.broker.names.number(topic, check_queue_name(call.query["queue_name"]), ReadFrom.LEADER, 0)


async def _in_shard(call: Call, topic: StoredTopic, shard: int, asked: KeyQuery, key: bytes) -> dict[str, Any]:
    """The answer of one shard, in the form that the caller is to have it in."""
    form = answer_format(call.request)

    def make(found: Slice) -> dict[str, Any] | None:
        fetched = Fetched()
        fetched.add(found)
        (queue,), (next_offset,) = found.positions
        messages, _ = render(fetched, topic.id, int(queue), int(next_offset) - 1, 1, form)
        return messages[0] if messages and _has_key(messages[0], key) else None

    async def here() -> dict[str, Any]:
        found = await call.broker.find(topic, shard, asked, make)
        messages = [message for _, message in found.matches]
        return {
            "messages": await by_name(call, topic, messages) if topic.named else messages,
            "next": None if found.reached is None else _cursor(found.reached),
            "explain": [{"shard": shard, **asdict(found.work)}],
        }

    url = URL.build(path=f"/v1/topics/{quote(topic.name, safe='')}/messages", encoded=True).with_query(
        _query_of(asked, shard, key)
    )
    return await asked_at_leader(call, shard, here, url.raw_path_qs)


def _query_of(asked: KeyQuery, shard: int, key: bytes) -> dict[str, str]:
    """How the leader of a shard is asked the same."""
    query: dict[str, Any] = {
        "key_b64": base64.b64encode(key).decode(),
        "from_ms": asked.from_ms,
        "to_ms": asked.to_ms,
        "limit": asked.limit,
        "after": _cursor(asked.before),
        "queue": asked.queue,
        "shard": shard,
        "explain": 1,
        **({} if asked.picked is None else asked.picked.filter.to_query()),
    }
    return {name: str(value) for name, value in query.items() if value is not None}


def _merged(parts: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], Position | None]:
    """Messages of all shards, newest first, and where they end; None where there is nothing behind."""
    # Behind the first place that a shard has come to there may be messages of it that are not given.
    ends = [end for part in parts if (end := _position(part["next"])) is not None]
    end = max(ends, default=None)
    found = [message for part in parts for message in part["messages"]]
    found = [message for message in found if end is None or _place(message) >= end]
    found.sort(key=_place, reverse=True)
    if len(found) > limit:
        return found[:limit], _place(found[limit - 1])
    return found, end


def _place(message: dict[str, Any]) -> Position:
    _, queue, offset = parse_message_id(message["id"])
    return Position(message["stored_ms"], queue, offset)


def _cursor(position: Position) -> str:
    return "-".join(map(str, position))


def _position(cursor: str | None) -> Position | None:
    """Raises ``InvalidRequest``."""
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(f"after is {cursor[:80]!r}; it must be `next` of an earlier answer", field="after")
    return Position(*(min(int(part), 2**63 - 1) for part in match.groups()))


def _key(query: dict[str, Any]) -> bytes:
    """Raises ``InvalidRequest``."""
    plain, encoded = query["key"], query["key_b64"]
    if (plain is None) == (encoded is None):
        raise InvalidRequest(
            "give one of key and key_b64, or at least one of tag, type, filter, from_ms and to_ms: messages are found "
            "by it",
            field="key",
        )
    if encoded is None:
        return _bytes_of(str(plain))
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"key_b64 is not valid base64: {error}", field="key_b64") from error


def _bytes_of(key: str) -> bytes:
    """Raises ``InvalidRequest``."""
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("key is not text; give it as key_b64", field="key") from error


def _has_key(message: dict[str, Any], key: bytes) -> bool:
    found = message["key"]
    if found is None:
        return "key_b64" in message and base64.b64decode(message["key_b64"]) == key
    return (found.encode() if isinstance(found, str) else found) == key

"""Finding messages by what a filter picks, or a time: the shards of a topic in turn, here or at their leaders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from yarl import URL

from lsmq.errors import InvalidRequest
from lsmq.filter_expressions import Expression
from lsmq.filters import MessageFilter
from lsmq_node.broker import Fetched
from lsmq_node.storage import SearchFound, SearchQuery, StoredTopic
from lsmq_node.storage.sieve import SIEVED_RECORDS, Picked

from .codec import Format, answer_format
from .filters import filter_of_query
from .forwarding import asked_at_leader
from .naming import by_name
from .rendering import RENDERED_TIMES, render_spans
from .routing import Call

_CURSOR = re.compile(r"([0-9]{1,4})\.([0-9]{1,10})\.([0-9]{1,19})")

#: Shard, queue and offset.
SearchPlace = tuple[int, int, int]


async def search_messages(call: Call, topic: StoredTopic, shards: Sequence[int]) -> dict[str, Any]:
    """A page of what the query's ``tag``, ``type`` and ``filter`` pick: by shard, queue and offset.

    It ends with the first shard that has not been looked through, or where as much was looked at as in one there may
    be: a page costs no more than a read of two, however many shards there are.
    """
    query, broker = call.query, call.broker
    begin, left = _place(query["after"]), query["limit"]
    if begin is not None and begin[0] not in shards:
        raise InvalidRequest(f"after is {query['after']!r}, and its shard is not among {list(shards)}", field="after")
    most_bytes = broker.config.max_response_bytes
    # The last one that is asked elsewhere gives as much as any request may have.
    found_bytes = min(min(2, len(shards)) * most_bytes, left * broker.admission.max_message_bytes(topic))
    call.hold.resize_within(RENDERED_TIMES * found_bytes)
    found: dict[str, Any] = {"messages": [], "next": None, "explain": []}
    for shard in shards:
        at = (shard, 0, 0) if begin is None or shard > begin[0] else begin
        if shard < at[0]:
            continue
        looked_at = sum(work.get("looked_at", 0) for work in found["explain"])
        if left <= 0 or most_bytes <= 0 or looked_at >= SIEVED_RECORDS:
            found["next"] = _cursor(at)
            break
        part = await _in_shard(call, topic, at, left, most_bytes)
        found["messages"] += part["messages"]
        found["explain"] += part["explain"]
        left -= len(part["messages"])
        most_bytes -= sum(work.get("bytes", 0) for work in part["explain"])
        if part["next"] is not None:
            found["next"] = part["next"]
            break
    if not query["explain"]:
        del found["explain"]
    return found


async def _in_shard(call: Call, topic: StoredTopic, at: SearchPlace, limit: int, max_bytes: int) -> dict[str, Any]:
    shard, *begin = at
    query, form = call.query, answer_format(call.request)
    picks = _picks(query)
    asked = SearchQuery(
        topic.id,
        Picked(picks, exact=True),
        limit,
        max_bytes,
        (begin[0], begin[1]),
        query["queue"],
        query["from_ms"] or 0,
    )

    async def here() -> dict[str, Any]:
        found, messages = await call.broker.search(topic, shard, asked, lambda found: _render(found, topic.id, form))
        return {
            "messages": await by_name(call, topic, messages) if topic.named else messages,
            "next": None if found.reached is None else _cursor((shard, *found.reached)),
            "explain": [
                {"shard": shard, "looked_at": found.looked, "bytes": sum(part.size_bytes for part in found.slices)}
            ],
        }

    wanted = {**query, "limit": limit, "after": _cursor(at), "shard": shard, "explain": 1}
    path = URL.build(path=f"/v1/topics/{quote(topic.name, safe='')}/messages", encoded=True).with_query(
        {name: str(value) for name, value in wanted.items() if value is not None}
    )
    return await asked_at_leader(call, shard, here, path.raw_path_qs)


def _render(found: SearchFound, topic_id: int, form: Format) -> list[dict[str, Any]]:
    fetched = Fetched()
    for part in found.slices:
        fetched.add(part)
    messages = [message for message, _ in render_spans(fetched, topic_id, found.spans, form)]
    messages.sort(key=lambda message: (message["queue"], message["offset"]))
    return messages


def _picks(query: dict[str, Any]) -> MessageFilter:
    """Times are part of the condition. Raises ``InvalidFilter``."""
    found = filter_of_query(query)
    bounds = [(query["from_ms"], "stored_ms >= {}"), (query["to_ms"], "stored_ms < {}")]
    times = " AND ".join(form.format(value) for value, form in bounds if value is not None)
    if not times:
        assert found is not None, "nobody comes here without a filter or a time"
        return found
    stored = Expression(times)
    if found is None:
        return MessageFilter(expression=stored)
    return replace(found, expression=stored if found.expression is None else found.expression.beside(stored))


def _cursor(place: SearchPlace) -> str:
    return ".".join(map(str, place))


def _place(cursor: str | None) -> SearchPlace | None:
    """Raises ``InvalidRequest``."""
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(f"after is {cursor[:80]!r}; it must be `next` of an earlier answer", field="after")
    shard, queue, offset = map(int, match.groups())
    return shard, min(queue, 2**32 - 1), min(offset, 2**63 - 1)

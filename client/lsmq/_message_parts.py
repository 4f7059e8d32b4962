"""A message as its sender gives it: the few parts that most have, and what is rare, checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lsmq import runtime
from lsmq.message_times import due_value, expiry_value
from lsmq.messages import (
    Headers,
    Key,
    MessageOptions,
    check_delete,
    check_headers,
    check_not_later,
    check_properties,
    check_type,
    dedupe_hash,
    priority_value,
)

Body = bytes | bytearray | memoryview | str


class Extras(NamedTuple):
    """What few messages have, checked."""

    properties: Mapping[str, str] | None = None
    headers: Headers = ()
    priority: int = 0  # with the subpriority
    delete: bool = False
    type: str | None = None
    expires: int = 0  # a time to live, or a moment
    due_ms: int = 0
    position: int | None = None  # of a group's message


NO_EXTRAS = Extras()


MessageParts = tuple[Body, Key | None, str | None, int | str | None, Extras | None, int]
"""Body, key, tag, queue, what is rare, and the hash of the deduplication id or 0."""


def parts_of(body: Body, options: MessageOptions) -> MessageParts:
    """A message as it is added to a batch. Raises ``InvalidRequest`` for extras that no record can hold."""
    if len(options) == 1:
        if "queue" in options:
            return body, None, None, options["queue"], None, 0
        if "key" in options:
            return body, options["key"], None, None, None, 0
        if (dedupe_id := options.get("dedupe_id")) is not None:
            return body, None, None, None, None, dedupe_hash(dedupe_id)
    key, tag, queue = options.get("key"), options.get("tag"), options.get("queue")
    more = len(options) - (key is not None) - (tag is not None) - (queue is not None)
    if more:
        if more == 1 and (dedupe_id := options.get("dedupe_id")) is not None:
            return body, key, tag, queue, None, dedupe_hash(dedupe_id)
        try:
            return _with_extras(body, **options)
        except TypeError:
            check_options(options)
            raise
    return body, key, tag, queue, None, 0


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` for the first that no message has, with what may be meant."""
    known = MessageOptions.__annotations__
    for name in options:
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(known)}"
            raise TypeError(f"a message has no {name!r}; {hint}")


def _with_extras(
    body: Body,
    *,
    key: Key | None = None,
    tag: str | None = None,
    queue: int | str | None = None,
    properties: Mapping[str, str] | None = None,
    headers: Iterable[tuple[str, bytes]] = (),
    priority: int = 0,
    subpriority: int = 0,
    delete: bool = False,
    type: str | None = None,
    ttl_ms: int | None = None,
    expires_at_ms: int | None = None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
    dedupe_id: str | None = None,
) -> MessageParts:
    due_ms = 0
    if delay_ms is not None or deliver_at_ms is not None:
        due_ms = due_value(delay_ms, deliver_at_ms, runtime.wall_ms())
    ranked, expires = priority_value(priority, subpriority), 0
    if ttl_ms is not None or expires_at_ms is not None:
        expires = expiry_value(ttl_ms, expires_at_ms, due_ms, runtime.wall_ms())
    rare = properties or headers or delete or ranked or due_ms or type is not None or expires
    dedupe = 0
    if dedupe_id is not None:
        dedupe = dedupe_hash(dedupe_id)
        check_not_later(due_ms)
    if not rare:
        return body, key, tag, queue, None, dedupe
    check_properties(properties)
    if delete:
        check_delete(key, body)
    if type is not None:
        check_type(type)
    found = check_headers(headers)
    return body, key, tag, queue, Extras(properties, found, ranked, delete, type, expires, due_ms), dedupe

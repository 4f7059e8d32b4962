"""Paths of the HTTP API, for names that may hold anything."""

from __future__ import annotations

from urllib.parse import quote

from lsmq.errors import InvalidRequest


def quoted(name: str) -> str:
    """As a part of a path. Raises ``InvalidRequest`` for what is no text or has no bytes in UTF-8, or means a place."""
    if name == "":
        raise InvalidRequest("'' is no name: it has no characters")
    if name in (".", ".."):  # Another path would be asked for, escaped or not.
        raise InvalidRequest(f"{name!r} is no name: it means a place in a path")
    try:
        return quote(name.encode(), safe="")
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{name!r:.60} is no name; names are text, without halves of surrogate pairs") from error


def topic_path(name: str) -> str:
    return f"/v1/topics/{quoted(name)}"


def queue_path(topic: str, name: str) -> str:
    """Of a queue with a name."""
    return f"{topic_path(topic)}/queues/{quoted(name)}"


def group_path(name: str) -> str:
    return f"/v1/groups/{quoted(name)}"

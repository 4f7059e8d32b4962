"""Paths of the HTTP API, for names that may hold anything."""

from __future__ import annotations

from urllib.parse import quote

from lsmq.errors import InvalidRequest


def quoted(name: str) -> str:
    """Raises ``InvalidRequest`` for a name that is no text, with half a surrogate pair, or means a place in a path."""
    if name in (".", ".."):  # Another path would be asked for, escaped or not.
        raise InvalidRequest(f"{name!r} is no name: it means a place in a path")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name!r} is no name: UTF-8 has no bytes for it ({error.reason})") from error


def topic_path(name: str) -> str:
    return f"/v1/topics/{quoted(name)}"


def queue_path(topic: str, name: str) -> str:
    """Of a queue with a name."""
    return f"{topic_path(topic)}/queues/{quoted(name)}"


def group_path(name: str) -> str:
    return f"/v1/groups/{quoted(name)}"

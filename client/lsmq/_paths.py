"""Paths of the HTTP API, for names that may hold anything."""

from __future__ import annotations

from urllib.parse import quote


def quoted(name: str) -> str:
    return quote(name, safe="")


def topic_path(name: str) -> str:
    return f"/v1/topics/{quoted(name)}"


def queue_path(topic: str, name: str) -> str:
    """Of a queue with a name."""
    return f"{topic_path(topic)}/queues/{quoted(name)}"


def group_path(name: str) -> str:
    return f"/v1/groups/{quoted(name)}"

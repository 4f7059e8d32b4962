"""Messages and bytes by topic, as they come or go, until somebody takes the counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Flow:
    """Of one topic."""

    messages: int = 0
    size_bytes: int = 0


class TopicFlow:
    """Holds the topics alone that there was something of since the counts were last taken.

    Not thread-safe: whoever adds and whoever takes agree on a lock or a thread.
    """

    __slots__ = ("_flows",)

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}

    def add(self, topic: str, messages: int, size_bytes: int) -> None:
        flow = self._flows.get(topic)
        if flow is None:
            flow = self._flows[topic] = Flow()
        flow.messages += messages
        flow.size_bytes += size_bytes

    def take(self) -> dict[str, Flow]:
        """The counts, which begin anew."""
        taken, self._flows = self._flows, {}
        return taken

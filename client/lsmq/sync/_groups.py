"""Consumer groups as their members and operators ask for them, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lsmq import groups as asynchronous
from lsmq.group_values import (
    Assignment,
    Coordinator,
    GroupDescription,
    GroupLag,
    GroupStream,
    GroupSummary,
    Heartbeat,
    Ranges,
)
from lsmq.groups import ResetTo
from lsmq.sync._client import Client


class Group:
    """Blocking :class:`lsmq.Group`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._thread = client._thread
        self._async = asynchronous.Group(client._async, name)

    def coordinator(self, *, deadline_ms: int | None = None) -> Coordinator:
        """See :meth:`lsmq.Group.coordinator`."""
        return self._thread.call(self._async.coordinator(deadline_ms=deadline_ms))

    def heartbeat(self, beat: Heartbeat, *, wait_ms: int = 0, deadline_ms: int | None = None) -> Assignment:
        """See :meth:`lsmq.Group.heartbeat`."""
        return self._thread.call(self._async.heartbeat(beat, wait_ms=wait_ms, deadline_ms=deadline_ms))

    def leave(self, beat: Heartbeat, *, deadline_ms: int | None = None) -> None:
        """See :meth:`lsmq.Group.leave`."""
        self._thread.call(self._async.leave(beat, deadline_ms=deadline_ms))

    def describe(self) -> GroupDescription:
        """See :meth:`lsmq.Group.describe`."""
        return self._thread.call(self._async.describe())

    def streams(self) -> list[GroupStream]:
        """See :meth:`lsmq.Group.streams`."""
        return self._thread.call(self._async.streams())

    def declare(self, mode: str) -> None:
        """See :meth:`lsmq.Group.declare`."""
        self._thread.call(self._async.declare(mode))

    def delete(self, *, force: bool = False) -> None:
        """See :meth:`lsmq.Group.delete`."""
        self._thread.call(self._async.delete(force=force))

    def fence(
        self, topic: str, ranges: Ranges, *, member: str, epoch: int, deadline_ms: int | None = None
    ) -> dict[int, int]:
        """See :meth:`lsmq.Group.fence`."""
        return self._thread.call(self._async.fence(topic, ranges, member=member, epoch=epoch, deadline_ms=deadline_ms))

    def commit(
        self, topic: str, offsets: Mapping[int, int], *, member: str, epoch: int, deadline_ms: int | None = None
    ) -> None:
        """See :meth:`lsmq.Group.commit`."""
        self._thread.call(self._async.commit(topic, offsets, member=member, epoch=epoch, deadline_ms=deadline_ms))

    def reset(
        self, topic: str, to: ResetTo, queues: Iterable[int] | None = None, *, force: bool = False
    ) -> dict[int, int]:
        """See :meth:`lsmq.Group.reset`."""
        return self._thread.call(self._async.reset(topic, to, queues, force=force))

    def lag(self, topic: str, parts: Sequence[Ranges] | None = None) -> GroupLag:
        """See :meth:`lsmq.Group.lag`."""
        return self._thread.call(self._async.lag(topic, parts))


def list_groups(client: Client) -> list[GroupSummary]:
    """See :func:`lsmq.list_groups`."""
    return client._thread.call(asynchronous.list_groups(client._async))

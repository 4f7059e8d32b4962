"""Consumer groups as their members and operators ask for them, blocking."""

from __future__ import annotations

from lsmq import groups as asynchronous
from lsmq.group_values import GroupSummary
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking


class Group:
    """Blocking :class:`lsmq.Group`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._thread = client._thread
        self._async = asynchronous.Group(client._async, name)

    coordinator = blocking(asynchronous.Group.coordinator)
    heartbeat = blocking(asynchronous.Group.heartbeat)
    leave = blocking(asynchronous.Group.leave)
    describe = blocking(asynchronous.Group.describe)
    streams = blocking(asynchronous.Group.streams)
    topics = blocking(asynchronous.Group.topics)
    declare = blocking(asynchronous.Group.declare)
    delete = blocking(asynchronous.Group.delete)
    fence = blocking(asynchronous.Group.fence)
    commit = blocking(asynchronous.Group.commit)
    reset = blocking(asynchronous.Group.reset)
    lag = blocking(asynchronous.Group.lag)
    past_lag = blocking(asynchronous.Group.past_lag)


def list_groups(client: Client) -> list[GroupSummary]:
    """See :func:`lsmq.list_groups`."""
    return client._thread.call(asynchronous.list_groups(client._async))

"""Delayed messages, blocking."""

from __future__ import annotations

from lsmq import delayed as asynchronous
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_iterator


class DelayedMessages:
    """Blocking :class:`lsmq.DelayedMessages`."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self._thread = client._thread
        self._async = asynchronous.DelayedMessages(client._async, topic)

    read = blocking_iterator(asynchronous.DelayedMessages.read)
    get = blocking(asynchronous.DelayedMessages.get)
    cancel = blocking(asynchronous.DelayedMessages.cancel)
    reschedule = blocking(asynchronous.DelayedMessages.reschedule)

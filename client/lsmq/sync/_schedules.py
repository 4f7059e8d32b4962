"""Schedules, blocking."""

from __future__ import annotations

from lsmq import schedules as asynchronous
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_iterator


class Schedules:
    """Blocking :class:`lsmq.Schedules`."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self._thread = client._thread
        self._async = asynchronous.Schedules(client._async, topic)

    put = blocking(asynchronous.Schedules.put)
    get = blocking(asynchronous.Schedules.get)
    delete = blocking(asynchronous.Schedules.delete)

    read = blocking_iterator(asynchronous.Schedules.read)

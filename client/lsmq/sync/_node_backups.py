"""Backups that a node makes itself, blocking."""

from __future__ import annotations

from lsmq import node_backups as asynchronous
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking


class BackupAdmin:
    """Blocking :class:`lsmq.BackupAdmin`."""

    def __init__(self, client: Client, url: str | None = None) -> None:
        self.client = client
        self._thread = client._thread
        self._async = asynchronous.BackupAdmin(client._async, url)

    state = blocking(asynchronous.BackupAdmin.state)
    start = blocking(asynchronous.BackupAdmin.start)
    stop = blocking(asynchronous.BackupAdmin.stop)

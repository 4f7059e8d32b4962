"""Looking at a cluster and changing it, blocking."""

from __future__ import annotations

from collections.abc import Sequence

from lsmq import admin as asynchronous
from lsmq.admin import ClusterInfo
from lsmq.sync._client import Client


class ClusterAdmin:
    """Blocking :class:`lsmq.ClusterAdmin`."""

    def __init__(self, client: Client) -> None:
        self._thread = client._thread
        self._async = asynchronous.ClusterAdmin(client._async)

    def overview(self) -> ClusterInfo:
        """See :meth:`lsmq.ClusterAdmin.overview`."""
        return self._thread.call(self._async.overview())

    def drain(self, node: str) -> None:
        """See :meth:`lsmq.ClusterAdmin.drain`."""
        self._thread.call(self._async.drain(node))

    def undrain(self, node: str) -> None:
        """See :meth:`lsmq.ClusterAdmin.undrain`."""
        self._thread.call(self._async.undrain(node))

    def remove(self, node: str) -> None:
        """See :meth:`lsmq.ClusterAdmin.remove`."""
        self._thread.call(self._async.remove(node))

    def move(self, shard: int, replicas: Sequence[str]) -> None:
        """See :meth:`lsmq.ClusterAdmin.move`."""
        self._thread.call(self._async.move(shard, replicas))

    def cancel_move(self, shard: int) -> None:
        """See :meth:`lsmq.ClusterAdmin.cancel_move`."""
        self._thread.call(self._async.cancel_move(shard))

    def transfer(self, shard: int, node: str) -> None:
        """See :meth:`lsmq.ClusterAdmin.transfer`."""
        self._thread.call(self._async.transfer(shard, node))

    def revive(self, shard: int, node: str, *, accept_loss: bool) -> None:
        """See :meth:`lsmq.ClusterAdmin.revive`."""
        self._thread.call(self._async.revive(shard, node, accept_loss=accept_loss))

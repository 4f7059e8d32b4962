"""Looking at a cluster and changing it, blocking."""

from __future__ import annotations

from lsmq import admin as asynchronous
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking


class ClusterAdmin:
    """Blocking :class:`lsmq.ClusterAdmin`."""

    def __init__(self, client: Client) -> None:
        self._thread = client._thread
        self._async = asynchronous.ClusterAdmin(client._async)

    overview = blocking(asynchronous.ClusterAdmin.overview)
    plan = blocking(asynchronous.ClusterAdmin.plan)
    plan_growth = blocking(asynchronous.ClusterAdmin.plan_growth)
    grow_shards = blocking(asynchronous.ClusterAdmin.grow_shards)
    pause_moves = blocking(asynchronous.ClusterAdmin.pause_moves)
    resume_moves = blocking(asynchronous.ClusterAdmin.resume_moves)
    drain = blocking(asynchronous.ClusterAdmin.drain)
    undrain = blocking(asynchronous.ClusterAdmin.undrain)
    remove = blocking(asynchronous.ClusterAdmin.remove)
    replace_voter = blocking(asynchronous.ClusterAdmin.replace_voter)
    keep_voter = blocking(asynchronous.ClusterAdmin.keep_voter)
    move = blocking(asynchronous.ClusterAdmin.move)
    cancel_move = blocking(asynchronous.ClusterAdmin.cancel_move)
    transfer = blocking(asynchronous.ClusterAdmin.transfer)
    revive = blocking(asynchronous.ClusterAdmin.revive)
    unpin = blocking(asynchronous.ClusterAdmin.unpin)

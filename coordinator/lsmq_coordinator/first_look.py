"""Before a node votes for the first time: whether the cluster has agreed on other voters than its configuration names.

A voter that has a journal learns that when it hears no leader. One with an empty directory, in whose configuration
voters stand who were replaced long ago, could found a cluster with others like it before it learns anything. So it asks
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lsmq.errors import LsmqError

from .auth import ClusterSecret
from .control_http import ControlHttp
from .raft_control import RaftControl
from .state import ClusterState
from .tls import Certificates

_PATIENCE_S = 1.0


async def look_first(
    raft: RaftControl, urls: Mapping[str, str], secret: ClusterSecret, tls: Certificates | None
) -> None:
    """Ask the nodes at ``urls``, by id, where this one would vote and nothing in its directory says so. Takes a second
    where one of them does not answer, and nothing where all have a journal."""
    if not raft.seated or raft.has_voted:
        return
    http = ControlHttp(secret, tls=tls)
    await http.start()
    try:
        asked = (_state(http, url) for node, url in urls.items() if node != raft.config.node)
        found = [state for state in await asyncio.gather(*asked) if state is not None]
    finally:
        await http.close()
    newest = max(found, key=lambda state: state.version, default=None)
    if newest is not None and newest.membership is not None:
        known = {id: node.internal_url for id, node in newest.nodes.items() if newest.membership.has(id)}
        raft.learned(newest.membership, known)


async def _state(http: ControlHttp, url: str) -> ClusterState | None:
    try:
        answer = await http.call(url, "GET", "/internal/control/state", None, _PATIENCE_S)
    except LsmqError:
        return None
    return None if answer["state"] is None else ClusterState.decode(answer["state"])

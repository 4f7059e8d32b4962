"""A node's way into the cluster: founding it, or making itself known to it. Safe to repeat at every start."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

from lsmq.errors import InvalidRequest, TimedOut, Unavailable

from .control import ControlClient
from .founding import register_command
from .state import ClusterState

_LOOK_S = 0.5
_LONG_S = 3600.0


async def join(
    client: ControlClient, url: str, internal_url: str, founding: Mapping[str, Any] | None = None
) -> ClusterState:
    """Returns once the cluster is founded and knows this life of the node, under these addresses; waits as long as that
    takes. Until then the node holds no lease.

    ``founding``, given to voters, is :func:`~.founding.founding_command`: whoever leads the control plane while nothing
    is founded yet submits it. Raises ``InvalidRequest`` when the cluster refuses: a founding that cannot be, or a
    node that was removed.
    """
    while True:
        state = client.state
        known = state.nodes.get(client.node)
        if known is not None and known.life == client.life and known.state != "removed":
            return state
        with contextlib.suppress(TimedOut, Unavailable):
            if state.bootstrapped:
                await _submit(client, register_command(client.node, url, internal_url, client.life), "not_bootstrapped")
            elif founding is not None and client.leader == client.node:
                await _submit(client, {**founding, "request_id": uuid.uuid4().hex}, "already_bootstrapped")
            await client.wait_for(lambda state, seen=state: state is not seen, _LOOK_S)  # type: ignore[misc]


async def displaced(client: ControlClient) -> None:
    """Returns when the cluster, which knew this start of the node, knows another one."""
    while True:
        with contextlib.suppress(TimedOut):
            await client.wait_for(lambda state: state.nodes[client.node].life != client.life, _LONG_S)
            return


async def _submit(client: ControlClient, command: Mapping[str, Any], tolerated: str) -> None:
    result = await client.submit(command)
    if not result["ok"] and result["code"] != tolerated:
        raise InvalidRequest(f"the cluster refuses {command['op']} of node {client.node!r}: {result['message']}")

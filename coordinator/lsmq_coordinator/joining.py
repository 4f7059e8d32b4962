"""A node's way into the cluster: founding it, or making itself known to it. Safe to repeat at every start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Mapping
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, TimedOut, Unavailable

from .control import ControlClient
from .errors import NodeRuns
from .founding import register_command
from .state import ClusterState

_LOOK_S = 0.5
#: So soon the control plane is asked again whether the other process of this name has ended.
_AGAIN_S = 0.1
_LONG_S = 3600.0


async def join(
    client: ControlClient,
    url: str,
    internal_url: str,
    founding: Mapping[str, Any] | None = None,
    *,
    host: str = "",
    rack: str = "",
    waits: Callable[[str], None] = lambda why: None,
) -> ClusterState:
    """Returns once the cluster is founded and knows this life of the node, under these addresses and labels; waits as
    long as that takes. Until then the node holds no lease.

    ``founding``, given to voters, is :func:`~.founding.founding_command`: whoever leads the control plane while nothing
    is founded yet submits it. Raises ``InvalidRequest`` when the cluster refuses: a founding that cannot be, or a
    node that was removed. ``waits`` is told, again and again, that another process runs under the node's name.
    """
    while True:
        state = client.state
        if client.registered and state.nodes[client.node].state != "removed":
            return state
        try:
            if state.bootstrapped:
                register = register_command(client.node, url, internal_url, client.life, host, rack)
                await _submit(client, register, ("not_bootstrapped", "stale"))  # Stale: another one was first.
            elif founding is not None and client.leader == client.node:
                await _submit(client, {**founding, "request_id": runtime.token_hex(16)}, ("already_bootstrapped",))
        except (TimedOut, Unavailable):
            pass  # Whoever leads the control plane next is asked again.
        except NodeRuns as runs:
            waits(runs.message)
            await asyncio.sleep(_AGAIN_S)
            continue
        with contextlib.suppress(TimedOut):
            await client.wait_for(lambda state, seen=state: state is not seen, _LOOK_S)  # type: ignore[misc]


async def displaced(client: ControlClient) -> None:
    """Returns when the cluster, which knew this start of the node, knows another one. A node that was removed may be
    forgotten, which is none."""

    def other(state: ClusterState) -> bool:
        known = state.nodes.get(client.node)
        return known is not None and known.life != client.life

    while True:
        with contextlib.suppress(TimedOut):
            await client.wait_for(other, _LONG_S)
            return


async def _submit(client: ControlClient, command: Mapping[str, Any], tolerated: Container[str]) -> None:
    result = await client.submit(command)
    if not result["ok"] and result["code"] not in tolerated:
        raise InvalidRequest(f"the cluster refuses {command['op']} of node {client.node!r}: {result['message']}")

"""Have a member of a consumer group die by its own hand (SIGKILL) in a certain phase of its life."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from typing import Any

from lsmq import Client
from lsmq._member_state import MemberState
from lsmq._membership import Membership
from lsmq.groups import Group

#: What is called in the phase; and whether it dies while that is under way, or once it is done.
PHASES: dict[str, tuple[Any, str, bool]] = {
    "joining": (Group, "heartbeat", True),
    "joined": (Group, "heartbeat", False),
    "fencing": (Group, "fence", True),
    "fenced": (Group, "fence", False),
    "taken over": (Membership, "_begin", False),
    "committing": (Client, "_commit_offsets", True),
    "committed": (Client, "_commit_offsets", False),
    "giving up": (Membership, "_give_up", True),
    "given up": (MemberState, "give_up", False),
}
_UNDER_WAY_S = 0.003


def die_when(phase: str) -> None:
    """From now on this process dies when it comes to the phase."""
    owner, name, under_way = PHASES[phase]
    whole = getattr(owner, name)

    async def dies(*arguments: Any, **named: Any) -> None:
        work = asyncio.ensure_future(whole(*arguments, **named))
        await (asyncio.sleep(_UNDER_WAY_S) if under_way else work)
        os.kill(os.getpid(), signal.SIGKILL)

    def dies_at_once(*arguments: Any, **named: Any) -> None:
        whole(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dies if inspect.iscoroutinefunction(whole) else dies_at_once)

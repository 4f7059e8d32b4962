"""Work on the loop that leaves others their turn, and work that goes on when whoever asked for it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

#: Queues whose offsets are looked up in a few milliseconds.
_QUEUES_A_TURN = 50_000

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: The event loop alone would let them go.
_under_way: set[asyncio.Task[Any]] = set()


async def in_turns(places: NDArray[np.int64]) -> AsyncIterator[NDArray[np.int64]]:
    """In pieces: the others on the loop have a turn between two."""
    for begin in range(0, len(places), _QUEUES_A_TURN):
        if begin:
            await asyncio.sleep(0)
        yield places[begin : begin + _QUEUES_A_TURN]


def _over(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # Perhaps nobody else hears of it.


def to_its_end(work: Callable[Given, Coroutine[Any, Any, Result]]) -> Callable[Given, Coroutine[Any, Any, Result]]:
    """Once begun it is done, though whoever waits for it is cancelled: what is stored has to be known and told."""

    @wraps(work)
    async def shielded(*given: Given.args, **named: Given.kwargs) -> Result:
        task = asyncio.create_task(work(*given, **named))
        _under_way.add(task)
        task.add_done_callback(_over)
        return await asyncio.shield(task)

    return shielded

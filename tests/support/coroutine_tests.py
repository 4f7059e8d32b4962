"""Coroutine tests run in an event loop of their own, with a time limit: import the hook into a ``conftest``.

Those marked ``virtual_time`` run in one whose clock is virtual.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from support.virtual_time import run_in_virtual_time

TEST_LIMIT_S = 240


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    if pyfuncitem.get_closest_marker("virtual_time") is not None:
        run_in_virtual_time(pyfuncitem.obj(**arguments))
        return True

    async def limited() -> None:
        async with asyncio.timeout(TEST_LIMIT_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True

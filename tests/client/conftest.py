"""Fixtures of the client's tests. Coroutine tests run in an event loop of their own, with a time limit."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from hypothesis import settings

TEST_LIMIT_S = 120

# How long an example takes says something about the machine's other work, not about the client.
settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    async def limited() -> None:
        async with asyncio.timeout(TEST_LIMIT_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True

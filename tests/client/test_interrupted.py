"""An interrupt, such as Ctrl-C, at the worst moment: as the event loop's thread does what it was asked for."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NoReturn

import pytest

from lsmq.loop_thread import LoopThread
from lsmq.sync._crossing import blocking_iterator

@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has what is waited for next interrupted: while it is under way, or when it is ``done``."""

    def interrupt(*, done: bool) -> None:
        submit = LoopThread.submit

        def interrupted(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
            monkeypatch.setattr(LoopThread, "submit", submit)
            future = submit(thread, work)

            def result(timeout_s: float | None = None) -> NoReturn:
                concurrent.futures.wait([future], timeout_s if done else 0.1)
                raise KeyboardInterrupt

            monkeypatch.setattr(future, "result", result)
            return future

        monkeypatch.setattr(LoopThread, "submit", interrupted)

    return interrupt


def test_an_iteration_that_is_interrupted_says_so(interrupt: Callable[..., None]) -> None:
    class Numbers:
        async def read(self) -> AsyncGenerator[int, None]:
            for number in range(10_000):
                try:
                    await asyncio.sleep(0.01)
                finally:
                    await asyncio.gather(asyncio.sleep(0))  # as requests wait for those they have cancelled
                yield number

    class Blocking:
        read = blocking_iterator(Numbers.read)

        def __init__(self) -> None:
            self._async, self._thread = Numbers(), LoopThread()

    blocking = Blocking()
    interrupt(done=False)
    with pytest.raises(KeyboardInterrupt):
        next(blocking.read())
    blocking._thread.stop()

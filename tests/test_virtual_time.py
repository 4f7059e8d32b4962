"""The event loop of tests whose clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from lsmq import runtime
from support.virtual_time import run_in_virtual_time
from support.waiting import comes_true

HOUR_S = 3_600


def test_hours_pass_at_once_for_the_loop_and_for_the_product() -> None:
    order: list[int] = []

    async def after(hours: int) -> None:
        await asyncio.sleep(HOUR_S * hours)
        order.append(hours)

    async def run() -> None:
        clocks = (asyncio.get_running_loop().time, runtime.monotonic, runtime.boot_time, runtime.wall_time)
        began = [clock() for clock in clocks]
        began_ms = runtime.wall_ms()
        await asyncio.gather(*map(after, (3, 1, 2)))
        assert [clock() - before for clock, before in zip(clocks, began, strict=True)] == pytest.approx(
            [3 * HOUR_S] * 4
        )
        assert runtime.wall_ms() - began_ms == pytest.approx(3 * HOUR_S * 1_000, abs=1)

    real, former = time.monotonic(), runtime.monotonic
    run_in_virtual_time(run())
    assert order == [1, 2, 3]
    assert runtime.monotonic is former and time.monotonic() - real < HOUR_S


def test_who_waits_for_what_cannot_happen_is_told() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def never() -> None:
        await comes_true(lambda: False, "it happens", timeout_s=1)

    with pytest.raises(AssertionError, match="nothing is left that could happen"):
        run_in_virtual_time(forever())
    with pytest.raises(AssertionError, match="it never came true that it happens"):
        run_in_virtual_time(never())


def test_work_of_other_threads_takes_no_time() -> None:
    begun, release = runtime.Event(), runtime.Event()

    def work() -> str:
        begun.set()
        release.wait()
        return "done"

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        timeout = asyncio.get_running_loop().call_later(1, begun.clear)
        working = asyncio.create_task(asyncio.to_thread(work))
        while not begun.is_set():  # noqa: ASYNC110 - a turn of the loop, and no time
            await asyncio.sleep(0)
        before = clock()
        release.set()
        assert await working == "done"
        assert clock() == before and begun.is_set()
        timeout.cancel()

    run_in_virtual_time(run())


def test_sockets_are_refused() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with here, there:
            asyncio.get_running_loop().add_reader(here, lambda: None)
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="sockets keep no virtual time"):
        run_in_virtual_time(run())

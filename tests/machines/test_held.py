"""Held requests: who is woken, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from lsmq.errors import LsmqError, Unavailable
from lsmq_node.machines import HeldRequests


class Waiting:
    """Requests that wait in a table, by name; those that were answered, in order."""

    def __init__(self) -> None:
        self.held = HeldRequests()
        self.answered: list[str] = []
        self.failed: dict[str, LsmqError] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def hold(self, name: str, *keys: Hashable, deadline: float | None = None) -> None:
        self.tasks[name] = asyncio.create_task(self._hold(name, keys, deadline))
        await asyncio.sleep(0)

    async def _hold(self, name: str, keys: tuple[Hashable, ...], deadline: float | None) -> None:
        try:
            await self.held.wait(keys, deadline)
        except LsmqError as error:
            self.failed[name] = error
        else:
            self.answered.append(name)

    async def settle(self, *names: str) -> None:
        async with asyncio.timeout(10):
            await asyncio.gather(*(self.tasks[name] for name in names), return_exceptions=True)

    def nothing_is_left(self) -> bool:
        return self.held.count == 0 and not self.held._waiting


async def test_all_that_wait_for_a_key_are_woken_and_no_others() -> None:
    waiting = Waiting()
    await waiting.hold("a", "group", "one")
    await waiting.hold("b", "group", "other")
    await waiting.hold("c", "else")
    waiting.held.wake("group")
    await waiting.settle("a", "b")
    assert waiting.answered == ["a", "b"] and waiting.held.count == 1
    waiting.held.wake("else")
    await waiting.settle("c")
    assert waiting.nothing_is_left()


async def test_one_at_a_time_is_woken_in_the_order_of_waiting() -> None:
    waiting = Waiting()
    for name in "abc":
        await waiting.hold(name, "queue", f"only {name}")
    assert waiting.held.wake_one("queue") and waiting.held.wake_one("queue")
    await waiting.settle("a", "b")
    assert waiting.answered == ["a", "b"]
    waiting.held.wake("only c")
    assert not waiting.held.wake_one("queue"), "it is woken already, by its other key"
    await waiting.settle("c")
    assert waiting.nothing_is_left()


async def test_who_is_cancelled_takes_nobodys_turn() -> None:
    waiting = Waiting()
    await waiting.hold("a", "queue")
    await waiting.hold("b", "queue")
    waiting.tasks["a"].cancel()
    await waiting.settle("a")
    assert waiting.held.wake_one("queue")
    await waiting.settle("b")
    assert waiting.answered == ["b"] and waiting.nothing_is_left()


async def test_at_its_deadline_a_request_goes_on_by_itself() -> None:
    waiting = Waiting()
    await waiting.hold("a", "queue", deadline=asyncio.get_running_loop().time())
    await waiting.settle("a")
    assert waiting.answered == ["a"] and waiting.nothing_is_left()


async def test_an_error_reaches_those_that_wait_for_its_key_alone() -> None:
    waiting = Waiting()
    await waiting.hold("owed", "group", "plan")
    await waiting.hold("held", "group")
    waiting.held.fail("plan", Unavailable("not now"))
    await waiting.settle("owed")
    assert list(waiting.failed) == ["owed"] and waiting.answered == []
    waiting.held.close()
    await waiting.settle("held")
    assert waiting.answered == ["held"] and waiting.held.closed and waiting.nothing_is_left()

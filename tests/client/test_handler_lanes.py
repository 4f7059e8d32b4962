"""Lanes of handlers: who waits behind whom, what comes again, and what counts as handled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from lsmq._handler_lanes import HandlerRun, MessageHandler, Order, QueueProgress
from lsmq._work_in_progress import WorkInProgress
from lsmq.record_batch import Message

ALL = (range(1 << 20),)


class Source:
    """Queues of one topic, by their keys; handed out from where they are, the first queue first."""

    def __init__(self, *queues: list[str]) -> None:
        self.queues = [
            [Message("t", queue, offset, 1, b"", key=key) for offset, key in enumerate(keys)]
            for queue, keys in enumerate(queues)
        ]
        self.positions: dict[int, int] = dict.fromkeys(range(len(queues)), 0)
        self.held: set[int] = set()
        self.loops = {"t": self}
        self.buffer = self
        self._news = asyncio.Event()

    def take(self, max_messages: int) -> list[Message]:
        taken: list[Message] = []
        for queue in self.positions.keys() - self.held:
            first = self.positions[queue]
            taken += self.queues[queue][first : first + max_messages - len(taken)]
            self.positions[queue] = min(first + max_messages, len(self.queues[queue])) if taken else first
            if taken:
                self.positions[queue] = taken[-1].offset + 1
                break
        return taken

    async def ready(self) -> None:
        self._news.clear()
        await self._news.wait()

    def wake(self) -> None:
        self._news.set()

    def hand_back(self, offsets: Mapping[int, int]) -> None:
        for queue, offset in offsets.items():
            assert offset < self.positions[queue]
            self.positions[queue] = offset
        self.wake()

    def share(self, queue: int) -> int:
        return queue

    def hold(self, queue: int) -> None:
        self.held.add(queue)

    def release(self, queue: int) -> None:
        self.held.remove(queue)
        self.wake()


def run_of(source: Source, handler: MessageHandler, *, order: Order = "key", concurrency: int = 2) -> HandlerRun:
    return HandlerRun(
        source, WorkInProgress(), handler, concurrency=concurrency, order=order, look=lambda: None, cancel=False
    )


@pytest.mark.virtual_time
async def test_who_is_stuck_holds_up_its_own_lane_and_all_is_handled_once_when_it_is_done() -> None:
    source, go_on = Source(["stuck", "fine"] * 150, ["other"] * 10), asyncio.Event()
    handled: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        if (message.queue, message.offset) == (0, 0):
            await go_on.wait()
        handled.append((message.queue, message.offset))

    run = run_of(source, handle)
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    assert {place for place in handled if place[0]} == {(1, offset) for offset in range(10)}
    assert source.held == {0} and run.unfinished("t") == {0: 0}
    go_on.set()
    await asyncio.sleep(10)
    assert len(handled) == 310 and len(set(handled)) == 310
    for key in (0, 1):
        offsets = [offset for queue, offset in handled if queue == 0 and offset % 2 == key]
        assert offsets == sorted(offsets)
    assert not source.held and not run.unfinished("t") and not run._lanes and not run._progress
    run.stop()
    await running


@pytest.mark.virtual_time
async def test_what_a_handler_raised_at_comes_again_and_nothing_behind_it_is_handled() -> None:
    source, handled = Source(["a"] * 5), list[int]()

    def handle(message: Message) -> None:
        if message.offset == 2:
            raise ValueError("not this one")
        handled.append(message.offset)

    with pytest.raises(ValueError, match="not this one"):
        await run_of(source, handle).run(None)
    assert handled == [0, 1] and source.positions == {0: 2}


@pytest.mark.virtual_time
async def test_a_handler_that_gives_up_its_own_queue_comes_to_its_end_and_counts_no_more() -> None:
    source, ended = Source(["a"] * 3), list[int]()

    async def handle(message: Message) -> None:
        run.forget("t", ALL)
        await asyncio.sleep(1)
        ended.append(message.offset)

    run = HandlerRun(source, WorkInProgress(), handle, concurrency=1, order="queue", look=lambda: None)
    source.queues[0] = source.queues[0][:1]
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    assert ended == [0] and not run.unfinished("t")
    run.stop()
    await running


@pytest.mark.virtual_time
async def test_nobody_waits_for_what_counts_no_more_and_who_gave_a_queue_away_does_not_resume_it() -> None:
    source, go_on = Source(["stuck"] * 300, ["other"]), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.queue == 0:
            await go_on.wait()

    run = run_of(source, handle)
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    assert source.held == {0}
    run.forget("t", (range(1),))
    async with asyncio.timeout(1):
        await run.let_go("t", (range(1),))
    source.held.clear()  # by whoever gave it away: it would be released twice
    go_on.set()
    await asyncio.sleep(10)
    run.stop()
    await running


def test_a_message_that_was_put_back_and_is_gone_holds_up_no_commit() -> None:
    progress = QueueProgress()
    assert [progress.take(offset) for offset in (0, 1, 2)] == [True] * 3
    progress.handle(1)
    progress.put_back(0)
    progress.put_back(2)
    assert progress.first == 0
    assert not progress.take(1), "it was handled"
    assert progress.first == 2, "retention was faster"
    assert progress.take(2) and not progress.take(2)
    progress.handle(2)
    assert progress.first is None


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["stop", "let go"])
async def test_what_lies_before_others_that_were_handled_is_handled_before_a_queue_goes(how: str) -> None:
    source, go_on = Source(["slow", "slow", "fine", "slow", "fine", "slow"], ["slow"]), asyncio.Event()
    handled: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0 if message.key == "fine" else 1)
        if (message.queue, message.offset) == (0, 0):
            await go_on.wait()
        handled.append((message.queue, message.offset))

    run = run_of(source, handle)
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    assert handled == [(0, 2), (0, 4)] and run.unfinished("t") == {0: 0, 1: 0}
    source.hold(0)  # as whoever is to give it up does
    going = asyncio.create_task(run.let_go("t", (range(1),)))
    if how == "stop":
        run.stop()
    await asyncio.sleep(10)
    assert not going.done() and not running.done()
    go_on.set()
    await going
    assert [place for place in handled if place[0] == 0] == [(0, offset) for offset in (2, 4, 0, 1, 3)]
    assert source.positions[0] == 5 and run.unfinished("t").get(0, 5) == 5
    run.stop()
    await running
    assert source.positions == {0: 5, 1: 0 if how == "stop" else 1}


@pytest.mark.virtual_time
async def test_nobody_waits_for_what_is_left_before_others_once_it_is_put_back_or_a_handler_fails() -> None:
    source, fails = Source(["slow", "slow", "fine"]), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.key == "slow":
            await fails.wait()
            raise ValueError("slow")

    run = run_of(source, handle)
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    first = asyncio.create_task(run.let_go("t", ALL))
    await asyncio.sleep(10)
    assert not first.done()
    fails.set()
    await first
    with pytest.raises(ValueError, match="slow"):
        await running
    assert run.unfinished("t") == {0: 0} and source.positions == {0: 0}

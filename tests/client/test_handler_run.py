"""A run of handlers comes to its end, whatever happens to them in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

import pytest

from lsmq import Client, ConnectionFailed, Consumer, PushConsumer
from lsmq._handler_lanes import HandlerRun
from lsmq._work_in_progress import WorkInProgress
from lsmq.record_batch import Message

pytestmark = pytest.mark.virtual_time


class Source:
    """Messages of one topic, handed out once; itself as buffer and as queues."""

    def __init__(self, *queues: int) -> None:
        self.waiting = [Message("t", queue, offset, 1, b"") for queue in queues for offset in range(5)]
        self.positions: Mapping[int, int] = dict.fromkeys(queues, 5)
        self.loops = {"t": self}
        self.buffer = self

    def take(self, max_messages: int) -> list[Message]:
        taken, self.waiting = self.waiting[:max_messages], self.waiting[max_messages:]
        return taken

    async def ready(self) -> None:
        await asyncio.Event().wait()

    def wake(self) -> None: ...

    def hand_back(self, offsets: Mapping[int, int]) -> None: ...

    def share(self, queue: int) -> int:
        return queue

    def hold(self, queue: int) -> None: ...

    def release(self, queue: int) -> None: ...


def _run_of(source: Source, handler: Callable[[Message], object]) -> HandlerRun:
    return HandlerRun(source, WorkInProgress(), handler, concurrency=1, order="queue", look=lambda: None)


@pytest.mark.parametrize("at_once", [True, False])
async def test_who_cancels_it_while_a_handler_is_cancelled_for_its_queue_is_obeyed(at_once: bool) -> None:
    handled: list[int] = []

    async def handle(message: Message) -> None:
        handled.append(message.queue)
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)  # as when a transaction is rolled back

    run = _run_of(Source(0, 1), handle)
    running = asyncio.create_task(run.run(None))
    await asyncio.sleep(10)
    run.forget("t", (range(1),))  # The member has lost the queue.
    if not at_once:
        await asyncio.sleep(0.5)
    running.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled() and handled == [0], "nothing more is begun"


@pytest.mark.parametrize("what", ["consumer", "alone", "push"])
async def test_who_starts_for_ever_is_off_when_it_is_closed(what: str) -> None:
    client = Client("http://127.0.0.1:7600")
    asked = asyncio.Event()

    async def refused(*_: object, **__: object) -> NoReturn:
        asked.set()
        await asyncio.sleep(0.1)
        raise ConnectionFailed("nobody is there", sent=False)

    client._transport.request = refused  # type: ignore[method-assign]
    group = None if what == "alone" else "g"
    consumer: Consumer | PushConsumer = Consumer(client, "t", group=group)
    if what == "push":
        consumer = PushConsumer(client, "t", group="g")
    running = asyncio.create_task(consumer.run(print))
    reading = asyncio.create_task(anext(consumer, "the end"))
    await asked.wait()
    await asyncio.sleep(10)
    assert not running.done()
    await consumer.close()
    async with asyncio.timeout(1):
        await running
        assert await reading == "the end"
    await client.close()

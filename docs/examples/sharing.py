"""Two workers share the queues of a topic; one goes, and the other takes over where it was.

A queue changes hands when what was being handled of it is finished and committed: nothing is handled twice, and each
queue stays in order.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from lsmq import Client, Consumer, Message, Producer

COUNT = 400


class Worker:
    """``ready`` when the group has given it queues; it works until ``enough``."""

    def __init__(self) -> None:
        self.ready, self.enough = asyncio.Event(), asyncio.Event()


async def work(client: Client, name: str, done: Counter[str], worker: Worker, enough: Callable[[], bool]) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        done[name] += 1
        if enough():
            worker.enough.set()

    def ready(queues: object) -> None:
        worker.ready.set()

    async with Consumer(client, "parcels", group="couriers", static_id=name, on_assigned=ready) as consumer:
        handling = asyncio.create_task(consumer.run(handle, concurrency=4))
        await worker.enough.wait()
        await consumer.close(leave=True)  # Without it, a static id keeps its place for the session.
        await handling


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("parcels", missing_ok=True)
        await client.create_topic("parcels", queues=16)
        done: Counter[str] = Counter()
        ann, bob = Worker(), Worker()

        async with Producer(client, "parcels") as producer, asyncio.TaskGroup() as workers:
            workers.create_task(work(client, "ann", done, ann, lambda: done.total() == COUNT))
            # Bob goes home after some. Ann gets his queues.
            workers.create_task(work(client, "bob", done, bob, lambda: done["bob"] >= COUNT // 8))
            await ann.ready.wait()
            await bob.ready.wait()
            for number in range(COUNT):
                await producer.send(f"parcel {number}", key=f"street {number % 40}")

        committed = await client.committed_offsets("couriers", "parcels")
        print(f"{done['ann']} parcels by Ann, {done['bob']} by Bob, {sum(committed.values())} committed")
        assert done.total() == sum(committed.values()) == COUNT
        assert done["ann"] >= COUNT // 2 and done["bob"] >= COUNT // 8


asyncio.run(main())

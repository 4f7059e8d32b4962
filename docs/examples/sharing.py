"""Two workers share the queues of a topic; one goes, and the other takes over where it was.

A queue changes hands when what was being handled of it is finished and committed: nothing is handled twice, and each
queue stays in order.
"""

import asyncio
from collections import Counter

from lsmq import Client, Consumer, Message, Producer

COUNT = 400


async def work(client: Client, name: str, done: Counter[str], enough: asyncio.Event) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        done[name] += 1
        if done.total() == COUNT:
            enough.set()

    async with Consumer(client, "parcels", group="couriers", static_id=name) as consumer:
        handling = asyncio.create_task(consumer.run(handle, concurrency=4))
        await enough.wait()
        await consumer.close(leave=True)  # Without it, a static id keeps its place for the session.
        await handling


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("parcels", missing_ok=True)
        await client.create_topic("parcels", queues=16)
        done: Counter[str] = Counter()
        enough, home_time = asyncio.Event(), asyncio.Event()

        async with Producer(client, "parcels") as producer, asyncio.TaskGroup() as workers:
            workers.create_task(work(client, "ann", done, enough))
            workers.create_task(work(client, "bob", done, home_time))
            for number in range(COUNT):
                if number == COUNT // 2:
                    await producer.flush()
                    home_time.set()  # Bob goes home. Ann gets his queues.
                await producer.send(f"parcel {number}", key=f"street {number % 40}")

        committed = await client.committed_offsets("couriers", "parcels")
        print(f"{done['ann']} parcels by Ann, {done['bob']} by Bob, {sum(committed.values())} committed")
        assert done.total() == sum(committed.values()) == COUNT


asyncio.run(main())

"""Who comes first in a work queue: the urgent before the others, and no tenant before its turn."""

import asyncio

from lsmq import Client, Producer, WorkQueue


async def taken(work: WorkQueue, count: int) -> list[str]:
    """The bodies of the next messages, which are done with then."""
    found: list[str] = []
    while len(found) < count:
        for task in await work.poll(count - len(found)):
            found.append(task.text())
            await task.ack()
    return found


async def main() -> None:
    async with Client() as client:
        for name in ("alarms", "renders"):
            await client.delete_topic(name, missing_ok=True)
            await client.create_topic(name)

        # By priority: 0 to 255, the higher ones first, in the order in which they came.
        async with Producer(client, "alarms") as producer:
            for number in range(1_000):
                await producer.send(f"note {number}")
            await producer.send("fire", priority=255)
            await producer.send("smoke", priority=200)
            await producer.flush()
        async with WorkQueue(client, "alarms", "desk", order="priority", max_messages=1) as work:
            await work.configure(order="priority")
            print(await taken(work, 4))

        # In turns: whoever has a thousand jobs waiting costs who has one a turn, and a weight gives more of them.
        async with Producer(client, "renders") as producer:
            for number in range(1_000):
                await producer.send(f"studio {number}", tag="studio")
            for number in range(2):
                await producer.send(f"student {number}", tag="student")
            await producer.flush()
        async with WorkQueue(client, "renders", "farm", max_messages=1) as work:
            await work.configure(fair_by="tag", weights={"studio": 2})
            print(await taken(work, 6))


asyncio.run(main())

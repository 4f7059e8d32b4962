"""One queue that is kept longer than the others: limits of its own, by its name."""

import asyncio

from lsmq import Client, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("sessions", missing_ok=True)
        await client.create_topic("sessions", queues="named", retention_messages=5)
        await client.declare_queue("sessions", "audit")
        await client.alter_queue("sessions", "audit", retention_messages="unlimited")
        async with Producer(client, "sessions") as producer:
            for number in range(20):
                for name in ("ann", "bob", "audit"):
                    await producer.send(f"{number}", queue=name)
            await producer.flush()

        counts: dict[str, int] = {}
        while counts != {"ann": 5, "audit": 20, "bob": 5}:  # the others go in the background
            counts = {queue.name: queue.count for queue in await client.queues("sessions")}
            await asyncio.sleep(0.2)
        print(counts, await client.queue_options("sessions", "audit"))


asyncio.run(main())

"""Messages that are worth nothing after a while: not delivered then, and moved to another topic where somebody asks."""

import asyncio

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:
        for name in ("kitchen", "kitchen.late"):
            await client.delete_topic(name, missing_ok=True)
        await client.create_topic("kitchen.late", queues=64)
        await client.create_topic("kitchen", expired_to="kitchen.late")
        async with Producer(client, "kitchen") as producer:
            await producer.send("soup, while it is hot", ttl_ms=1)
            await producer.send("cake, for a week", ttl_ms=7 * 86_400_000)
            await producer.send("the recipe, for ever")
            await producer.flush()

        # What has expired is moved within about a second. It says where it was, and why.
        async with Consumer(client, "kitchen.late") as late:
            (letter,) = await late.poll(1)
            print(f"too late: {letter.text()} ({letter.properties['lsmq-dlq-reason']})")
        async with Consumer(client, "kitchen") as consumer:
            for _ in range(2):
                (message,) = await consumer.poll(1)
                print(f"served: {message.text()}, {'expires' if message.expires_ms else 'keeps'}")


asyncio.run(main())

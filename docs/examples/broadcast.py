"""Every member gets every message, and remembers for itself how far it is."""

import asyncio

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("prices", missing_ok=True)
        await client.create_topic("prices", queues=4)
        async with Producer(client, "prices") as producer:
            await (await producer.send_many(f"{number}" for number in range(50)))

        for shop in ("north", "south"):
            async with Consumer(client, "prices", group="shops", mode="broadcast", static_id=shop) as consumer:
                got = 0
                while got < 50:
                    got += len(await consumer.poll())
                await consumer.commit()
            committed = await client.committed_offsets(f"shops/{shop}", "prices")
            print(f"{shop}: {got} prices, {sum(committed.values())} committed")
            assert sum(committed.values()) == 50


asyncio.run(main())

"""A topic as a table: the last message of each key is kept, looked up, and found with those before it."""

import asyncio

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("prices", missing_ok=True)
        await client.create_topic("prices", queues=8, cleanup="compact")
        async with Producer(client, "prices") as producer:
            for price in (41, 42, 43):
                await producer.send(f"{price}", key="LSMQ")
                await producer.send(f"{price + 100}", key="GONE")
            await producer.send(b"", key="GONE", delete=True)
            await producer.flush()

        latest = await client.latest("prices", "LSMQ")
        print("now:", latest.text() if latest else None)
        print("gone:", await client.latest("prices", "GONE"))
        newest, *_ = (await client.find_messages("prices", "LSMQ", limit=10)).messages
        print("the newest found first:", newest.text())

        # Whoever reads along has a table of its own: what a deletion takes out of it, too.
        table: dict[str, str] = {}
        async with Consumer(client, "prices", start="earliest") as consumer:
            while table != {"LSMQ": "43"}:
                for message in await consumer.poll():
                    if message.delete:
                        table.pop(str(message.key), None)
                    else:
                        table[str(message.key)] = message.text()
        print("read along:", table)


asyncio.run(main())

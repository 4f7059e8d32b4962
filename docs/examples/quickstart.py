"""Send a few messages and read them back.

Run a node first (`lsmq serve --data ./data`), then `python docs/examples/quickstart.py`.
"""

import asyncio

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:  # LSMQ_URL, or http://127.0.0.1:7600
        await client.create_topic("quickstart", queues=16)

        async with Producer(client, "quickstart") as producer:
            sent = await producer.send_and_wait("one pizza", key="table 7", tag="order")
            print(f"stored in queue {sent.queue} at offset {sent.offset}, id {sent.id}")

        async with Consumer(client, "quickstart", start={sent.queue: sent.offset}) as consumer:
            async for message in consumer:
                print(f"{message.text()} for {message.key!r}")
                if message.id == sent.id:
                    break


asyncio.run(main())

"""Two producers of a group: the second goes on where the first stopped, and each message is stored once.

Run a node first (`lsmq serve --data ./data`), then `python docs/examples/producer_group.py`.
"""

import asyncio
import uuid

from lsmq import Client, GroupProducer, ProducerFenced

OUTBOX = [f"invoice {number}" for number in range(1, 101)]


async def main() -> None:
    topic = f"invoices-{uuid.uuid4().hex[:8]}"
    async with Client() as client:
        await client.create_topic(topic, queues=4)

        first = GroupProducer(client, topic, "billing")
        receipts = [await first.send(body, position=position) for position, body in enumerate(OUTBOX[:60])]
        for receipt in receipts:
            await receipt
        print("the first one sent 60, and hangs")

        async with GroupProducer(client, topic, "billing") as second:
            begin = second.last_acknowledged()
            assert begin is not None
            print(f"the second one goes on, and knows that all up to {begin} are stored")
            for position, body in enumerate(OUTBOX):
                await second.send(body, position=position)  # From the beginning: what is there is passed over.

        try:
            await (await first.send("too late", position=1_000))
        except ProducerFenced:
            print("the first one wakes up, and is told that another one has gone on")
        await first.abort()
        print(f"{sum((await client.offsets(topic)).latest)} messages are stored")
        await client.delete_topic(topic)


asyncio.run(main())

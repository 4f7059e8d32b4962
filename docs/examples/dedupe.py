"""Send the same orders twice, as a program does that was killed and begins anew: each is stored once.

Run a node first (`lsmq serve --data ./data`), then `python docs/examples/dedupe.py`.
"""

import asyncio
import uuid

from lsmq import Client, Producer

ORDERS = {"order-1": "one pizza", "order-2": "two pizzas", "order-3": "no pizza"}


async def send_all(client: Client, topic: str) -> int:
    """Send every order; returns how many had been there before."""
    async with Producer(client, topic) as producer:
        receipts = [await producer.send(body, dedupe_id=number) for number, body in ORDERS.items()]
        return sum([(await receipt).duplicate for receipt in receipts])


async def main() -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    async with Client() as client:
        await client.create_topic(topic, queues=8, dedupe_window_ms="forever")
        print(f"the first time {await send_all(client, topic)} of {len(ORDERS)} were there before")
        print(f"the second time {await send_all(client, topic)} of {len(ORDERS)} were there before")
        offsets = await client.offsets(topic)
        print(f"{sum(offsets.latest)} messages are stored")
        await client.delete_topic(topic)


asyncio.run(main())

"""Ask for prices, and answer: a request waits for its reply, whoever answers it and wherever that runs.

Run a node first (`lsmq serve --data ./data`), then `python docs/examples/request_reply.py`.
"""

import asyncio
import uuid

from lsmq import Client, Consumer, Forbidden, InvalidRequest, QuotaExceeded, UnknownQueue, UnknownTopic

TOPIC = f"prices-{uuid.uuid4().hex[:8]}"


async def answer(ready: asyncio.Event) -> None:
    """What a service does: for ever, and in as many processes as there is work for, as members of a group."""
    async with Client() as client, Consumer(client, TOPIC, group="till") as consumer:
        ready.set()
        async for message in consumer:
            price = f"{message.text()}: {7 * len(message.text())} euros"
            try:
                await client.reply(message, price)
            except (UnknownTopic, UnknownQueue, Forbidden, InvalidRequest, QuotaExceeded) as error:
                print(f"nobody is told {price!r}: {error}")  # The same would come of it again.
            await consumer.commit()


async def main() -> None:
    async with Client() as client:
        await client.create_topic(TOPIC, queues=16)
        ready = asyncio.Event()
        service = asyncio.create_task(answer(ready))
        await ready.wait()
        asked = [client.request(TOPIC, dish, timeout_ms=20_000) for dish in ("pizza", "soup", "cake")]
        for reply in await asyncio.gather(*asked):
            print(reply.text())
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


asyncio.run(main())

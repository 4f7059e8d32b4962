"""Read again what was stored since a moment, one message by its id, and those of a key."""

import asyncio
from datetime import UTC, datetime

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("audit", missing_ok=True)
        await client.create_topic("audit", queues=4)
        async with Producer(client, "audit", linger_ms=0) as producer:
            await (await producer.send_many(["before 1", "before 2"]))
            await asyncio.sleep(0.05)
            moment = datetime.now(UTC)
            await asyncio.sleep(0.05)
            sent = await (await producer.send_many(["after 1", "after 2", "after 3"]))

        async with Consumer(client, "audit", start=moment) as consumer:
            bodies: list[str] = []
            while len(bodies) < 3:
                bodies += [message.text() for message in await consumer.poll()]
        print(f"since {moment:%H:%M:%S}: {sorted(bodies)}")
        assert sorted(bodies) == ["after 1", "after 2", "after 3"]

        message = await client.message(sent[0].id)
        print(f"{message.id} is {message.text()!r} in queue {message.queue}")

        async with Producer(client, "audit", linger_ms=0) as producer:
            for step in ("paid", "packed", "sent"):
                await producer.send_and_wait(f"order 7: {step}", key="order 7")
        found = await client.find_messages("audit", "order 7", from_time=moment, limit=2)
        print("newest first:", [message.text() for message in found.messages])
        assert [message.text() for message in found.messages] == ["order 7: sent", "order 7: packed"]


asyncio.run(main())

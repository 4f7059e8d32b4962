"""Pick messages by type and by a condition, and let some expire."""

import asyncio

from lsmq import Client, Consumer, Group, InvalidFilter, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("payments", missing_ok=True)
        await client.create_topic("payments", queues=4)
        async with Producer(client, "payments") as producer:
            for number in range(100):
                await producer.send(
                    f"payment {number}",
                    type="refund" if number % 10 == 0 else "charge",
                    properties={"region": "eu" if number % 2 == 0 else "us", "amount": str(number * 5)},
                )
            await producer.send("gone in a moment", type="refund", ttl_ms=1)

        await asyncio.sleep(0.05)
        condition = "region = 'eu' AND amount BETWEEN 100 AND 400"
        async with Consumer(
            client, "payments", group="refunds", wait_ms=100, type="refund", filter=condition
        ) as consumer:
            found: list[str] = []
            while messages := await consumer.poll(timeout_ms=1_000):
                found += [message.text() for message in messages]
            await consumer.commit()  # also past what was not picked
        print(f"{len(found)} of 101 messages: {', '.join(sorted(found))}")
        assert len(found) == 7
        assert (await Group(client, "refunds").lag("payments")).lag == 0

        try:
            Consumer(client, "payments", filter="amount >")
        except InvalidFilter as error:
            print(error)


asyncio.run(main())

"""What a topic keeps, and what happens at its limits: rings, refusal, and messages that go once they are read."""

import asyncio

from lsmq import Client, Consumer, Producer, TimedOut


async def main() -> None:
    async with Client() as client:
        for name in ("positions", "jobs", "mail"):
            await client.delete_topic(name, missing_ok=True)

        # The latest three positions of each vehicle: the oldest make room in the same step.
        await client.create_topic("positions", queues=1_000, queue_max_messages=3, overflow="drop_oldest")
        async with Producer(client, "positions") as producer:
            for number in range(10):
                await producer.send_and_wait(f"position {number}", queue=7)
        bounds = await client.offsets("positions", [7])
        usage = await client.topic_usage("positions")
        print(f"{bounds.latest[0] - bounds.earliest[0]} kept, {usage.dropped['overflow']} made room")

        # Jobs wait at the producer when there are too many.
        await client.create_topic("jobs", max_messages=2)
        async with Producer(client, "jobs", deadline_ms=500) as producer:
            await (await producer.send_many(["one", "two"]))
            try:
                await producer.send_and_wait("three")
            except TimedOut as error:
                print("full:", "max_messages" in error.message)
        async with Producer(client, "jobs") as producer:
            waiting = await producer.send("three")
            await client.alter_topic("jobs", max_messages=100)
            await waiting

        # Mail goes when all who read it have.
        await client.create_topic("mail", delete_consumed=True)
        async with Producer(client, "mail") as producer:
            await (await producer.send_many(["hello", "goodbye"]))
        async with Consumer(client, "mail", group="reader") as consumer:
            await consumer.poll(2)
            await consumer.commit()
        print("to be read by nobody else:", (await client.topic_usage("mail")).groups == ("reader",))


asyncio.run(main())

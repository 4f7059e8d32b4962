"""A queue for each agent, by its name: nobody makes it before, and nobody keeps a table of numbers."""

import asyncio

from lsmq import Client, Consumer, Producer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("agents", missing_ok=True)
        await client.create_topic("agents", queues="named")
        async with Producer(client, "agents") as producer:
            for agent in range(1_000):
                await producer.send(f"look around, {agent}", queue=f"agents.{agent}.inbox")
                await producer.send("nothing yet", queue=f"agents.{agent}.outbox")
            await producer.flush()

            # What one agent is told; the queue need not be there yet.
            async with Consumer(client, "agents", queues=["agents.7.inbox"]) as inbox:
                print((await inbox.poll(1))[0].text())

            # What all agents say, and those that come later.
            async with Consumer(client, "agents", pattern="agents.*.outbox", start="latest") as outboxes:
                await producer.send("I am new here", queue="agents.newcomer.outbox")
                (said,) = await outboxes.poll(1)
                print(f"{said.queue_name}: {said.text()}")

        # Workers that give the same pattern share the queues that match it; each queue stays in order.
        async with Consumer(client, "agents", group="agent-workers", pattern="agents.*.inbox") as worker:
            handled = 0
            while handled < 1_000:
                handled += len(await worker.poll(1000))
            await worker.commit()
            print(f"{handled} messages handled")

        found = await client.queues("agents", prefix="agents.99", limit=3)
        print(", ".join(f"{queue.name} has {queue.count}" for queue in found))
        await client.delete_queue("agents", "agents.7.inbox")
        await client.delete_topic("agents")


asyncio.run(main())

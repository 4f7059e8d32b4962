"""The broker sends: two workers share a topic, each is sent no more than it has credit for."""

import asyncio
from collections import Counter

from lsmq import Client, Message, Producer, PushConsumer


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("parcels", missing_ok=True)
        await client.create_topic("parcels", queues=8)
        handled: Counter[str] = Counter()
        workers = [PushConsumer(client, "parcels", group="carriers", credit=50) for _ in range(2)]

        async def work(name: str, worker: PushConsumer) -> None:
            async def deliver(message: Message) -> None:
                await asyncio.sleep(0.001)
                handled[name] += 1  # Returning acknowledges the message.
                if handled.total() == 200:
                    for each in workers:
                        asyncio.get_running_loop().create_task(each.close())

            await worker.run(deliver, concurrency=4)

        for worker in workers:
            await worker.start()
        async with Producer(client, "parcels", linger_ms=0) as producer:
            for number in range(200):
                await producer.send(f"parcel {number}", queue=number % 8)
        await asyncio.gather(work("anna", workers[0]), work("ben", workers[1]))
        for worker in workers:
            await worker.close()

        committed = await client.committed_offsets("carriers", "parcels")
        print(f"anna handled {handled['anna']} parcels, ben {handled['ben']}; {sum(committed.values())} are committed")
        assert handled.total() == sum(committed.values()) == 200


asyncio.run(main())

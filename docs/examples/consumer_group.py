"""A worker that survives its own failures: it commits what it has handled, and starts again from there.

Delivery is at least once. What a worker had handled and not yet committed when it broke comes again, so it
makes handling twice harmless: here, by remembering the ids it has seen.
"""

import asyncio

from lsmq import Client, Consumer, Message, Producer

COUNT = 100


class Worker:
    def __init__(self) -> None:
        self.handled: set[str] = set()
        self.failures_left = 1

    async def work(self, consumer: Consumer) -> None:
        async def handle(message: Message) -> None:
            self.handle(message)
            if len(self.handled) == COUNT:
                await consumer.close()  # Enough for an example.

        await consumer.run(handle, concurrency=4)

    def handle(self, message: Message) -> None:
        if message.id in self.handled:
            return
        if self.failures_left and len(self.handled) == COUNT // 2:
            self.failures_left -= 1
            raise ConnectionError("the oven does not answer")
        self.handled.add(message.id)


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("kitchen", missing_ok=True)
        await client.create_topic("kitchen", queues=8)
        async with Producer(client, "kitchen") as producer:
            await (await producer.send_many(f"pizza {number}" for number in range(COUNT)))

        worker = Worker()
        while len(worker.handled) < COUNT:
            async with Consumer(client, "kitchen", group="cooks") as consumer:
                try:
                    await worker.work(consumer)
                except ConnectionError as error:
                    print(f"failed after {len(worker.handled)} messages ({error}), starting again")

        print(f"handled {len(worker.handled)} messages, each once")
        assert len(worker.handled) == COUNT


asyncio.run(main())

"""An account's bookings stay in order even though the topic is given more queues in the middle.

With strict order a key keeps the queue it has, for ever; the new queues take messages without a key.
"""

import asyncio
from collections import defaultdict

from lsmq import Client, Consumer, Message, Producer

ACCOUNTS = [f"account {number}" for number in range(30)]
BEFORE, AFTER = range(5), range(5, 10)


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("bookings", missing_ok=True)
        await client.create_topic("bookings", queues=4, order="strict")
        seen: dict[str | bytes | None, list[int]] = defaultdict(list)

        async def handle(message: Message) -> None:
            seen[message.key].append(int(message.text()))
            if sum(map(len, seen.values())) == len(ACCOUNTS) * (len(BEFORE) + len(AFTER)):
                await consumer.close()

        consumer = Consumer(client, "bookings", group="ledger")
        async with asyncio.TaskGroup() as tasks, Producer(client, "bookings") as producer:
            tasks.create_task(consumer.run(handle, concurrency=4, order="key"))
            for step in BEFORE:
                await producer.send_many((account, f"{step}") for account in ACCOUNTS)
            topic = await client.grow_topic("bookings", 32)
            for step in AFTER:
                await producer.send_many((account, f"{step}") for account in ACCOUNTS)

        assert all(steps == [*BEFORE, *AFTER] for steps in seen.values())
        print(f"{len(seen)} accounts in order, while 4 queues became {topic.queues}")


asyncio.run(main())

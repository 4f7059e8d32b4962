"""Many messages at a time, and those of one key strictly one after the other, even if they share a queue with others.

The third account hangs for a while: it holds up itself and nobody else.
"""

import asyncio
from collections import defaultdict

from lsmq import Client, Consumer, Message, Producer

ACCOUNTS, STEPS = 20, 10


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("payments", missing_ok=True)
        await client.create_topic("payments", queues=2)
        async with Producer(client, "payments") as producer:
            for step in range(STEPS):
                for account in range(ACCOUNTS):
                    await producer.send(f"{step}", key=f"account {account}")

        seen: dict[str | bytes | None, list[int]] = defaultdict(list)
        others_are_done = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.key == "account 3" and not seen[message.key]:
                await others_are_done.wait()
            seen[message.key].append(int(message.text()))
            if sum(len(steps) for key, steps in seen.items() if key != "account 3") == (ACCOUNTS - 1) * STEPS:
                others_are_done.set()
            if sum(map(len, seen.values())) == ACCOUNTS * STEPS:
                await consumer.close()

        consumer = Consumer(client, "payments", group="bank")
        await consumer.run(handle, concurrency=8, order="key")

        assert len(seen) == ACCOUNTS and all(steps == list(range(STEPS)) for steps in seen.values())
        print(f"{ACCOUNTS} accounts, each in order; the one that hung held up no other")


asyncio.run(main())

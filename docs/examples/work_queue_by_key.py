"""Every key is a queue and a lock: any number of workers, and the messages of an account come one after the other."""

import asyncio
import random
from collections import defaultdict

from lsmq import Client, Producer, Task, WorkQueue

ACCOUNTS, CHANGES = 50, 6


async def main() -> None:
    async with Client() as client:
        for topic in ("changes", "changes.dlq"):
            await client.delete_topic(topic, missing_ok=True)
        await client.create_topic("changes", queues=8)
        async with Producer(client, "changes") as producer:
            for number in range(CHANGES):
                for account in range(ACCOUNTS):
                    await producer.send(f"{number}", key=f"account {account}")
            await producer.flush()

        done = asyncio.Event()
        seen: defaultdict[str, list[str]] = defaultdict(list)
        working: set[str] = set()
        workers = [WorkQueue(client, "changes", "bookkeepers", order="key") for _ in range(3)]
        await workers[0].configure(order="key", retry_first_ms=20)

        async def work(task: Task) -> None:
            account = str(task.message.key)
            assert account not in working, "nobody else has a message of this account"
            working.add(account)
            await asyncio.sleep(random.uniform(0, 0.005))
            working.remove(account)
            if task.deliveries == 1 and random.random() < 0.1:
                await task.nack(reason="the database was busy")  # it comes again, before the next one of its account
                return
            seen[account].append(task.text())
            if sum(map(len, seen.values())) == ACCOUNTS * CHANGES:
                done.set()

        running = [asyncio.create_task(worker.run(work, concurrency=20)) for worker in workers]
        await done.wait()
        for worker in workers:
            await worker.close()
        await asyncio.gather(*running)

        in_order = [f"{number}" for number in range(CHANGES)]
        assert all(changes == in_order for changes in seen.values())
        print(f"{len(seen)} accounts, {CHANGES} changes each, 60 at a time: all in order")


asyncio.run(main())

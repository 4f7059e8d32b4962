"""Jobs for whoever is free: each is acknowledged for itself, and one that always fails becomes a dead letter."""

import asyncio
from collections import Counter

from lsmq import Client, Producer, Task, WorkQueue
from lsmq.dead_letters import DeadLetter, DeadLetters

JOBS = 40


async def main() -> None:
    async with Client() as client:
        for topic in ("jobs", "jobs.dlq"):
            await client.delete_topic(topic, missing_ok=True)
        await client.create_topic("jobs", queues=8)
        await client.create_topic("jobs.dlq", queues=1)
        async with Producer(client, "jobs") as producer:
            await (await producer.send_many(f"job {number}" for number in range(JOBS)))

        done: Counter[str] = Counter()
        workers = [WorkQueue(client, "jobs", "workers") for _ in range(3)]
        await workers[0].configure(max_deliveries=3, retry_first_ms=50)

        async def work(task: Task) -> None:
            if task.text() == "job 13":
                await task.nack(reason="unlucky", delay_ms=20)
                return
            await asyncio.sleep(0.01)
            done[task.text()] += 1

        running = [asyncio.create_task(worker.run(work, concurrency=4)) for worker in workers]
        letters: list[DeadLetter] = []
        while len(done) < JOBS - 1 or not letters:
            await asyncio.sleep(0.1)
            letters = [letter async for letter in DeadLetters(client, "jobs.dlq").read()]
        for worker in workers:
            await worker.close()
        await asyncio.gather(*running)

        (letter,) = letters
        print(f"{len(done)} jobs done; {letter.message.text()} failed {letter.deliveries} times: {letter.reason}")
        assert set(done.values()) == {1}


asyncio.run(main())

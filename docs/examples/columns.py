"""Send many small messages, and add up what they say by queue, without making an object of each."""

import asyncio

import numpy as np

from lsmq import Client, Consumer, Producer

COUNT, QUEUES = 20_000, 16


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("readings", missing_ok=True)
        await client.create_topic("readings", queues=QUEUES)
        async with Producer(client, "readings") as producer:
            readings = np.arange(COUNT, dtype="<i8")
            sent = await (await producer.send_batch(readings, lengths=8, queues=readings % QUEUES))
            assert sent.offsets.max() == COUNT // QUEUES - 1

        sums, read = np.zeros(QUEUES, np.int64), 0
        async with Consumer(client, "readings", max_messages=100_000) as consumer:
            while read < COUNT:
                batch = await consumer.poll_batch()
                assert batch is not None
                payload = np.frombuffer(batch.payload, np.uint8)
                # Eight bytes of each row, gathered at once.
                values = payload[batch.starts[:, None] + np.arange(8)].view("<i8")[:, 0]
                np.add.at(sums, batch.queues, values)
                read += len(batch)
        print(f"{read} readings in {QUEUES} queues, in sum {sums.sum()}")
        assert sums.tolist() == [sum(range(queue, COUNT, QUEUES)) for queue in range(QUEUES)]


asyncio.run(main())

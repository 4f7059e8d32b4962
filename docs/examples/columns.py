"""Add up what many small messages say, by queue, without making an object of each."""

import asyncio
import struct

import numpy as np

from lsmq import Client, Consumer, Producer

COUNT, QUEUES = 20_000, 16


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("readings", missing_ok=True)
        await client.create_topic("readings", queues=QUEUES)
        async with Producer(client, "readings") as producer:
            for queue in range(QUEUES):
                values = range(queue, COUNT, QUEUES)
                await producer.send_many([struct.pack("<q", value) for value in values], queue=queue)

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

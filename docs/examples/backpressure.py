"""What a producer does when it is fed faster than the node can store: wait, or refuse."""

import asyncio

from lsmq import BufferFull, Client, Producer


async def main() -> None:
    async with Client() as client:
        await client.create_topic("firehose", queues=64)
        body = b"x" * 1000

        # send() waits while 256 KiB are under way, so memory stays bounded whatever comes in.
        async with Producer(client, "firehose", batch_bytes=64 << 10, max_buffer_bytes=256 << 10) as producer:
            most_bytes = 0
            for _ in range(5000):
                await producer.send(body)
                most_bytes = max(most_bytes, producer.buffered_bytes)
            await producer.flush()
        print(f"sent 5000 messages, never more than {most_bytes} bytes waiting")
        assert most_bytes <= 256 << 10

        # send_nowait() never waits: the caller decides what to drop.
        dropped = 0
        async with Producer(client, "firehose", batch_bytes=64 << 10, max_buffer_bytes=256 << 10) as producer:
            for _ in range(1000):
                try:
                    producer.send_nowait(body)
                except BufferFull:
                    dropped += 1
        print(f"dropped {dropped} of 1000 messages")
        assert dropped > 0


asyncio.run(main())

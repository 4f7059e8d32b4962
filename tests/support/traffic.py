"""Messages that come and go while a test does something to a cluster."""

from __future__ import annotations

import asyncio

from lsmq import Client, Consumer, Message, Producer, Sent

QUEUES = 12


class Traffic:
    """One producer and one consumer of a topic, each with a client of its own, until told to stop."""

    def __init__(self, topic: str, sending: Client, reading: Client) -> None:
        self.topic = topic
        self.receipts: list[Sent] = []
        self.messages: list[Message] = []
        self._sending = sending
        self._reading = reading
        self._progress = asyncio.Condition()
        self._stop = self._sent_all = False
        self._committed: dict[int, int] = {}

    async def run(self, group: asyncio.TaskGroup) -> None:
        await self._sending.create_topic(self.topic, queues=QUEUES)
        self._tasks = [group.create_task(self._produce()), group.create_task(self._consume())]

    async def _produce(self) -> None:
        async with Producer(self._sending, self.topic, linger_ms=1, batch_bytes=4000) as producer:
            while not self._stop:
                start = len(self.receipts)
                receipts = [await producer.send(f"{start + n}", queue=(start + n) % QUEUES) for n in range(60)]
                for receipt in receipts:
                    self.receipts.append(await receipt)
                async with self._progress:
                    self._progress.notify_all()
        self._sent_all = True
        assert (producer.stats.failed, producer.stats.lost_state) == (0, 0)

    async def _consume(self) -> None:
        async with Consumer(self._reading, self.topic, group="readers") as consumer:
            while not self._sent_all or len(self.messages) < len(self.receipts):
                self.messages += await consumer.poll(timeout_ms=100)
                await consumer.commit()
                committed = await self._reading.committed_offsets("readers", self.topic)
                assert all(committed[queue] >= offset for queue, offset in self._committed.items())
                assert committed == {queue: offset for queue, offset in consumer.positions.items() if offset}
                self._committed = committed
                async with self._progress:
                    self._progress.notify_all()

    async def progress(self) -> None:
        """Return once messages that are sent from now on are stored in every queue, and consumed."""
        stored, consumed = len(self.receipts), len(self.messages)
        async with self._progress:
            await self._progress.wait_for(
                lambda: len(self.receipts) >= stored + 300 and len(self.messages) >= consumed + 300
            )

    async def finish(self) -> None:
        """Stop, and check that what was acknowledged was read once, in order, and is where the receipt says."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        found = {(message.queue, message.offset): message for message in self.messages}
        assert len(found) == len(self.messages) == len(self.receipts)
        for number, sent in enumerate(self.receipts):
            assert found[sent.queue, sent.offset].text() == f"{number}"
        for queue in range(QUEUES):
            mine = [message for message in self.messages if message.queue == queue]
            assert [message.offset for message in mine] == list(range(len(mine)))
            numbers = [int(message.text()) for message in mine]
            assert numbers == sorted(numbers)
        message = await self._reading.message(self.receipts[-1].id)
        assert message.text() == f"{len(self.receipts) - 1}"
        assert "readers" in await self._reading.groups()
        async with Consumer(self._reading, self.topic, group="readers") as consumer:
            assert await consumer.poll(timeout_ms=200) == []  # All of it is committed.

"""Reminders: messages that come later. One is cancelled, one is put off, and the rest come when they are due."""

import asyncio
import time

from lsmq import Client, Consumer, DelayedMessages, Producer

BILLS = {"rent": 600, "power": 300, "water": 60_000, "phone": 30_000}


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("reminders", missing_ok=True)
        await client.create_topic("reminders", queues=4)
        async with Producer(client, "reminders") as producer:
            sent = {
                bill: await producer.send_and_wait(bill, key="anna", delay_ms=delay_ms)
                for bill, delay_ms in BILLS.items()
            }

        delayed = DelayedMessages(client, "reminders")
        waiting = [reminder.message.text() async for reminder in delayed.read()]
        await delayed.cancel(sent["water"].id)
        put_off = await delayed.reschedule(sent["phone"].id, delay_ms=1200)
        assert put_off.due_ms is not None

        paid: list[str] = []
        async with Consumer(client, "reminders", start="earliest") as consumer:
            async for message in consumer:
                paid.append(message.text())
                if len(paid) == len(BILLS) - 1:
                    break
        assert paid == ["power", "rent", "phone"]
        assert time.time() * 1000 >= put_off.due_ms
        print(f"{waiting} were waiting; came: {paid}")


asyncio.run(main())

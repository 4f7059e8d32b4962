"""Everything that happens to one aircraft stays in order, however many aircraft and consumers there are.

Messages with the same key share a queue, and a queue keeps its order. Two consumers share the queues; each
sees all events of an aircraft, in the order in which they were sent.
"""

import asyncio
from collections import defaultdict

from lsmq import Client, Consumer, Producer

EVENTS = ["boarding", "taxiing", "took off", "landed"]
AIRCRAFT = [f"N{number}" for number in range(100, 150)]


async def read(client: Client, queues: range, count: int, seen: dict[str | bytes, list[str]]) -> None:
    async with Consumer(client, "aircraft", queues=queues, start="earliest") as consumer:
        while count > 0:
            for message in await consumer.poll():
                assert message.key is not None
                seen[message.key].append(message.text())
                count -= 1


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("aircraft", missing_ok=True)
        topic = await client.create_topic("aircraft", queues=1024)

        async with Producer(client, "aircraft") as producer:
            receipts = await producer.send_many((key, event) for event in EVENTS for key in AIRCRAFT)
            sent = await receipts

        halves = [range(topic.queues // 2), range(topic.queues // 2, topic.queues)]
        seen: dict[str | bytes, list[str]] = defaultdict(list)
        async with asyncio.TaskGroup() as group:
            for queues in halves:
                mine = sum(place.queue in queues for place in sent)
                group.create_task(read(client, queues, mine, seen))

        assert set(seen) == set(AIRCRAFT)
        assert all(events == EVENTS for events in seen.values())
        print(f"{len(seen)} aircraft, {len(sent)} events, each aircraft's in order")


asyncio.run(main())

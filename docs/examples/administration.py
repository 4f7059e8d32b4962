"""Looking after topics and groups: how much there is, how far behind a group is, resetting, trimming, deleting."""

import asyncio

from lsmq import Client, ClusterAdmin, Consumer, Group, Producer, UnknownGroup, UnknownTopic, list_groups


async def main() -> None:
    async with Client() as client:
        await client.delete_topic("ledger", missing_ok=True)
        await client.create_topic("ledger", queues=4, retention_ms=7 * 86_400_000)
        async with Producer(client, "ledger") as producer:
            await (await producer.send_many((f"account {number % 10}", f"entry {number}") for number in range(100)))

        topic = await client.topic("ledger")
        bounds = await client.offsets("ledger")
        kept = sum(latest - earliest for _, earliest, latest in bounds.rows())
        leaders = {route.leader for route in topic.routes}
        print(f"{topic.name}: {kept} messages in {topic.queues} queues, led by {len(leaders)} node")

        group = Group(client, "auditors")
        async with Consumer(client, "ledger", group=group.name) as consumer:
            read = await consumer.poll(60)
            await consumer.commit()
            description = await group.describe()
            lag = await group.lag("ledger")
            print(f"{description.group} is {description.state}: {len(description.members)} member, {lag.lag} to read")
            assert lag.lag == kept - len(read)

        await group.reset("ledger", "earliest")  # also: "latest", a datetime, {queue: offset}
        assert (await group.lag("ledger")).lag == kept
        assert group.name in [found.group for found in await list_groups(client)]

        await client.trim_topic("ledger", dict(zip(bounds.queues, bounds.latest, strict=True)))
        assert (await group.lag("ledger")).lag == 0
        print("trimmed: nothing is left to read")

        await group.delete()
        await client.delete_topic("ledger")
        for gone in (group.describe(), client.topic("ledger")):
            try:
                await gone
            except (UnknownGroup, UnknownTopic) as error:
                print(error.code)

        cluster = await ClusterAdmin(client).overview()
        print(f"{len(cluster.nodes)} node, {len(cluster.shards)} shard")


asyncio.run(main())

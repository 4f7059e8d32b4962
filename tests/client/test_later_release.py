"""A client before nodes of a later release, which say more than it knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsmq import (
    BackupAdmin,
    Client,
    ClusterAdmin,
    Consumer,
    GrantedRole,
    Group,
    Producer,
    PushConsumer,
    Rights,
    Schedules,
    TransactionalProducer,
    WorkQueue,
    list_groups,
)
from lsmq.producer_groups import ProducerGroup, list_producer_groups
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

# Objects whose names are not those of fields.
_MAPS = {"assigned", "options", "properties", "limits", "defaults", "dropped", "weights", "topics", "messages"}


class LaterRelease(FaultProxy):
    """Each object of an answer has a field that nobody has heard of."""

    def _rename(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return super()._rename(value)
        renamed = {name: self._named(field) if name in _MAPS else self._rename(field) for name, field in value.items()}
        return {**renamed, "said_by_later_releases": {"so": "it is"}}

    def _named(self, value: Any) -> Any:
        return (
            {name: self._rename(each) for name, each in value.items()}
            if isinstance(value, dict)
            else super()._rename(value)
        )


async def test_what_a_later_release_adds_to_its_answers_is_passed_over(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(auth="token", backup_to=tmp_path / "backups").start()
    token_file = node.data / "admin.token"
    eventually(token_file.exists, "the first token is written")
    async with (
        LaterRelease(node.url) as proxy,
        Client(proxy.url, token_file=token_file) as client,
        Client(node.url, token_file=token_file) as beside,
    ):
        await client.create_topic("t", queues=4)
        async with Producer(client, "t") as producer:
            await producer.send_and_wait("a", key="k")
        async with Consumer(client, "t", group="g") as consumer:
            assert [message.body for message in await consumer.poll()] == [b"a"]
            await consumer.commit()
            assert [member.queues for member in (await Group(client, "g").describe()).members] == [4]
        async with PushConsumer(beside, "t", group="p") as pushed:
            assert [message.body for message in await pushed.poll()] == [b"a"]
            assert [stream.queues for stream in await Group(client, "p").streams()] == [4]
        async with WorkQueue(client, "t", group="w") as work:
            (task,) = await work.poll()
            assert [held.receipt for held in await work.held()] == [task.receipt]
            assert (await work.describe()).in_flight == 1
            await task.ack()
        assert [found.group for found in await list_groups(client)] == ["g", "p", "w"]
        async with TransactionalProducer(client, "x") as transactional:
            async with transactional.transaction() as transaction:
                await transaction.send("t", b"b")
            assert (await transactional.take("s")).position is None
            assert [found.members for found in await list_producer_groups(client)] == [1]
        assert [found.state for found in await ProducerGroup(client, "x").transactions()] == ["committed"]
        assert [found.body for found in (await client.find_messages("t", "k")).messages] == [b"a"]
        assert (await client.topic_usage("t")).messages > 0 and (await client.top_queues("t")).with_messages > 0

        rights = Rights(client)
        made = await rights.create_token("somebody", roles=[GrantedRole("consumer", "t")])
        assert made.id in [token.id for token in await rights.tokens()]
        assert (await rights.rotate_token("somebody")).name == "somebody"
        assert (await rights.whoami()).roles and await rights.roles() and await rights.grants()
        assert [node.state for node in (await ClusterAdmin(client).overview()).nodes] == ["active"]
        await Schedules(client, "t").put("noon", "0 12 * * *", "x")
        assert [found.name async for found in Schedules(client, "t").read()] == ["noon"]

        backups = BackupAdmin(client)
        await backups.start()

        async def over() -> bool:
            return (await backups.state()).last is not None

        await comes_true(over, "the backup is over")

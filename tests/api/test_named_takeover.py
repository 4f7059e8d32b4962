"""Who reads queues by name at a node that is just taking over one of several shards of their topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from lsmq import Client, Consumer, Producer
from lsmq.errors import Unavailable
from lsmq_node.broker import Broker
from lsmq_node.broker.named_sessions import NamedSessions
from lsmq_node.broker.topology import Leadership
from lsmq_node.cluster.single import LocalShard, SingleNode
from support.group_topic import take

from .in_process import Session, with_node

NAMES = [f"agents.{number}" for number in range(20)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("what", [{"pattern": "**"}, {"queues": NAMES}, {}])
def test_a_consumer_reads_the_shard_that_is_being_taken_over_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: dict[str, Any], start: Literal["earliest", "latest"]
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        asked = asyncio.Event()
        leadership, check, begin = SingleNode.leadership, LocalShard.check_readable, NamedSessions.open

        def taking_over(node: SingleNode, shard: int) -> Leadership:
            return Leadership(None, 1, here=False) if shard == 1 else leadership(node, shard)

        def not_readable(port: LocalShard, **how: Any) -> None:
            if port.number == 1:
                raise Unavailable("shard 1 is being taken over")
            check(port, **how)

        opening = 0

        async def opened(*args: Any) -> Any:
            nonlocal opening
            try:
                return await begin(*args)
            finally:
                opening += 1
                if opening == (2 if start == "latest" else 1):  # At the end it begins a shard at a time.
                    asked.set()

        async with Client(str(session.make_url("/"))) as client:
            await client.create_topic("n", queues="named")
            async with Producer(client, "n") as producer:
                for name in NAMES:
                    await producer.send_and_wait("old", queue=name)
                with monkeypatch.context() as patch:
                    patch.setattr(SingleNode, "leadership", taking_over)
                    patch.setattr(NamedSessions, "open", opened)
                    patch.setattr(LocalShard, "check_readable", not_readable)
                    consumer = Consumer(client, "n", start=start, **what)
                    starting = asyncio.create_task(consumer.start())
                    await asked.wait()
                await starting
                async with consumer:
                    if start == "latest":
                        for name in NAMES:
                            await producer.send_and_wait("new", queue=name)
                    got = [(message.queue_name, message.text()) for message in await take(consumer, len(NAMES))]
        assert sorted(got) == sorted((name, "old" if start == "earliest" else "new") for name in NAMES)

    with_node(tmp_path, test, shards=2, host="0.0.0.0")  # so that the client is told the address that it has

"""Deletions that the client sends again since the answer was lost: what the first attempt has done is done."""

from __future__ import annotations

import pytest

from lsmq import Client, ClusterAdmin, Group, InvalidRequest, Schedules, UnknownQueue, UnknownSchedule
from support.fault_proxy import FaultProxy
from support.named_topic import NAMES, named
from support.node_process import NodeProcess


async def test_what_was_deleted_when_the_answer_was_lost_is_deleted(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        named(shared_node, topic_name),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
    ):
        schedules = Schedules(client, topic_name)
        await schedules.put("s", "0 0 * * *", "x", queue=NAMES[1])
        group = Group(client, topic_name)
        await group.declare("work_queue")
        proxy.lose_answers(NAMES[0])
        await client.delete_queue(topic_name, NAMES[0])
        proxy.lose_answers("s")
        await schedules.delete("s")
        proxy.lose_answers(topic_name)
        await group.delete()
        assert proxy.requests[NAMES[0]] == proxy.requests["s"] - 1 == 2
        with pytest.raises(UnknownQueue):
            await client.delete_queue(topic_name, NAMES[0])
        with pytest.raises(UnknownSchedule):
            await schedules.delete("s")
        proxy.lose_answers(topic_name)
        await client.delete_topic(topic_name)


async def test_what_was_called_off_when_the_answer_was_lost_is_called_off(shared_node: NodeProcess) -> None:
    """As a cluster answers the second time; the node here is none, and what it answers is lost."""
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        admin = ClusterAdmin(client)

        def says(ending: str, reason: str) -> None:
            proxy.refuse(ending, 400, {"code": "invalid_request", "message": "it is not", "reason": reason})

        for ending, reason, undo in (
            ("n9", "unknown_node", admin.remove),
            ("replace", "no_change", admin.keep_voter),
            ("replace", "replaced", lambda node: admin.replace_voter(node, "n1")),
        ):
            proxy.lose_answers(ending)
            says(ending, reason)
            await undo("n9")
            says(ending, reason)  # Without another attempt before.
            with pytest.raises(InvalidRequest, match="it is not"):
                await undo("n9")
            proxy.lose_answers(ending)
            says(ending, "holds_replicas")
            with pytest.raises(InvalidRequest, match="it is not"):
                await undo("n9")

"""Dead letters of work on queues by name, in a node of the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from lsmq_node.broker import Broker
from support.waiting import comes_true

from .in_process import Session, node_of, with_node


def test_a_queue_is_not_said_to_be_that_of_a_dead_letter_whose_number_it_was_given(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        names_of, begun = broker.names.names_of, list[bool]()

        async def send(name: str) -> None:
            document = {"messages": [{"queue": name, "body": name}]}
            assert (await session.post("/v1/topics/n/messages", json=document)).status == 200

        async def moved_on(*given: Any) -> Any:
            (work,) = node_of(session).work.shards()
            if work.figures()["dead"] and not begun:
                begun.append(True)
                assert (await session.delete("/v1/topics/n/queues/theirs")).status == 204
                await send("other")
            return await names_of(*given)

        async def letters() -> list[dict[str, Any]]:
            answer = await session.get("/v1/topics/n.dlq/queues/0/messages")
            found: list[dict[str, Any]] = (await answer.json())["messages"] if answer.status == 200 else []
            return found

        async def is_there() -> bool:
            return bool(await letters())

        async def refuse() -> None:
            popped = await session.post("/v1/groups/g/pop", json={"topic": "n"})
            receipts = [message["receipt"] for message in (await popped.json())["messages"]]
            document = {"topic": "n", "receipts": receipts, "dead_letter": True}
            assert (await session.post("/v1/groups/g/nack", json=document)).status == 200

        await session.put("/v1/topics/n", json={"queues": "named"})
        await send("theirs")
        with patch.object(broker.names, "names_of", moved_on):
            await refuse()
            (work,) = node_of(session).work.shards()
            await comes_true(lambda: not work.figures()["dead"], "it is put away, or gone")
        await refuse()
        await comes_true(is_there, "the other's is a dead letter")
        (letter,) = await letters()
        assert (letter["body"], letter["properties"]["lsmq-dlq-queue-name"]) == ("other", "other")

    with_node(tmp_path, test)

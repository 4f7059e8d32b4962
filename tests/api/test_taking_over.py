"""Who asks a node that is just taking over a shard, as a program that knows nothing of elections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import Unavailable
from lsmq_node.broker import Broker
from lsmq_node.cluster.single import LocalShard

from .in_process import Session, with_node

SEND = {"messages": [{"queue": 0, "body": "x"}, {"queue": 1, "body": "y"}]}


def test_a_request_waits_for_its_leader_to_have_taken_over_unless_it_says_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        left = 0

        def twice(check: Any) -> Any:
            def taking_over(port: LocalShard, *args: Any, **how: Any) -> Any:
                nonlocal left
                if left:
                    left -= 1
                    raise Unavailable("the shard is being taken over", shard=port.number, sent=False)
                return check(port, *args, **how)

            return taking_over

        for name in ("check_readable", "check_writable"):
            monkeypatch.setattr(LocalShard, name, twice(getattr(LocalShard, name)))

        async def ask(method: str, path: str, document: Any = None, **headers: str) -> tuple[int, Any]:
            nonlocal left
            left = 2
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.request(method, f"/v1/topics/orders{path}", json=document, headers=named) as answer:
                return answer.status, await answer.json()

        async with session.put("/v1/topics/orders", json={"queues": 2}) as made:
            assert made.status == 201
        status, answer = await ask("POST", "/messages", SEND)
        assert status == 200 and [each["offset"] for each in answer["results"]] == [0, 0] and left == 0
        status, answer = await ask("GET", "/queues/1/messages")
        assert status == 200 and [each["body"] for each in answer["messages"]] == ["y"] and left == 0
        for says in ("refuse", "redirect"):
            status, answer = await ask("GET", "/queues/1/messages", Lsmq_Forward=says)
            assert (status, answer["error"]["code"], left) == (503, "unavailable", 1), "and nobody waits"

    with_node(tmp_path, test, shards=2)

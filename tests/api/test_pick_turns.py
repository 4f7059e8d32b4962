"""Pops that pick, in a node of the test's own process: turns of what comes again, and up to where they have looked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsmq_node.broker import Broker
from lsmq_node.workqueue import picks

from .in_process import Session, node_of, with_node


async def send(session: Session, tag: str, count: int, queue: int = 0) -> None:
    messages = [{"queue": queue, "body": f"{number}", "tag": tag} for number in range(count)]
    assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200


async def pick(session: Session, count: int, tag: str = "a") -> list[dict[str, Any]]:
    answer = await session.post("/v1/groups/g/pop", json={"topic": "t", "max": count, "tag": tag})
    assert answer.status == 200, await answer.text()
    found: list[dict[str, Any]] = (await answer.json())["messages"]
    return found


async def fail(session: Session, messages: list[dict[str, Any]]) -> None:
    document = {"topic": "t", "receipts": [message["receipt"] for message in messages], "delay_ms": 0}
    assert (await session.post("/v1/groups/g/nack", json=document)).status == 200


def again(messages: list[dict[str, Any]]) -> list[bool]:
    return [message["deliveries"] > 1 for message in messages]


def test_what_comes_again_and_what_is_new_take_turns_and_all_of_both_comes(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "a", 10)
        await fail(session, await pick(session, 10))
        await send(session, "a", 12)
        found = [await pick(session, 1) for _ in range(4)]
        assert [again(messages) for messages in found] == [[True], [False], [True], [False]]
        found += [await pick(session, 4) for _ in range(4)]
        assert [sorted(again(messages)) for messages in found[4:]] == [[False, False, True, True]] * 4
        found.append(await pick(session, 9))
        assert sorted(message["offset"] for messages in found for message in messages) == list(range(22))
        assert sum(map(len, found)) == 22
        await fail(session, [message for messages in found for message in messages])
        assert again(await pick(session, 22)) == [True] * 22, "where nothing is new"

    with_node(tmp_path, test)


def test_each_look_goes_on_where_the_one_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picks, "_ROUNDS", (8,))

    async def test(session: Session, broker: Broker) -> None:
        await send(session, "hay", 60)
        await send(session, "a", 1)
        found = [await pick(session, 1) for _ in range(10)]
        assert sum(map(len, found)) == 1

    with_node(tmp_path, test)


def test_of_so_many_queues_it_is_remembered_up_to_where_a_filter_has_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picks, "_MAX_SEEN", 1)

    async def test(session: Session, broker: Broker) -> None:
        for queue in range(2):
            await send(session, "hay", 3, queue)
            await send(session, "a", 1, queue)
        assert len(await pick(session, 9)) == 2
        assert await pick(session, 9) == []
        (work,) = node_of(session).work.shards()
        (picking,) = work._picks
        assert len(picking._seen) == 1
        answer = await session.post("/v1/groups/g/pop", json={"topic": "t", "max": 100})
        assert len((await answer.json())["messages"]) == 6

    with_node(tmp_path, test)

"""What is committed is delivered, though others have taken all there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from api.calls import Api
from lsmq.errors import DocumentsFull
from lsmq_node.storage import ShardStore
from lsmq_node.transactions import TransactionDelivery, TransactionService
from lsmq_node.transactions.records import BookChange, ProducerMember
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .test_http import Member, message
from .test_steps import Session, begin, commit, never, on, post, until_seen


def fill(store: ShardStore) -> list[str]:
    """Leave no room for documents; the keys of those that take it."""
    keys: list[str] = []
    for size in (1 << 10, 1):
        with pytest.raises(DocumentsFull):
            while True:
                keys.append(f"filled/{len(keys)}")
                store.put_documents({keys[-1]: bytes(size)})
                store.commit()
        keys.pop()
    return keys


def test_a_shard_that_knows_as_many_producers_as_it_may_takes_what_is_committed(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", max_producers=1).start()
    try:
        api = Api(node.url)
        api.create("t", 1)
        for producer, status in ((7, 200), (8, 429)):
            api.call("POST", f"/v1/topics/t/producers/{producer}/take", {"shard": 0}, status=status)
        member = Member(api, "g")
        begun = member.begin(message("t", "now"), message("t", "later", delay_ms=1))
        assert member.commit(begun["transaction"])["delivered"]
        eventually(lambda: api.all_bodies("t", 0) == ["now", "later"], "both are in the queue")
    finally:
        node.stop()


def test_a_shard_whose_documents_are_full_takes_what_is_committed(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        coordinator = await service.coordinator("g")
        for port in service.broker.topology.ports():
            if port is not coordinator.port:
                fill(port.store)
        assert (await commit(session, await begin(session), wait_ms=5_000))["delivered"]
        await until_seen(session, 1)

    on(tmp_path / "data", test, max_documents_bytes=64 << 10)


def test_what_was_begun_is_finished_where_others_have_filled_the_documents(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        committed, rolled_back = await begin(session), await begin(session, 2)
        coordinator = await service.coordinator("g")
        fill(coordinator.store)
        assert (await commit(session, committed, wait_ms=5_000))["delivered"]
        await until_seen(session, 1)
        fill(coordinator.store)
        with pytest.raises(DocumentsFull):
            coordinator.store.put_documents({"transaction/g/new": b"x"})
        rolled = await post(session, f"/transactions/{rolled_back}/rollback", {})
        assert rolled["state"] == "rolled_back"

    on(tmp_path / "data", test, max_documents_bytes=64 << 10)


def test_a_coordinator_that_goes_on_above_what_it_lost_when_there_is_room_loses_nothing(tmp_path: Path) -> None:
    """The shard has had more than it knows of, and the new numbers find no room at first."""

    async def test(session: Session, service: TransactionService) -> None:
        coordinator = await service.coordinator("g")
        (await service.shard(1)).last[coordinator.port.number] = 1 << 19
        send, refused = coordinator._send, asyncio.Event()
        coordinator._send = never
        await commit(session, await begin(session))
        filled = fill(coordinator.store)
        sent = 0

        async def counted(shard: int, delivery: TransactionDelivery) -> int:
            nonlocal sent
            sent += shard == 1
            if sent > 1:  # What came of the first was refused.
                refused.set()
            return await send(shard, delivery)

        coordinator._send = counted
        await refused.wait()
        coordinator.store.put_documents(dict.fromkeys(filled))
        await until_seen(session, 1)

    on(tmp_path / "data", test, max_documents_bytes=64 << 10)


def test_members_that_fall_silent_together_all_go(tmp_path: Path) -> None:
    """More of them than one change of documents may name."""

    async def test(session: Session, service: TransactionService) -> None:
        coordinator = await service.coordinator("g")
        silent, long = ProducerMember(0, (), 3_600_000, "", checks=True), "n" * 240
        for group in range(40):
            members = {(f"{long}{group}", f"{long}{number}"): silent for number in range(1_000)}
            await coordinator.done(coordinator._step(BookChange(members=dict(members))))
        coordinator.book._seen = dict.fromkeys(coordinator.book._seen, float("-inf"))
        await comes_true(lambda: service.counts.expired == 40_000, "all of them have expired")
        assert not coordinator.book.members and not coordinator.store.documents("producer/")

    on(tmp_path / "data", test)

"""What is committed is delivered, though others have taken all there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.calls import Api
from lsmq.errors import DocumentsFull
from lsmq_node.transactions import TransactionService
from support.node_process import NodeProcess
from support.waiting import eventually

from .test_http import Member, message
from .test_steps import Session, begin, commit, on, until_seen


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
        others = [port for port in service.broker.topology.ports() if port is not coordinator.port]
        for store in (port.store for port in others):
            for size in (1 << 10, 1):
                with pytest.raises(DocumentsFull):
                    for number in range(2_000):
                        store.put_documents({f"{size}/{number}": bytes(size)})
                        store.commit()
        assert (await commit(session, await begin(session), wait_ms=5_000))["delivered"]
        await until_seen(session, 1)

    on(tmp_path / "data", test, max_documents_bytes=64 << 10)

"""The node ends between any two steps, and the next one on its files goes on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from lsmq.errors import (
    DeliveriesAhead,
    InvalidBatch,
    InvalidRequest,
    LsmqError,
    NotEnoughReplicas,
    NotLeader,
    TimedOut,
    Unavailable,
    UnknownTopic,
)
from lsmq.record_batch import BatchBuilder, Codec
from lsmq_node.api.app import make_app
from lsmq_node.config import NodeConfig
from lsmq_node.node import running_node
from lsmq_node.transactions import TransactionDelivery, TransactionService
from lsmq_node.transactions.delivery import MAX_NUMBER
from support.waiting import comes_true

Session = TestClient[aiohttp.web.Request, aiohttp.web.Application]
Test = Callable[[Session, TransactionService], Awaitable[None]]

SHARDS = 3
GROUP = "/v1/producer-groups/g"


def on(data: Path, test: Test, **settings: Any) -> None:
    """Run the test on a node of three shards in this process, on the files in ``data``."""

    async def run() -> None:
        config = NodeConfig(data=data, shards=SHARDS, segment_bytes=1 << 20, memtable_bytes=4 << 20, **settings)
        async with running_node(config) as node, TestClient(TestServer(make_app(node))) as session:
            await session.put("/v1/topics/t", json={"queues": SHARDS})
            await asyncio.wait_for(test(session, node.transactions), 30)
            await node.begin_stop()

    asyncio.run(run())


async def post(session: Session, path: str, document: dict[str, Any], status: int = 200) -> Any:
    async with session.post(f"{GROUP}{path}", json=document) as response:
        answer = await response.json()
        assert response.status == status, answer
        return answer


async def get(session: Session, path: str) -> Any:
    async with session.get(f"{GROUP}{path}") as response:
        return await response.json()


async def begin(session: Session, number: int = 1) -> str:
    """A transaction with a message for each shard."""
    await post(session, "/heartbeat", {"member": "m", "join": True})
    messages = [{"topic": "t", "queue": queue, "body": f"{number} {queue}"} for queue in range(SHARDS)]
    begun = await post(session, "/transactions", {"member": "m", "number": number, "messages": messages})
    return str(begun["transaction"])


async def commit(session: Session, id: str, wait_ms: int = 0) -> Any:
    return await post(session, f"/transactions/{id}/commit", {"wait_ms": wait_ms})


async def seen(session: Session) -> list[list[str]]:
    found = []
    for queue in range(SHARDS):
        async with session.get(f"/v1/topics/t/queues/{queue}/messages?offset=0") as response:
            found.append([message["body"] for message in (await response.json())["messages"]])
    return found


async def until_seen(session: Session, *numbers: int) -> None:
    await until(session, [[f"{number} {queue}" for number in numbers] for queue in range(SHARDS)])


async def until(session: Session, wanted: list[list[str]]) -> None:
    async def is_seen() -> bool:
        found = await seen(session)
        assert all(len(have) <= len(want) for have, want in zip(found, wanted, strict=True)), found
        return found == wanted

    await comes_true(is_seen, f"{wanted} is seen")


def crashed(data: Path, test: Test) -> Path:
    """Run the test; the files as they were at its end, before the node was closed."""
    copy = data.with_name(f"{data.name}-crashed")

    async def run(session: Session, service: TransactionService) -> None:
        await test(session, service)
        await asyncio.to_thread(shutil.copytree, data, copy)

    on(data, run)
    return copy


async def never(shard: int, delivery: TransactionDelivery) -> int:
    raise NotEnoughReplicas("nobody is there", sent=False)


def test_what_was_begun_is_open_after_a_crash(tmp_path: Path) -> None:
    async def first(session: Session, service: TransactionService) -> None:
        await begin(session)

    async def second(session: Session, service: TransactionService) -> None:
        assert await seen(session) == [[], [], []]
        await begin(session)  # again, as after a lost answer
        await commit(session, "m-1")
        await until_seen(session, 1)

    on(crashed(tmp_path / "data", first), second)


@pytest.mark.parametrize("reached", [0, 1, 2])
def test_what_is_decided_is_delivered_after_a_crash(tmp_path: Path, reached: int) -> None:
    """None, one or two of its shards had got it, and the coordinator had not heard of that."""

    async def first(session: Session, service: TransactionService) -> None:
        delivered = asyncio.Event()
        receive = service.receive
        have: set[int] = set()

        async def some(shard: int, delivery: TransactionDelivery) -> int:
            if shard < reached:
                await receive(shard, delivery)
                have.add(shard)
            if len(have) == reached:
                delivered.set()
            raise TimedOut("the answer is lost")

        id = await begin(session)
        (await service.coordinator("g"))._send = some
        answer = await commit(session, id)
        assert answer["state"] == "committed" and not answer["delivered"]
        await delivered.wait()
        assert [bool(bodies) for bodies in await seen(session)] == [queue < reached for queue in range(SHARDS)]

    async def second(session: Session, service: TransactionService) -> None:
        answer = await commit(session, "m-1", wait_ms=5_000)
        assert answer["delivered"]
        await until_seen(session, 1)
        await commit(session, await begin(session, 2))
        await until_seen(session, 1, 2)

    on(crashed(tmp_path / "data", first), second)


@pytest.mark.part(2)
@pytest.mark.parametrize("failure", [TimedOut("no answer"), Unavailable("taken over"), NotLeader("not any more")])
def test_an_answer_that_was_lost_costs_no_copy(tmp_path: Path, failure: LsmqError) -> None:
    """Whatever comes in its place: a shard may have stored it, and lose its leader a moment later."""

    async def test(session: Session, service: TransactionService) -> None:
        id = await begin(session)
        coordinator = await service.coordinator("g")
        send, lost = coordinator._send, set()

        async def lose_the_first(shard: int, delivery: TransactionDelivery) -> int:
            dropped = await send(shard, delivery)
            if shard not in lost:
                lost.add(shard)
                raise failure
            return dropped

        coordinator._send = lose_the_first
        assert (await commit(session, id, wait_ms=5_000))["delivered"]
        assert (await commit(session, await begin(session, 2), wait_ms=5_000))["delivered"]
        assert lost == set(range(SHARDS))
        await until_seen(session, 1, 2)

    on(tmp_path / "data", test)


def test_a_shard_that_loses_its_leader_right_after_storing_has_no_copy(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        id = await begin(session)
        clock = asyncio.get_running_loop().time
        for number in range(SHARDS):
            port = (await service.shard(number)).port
            append_many, gone_until = port.store.append_many, [0.0]

            def append(
                *arguments: Any, append_many: Any = append_many, gone_until: Any = gone_until, **rest: Any
            ) -> Any:
                appended = append_many(*arguments, **rest)
                gone_until[0] = gone_until[0] or clock() + 0.3
                return appended

            def check(gone_until: Any = gone_until, **_: Any) -> None:
                if clock() < gone_until[0]:
                    raise NotLeader("another one leads", sent=False)

            port.store.append_many = append  # type: ignore[method-assign]
            port.check_readable = check  # type: ignore[method-assign]
        await commit(session, id)

        async def is_delivered() -> bool:  # when there are leaders again
            try:
                assert (await commit(session, id, wait_ms=5_000))["delivered"]
                await until_seen(session, 1)
            except (AssertionError, KeyError):
                return False
            return True

        await comes_true(is_delivered, "it is delivered")

    on(tmp_path / "data", test)


def test_a_shard_that_cannot_be_reached_gets_it_later_and_holds_up_no_other(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        id = await begin(session)
        coordinator = await service.coordinator("g")
        send = coordinator._send
        coordinator._send = lambda shard, delivery: (never if shard == 1 else send)(shard, delivery)
        assert await commit(session, id, wait_ms=1)
        await until(session, [["1 0"], [], ["1 2"]])
        other = await begin(session, 2)
        found = await commit(session, other, wait_ms=200)
        assert found["state"] == "committed" and found["waiting_shards"] == [1]
        coordinator._send = send
        await until_seen(session, 1, 2)

        async def nothing_waits() -> bool:
            async with session.get(f"{GROUP}/transactions?state=undelivered") as response:
                return not (await response.json())["transactions"]

        await comes_true(nothing_waits, "all is delivered")

    on(tmp_path / "data", test)


def test_nothing_is_shown_that_is_only_decided_in_memory(tmp_path: Path) -> None:
    """The decision is in line and cannot be committed: no shard may hear of it."""

    async def test(session: Session, service: TransactionService) -> None:
        id = await begin(session)
        coordinator = await service.coordinator("g")
        port, wait = coordinator.port, coordinator.port.wait
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def late(future: Any) -> None:
            if future is not None:
                await future
            await release

        port.wait = lambda appended, ack: asyncio.ensure_future(late(wait(appended, ack)))  # type: ignore[method-assign]
        store, barrier = coordinator.store, coordinator.store.barrier
        store.barrier = lambda: barrier() or store.put_documents({"x": b"x"})  # type: ignore[method-assign]
        deciding = asyncio.create_task(commit(session, id))
        looking = [asyncio.create_task(get(session, path)) for path in (f"/transactions/{id}", "/transactions", "")]
        for _ in range(20):
            coordinator.tick()
            await asyncio.sleep(0.01)
        assert not deciding.done() and not any(each.done() for each in looking)
        assert await seen(session) == [[], [], []]
        port.wait, store.barrier = wait, barrier  # type: ignore[method-assign]
        release.set_result(None)
        await deciding
        one, some, group = await asyncio.gather(*looking)
        assert one["state"] == some["transactions"][0]["state"] == "committed" and not group["open"]
        await until_seen(session, 1)

    on(tmp_path / "data", test)


def test_a_round_that_is_dropped_is_read_again(tmp_path: Path) -> None:
    """What was in line is gone: what memory says is not used any more, and requests come again."""

    async def test(session: Session, service: TransactionService) -> None:
        id = await begin(session)
        coordinator = await service.coordinator("g")
        coordinator._broken = UnknownTopic("anything")
        assert (await commit(session, id, wait_ms=5_000))["delivered"]
        assert await service.coordinator("g") is not coordinator
        await until_seen(session, 1)

    on(tmp_path / "data", test)


def packed(queue: int, body: bytes, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder()
    builder.add(queue, body)
    return builder.build(codec=codec)


async def deliver(service: TransactionService, limit: int, *numbers: int, **changed: Any) -> Any:
    """As another node asks it of the leader of shard 1."""
    batches = [(number, changed.pop("topic_id", 1), "t", packed(1, b"%d" % number)) for number in numbers]
    return await service._answer({"shard": 1, "coordinator": 0, "limit": limit, "batches": batches, **changed})


def test_a_delivery_is_stored_once(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        async with session.get("/v1/topics/t") as response:
            topic_id = (await response.json())["id"]
        assert await deliver(service, 0, 1, 2, topic_id=topic_id) == {"dropped": 0}
        for numbers in ((1, 2), (2, 3)):
            batches = [(number, topic_id, "t", packed(1, b"%d" % number)) for number in numbers]
            await deliver(service, 2, batches=batches)
        assert (await seen(session))[1] == ["1", "2", "3"]
        with pytest.raises(DeliveriesAhead) as refused:
            await deliver(service, 2, 2)
        assert refused.value.details["last"] == 3

    on(tmp_path / "data", test)


def test_a_delivery_that_no_coordinator_sends_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def test(session: Session, service: TransactionService) -> None:
        for limit, numbers in ((0, (1 << 53,)), (0, ((1 << 20) + 1,)), (5, (2, 1)), (5, (0,)), (MAX_NUMBER, (1,))):
            with pytest.raises(InvalidRequest):
                await deliver(service, limit, *numbers)
        for changed in (
            {"shard": 3},
            {"shard": "1"},
            {"coordinator": 3},
            {"batches": []},
            {"batches": [(1, 1, "t", 1)]},
        ):
            with pytest.raises(InvalidRequest):
                await deliver(service, 0, 1, **changed)
        # What unpacks to much more than it is: nothing of a delivery is unpacked.
        with pytest.raises(InvalidBatch, match="not compressed"):
            await deliver(service, 0, batches=[(1, 1, "t", packed(1, bytes(1 << 20), Codec.ZSTD))])
        assert (await service.shard(1)).last == {}
        await commit(session, await begin(session))
        await until_seen(session, 1)

    on(tmp_path / "data", test)


def test_a_coordinator_that_lost_what_it_had_sent_goes_on_above_it(tmp_path: Path) -> None:
    """The shard has had more than the coordinator knows of, as after a power cut with asynchronous flush."""

    async def test(session: Session, service: TransactionService) -> None:
        number = (await service.coordinator("g")).port.number
        (await service.shard(1)).last[number] = 41
        await commit(session, await begin(session))
        await until_seen(session, 1)
        await commit(session, await begin(session, 2))
        await until_seen(session, 1, 2)
        assert (await service.shard(1)).last[number] == 43

    on(tmp_path / "data", test)

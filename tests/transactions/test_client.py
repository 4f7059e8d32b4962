"""Transactional producers as applications use them; some die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq import Client, Consumer, TransactionalProducer, TransactionDecided, TransactionInfo
from lsmq import sync as blocking
from lsmq._heartbeats import HeartbeatThread
from lsmq.errors import (
    ClientClosed,
    InvalidRequest,
    LsmqError,
    SequenceTakenOver,
    TimedOut,
    Unavailable,
    UnknownProducerMember,
    UnknownTopic,
)
from lsmq.producer_groups import ProducerGroup, SequencePosition
from support.node_process import NodeProcess
from support.transaction_member import STEPS, Ledger, ProducerProcess
from support.waiting import comes_true

QUICK: dict[str, Any] = {"check_after_ms": 200, "check_every_ms": 200}


@asynccontextmanager
async def client_of(node: NodeProcess, *topics: str) -> AsyncIterator[Client]:
    async with Client(node.url) as client:
        for topic in topics:
            await client.create_topic(topic, queues=4)
        yield client


async def bodies(client: Client, topic: str) -> list[str]:
    """All there is now."""
    offsets = await client.offsets(topic)
    found: list[str] = []
    async with Consumer(client, topic, queues=range(4), start="earliest") as consumer:
        while len(found) < sum(offsets.latest):
            found += [message.text() for message in await consumer.poll(1_000, timeout_ms=1_000)]
    return sorted(found)


async def state_of(client: Client, group: str, id: str | None) -> TransactionInfo:
    assert id is not None
    return await ProducerGroup(client, group).transaction(id)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    await comes_true(condition, "it is as the test wants it")


async def until_decided(client: Client, group: str, id: str | None) -> TransactionInfo:
    async def finished() -> bool:
        return (await state_of(client, group, id)).delivered

    await until(finished)
    return await state_of(client, group, id)


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_a_block_commits_and_an_exception_rolls_back(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with (
            client_of(shared_node, topic_name) as client,
            TransactionalProducer(client, topic_name) as producer,
        ):
            async with producer.transaction("one") as transaction:
                await transaction.send(topic_name, "1", key="k")
                await transaction.send_many(topic_name, [("k", "2"), b"3"])
                assert await bodies(client, topic_name) == []
            assert transaction.info is not None and transaction.info.delivered
            assert await bodies(client, topic_name) == ["1", "2", "3"]
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction("two") as failing:
                    await failing.send(topic_name, "never")
                    raise ZeroDivisionError
            assert (await producer.outcome(failing.id or "")).state == "rolled_back"
            async with producer.transaction("nothing"):
                pass
            with pytest.raises(UnknownTopic):
                async with producer.transaction() as wrong:
                    await wrong.send("nowhere-at-all", "x")
            assert await bodies(client, topic_name) == ["1", "2", "3"]

    run(work)


def test_many_transactions_at_a_time(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as producer:

            async def one(number: int) -> None:
                transaction = producer.transaction()
                await transaction.send(topic_name, f"{number} a", queue=number % 4)
                await transaction.send(topic_name, f"{number} b", queue=number % 4)
                await (transaction.commit() if number % 3 else transaction.roll_back())

            await asyncio.gather(*(one(number) for number in range(150)))
            wanted = sorted(f"{number} {half}" for number in range(150) if number % 3 for half in "ab")
            assert await bodies(client, topic_name) == wanted

    run(work)


@pytest.mark.parametrize("step", STEPS)
def test_a_producer_dies_and_another_member_says_how_it_ends(
    shared_node: NodeProcess, topic_name: str, tmp_path: Path, step: str
) -> None:
    """Visible if, and only if, the local step was done."""
    ledger = Ledger(tmp_path / "ledger")
    topics = [topic_name, f"{topic_name}-2"]

    async def work() -> None:
        async with client_of(shared_node, *topics) as client:
            asked: list[TransactionInfo] = []

            def check(transaction: TransactionInfo) -> str:
                asked.append(transaction)
                return "commit" if ledger.has(transaction.id) else "rollback"

            async with TransactionalProducer(client, topic_name, check=check):
                victim = ProducerProcess(shared_node.url, topic_name, topics, ledger.path, step)
                try:
                    id = await asyncio.to_thread(victim.wait)
                finally:
                    await asyncio.to_thread(victim.kill)
                if step == "joined":

                    async def gone() -> bool:
                        return len((await ProducerGroup(client, topic_name).describe())["members"]) == 1

                    await until(gone)
                    return
                found = await until_decided(client, topic_name, id)
                done = step != "sent"
                assert found.state == ("committed" if done else "rolled_back")
                for topic in topics:
                    assert await bodies(client, topic) == ([step] if done else [])
                if step != "deciding":
                    assert [each.id for each in asked] == [id] and asked[0].reference == step

    run(work)


def test_a_torn_block_is_asked_about(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            answers = ["unknown", "nonsense", "commit"]

            async def check(transaction: TransactionInfo) -> str:
                return answers.pop(0)

            async with TransactionalProducer(client, topic_name, check=check, **QUICK) as producer:
                transaction = producer.transaction()
                with pytest.raises(asyncio.CancelledError):
                    async with transaction:
                        await transaction.send(topic_name, "x")
                        raise asyncio.CancelledError
                found = await until_decided(client, topic_name, transaction.id)
                assert (found.state, found.checks, answers) == ("committed", 3, [])

    run(work)


def test_a_local_step_in_doubt_is_asked_about(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with (
            client_of(shared_node, topic_name) as client,
            TransactionalProducer(client, topic_name, check=lambda transaction: "commit", **QUICK) as producer,
        ):
            with pytest.raises(ConnectionError):
                async with producer.transaction() as transaction:
                    await transaction.send(topic_name, "x")
                    try:
                        raise ConnectionError("the database does not answer")
                    except ConnectionError:
                        transaction.leave_open()
                        raise
            assert (await until_decided(client, topic_name, transaction.id)).state == "committed"
            assert await bodies(client, topic_name) == ["x"]

    run(work)


def test_a_transaction_in_its_block_is_left_alone(shared_node: NodeProcess, topic_name: str) -> None:
    """Its check is not called, and no other member's, however long the local step takes."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:

            def check(transaction: TransactionInfo) -> str:
                raise AssertionError("nobody may be asked")

            async with (
                TransactionalProducer(client, topic_name, check=check, max_checks=1_000, **QUICK) as producer,
                TransactionalProducer(client, topic_name, check=check),
            ):
                async with producer.transaction() as transaction:
                    await transaction.send(topic_name, "x")

                    async def asked() -> bool:
                        return (await state_of(client, topic_name, transaction.id)).checks >= 3

                    await until(asked)
                assert await bodies(client, topic_name) == ["x"]

    run(work)


def test_a_commit_that_found_no_way_is_said_when_the_broker_asks(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            async with TransactionalProducer(client, topic_name, **QUICK) as producer:
                commit, calls = producer._group.commit, 0

                async def fail_once(*arguments: Any, **options: Any) -> TransactionInfo:
                    nonlocal calls
                    calls += 1
                    if calls == 1:
                        raise TimedOut("nobody answers")
                    return await commit(*arguments, **options)

                producer._group.commit = fail_once  # type: ignore[method-assign]
                transaction = producer.transaction()
                await transaction.send(topic_name, "x")
                with pytest.raises(TimedOut):
                    await transaction.commit()
                assert (await until_decided(client, topic_name, transaction.id)).state == "committed"
                await transaction.commit()
            assert await bodies(client, topic_name) == ["x"]

    run(work)


@pytest.mark.parametrize("failure", [TimedOut("nobody answers"), asyncio.CancelledError()], ids=["lost", "cancelled"])
def test_after_a_send_in_doubt_nothing_is_committed(
    shared_node: NodeProcess, topic_name: str, failure: BaseException
) -> None:
    """Its messages may be stored: another one in its place would be taken for a repeat."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as producer:

            async def fail(*arguments: Any, **options: Any) -> TransactionInfo:
                raise failure

            with pytest.raises(InvalidRequest, match="roll it back"):
                async with producer.transaction() as transaction:
                    await transaction.send(topic_name, "x")
                    with pytest.raises(UnknownTopic):
                        await transaction.send("nowhere-at-all", "x")
                    await transaction.send(topic_name, "y")
                    producer._group.add, add = fail, producer._group.add  # type: ignore[method-assign]
                    with pytest.raises(type(failure)):
                        await transaction.send(topic_name, "z")
                    producer._group.add = add  # type: ignore[method-assign]
                    with pytest.raises(InvalidRequest):
                        await transaction.send(topic_name, "other")
            assert (await producer.outcome(transaction.id or "")).state == "rolled_back"
            assert await bodies(client, topic_name) == []

    run(work)


def test_after_a_first_send_in_doubt_nothing_is_committed(shared_node: NodeProcess, topic_name: str) -> None:
    """It may have begun a transaction, which will be asked about; the next send would begin another one."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as producer:
            begin = producer._group.begin

            async def late(*arguments: Any, **options: Any) -> TransactionInfo:
                await begin(*arguments, **options)
                return await asyncio.Event().wait()  # type: ignore[return-value]

            async def lost(*arguments: Any, **options: Any) -> TransactionInfo:
                await begin(*arguments, **options)
                raise TimedOut("nobody answers")

            async def unreachable(*arguments: Any, **options: Any) -> TransactionInfo:
                raise Unavailable("nobody is there")

            with pytest.raises(InvalidRequest, match="roll it back"):
                async with producer.transaction("order 16") as transaction:
                    roll_back = producer._group.roll_back
                    producer._group.begin, producer._group.roll_back = lost, unreachable  # type: ignore[method-assign]
                    with pytest.raises(TimedOut):
                        await transaction.send(topic_name, "x")
                    producer._group.begin, producer._group.roll_back = begin, roll_back  # type: ignore[method-assign]
                    # Another one of this reference would have the check say that both were done.
                    with pytest.raises(InvalidRequest):
                        await transaction.send(topic_name, "x")
            with pytest.raises(InvalidRequest, match="roll it back"):
                async with producer.transaction() as transaction:
                    producer._group.begin = late  # type: ignore[method-assign]
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await transaction.send(topic_name, "x")
                    producer._group.begin = begin  # type: ignore[method-assign]
                    with pytest.raises(InvalidRequest):
                        await transaction.send(topic_name, "y")
            assert await bodies(client, topic_name) == []

    run(work)


def test_who_was_rolled_back_meanwhile_is_told(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with (
            client_of(shared_node, topic_name) as client,
            TransactionalProducer(client, topic_name, max_checks=1, **QUICK) as producer,
        ):
            with pytest.raises(TransactionDecided) as raised:
                async with producer.transaction() as transaction:
                    await transaction.send(topic_name, "x")
                    await until_decided(client, topic_name, transaction.id)
            assert raised.value.details["decided_by"] == "broker"

    run(work)


def test_a_producer_that_lost_its_place_joins_anew(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            group = ProducerGroup(client, topic_name)
            async with TransactionalProducer(client, topic_name) as producer:
                former = producer.member_id
                await group.leave(former)
                async with producer.transaction() as transaction:
                    await transaction.send(topic_name, "x")
                assert producer.member_id != former and transaction.id == f"{producer.member_id}-1"
                assert await bodies(client, topic_name) == ["x"]
            assert (await group.describe())["members"] == []

    run(work)


def test_who_takes_a_sequence_as_its_place_is_found_again_keeps_that(shared_node: NodeProcess, topic_name: str) -> None:
    """Under yet another id nobody would heartbeat for what was begun in between."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as producer:
            take = producer._group.take

            async def too_late(sequence: str, member: str, **options: Any) -> SequencePosition:
                producer._group.take = take  # type: ignore[method-assign]
                await producer._join_again(member)
                raise UnknownProducerMember("its session ended")

            producer._group.take = too_late  # type: ignore[method-assign]
            before = producer.member_id
            await producer.take("s")
            members = {member["id"] for member in (await producer._group.describe())["members"]}
            assert members == {before, producer.member_id}

    run(work)


def test_a_request_to_take_a_sequence_that_comes_once_more_and_late_rolls_nothing_back(
    shared_node: NodeProcess, topic_name: str
) -> None:
    api = Api(shared_node.url)

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as producer:
            await producer.take("s")
            sequence = await producer.take("s")
            transaction = sequence.transaction(position="1")
            await transaction.send(topic_name, "x")
            path = f"/v1/producer-groups/{topic_name}/sequences/s"
            late = {"member": producer.member_id, "epoch": sequence._taken.epoch}
            answer = await asyncio.to_thread(api.call, "POST", path, late, status=409)
            assert answer.error["code"] == "sequence_taken_over"
            await transaction.commit()
            assert await bodies(client, topic_name) == ["x"]

    run(work)


def test_a_sequence_is_gone_on_with_by_whoever_takes_it(shared_node: NodeProcess, topic_name: str) -> None:
    lines = [f"line {number}" for number in range(6)]

    async def copy(producer: TransactionalProducer, until: int) -> None:
        """What a worker does: go on where the last one stopped, line by line."""
        sequence = await producer.take("file")
        for number in range(int(sequence.position or 0), until):
            async with sequence.transaction(position=str(number + 1)) as transaction:
                await transaction.send(topic_name, lines[number])

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client, TransactionalProducer(client, topic_name) as second:
            async with TransactionalProducer(client, topic_name) as first:
                await copy(first, 2)
                old = await first.take("file")
                half = old.transaction(position="3")
                await half.send(topic_name, lines[2])
                await copy(second, 4)
                with pytest.raises(TransactionDecided):
                    await half.commit()
                with pytest.raises(SequenceTakenOver):
                    await old.transaction(position="3").send(topic_name, lines[2])
                with pytest.raises(InvalidRequest):
                    await old.transaction(position="3").commit()
            await copy(second, 6)
            assert await bodies(client, topic_name) == lines

    run(work)


def test_the_same_without_asyncio(shared_node: NodeProcess, topic_name: str) -> None:
    with blocking.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        with blocking.TransactionalProducer(client, topic_name, check=lambda transaction: "commit") as producer:
            with producer.transaction("order") as transaction:
                transaction.send(topic_name, "1")
                transaction.send_many(topic_name, ["2", "3"])
            assert transaction.id is not None and transaction.reference == "order"
            assert producer.outcome(transaction.id).state == "committed"
            with pytest.raises(ZeroDivisionError), producer.transaction() as failing:
                failing.send(topic_name, "never")
                raise ZeroDivisionError
            with producer.take("s").transaction(position="1") as third:
                third.send(topic_name, "4")
            assert producer.take("s").position == "1"
        assert sum(client.offsets(topic_name).latest) == 4


def test_used_after_closing(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            async with TransactionalProducer(client, topic_name) as producer:
                pass
            with pytest.raises(LsmqError) as raised:
                await producer.transaction().send(topic_name, "x")
            assert raised.value.code == "closed"

    run(work)


def test_a_start_that_failed_can_be_tried_again(shared_node: NodeProcess, topic_name: str) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            producer = TransactionalProducer(client, topic_name)
            heartbeat = producer._group.heartbeat

            async def fail(*arguments: Any, **options: Any) -> list[TransactionInfo]:
                raise TimedOut("nobody answers")

            producer._group.heartbeat = fail  # type: ignore[method-assign]
            with pytest.raises(TimedOut):
                await producer.start()
            producer._group.heartbeat = heartbeat  # type: ignore[method-assign]
            async with producer, producer.transaction() as transaction:
                await transaction.send(topic_name, "x")
            assert await bodies(client, topic_name) == ["x"]

    run(work)


def test_what_is_closed_while_it_joins_does_not_heartbeat(shared_node: NodeProcess, topic_name: str) -> None:
    """It would be a member for ever, which is asked about transactions and answers nothing."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            producer = TransactionalProducer(client, topic_name)
            heartbeat, joining, go_on = producer._group.heartbeat, asyncio.Event(), asyncio.Event()

            async def late(*arguments: Any, **options: Any) -> list[TransactionInfo]:
                joining.set()
                await go_on.wait()
                return await heartbeat(*arguments, **options)

            producer._group.heartbeat = late  # type: ignore[method-assign]
            starting = asyncio.create_task(producer.start())
            await joining.wait()
            await producer.close()
            go_on.set()
            with pytest.raises(ClientClosed):
                await starting
            assert client._heartbeats is None
            assert not (await producer._group.describe())["members"]

    run(work)


def test_a_start_that_was_cancelled_last_of_all_can_be_tried_again(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            call = HeartbeatThread.call

            async def cut_off(thread: HeartbeatThread, work: Coroutine[Any, Any, Any]) -> None:
                monkeypatch.setattr(HeartbeatThread, "call", call)
                work.close()
                raise asyncio.CancelledError

            monkeypatch.setattr(HeartbeatThread, "call", cut_off)
            producer = TransactionalProducer(client, topic_name, session_ms=1_000)
            with pytest.raises(asyncio.CancelledError):
                await producer.start()
            async with producer:
                assert list(producer._heart), "it heartbeats"
            assert client._heartbeats is None

    run(work)


def test_a_close_that_was_cancelled_closes_all_the_same(shared_node: NodeProcess, topic_name: str) -> None:
    """Else it would heartbeat for ever, and others would not be asked about what it has left open."""

    async def work() -> None:
        async with client_of(shared_node, topic_name) as client:
            producer = TransactionalProducer(client, topic_name)
            await producer.start()
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await producer.close()
            assert client._heartbeats is None
            assert not (await producer._group.describe())["members"]

    run(work)


def test_a_producer_whose_event_loop_is_closed_is_gone_when_its_session_ends(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async def begin() -> None:
        client = Client(shared_node.url)
        await client.create_topic(topic_name)
        await TransactionalProducer(client, topic_name, session_ms=1_000).transaction().send(topic_name, "x")
        await client._transport.close()  # Nobody is warned of connections that are left open.

    asyncio.run(begin())  # Nobody closes the producer, and its process lives.

    async def ended() -> None:
        async with client_of(shared_node) as client:

            async def is_gone() -> bool:
                return not (await ProducerGroup(client, topic_name).describe())["members"]

            await until(is_gone)

    run(ended)

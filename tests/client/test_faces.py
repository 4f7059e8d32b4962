"""The blocking face has all of the asynchronous one, and both are typed as they are documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import lsmq
from lsmq import Client, sync, transactions
from lsmq.sync import _transactions
from support.node_process import NodeProcess

#: What blocking objects do when they are made.
STARTING = {"start"}
#: What receipts of the blocking face may be told besides.
MORE = {"timeout_ms"}


def is_asynchronous(face: type) -> bool:
    """Whether it has to be crossed over to: it has something to await."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) or name in ("__await__", "__aiter__")
        for name, member in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_") or name.endswith("__")
    )


PAIRS = {
    **{
        name: (found, getattr(sync, name, None))
        for name in lsmq.__all__
        if isinstance(found := getattr(lsmq, name), type) and is_asynchronous(found)
    },
    "Sequence": (transactions.Sequence, _transactions.Sequence),
}


def attributes(face: type) -> Iterator[str]:
    """Public methods and properties, and what ``__init__`` sets or a dataclass declares."""
    yield from (name for name, _ in inspect.getmembers(face) if not name.startswith("_"))
    yield from (name for base in face.__mro__ for name in vars(base).get("__annotations__", ()) if name[0] != "_")
    for base in face.__mro__[:-1]:
        if "__init__" in vars(base) and base.__module__.startswith("lsmq"):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                match node:
                    case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()) if name[0] != "_":
                        yield name


def test_the_asynchronous_classes_are_found() -> None:
    assert {"Client", "ClusterAdmin", "Consumer", "DeadLetters", "Group", "Receipts", "Task", "WorkQueue"} < set(PAIRS)
    assert "Message" not in PAIRS and "DeadLetter" not in PAIRS


@pytest.mark.parametrize("name", PAIRS)
def test_the_blocking_face_has_each_class_with_all_it_has(name: str) -> None:
    theirs, mine = PAIRS[name]
    assert mine is not None, f"lsmq.sync has no {name}"
    missing = set(attributes(theirs)) - set(attributes(mine)) - STARTING
    assert not missing, f"lsmq.sync.{name} lacks {sorted(missing)}"


@pytest.mark.parametrize("name", PAIRS)
def test_the_blocking_face_takes_the_same_parameters(name: str) -> None:
    theirs, mine = PAIRS[name]
    made_by_applications = name not in ("BatchReceipt", "Receipt", "Receipts", "Sequence", "Task", "Transaction")
    for method, function in inspect.getmembers(theirs, inspect.isfunction):
        if method in STARTING or (method.startswith("_") and not (method == "__init__" and made_by_applications)):
            continue
        expected = inspect.signature(function).parameters
        found = inspect.signature(getattr(mine, method)).parameters
        extra = set(found) - set(expected)
        assert extra <= MORE and all(found[each].default is None for each in extra), method
        given = [parameter for parameter in found.values() if parameter.name not in extra]
        assert [each.name for each in given] == list(expected), method
        assert [each.default for each in given] == [each.default for each in expected.values()], method
        assert [each.kind for each in given] == [each.kind for each in expected.values()], method


def test_functions_that_are_awaited_are_in_the_blocking_face_as_well() -> None:
    names = [name for name in lsmq.__all__ if inspect.iscoroutinefunction(getattr(lsmq, name))]
    assert names == ["list_groups"]
    assert list(inspect.signature(sync.list_groups).parameters) == list(inspect.signature(lsmq.list_groups).parameters)


def test_what_the_blocking_face_has_is_offered_by_name() -> None:
    assert set(PAIRS) - {"Sequence"} <= set(sync.__all__)


def test_administration_is_there_without_asyncio(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with sync.Producer(client, topic_name) as producer:
            for number in range(6):
                producer.send(f"{number}", queue=number % 2)
        group = sync.Group(client, topic_name)
        assert group.reset(topic_name, "latest") == {0: 3, 1: 3}
        assert group.lag(topic_name).lag == 0
        assert group.reset(topic_name, {0: 1}) == {0: 1}
        assert group.lag(topic_name).lag == 2
        assert group.reset(topic_name, "earliest", [1]) == {1: 0}
        assert topic_name in [found.group for found in sync.list_groups(client)]
        with pytest.raises(lsmq.UnknownGroup):
            group.describe()  # It has offsets, and never had members.
        group.delete()
        assert client.committed_offsets(topic_name, topic_name) == {}
        assert sync.ClusterAdmin(client).overview().shards[0].leader is not None
        client.trim_topic(topic_name, {0: 2, 1: 3})
        assert list(client.offsets(topic_name).earliest) == [2, 3]
        client.delete_messages(topic_name, [(0, 2)])
        with sync.Consumer(client, topic_name) as consumer:
            assert consumer.poll(timeout_ms=100) == []


def test_a_group_with_live_members_is_not_reset_by_mistake(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(["one", "two"])
        group = sync.Group(client, topic_name)
        with sync.Consumer(client, topic_name, group=topic_name):
            with pytest.raises(lsmq.GroupHasMembers, match=r"1 live members.*force=True"):
                group.reset(topic_name, "latest")
            assert group.reset(topic_name, "latest", force=True) == {0: 2}
        for wrong in ("committed", "end"):
            with pytest.raises(lsmq.InvalidRequest, match=f"to is '{wrong}'"):
                group.reset(topic_name, wrong)  # type: ignore[arg-type]
        with pytest.raises(lsmq.InvalidRequest, match="leave queues out"):
            group.reset(topic_name, {0: 1}, [0])


def test_dead_letters_are_read_a_portion_at_a_time(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(f"{number}" for number in range(1_200))
        letters = sync.DeadLetters(client, topic_name)
        assert [letter.message.offset for letter in letters.read()] == list(range(1_200))
        reading = letters.read()
        first, second = next(reading), next(reading)
        reading.close()
        letters.delete([first, second])
        assert next(letters.read()).message.offset == 2
        assert letters.purge() == 1_198
        assert list(letters.read()) == []


def test_a_receipt_calls_back_and_tells_of_its_error(shared_node: NodeProcess, topic_name: str) -> None:
    called: list[int] = []

    def wrong(receipt: sync.Receipt) -> None:
        raise ValueError("of the application's")

    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name, linger_ms=60_000) as producer:
            receipt = producer.send("one")
            receipt.add_done_callback(wrong)
            receipt.add_done_callback(lambda done: called.append(done.result().offset))
            producer.flush()
            assert receipt.exception() is None and called == [0]
        with sync.Producer(client, topic_name) as producer:
            client.delete_topic(topic_name)
            client.create_topic(topic_name)
            failed = producer.send("two")
            assert isinstance(failed.exception(), lsmq.TopicReplaced)


def test_callbacks_of_the_blocking_face_may_be_coroutine_functions(shared_node: NodeProcess, topic_name: str) -> None:
    told: list[object] = []

    async def assigned(queues: object) -> None:
        told.append(queues)

    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with sync.Consumer(client, topic_name, group=topic_name, on_assigned=assigned, on_revoked=told.append):
            assert told == [{topic_name: (range(2),)}]
        assert told == [{topic_name: (range(2),)}] * 2


def test_a_blocking_sequence_is_as_the_asynchronous_one(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.TransactionalProducer(client, topic_name) as producer:
            sequence = producer.take("work")
            with sequence.transaction("first") as transaction:
                transaction.send(topic_name, "one", key="k")
            assert sequence.position == "first"
            with pytest.raises(lsmq.InvalidRequest, match="needs a message"):
                sequence.transaction("second").commit()


TYPED = """
import lsmq
from lsmq import sync


async def asynchronous(client: lsmq.Client) -> None:
    await client.create_topic("t", ack="quorum")
    await client.create_topic("t", ack="all")  # type: ignore[arg-type]
    lsmq.Producer(client, "t", ack="all")  # type: ignore[arg-type]
    consumer = lsmq.Consumer(client, "t", group="g")
    lsmq.Consumer(client, "t", gruop="g")  # type: ignore[call-arg]
    producer = lsmq.Producer(client, "t", codec=lsmq.Codec.ZSTD)
    receipt = await producer.send("body", key=b"k", queue=1, headers=[("name", b"value")])
    print((await receipt).offset + producer.send_nowait("body", priority=3).result().queue)
    await producer.send_and_wait("body", prioritty=3)  # type: ignore[call-arg]
    await producer.send("body", queue=1.5)  # type: ignore[arg-type]
    consumer.pause([1, 2])
    consumer.pause(range(4), topic="t")
    consumer.pause("t")  # type: ignore[arg-type]

    async def handle(message: lsmq.Message) -> int:
        return len(message.body)

    await consumer.run(handle)
    await consumer.run(lambda message: message.text())

    async def work(task: lsmq.Task) -> str:
        return task.text()

    await lsmq.WorkQueue(client, "t", "g").run(work)
    await lsmq.Group(client, "g").reset("t", "latest")
    await lsmq.Group(client, "g").reset("t", "committed")  # type: ignore[arg-type]


def blocking(client: sync.Client) -> None:
    client.create_topic("t", ack="leader")
    client.create_topic("t", ack="all")  # type: ignore[arg-type]
    sync.Producer(client, "t", ack="all")  # type: ignore[arg-type]
    sync.Consumer(client, "t").run(lambda message: len(message.body))
    sync.WorkQueue(client, "t", "g").run(lambda task: task.deliveries)
    sync.Consumer(client, "t", group="g", wait_ms="1")  # type: ignore[arg-type]
    sync.Client("http://127.0.0.1:7600", deadline_ms="1")  # type: ignore[arg-type]
    sync.PushConsumer(client, "t", groop="g")  # type: ignore[call-arg]
    producer = sync.Producer(client, "t", codec=lsmq.Codec.ZSTD)
    print(producer.send("body", key="k").result().offset + producer.send_and_wait("body", delete=True).queue)
    producer.send_and_wait("body", kee="k")  # type: ignore[call-arg]
    sync.Group(client, "g").reset("t", "committed")  # type: ignore[arg-type]
    print(sync.Group(client, "g").lag("t").lag + client.topic("t").queues)
    letters = [letter.reason for letter in sync.DeadLetters(client, "t.dlq").read()]
    print(letters)
"""

COLUMNS = """
from lsmq.batch_builder import encode_batch
from lsmq.record_batch import Column

columns = {Column.LENGTH: [1, 1], Column.QUEUE: [7, 8]}
encode_batch(2, columns, b"ab")
"""


@pytest.mark.part(3)
def test_both_faces_are_typed_and_so_are_the_examples(tmp_path: Path) -> None:
    """An ``ignore`` that is not needed is an error, too."""
    program = tmp_path / "program.py"
    program.write_text(TYPED + COLUMNS)
    top = Path(lsmq.__file__).parents[2]
    examples = sorted((top / "docs" / "examples").glob("*.py"))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", program, *examples],
        env={"PATH": ""},
        cwd=top,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_the_asynchronous_face_trims(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1_200)
        async with lsmq.Producer(client, topic_name) as producer:
            await producer.send("one", queue=1_100)
        past = await client.offsets(topic_name, at_time=0)
        await client.trim_topic(topic_name, dict(zip(past.queues, past.at_time, strict=True)))
        assert sum((await client.offsets(topic_name)).earliest) == 0
        later = await client.offsets(topic_name, at_time=2**42)
        await client.trim_topic(topic_name, dict(zip(later.queues, later.at_time, strict=True)))
        assert (await client.offsets(topic_name, [1_100])).earliest[0] == 1
        await client.trim_topic(topic_name, {})
        await client.delete_messages(topic_name, [(1_100, 0)])
        with pytest.raises(lsmq.OffsetOutOfRange):
            await client.trim_topic(topic_name, {0: 1})
        with pytest.raises(lsmq.UnknownQueue):
            await client.trim_topic(topic_name, {1_200: 0})

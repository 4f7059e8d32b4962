"""The blocking face against a real node."""

from __future__ import annotations

import inspect
import threading
from itertools import islice

import pytest

import lsmq
from lsmq import BufferFull, ClientClosed, EmptyBody, Message, TimedOut, UnknownTopic, sync
from support.node_process import NodeProcess


def test_messages_go_and_come(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        with sync.Producer(client, topic_name) as producer:
            receipt = producer.send("one", key="k")
            sent = [receipt.result(), producer.send_and_wait("two", key="k")]
            assert [place.offset for place in sent] == [0, 1] and receipt.done()
            receipts = producer.send_many(f"{number}" for number in range(25_000))
            assert len(receipts) == 25_000 == len(receipts.results()) and receipts.done()
            assert next(iter(receipts)).result().offset >= 0
            with pytest.raises(EmptyBody):
                producer.send("")
        with sync.Consumer(client, topic_name) as consumer:
            bodies = [message.text() for message in islice(consumer, 25_002)]
            assert sorted(bodies) == sorted(["one", "two", *map(str, range(25_000))])
            assert consumer.poll(timeout_ms=50) == []
        assert client.message(sent[0].id).text() == "one"
        assert [topic.name for topic in client.topics() if topic.name == topic_name] == [topic_name]
        client.delete_topic(topic_name)
        with pytest.raises(UnknownTopic):
            client.topic(topic_name)


def test_only_what_left_the_consumer_counts_as_handed_out(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=1)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(f"{number}" for number in range(100)).wait()
        with sync.Consumer(client, topic_name, group=topic_name) as consumer:
            assert [message.offset for message in islice(consumer, 10)] == list(range(10))
            assert consumer.positions == {0: 10}
            consumer.commit()
            assert client.committed_offsets(topic_name, topic_name) == {0: 10}
            assert len(consumer.poll(5)) == 5
            consumer.commit()
            assert client.committed_offsets(topic_name, topic_name) == {0: 15}
            consumer.seek(0, 90)
            assert [message.offset for message in islice(consumer, 10)] == list(range(90, 100))
            consumer.commit()
            consumer.seek_to_time(0)
            assert next(consumer).offset == 0
            consumer.commit({0: 42}, reset=True)
        with sync.Consumer(client, topic_name, group=topic_name) as consumer:
            assert next(consumer).offset == 42


def test_run_handles_in_threads_until_the_consumer_is_closed(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many((f"{number}", f"{number}") for number in range(50)).wait()
        consumer = sync.Consumer(client, topic_name, group=topic_name)
        first = next(consumer)
        seen: list[Message] = []
        done = threading.Event()

        def handle(message: Message) -> None:
            assert threading.current_thread() is not threading.main_thread()
            seen.append(message)
            if len(seen) == 49:
                done.set()

        runner = threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 3})
        runner.start()
        assert done.wait(30)
        consumer.close()
        runner.join(30)
        assert not runner.is_alive()
        assert {message.id for message in seen} | {first.id} == {m.id for m in [first, *seen]}
        assert len({message.id for message in [first, *seen]}) == 50


def test_a_full_buffer_and_a_wait_that_is_too_short_are_errors(topic_name: str, node: NodeProcess) -> None:
    with sync.Client(node.url, deadline_ms=2000) as client:
        client.create_topic(topic_name)
        producer = sync.Producer(client, topic_name, batch_bytes=1000, max_buffer_bytes=1000)
        node.kill9()
        receipt = producer.send(b"x" * 900)
        with pytest.raises(BufferFull):
            producer.send_nowait(b"x" * 900)
        with pytest.raises(TimedOut, match="within 50 ms"):
            receipt.result(timeout_ms=50)
        producer.abort()
        with pytest.raises(ClientClosed):
            receipt.result()


def test_everything_closed_refuses(shared_node: NodeProcess) -> None:
    client = sync.Client(shared_node.url)
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.topics()
    assert not any(thread.name == "lsmq" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer"])
def test_the_blocking_face_has_the_names_and_parameters_of_the_other(name: str) -> None:
    asynchronous, blocking = getattr(lsmq, name), getattr(sync, name)
    internal = {"start", "routes", "send_once"}  # Started on creation; routes are the producer's business.
    for method, function in inspect.getmembers(asynchronous, inspect.isfunction):
        if (method.startswith("_") and method != "__init__") or method in internal:
            continue
        theirs = inspect.signature(function).parameters
        mine = inspect.signature(getattr(blocking, method)).parameters
        assert list(mine) == list(theirs), method
        assert [p.default for p in mine.values()] == [p.default for p in theirs.values()], method

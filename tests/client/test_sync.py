"""The blocking face against a real node."""

from __future__ import annotations

import asyncio
import inspect
import threading
from itertools import islice

import pytest

import lsmq
from lsmq import BufferFull, ClientClosed, InvalidRequest, Message, TimedOut, UnknownTopic, sync
from lsmq.loop_thread import LoopThread
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
            with pytest.raises(InvalidRequest, match="it has no key"):
                producer.send("", delete=True)
        with sync.Consumer(client, topic_name) as consumer:
            bodies = [message.text() for message in islice(consumer, 25_002)]
            assert sorted(bodies) == sorted(["one", "two", *map(str, range(25_000))])
            assert consumer.poll(timeout_ms=50) == []
            with pytest.raises(InvalidRequest, match="max_messages is 0"):
                consumer.poll(0)
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


def test_members_share_queues_and_give_up_what_they_have_read_ahead(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client, sync.Client(shared_node.url) as other:
        client.create_topic(topic_name, queues=4)
        with sync.Producer(client, topic_name) as producer:
            for number in range(400):
                producer.send(f"{number}", queue=number % 4)
        revoked = threading.Event()

        def commit(queues: object) -> None:
            first.commit()
            revoked.set()

        handled: list[Message] = []
        with sync.Consumer(client, topic_name, group=topic_name, on_revoked=commit) as first:
            handled += islice(first, 90)  # so whichever queues it keeps, there is something left in them
            joining = threading.Thread(
                target=lambda: seconds.append(sync.Consumer(other, topic_name, group=topic_name))
            )
            seconds: list[sync.Consumer] = []
            joining.start()
            assert not revoked.wait(0.2), "it has not let go of the last message"
            handled.append(next(first))
            assert revoked.wait(20)
            joining.join()
            (second,) = seconds
            while second.waiting_for:
                revoked.wait(0.01)
            mine = {queue for part in first.assignment[topic_name] for queue in part}
            assert len(mine) == 2
            while messages := first.poll(50, timeout_ms=200):
                assert {message.queue for message in messages} <= mine
                handled += messages
            while len(handled) < 400:
                handled += second.poll(timeout_ms=5_000)
            second.commit()
            first.commit()
            second.close()
        assert sorted(int(message.body) for message in handled) == list(range(400)), "each once"
        assert client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(4), 100)


def test_a_blocking_handler_may_close_its_consumer(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many((f"{number}", f"{number}") for number in range(100)).wait()
        consumer = sync.Consumer(client, topic_name, group=topic_name)
        handled: list[Message] = []

        def handle(message: Message) -> None:
            handled.append(message)
            if len(handled) == 20:
                consumer.close()

        consumer.run(handle, concurrency=3, order="key")
        assert 20 <= len(handled) <= 22
        assert sum(client.committed_offsets(topic_name, topic_name).values()) <= len(handled)
        with pytest.raises(ClientClosed):
            consumer.poll()


def test_who_asks_for_something_as_the_client_is_closed_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited for what the event loop did not come to any more would wait for ever."""
    begun, over, asked, finish = threading.Event(), threading.Event(), threading.Event(), LoopThread._finish

    async def and_then(thread: LoopThread) -> None:
        await finish(thread)
        over.set()
        asked.wait(60)  # The loop has done all there was.

    monkeypatch.setattr(LoopThread, "_finish", and_then)
    thread = LoopThread()
    told: list[BaseException] = []

    async def for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.call(for_ever())
        except BaseException as error:
            told.append(error)

    waiting, stopping = threading.Thread(target=wait), threading.Thread(target=thread.stop)
    waiting.start()
    assert begun.wait(60)
    stopping.start()
    assert over.wait(60)
    with pytest.raises(ClientClosed):
        thread.call(asyncio.sleep(0), timeout_s=1)
    asked.set()
    waiting.join(60)
    stopping.join(60)
    assert [type(error) for error in told] == [ClientClosed]

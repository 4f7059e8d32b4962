"""What nobody closes is named when it is dropped, and goes on."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from lsmq import Consumer, sync
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually


def said_of(drop: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        drop()
        gc.collect()
    return [str(each.message) for each in told if each.category is ResourceWarning]


def used_work(client: Any, topic: str) -> sync.WorkQueue:
    work = sync.WorkQueue(client, topic, topic)
    work.poll(1, 0)
    return work


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda client, topic: sync.Consumer(client, topic, start="earliest"), "a consumer of {}"),
        (lambda client, topic: sync.Consumer(client, topic, group=topic), "a consumer of {0} in group '{0}'"),
        (lambda client, topic: sync.PushConsumer(client, topic, group=topic), "a push consumer of {0} in group '{0}'"),
        (used_work, "a work queue of {0} in group '{0}'"),
        (lambda client, topic: sync.TransactionalProducer(client, topic), "a producer in group '{}'"),
    ],
    ids=["consumer", "member", "push", "work", "transactions"],
)
def test_what_is_blocking_is_named_when_it_is_dropped(
    shared_node: NodeProcess, topic_name: str, make: Callable[[Any, str], Any], what: str
) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        assert said_of(lambda: make(client, topic_name)) == [
            f"{what.format(topic_name)} was dropped, and nobody has closed it; use 'with', or close() it"
        ]
        assert said_of(lambda: make(client, topic_name).close()) == []
        left = [make(client, topic_name)]
    assert said_of(left.clear) == []  # It is over with its client.


def test_a_blocking_client_is_named_when_it_is_dropped(shared_node: NodeProcess, topic_name: str) -> None:
    before = set(threading.enumerate())

    def drop() -> None:
        threads.append(sync.Client(shared_node.url)._thread)

    threads: list[Any] = []
    assert said_of(drop) == [
        f"a client of {shared_node.url} was dropped, and nobody has closed it; use 'with', or close() it"
    ]
    threads[0].stop()
    assert said_of(lambda: sync.Client(shared_node.url).close()) == []
    eventually(lambda: set(threading.enumerate()) <= before, "no thread is left")


def test_a_consumer_that_is_dropped_commits_nothing_that_it_has_not_handed_out(
    shared_node: NodeProcess, topic_name: str
) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=1)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(f"{number}" for number in range(10)).wait()

        def drop() -> None:
            consumer = sync.Consumer(client, topic_name, group=topic_name, uncommitted="earliest")
            assert [message.text() for message in consumer.poll(3)] == ["0", "1", "2"]
            inner.append(consumer._async)

        inner: list[Consumer] = []
        assert len(said_of(drop)) == 1
        client._thread.call(inner[0].commit())
        assert client.committed_offsets(topic_name, topic_name) == {0: 3}
        client._thread.call(inner[0].close())


OPEN = """
import asyncio, gc, sys
import lsmq
from lsmq import sync
URL, TOPIC = sys.argv[1:]

async def main():
    client = lsmq.Client(URL)
    await client.topic(TOPIC)
    consumer = lsmq.Consumer(client, TOPIC)
    await consumer.start()
    push = lsmq.PushConsumer(client, TOPIC, group=TOPIC + "-p")
    await push.start()
    work = lsmq.WorkQueue(client, TOPIC, TOPIC + "-w")
    await work.poll(1, 0)
    idle = lsmq.Consumer(client, TOPIC)
    async with lsmq.Client(URL) as other, lsmq.Consumer(other, TOPIC), lsmq.Consumer(other, TOPIC, group=TOPIC):
        pass
"""


def run(program: str, node: NodeProcess, topic: str, *options: str) -> str:
    """What the program has said on stderr."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program), node.url, topic],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_is_asynchronous_is_named_when_its_event_loop_is_over(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
    said = run(OPEN + "asyncio.run(main())\ngc.collect()", shared_node, topic_name, "-W", "always::ResourceWarning")
    for what in (
        f"a client of {shared_node.url}",
        f"a consumer of {topic_name}",
        f"a push consumer of {topic_name} in group '{topic_name}-p'",
        f"a work queue of {topic_name} in group '{topic_name}-w'",
    ):
        assert said.count(f"ResourceWarning: {what} was dropped") == 1, said
    assert said.count("was dropped, and nobody has closed it; use 'async with', or await close()") == 4


def test_nothing_is_said_when_the_interpreter_ends(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
    program = """
    import sys
    from lsmq import sync
    URL, TOPIC = sys.argv[1:]
    client = sync.Client(URL)
    kept = [
        sync.Consumer(client, TOPIC, start="earliest"),
        sync.PushConsumer(client, TOPIC, group=TOPIC + "-p"),
        sync.WorkQueue(client, TOPIC, TOPIC + "-w"),
        sync.Producer(client, TOPIC),
        sync.TransactionalProducer(client, TOPIC),
    ]
    kept[2].poll(1, 0)
    kept[3].send("x")
    kept[3].flush()
    """
    assert run(program, shared_node, topic_name, "-W", "error::ResourceWarning") == ""

"""A producer that nobody closes loses no message without a word, and a work queue leaves no task behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from lsmq import sync
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S

BEGIN = """
import asyncio, gc, os, sys, threading
import lsmq
from lsmq import sync
URL, TOPIC = sys.argv[1:]
"""


def run(program: str, node: NodeProcess, topic: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the node and a topic; it must end by itself, with success."""
    done = subprocess.run(
        [sys.executable, *options, "-c", BEGIN + textwrap.dedent(program), node.url, topic],
        env={name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def stored(shared_node: NodeProcess, topic_name: str) -> Callable[[], int]:
    """Makes the test's topic; how many messages it has."""
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)

    def count() -> int:
        with sync.Client(shared_node.url) as client:
            return sum(client.offsets(topic_name).latest)

    return count


BLOCKING = """
client = sync.Client(URL)
producer = sync.Producer(client, TOPIC, linger_ms=60_000)
for number in range(3):
    producer.send(str(number))
"""


@pytest.mark.parametrize(
    "options", [(), ("-X", "dev"), ("-W", "error::ResourceWarning")], ids=["by default", "-X dev", "-W error"]
)
def test_a_blocking_producer_is_flushed_when_the_interpreter_ends(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int], options: tuple[str, ...]
) -> None:
    done = run(BLOCKING, shared_node, topic_name, *options)
    assert stored() == 3
    named = f"ResourceWarning: the interpreter ended with producers that were not closed: of topic '{topic_name}'"
    assert (f"{named} with 3 messages pending" in done.stderr) == bool(options)
    assert done.stderr.count("messages pending") == bool(options)


def test_a_blocking_producer_is_flushed_also_of_what_other_threads_send_later(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    program = """
    def send() -> None:
        threading.main_thread().join()
        for number in range(3):
            producer.send(str(number))
    threading.Thread(target=send).start()
    """
    done = run(BLOCKING + textwrap.dedent(program), shared_node, topic_name, "-X", "dev")
    assert stored() == 6
    assert "pending" in done.stderr


def test_a_blocking_producer_that_is_dropped_is_named_and_stores_all_the_same(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    done = run(BLOCKING + "del producer", shared_node, topic_name, "-X", "dev")
    dropped = f"ResourceWarning: a producer of topic '{topic_name}' was dropped with 3 messages pending"
    assert f"{dropped}; use 'with', or close() it" in done.stderr
    assert done.stderr.count("messages pending") == 1
    assert stored() == 3


def test_a_blocking_producer_of_a_group_is_named_and_flushed_as_well(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    program = """
    client = sync.Client(URL)
    producer = sync.GroupProducer(client, TOPIC, f"g{DROPPED}", linger_ms=60_000)
    for number in range(3):
        producer.send(str(number), position=number)
    if DROPPED:
        del producer
    """
    for number, said in enumerate(("the interpreter ended with producers", "a producer of topic")):
        done = run(f"DROPPED = {bool(number)}" + textwrap.dedent(program), shared_node, topic_name, "-X", "dev")
        assert f"ResourceWarning: {said}" in done.stderr and done.stderr.count("3 messages pending") == 1
        assert stored() == 3 + 3 * number


def test_a_flush_in_the_end_takes_no_longer_than_it_may(make_node: Callable[[], NodeProcess], topic_name: str) -> None:
    node = make_node().start()
    with sync.Client(node.url) as client:
        client.create_topic(topic_name)
    program = """
    from lsmq._unclosed_producers import open_producers
    import signal
    open_producers._left_s = 0.2
    producer = sync.Producer(sync.Client(URL, deadline_ms=600_000), TOPIC, linger_ms=60_000)
    producer.send("one")
    os.kill(int(os.environ["NODE"]), signal.SIGKILL)
    """
    os.environ["NODE"] = str(node.pid)
    try:
        done = run(program, node, topic_name, "-X", "dev")
    finally:
        del os.environ["NODE"]
        node.kill9()
    assert f"messages were not stored when the interpreter ended: topic={topic_name} messages=1" in done.stderr
    assert f"of topic '{topic_name}' with 1 message pending" in done.stderr


ASYNCHRONOUS = """
async def main():
    client = lsmq.Client(URL)
    producer = lsmq.Producer(client, TOPIC, linger_ms=60_000)
    for number in range(3):
        await producer.send(str(number))
    await client.close()
    {rest}
"""


@pytest.mark.parametrize(
    "end",
    ["asyncio.run(main())", "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()"],
    ids=["cancelled", "not cancelled"],
)
@pytest.mark.parametrize("rest", ["return None", "globals()['kept'] = producer"], ids=["collected", "kept"])
def test_an_asynchronous_producer_that_is_not_closed_is_named(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int], end: str, rest: str
) -> None:
    program = ASYNCHRONOUS.format(rest=rest) + end
    done = run(program, shared_node, topic_name, "-W", "always::ResourceWarning")
    assert done.stderr.count("3 messages pending") == 1
    assert f"producer of topic '{topic_name}'" in done.stderr or f"of topic '{topic_name}' with" in done.stderr
    assert stored() == 0


def test_what_an_event_loop_lost_is_logged_by_default(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    done = run(ASYNCHRONOUS.format(rest="") + "asyncio.run(main())", shared_node, topic_name)
    assert f"a producer's sender ended: topic={topic_name} unstored=3" in done.stderr
    assert "ResourceWarning" not in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        """
        with sync.Client(URL) as client:
            producer = sync.Producer(client, TOPIC)
            producer.send_and_wait("")
        """,
        """
        async def main():
            async with lsmq.Client(URL) as client:
                producer = lsmq.Producer(client, TOPIC)
                await producer.send_and_wait("")

        asyncio.run(main())
        """,
    ],
    ids=["blocking", "asynchronous"],
)
def test_nothing_is_logged_of_a_producer_that_held_nothing(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int], program: str
) -> None:
    assert run(program, shared_node, topic_name, "-W", "always::ResourceWarning").stderr == ""
    assert stored() == 1


SILENT = """
def fill():
    producer = sync.Producer(client, TOPIC, linger_ms=60_000)
    producer.send("one")
    return producer

client = sync.Client(URL)
fill().close()
fill().abort()
flushed = fill()
flushed.flush()
with sync.Producer(client, TOPIC) as producer:
    producer.send("one")

async def main():
    async with lsmq.Client(URL) as client, lsmq.Producer(client, TOPIC) as producer:
        await producer.send("one")

asyncio.run(main())
for make in (lambda: lsmq.Producer(None, 5), lambda: sync.Producer(client, "nowhere")):
    try:
        make()
    except lsmq.LsmqError:
        gc.collect()
"""


def test_nothing_is_said_of_producers_that_hold_nothing(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    assert run(SILENT, shared_node, topic_name, "-W", "error::ResourceWarning").stderr == ""


def test_a_forked_process_leaves_the_messages_to_its_parent(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    program = """
    child = os.fork()
    if child == 0:
        try:
            producer.send("four")
        except lsmq.ClientClosed as error:
            assert "before a fork" in str(error)
            sys.exit(7)
        sys.exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    done = run(BLOCKING + textwrap.dedent(program), shared_node, topic_name, "-W", "always::ResourceWarning")
    assert done.stderr.count("messages pending") == 1
    assert stored() == 3


def test_a_forked_process_is_handed_nothing_of_what_its_parent_has_read_ahead(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    done = run(
        """
        client = sync.Client(URL)
        with sync.Producer(client, TOPIC) as producer:
            producer.send_many(f"{number}" for number in range(10)).wait()
        consumer = sync.Consumer(client, TOPIC, start="earliest")
        consumer.poll(1)
        child = os.fork()
        if not child:
            try:
                print("child has", [message.text() for message in consumer.poll(1)], flush=True)
            except lsmq.ClientClosed as error:
                print("child is told that", error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print("parent has", len(consumer.poll(9)), flush=True)
        consumer.close()
        client.close()
        """,
        shared_node,
        topic_name,
    )
    told, has = done.stdout.splitlines()
    assert told.startswith("child is told that") and "from before a fork" in told
    assert has == "parent has 9"


def test_the_end_of_a_process_of_multiprocessing_is_an_end_as_well(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    program = f"""
import multiprocessing
def work():
    {BLOCKING.strip().replace(chr(10), chr(10) + "    ")}
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
sys.exit(process.exitcode)
"""
    run(program, shared_node, topic_name)
    assert stored() == 3


def test_a_client_that_is_closed_first_says_what_its_producers_lost(
    shared_node: NodeProcess, topic_name: str, stored: Callable[[], int]
) -> None:
    done = run(BLOCKING + "client.close()", shared_node, topic_name, "-X", "dev")
    assert f"a producer's sender ended: topic={topic_name} unstored=3" in done.stderr
    assert done.stderr.count("3 messages pending") == 1
    assert stored() == 0


def test_names_of_nodes_are_looked_up_in_the_end_as_well(make_node: Callable[[], NodeProcess], topic_name: str) -> None:
    node = make_node().start()
    node.restart(advertised_url=f"http://localhost:{node.port}")
    address = f"http://127.0.0.1:{node.port}"
    with sync.Client(address) as client:
        client.create_topic(topic_name)
    run(f"URL = {address!r}" + BLOCKING, node, topic_name)
    with sync.Client(address) as client:
        assert list(client.offsets(topic_name).latest) == [3]


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
client = sync.Client(URL)
client.create_topic(TOPIC)
work = sync.WorkQueue(client, TOPIC, TOPIC)
def interrupt() -> None:
    while TOPIC not in {each.group for each in sync.list_groups(client)}:
        pass  # It has asked for nothing yet.
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    work.run(print)
except KeyboardInterrupt:
    print("interrupted")
"""
FAILED = """
with sync.Client(URL) as client:
    work = sync.WorkQueue(client, TOPIC, "g")
    try:
        work.poll()
    except lsmq.errors.UnknownTopic:
        print("unknown")
    del work
    client._thread.do(gc.collect)
"""


def test_a_work_queue_that_was_interrupted_leaves_no_task(shared_node: NodeProcess, topic_name: str) -> None:
    done = run(INTERRUPTED, shared_node, topic_name)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_work_queue_that_failed_and_is_forgotten_leaves_no_task(shared_node: NodeProcess, topic_name: str) -> None:
    done = run(FAILED, shared_node, topic_name)
    assert (done.stdout, done.stderr) == ("unknown\n", "")

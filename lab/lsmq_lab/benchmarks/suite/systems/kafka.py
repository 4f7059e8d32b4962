"""Kafka: one broker with KRaft, from Maven; a partition a queue, an fsync before each acknowledgement."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...maven import Jars, java
from ...report import BenchFailed
from ...server_processes import free_port, listens, started
from .system import COMMIT_S, TOPIC, ClientLoad, LoadOutcome, Running, Stopwatch, System

RELEASE = "4.3.0"
BROKER = Jars(
    f"kafka-{RELEASE}",
    (("org.apache.kafka", "kafka_2.13", RELEASE), ("org.slf4j", "slf4j-simple", "1.7.36")),
    "3aca43d8fcc47f936256cccbc85e16df3cf1d48730477063190cd248dca73fda",
)
#: fsync before each acknowledgement: what the others of the suite promise too.
SYNC: Mapping[str, str] = {"log.flush.interval.messages": "1"}
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
#: A broker that is starved of the processor for nine seconds, as on a small machine that others use too, would be taken
#: for dead by itself, and its partitions would be without a leader: so it is given two minutes.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "120000",
    "log.cleaner.enable": "false",
}
LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_FORMAT_TIMEOUT_S = 120
_TIMEOUT_S = 60.0


def write(load: ClientLoad) -> LoadOutcome:
    failed: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    producer, bodies = _producer(load, {"linger.ms": 5, "queue.buffering.max.messages": load.in_flight}), load.bodies()
    clock = Stopwatch()
    for number in range(load.messages):
        while True:
            try:
                queue = (load.first + number) % load.queues
                producer.produce(TOPIC, bodies[number % len(bodies)], partition=queue, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1_000:
            producer.poll(0)
    producer.flush(_TIMEOUT_S)
    if failed:
        raise BenchFailed(f"Kafka refused {len(failed)} messages: {failed[0]}")
    return clock.outcome(load.messages)


def read(load: ClientLoad) -> LoadOutcome:
    confluent = importlib.import_module("confluent_kafka")
    count, clock = 0, Stopwatch()
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": "bench",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": int(COMMIT_S * 1_000),
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([confluent.TopicPartition(TOPIC, queue, 0) for queue in range(load.first, load.end)])
    while count < load.messages:
        found = consumer.consume(5_000, 1.0)
        for message in found:
            if message.error() is not None:
                raise BenchFailed(f"Kafka could not be read: {message.error()}")
            message.value()
        count += len(found)
    consumer.commit(asynchronous=False)
    outcome = clock.outcome(count)
    consumer.close()
    return outcome


def loop(load: ClientLoad) -> LoadOutcome:
    """Callbacks of one thread: each acknowledgement sends the next message of its task."""
    producer, bodies = _producer(load, {"linger.ms": 0}), load.bodies()
    seconds: list[float] = []
    left = load.messages - load.in_flight

    def send(task: int) -> None:
        began = time.perf_counter()

        def delivered(error: Any, message: Any) -> None:
            nonlocal left
            if error is not None:
                raise BenchFailed(f"Kafka refused a message: {error}")
            seconds.append(time.perf_counter() - began)
            if left > 0:
                left -= 1
                send(task)

        producer.produce(load.topic_of(task), bodies[task % 64], partition=load.queue_of(task), on_delivery=delivered)

    for task in range(load.in_flight):  # The first to each partition asks for its leader.
        producer.produce(load.topic_of(task), bodies[0], partition=load.queue_of(task))
    producer.flush(_TIMEOUT_S)
    clock = Stopwatch()
    for task in range(load.in_flight):
        send(task)
    while len(seconds) < load.messages:
        producer.poll(0.1)
    return clock.outcome(load.messages, seconds)


def _producer(load: ClientLoad, options: Mapping[str, Any]) -> Any:
    producer = importlib.import_module("confluent_kafka").Producer(
        {"bootstrap.servers": load.address, "acks": "all", **options}
    )
    producer.list_topics(timeout=_TIMEOUT_S)
    return producer


def lacks() -> str | None:
    """What keeps it from being measured."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return 'the Kafka client is not installed: pip install "lsmq[peers]"'
    return BROKER.lacks()


@contextmanager
def running(directory: Path, settings: Mapping[str, str] = SYNC) -> Iterator[Running]:
    """A broker over fresh files."""
    place = BROKER.bring()
    port, controller = free_port(), free_port()
    directory.mkdir(parents=True)
    wanted = {
        **_SETTINGS,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory / "logs"),
        **settings,
    }
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
    format_command = java(place, ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)])
    subprocess.run(format_command, check=True, capture_output=True, timeout=_FORMAT_TIMEOUT_S)
    command = java(place, ["kafka.Kafka", str(file)], options=[LOGGING])
    with started(command, directory / "broker.log", lambda: listens(port)) as pid:
        yield Running(f"127.0.0.1:{port}", (pid,), directory)


def _prepare(address: str, queues: int, topics: int) -> None:
    admin_module = importlib.import_module("confluent_kafka.admin")
    admin = admin_module.AdminClient({"bootstrap.servers": address})
    names = [(f"{TOPIC}-{number}", 1) for number in range(topics)] or [(TOPIC, queues)]
    wanted = [admin_module.NewTopic(name, num_partitions=count, replication_factor=1) for name, count in names]
    for made in admin.create_topics(wanted, request_timeout=_TIMEOUT_S).values():
        made.result(_TIMEOUT_S)
    deadline = time.monotonic() + _TIMEOUT_S
    while not _all_led(admin.list_topics(timeout=_TIMEOUT_S).topics, names):
        if time.monotonic() > deadline:
            raise BenchFailed(f"Kafka has not made {sum(count for _, count in names):,} partitions in time")
        time.sleep(0.1)


def _all_led(topics: Mapping[str, Any], names: list[tuple[str, int]]) -> bool:
    return all(
        name in topics
        and len(topics[name].partitions) == count
        and all(each.leader >= 0 for each in topics[name].partitions.values())
        for name, count in names
    )


SYSTEM = System(
    "kafka",
    __name__,
    "after fsync (log.flush.interval.messages=1)",
    lacks,
    running,
    _prepare,
    most_queues=1_000,
    stops="a directory with files and an fsync of its own for each partition: about 4,000 a broker are advised",
)

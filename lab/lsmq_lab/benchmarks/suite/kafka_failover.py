"""Failover of Kafka beside ours: three brokers, leaders killed, the time a partition acknowledges nothing."""

from __future__ import annotations

import importlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..maven import java
from ..report import BenchFailed
from .kills import (
    BODY_BYTES,
    NOTICED_S,
    PACE_S,
    SERVERS,
    TIMEOUT_S,
    Acknowledgements,
    PeerServers,
    first_port,
    properties,
)
from .systems.kafka import BROKER, CLUSTER_ID, LOGGING

PARTITIONS = 12
_TOPIC = "failover"
#: As quick as the broker takes: how soon one that is silent is taken for dead, and how often it says that it is not.
BEST: Mapping[str, str] = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
_BODY = b"x" * BODY_BYTES


class _Cluster:
    """Brokers that are controllers as well, each a process over a directory of its own."""

    def __init__(self, place: Path, settings: Mapping[str, str]) -> None:
        self._place = place
        first = first_port(2 * SERVERS)
        ports = [(first + 2 * number, first + 2 * number + 1) for number in range(SERVERS)]
        voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller) in enumerate(ports))
        self.address = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        self._servers = PeerServers()
        for number, (port, controller) in enumerate(ports):
            wanted = {
                "process.roles": "broker,controller",
                "node.id": f"{number}",
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(place / f"{number}"),
                "min.insync.replicas": "2",
                "log.flush.interval.messages": "1",
                **settings,
            }
            self._file(number).write_text(properties(wanted))
            command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._file(number))]
            subprocess.run(java(BROKER.bring(), command), check=True, capture_output=True, timeout=TIMEOUT_S)

    def _file(self, number: int) -> Path:
        return self._place / f"{number}.properties"

    def start(self, number: int) -> None:
        command = java(BROKER.bring(), ["kafka.Kafka", str(self._file(number))], heap="512m", options=[LOGGING])
        self._servers.start(f"{number}", command, self._place / f"{number}.log")

    def kill(self, number: int) -> None:
        self._servers.kill(f"{number}")

    def stop(self) -> None:
        self._servers.stop()


class _Writer:
    """Writes a message to every partition again and again, and remembers when each was acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = importlib.import_module("confluent_kafka").Producer(
            {**_client(address), "acks": "all", "linger.ms": 0, "reconnect.backoff.max.ms": 200}
        )
        self.acknowledged = Acknowledgements(PARTITIONS)

    def work(self, until: Callable[[], bool], what: str) -> None:
        """Go on at a steady pace until something is true. Raises :class:`BenchFailed` when it is not for long."""
        due = time.monotonic()
        deadline = due + TIMEOUT_S
        while not until():
            if due > deadline:
                raise BenchFailed(f"Kafka: in {TIMEOUT_S:.0f} s it never came true that {what}")
            for partition in range(PARTITIONS):
                self._producer.produce(_TOPIC, _BODY, partition=partition, on_delivery=self._delivered)
            due += PACE_S
            while (left_s := due - time.monotonic()) > 0:
                self._producer.poll(left_s)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.times[message.partition()].append(time.monotonic())


def _client(address: str) -> dict[str, Any]:
    """That brokers are gone is what is wanted here, and nothing to be told."""
    return {"bootstrap.servers": address, "log_level": 0}


def kill_leaders(place: Path, rounds: int, settings: Mapping[str, str]) -> list[float]:
    """Milliseconds without an acknowledgement, rising: one a round for each partition that lost its leader."""
    gaps: list[float] = []
    with _running(place, settings) as cluster:
        admin = importlib.import_module("confluent_kafka.admin").AdminClient(_client(cluster.address))
        _make_topic(admin)
        writer = _Writer(cluster.address)
        everywhere = list(range(PARTITIONS))
        for _ in range(rounds):
            began = time.monotonic()
            writer.work(partial(writer.acknowledged.are_on_all, everywhere, began), "all acknowledge")
            partitions = _partitions(admin)
            victim = random.choice(sorted({each.leader for each in partitions.values()}))
            hit = [number for number, each in partitions.items() if each.leader == victim]
            cluster.kill(victim)
            killed = time.monotonic()
            writer.work(partial(writer.acknowledged.are_on_all, hit, killed + NOTICED_S), "others lead")
            gaps += [writer.acknowledged.gap_s(partition, killed) * 1000 for partition in hit]
            cluster.start(victim)
            writer.work(lambda: _are_in_sync(_partitions(admin)), "all replicas are in sync")
    return sorted(gaps)


@contextmanager
def _running(place: Path, settings: Mapping[str, str]) -> Iterator[_Cluster]:
    cluster = _Cluster(place, settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        for number in range(SERVERS):
            cluster.start(number)
        yield cluster


def _make_topic(admin: Any) -> None:
    module = importlib.import_module("confluent_kafka.admin")
    deadline = time.monotonic() + TIMEOUT_S
    while len(admin.list_topics(timeout=TIMEOUT_S).brokers) < SERVERS:
        if time.monotonic() > deadline:
            raise BenchFailed(f"fewer than {SERVERS} brokers of Kafka have come up")
        time.sleep(0.1)
    wanted = module.NewTopic(_TOPIC, num_partitions=PARTITIONS, replication_factor=SERVERS)
    for made in admin.create_topics([wanted], request_timeout=TIMEOUT_S).values():
        made.result(TIMEOUT_S)


def _partitions(admin: Any) -> dict[int, Any]:
    found: dict[int, Any] = admin.list_topics(_TOPIC, timeout=TIMEOUT_S).topics[_TOPIC].partitions
    return found


def _are_in_sync(partitions: Mapping[int, Any]) -> bool:
    return all(len(each.isrs) == SERVERS for each in partitions.values())

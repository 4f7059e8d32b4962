"""Failover of Kafka beside ours: three brokers, leaders killed, the time a partition acknowledges nothing."""

from __future__ import annotations

import bisect
import importlib
import itertools
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..maven import java
from ..report import BenchFailed
from ..server_processes import free_port
from .systems.kafka import BROKER, CLUSTER_ID, LOGGING

BROKERS, PARTITIONS = 3, 12
_TOPIC = "failover"
#: As quick as the broker takes: how soon one that is silent is taken for dead, and how often it says that it is not.
BEST: Mapping[str, str] = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
_PACE_S = 0.025
_NOTICED_S = 1.5
_ACKNOWLEDGED = 3
_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_BODY = b"x" * 100


class _Cluster:
    """Brokers that are controllers as well, each a process over a directory of its own."""

    def __init__(self, place: Path, settings: Mapping[str, str]) -> None:
        self._place = place
        ports = [(free_port(), free_port()) for _ in range(BROKERS)]
        voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller) in enumerate(ports))
        self.address = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
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
            self._file(number).write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
            command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._file(number))]
            subprocess.run(java(BROKER.bring(), command), check=True, capture_output=True, timeout=_TIMEOUT_S)

    def _file(self, number: int) -> Path:
        return self._place / f"{number}.properties"

    def start(self, number: int) -> None:
        command = java(BROKER.bring(), ["kafka.Kafka", str(self._file(number))], heap="512m", options=[LOGGING])
        with (self._place / f"{number}.log").open("ab") as log:
            self._running[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Acknowledgements:
    """When each partition acknowledged, rising."""

    def __init__(self) -> None:
        self.times: list[list[float]] = [[] for _ in range(PARTITIONS)]

    def gap_s(self, partition: int, since: float) -> float:
        """The longest time without one, from the last one before then on."""
        times = self.times[partition]
        first = max(0, bisect.bisect_right(times, since) - 1)
        return max((later - earlier for earlier, later in itertools.pairwise(times[first:])), default=0.0)

    def are_on_all(self, partitions: Sequence[int], since: float) -> bool:
        """Whether each of them has acknowledged a few times since."""
        return all(
            len(self.times[partition]) >= _ACKNOWLEDGED and self.times[partition][-_ACKNOWLEDGED] > since
            for partition in partitions
        )


class _Writer:
    """Writes a message to every partition again and again, and remembers when each was acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = importlib.import_module("confluent_kafka").Producer(
            {**_client(address), "acks": "all", "linger.ms": 0, "reconnect.backoff.max.ms": 200}
        )
        self.acknowledged = Acknowledgements()

    def work(self, until: Callable[[], bool], what: str) -> None:
        """Go on at a steady pace until something is true. Raises :class:`BenchFailed` when it is not for long."""
        due = time.monotonic()
        deadline = due + _TIMEOUT_S
        while not until():
            if due > deadline:
                raise BenchFailed(f"Kafka: in {_TIMEOUT_S:.0f} s it never came true that {what}")
            for partition in range(PARTITIONS):
                self._producer.produce(_TOPIC, _BODY, partition=partition, on_delivery=self._delivered)
            due += _PACE_S
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
            writer.work(partial(writer.acknowledged.are_on_all, hit, killed + _NOTICED_S), "others lead")
            gaps += [writer.acknowledged.gap_s(partition, killed) * 1000 for partition in hit]
            cluster.start(victim)
            writer.work(lambda: _are_in_sync(_partitions(admin)), "all replicas are in sync")
    return sorted(gaps)


@contextmanager
def _running(place: Path, settings: Mapping[str, str]) -> Iterator[_Cluster]:
    cluster = _Cluster(place, settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        for number in range(BROKERS):
            cluster.start(number)
        yield cluster


def _make_topic(admin: Any) -> None:
    module = importlib.import_module("confluent_kafka.admin")
    deadline = time.monotonic() + _TIMEOUT_S
    while len(admin.list_topics(timeout=_TIMEOUT_S).brokers) < BROKERS:
        if time.monotonic() > deadline:
            raise BenchFailed(f"fewer than {BROKERS} brokers of Kafka have come up")
        time.sleep(0.1)
    wanted = module.NewTopic(_TOPIC, num_partitions=PARTITIONS, replication_factor=BROKERS)
    for made in admin.create_topics([wanted], request_timeout=_TIMEOUT_S).values():
        made.result(_TIMEOUT_S)


def _partitions(admin: Any) -> dict[int, Any]:
    found: dict[int, Any] = admin.list_topics(_TOPIC, timeout=_TIMEOUT_S).topics[_TOPIC].partitions
    return found


def _are_in_sync(partitions: Mapping[int, Any]) -> bool:
    return all(len(each.isrs) == BROKERS for each in partitions.values())

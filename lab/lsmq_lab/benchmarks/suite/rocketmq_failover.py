"""Failover of RocketMQ beside ours: three brokers of a group under three controllers, masters killed."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..maven import java
from ..report import BenchFailed
from ..server_processes import stop
from .kills import (
    BODY_BYTES,
    HOST,
    NOTICED_S,
    PACE_S,
    SERVERS,
    TIMEOUT_S,
    Acknowledgements,
    PeerServers,
    first_port,
    properties,
)
from .systems.rocketmq import JARS, options


@dataclass(frozen=True, slots=True)
class Settings:
    """What is changed of the defaults of name servers with their controllers, of brokers, and of the producer."""

    controllers: Mapping[str, str] = field(default_factory=dict)
    brokers: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    #: The longest period of what ends a failover. Masters are killed at any moment of it: rounds that take equally long
    #: would otherwise always meet the same one.
    period_s: float = 30.0

    def text(self) -> str:
        """In one line."""
        return ", ".join(
            f"{name}={value}"
            for each in (self.controllers, self.brokers, self.producer)
            for name, value in each.items()
        )


DEFAULTS = Settings()
#: A broker whose connection is gone is dead at once, whatever timeouts there are. What takes time is that a slave comes
#: to know where the new master replicates. It is told when it registers with a name server; where the master has not
#: done so yet, only when it registers again, ten seconds later at best. Slaves that act for masters are told of each.
#: Then the slave says with its heartbeats, and not before, that it has everything.
BEST = Settings(
    controllers={"notifyMinBrokerIdChanged": "true"},
    brokers={
        "enableSlaveActingMaster": "true",
        "registerNameServerPeriod": "10000",
        "haSendHeartbeatInterval": "1",
    },
    producer={"pollNameServerInterval": "25"},
    period_s=10.0,
)
_GROUP = "failover"
_TOPIC = "failover"
_WRITER = Path(__file__).with_name("RocketmqWriter.java")
_VIEW_S = 0.2
_SAID_LINES, _SAID_CHARACTERS = 3, 120


class _Cluster:
    """Name servers that are controllers as well, and brokers of one group, each a process with files of its own."""

    def __init__(self, place: Path, settings: Settings) -> None:
        self._place, self._servers = place, PeerServers()
        first = first_port(5 * SERVERS)
        names, controllers = (range(first + number * SERVERS, first + (number + 1) * SERVERS) for number in range(2))
        # A broker takes the port two below its own as well, and the one between for its replicas.
        self._ports = range(first + 2 * SERVERS + 2, first + 5 * SERVERS, 3)
        self.names = ";".join(f"{HOST}:{port}" for port in names)
        self.controller = f"{HOST}:{controllers[0]}"
        peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(controllers))
        for number in range(SERVERS):
            of_names = {
                "listenPort": names[number],
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": place / f"controller-{number}",
                **settings.controllers,
            }
            of_broker = {
                "brokerClusterName": _GROUP,
                "brokerName": _GROUP,
                "brokerId": "-1",
                "brokerRole": "SLAVE",
                "brokerIP1": HOST,
                "brokerIP2": HOST,
                "listenPort": self._ports[number],
                "haListenPort": self._ports[number] - 1,
                "namesrvAddr": self.names,
                "enableControllerMode": "true",
                "controllerAddr": ";".join(f"{HOST}:{port}" for port in controllers),
                "storePathRootDir": place / f"store-{number}",
                "flushDiskType": "SYNC_FLUSH",
                "allAckInSyncStateSet": "true",
                "minInSyncReplicas": "2",
                "mappedFileSizeCommitLog": "67108864",
                **settings.brokers,
            }
            self._file(f"names-{number}").write_text(properties(of_names))
            self._file(f"broker-{number}").write_text(properties(of_broker))

    def _file(self, name: str) -> Path:
        return self._place / f"{name}.conf"

    def start_names(self) -> None:
        for number in range(SERVERS):
            self._start(f"names-{number}", "org.apache.rocketmq.namesrv.NamesrvStartup")

    def start(self, number: int) -> None:
        self._start(f"broker-{number}", "org.apache.rocketmq.broker.BrokerStartup")

    def _start(self, name: str, main: str) -> None:
        home = self._place / f"home-{name}"
        home.mkdir(exist_ok=True)
        command = java(JARS.bring(), [main, "-c", str(self._file(name))], heap="512m", options=options(home))
        self._servers.start(name, command, self._place / f"{name}.log", {"ROCKETMQ_HOME": str(home)})

    def kill(self, number: int) -> None:
        self._servers.kill(f"broker-{number}")

    def stop(self) -> None:
        self._servers.stop()

    def number(self, address: str) -> int:
        """Whose address it is."""
        return self._ports.index(int(address.rpartition(":")[2]))

    def ended(self) -> str:
        return self._servers.ended()


class Heard:
    """What the writer said: when each message was acknowledged, who leads, and how many brokers are in sync."""

    def __init__(self) -> None:
        self.acknowledged = Acknowledgements(1)
        self.master = ""
        self._in_sync, self._seen = 0, 0.0
        self._others: deque[str] = deque(maxlen=_SAID_LINES)

    def take(self, line: str, now: float) -> None:
        match line.split():
            case ["acknowledged"]:
                self.acknowledged.times[0].append(now)
            case ["replicas", master, in_sync]:
                self.master, self._in_sync, self._seen = master, int(in_sync), now
            case _:
                self._others.append(line.strip()[:_SAID_CHARACTERS])

    def acknowledges(self, since: float) -> bool:
        return self.acknowledged.are_on_all([0], since)

    def are_in_sync(self, since: float) -> bool:
        return self._in_sync == SERVERS and self._seen > since

    def last(self) -> str:
        """What else it said: why messages were refused, and the group could not be looked at."""
        return " | ".join(self._others) or "nothing"


class _Writer:
    """A process in Java that writes again and again. What it says is heard by a thread."""

    def __init__(self, cluster: _Cluster, place: Path, settings: Settings) -> None:
        place.mkdir()
        fixed = [cluster.names, cluster.controller, _GROUP, _TOPIC, f"{BODY_BYTES}"]
        paces = [f"{pace_s * 1000:.0f}" for pace_s in (PACE_S, _VIEW_S)]
        given = [f"{name}={value}" for name, value in settings.producer.items()]
        command = java(JARS.bring(), [str(_WRITER), *fixed, *paces, *given], heap="256m", options=options(place))
        self.heard = Heard()
        self._cluster = cluster
        self._news, self._ended = threading.Condition(), False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=place,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Let it work until something is true. Raises :class:`BenchFailed` when it is not for long."""
        with self._news:
            self._news.wait_for(lambda: self._ended or until(), TIMEOUT_S)
            if until():
                return
            came = "the writer ended before" if self._ended else f"in {TIMEOUT_S:.0f} s it never came true that"
            said = self._cluster.ended() or f"the writer said last: {self.heard.last()}"
            raise BenchFailed(f"RocketMQ: {came} {what}; {said}")

    def stop(self) -> None:
        stop(self._process)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now = time.monotonic()
            with self._news:
                self.heard.take(line, now)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def kill_masters(place: Path, rounds: int, settings: Settings) -> list[float]:
    """Milliseconds without an acknowledgement, rising: one a round."""
    if shutil.which("javac") is None:
        raise BenchFailed("javac is not on PATH, so RocketMQ's writer cannot run: apt-get install default-jdk-headless")
    gaps: list[float] = []
    with _running(place, settings) as (cluster, writer):
        heard = writer.heard
        for _ in range(rounds):
            writer.wait(partial(heard.are_in_sync, time.monotonic()), "all replicas are in sync")
            moment = time.monotonic() + random.uniform(0, settings.period_s)
            writer.wait(partial(heard.acknowledges, moment), "a master acknowledges")
            victim = cluster.number(heard.master)
            cluster.kill(victim)
            killed = time.monotonic()
            writer.wait(partial(heard.acknowledges, killed + NOTICED_S), "another master acknowledges")
            gaps.append(heard.acknowledged.gap_s(0, killed) * 1000)
            cluster.start(victim)
    return sorted(gaps)


@contextmanager
def _running(place: Path, settings: Settings) -> Iterator[tuple[_Cluster, _Writer]]:
    cluster = _Cluster(place, settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start_names()
        for number in range(SERVERS):
            cluster.start(number)
        writer = _Writer(cluster, place / "writer", settings)
        stack.callback(writer.stop)
        yield cluster, writer

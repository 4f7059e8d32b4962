"""A real cluster on this machine, as a thing to bring up, hurt, heal and take down."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from lsmq.errors import AddressInUse, InvalidRequest
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.authority import Authority
from lsmq_node import config_file
from lsmq_node.rights.first_token import FILE as FIRST_TOKEN

from ..believed import believing
from .errors import ClusterNotReady, NodeEnded, NodeNotRunning
from .plan import HOST, PORTS_PER_NODE, ClusterPlan, NodePlan, choose_ports
from .process import OwnProcess, ProcessState
from .status import ClusterStatus, answers, collect
from .zookeeper_server import EnsembleMember, ZooKeeperServer, ZooKeeperTls

READY_TIMEOUT_S = 60.0
#: A node gets its own grace for stopping and this much more before it is killed.
STOP_MARGIN_S = 5.0
KILL_TIMEOUT_S = 20.0

_POLL_S = 0.05
_HOSTS = (HOST, "localhost")
_PROGRAM = ("-m", "lsmq")
_ZOOKEEPER = "zookeeper"
_CLIENT = "client"

TellStatus = Callable[[ClusterStatus], None]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tell_nobody(status: ClusterStatus) -> None:
    pass


class LocalCluster:
    """The cluster in ``directory``. Its processes are found again by whoever opens the same directory.

    What changes the cluster as a whole (up, down, add) excludes itself by a lock in the directory. All methods block.
    """

    def __init__(self, directory: Path, *, detached: bool = True) -> None:
        """``detached``: nodes are started in sessions of their own, which outlive the terminal. Otherwise they stay
        in this process's, and share its processor time as equals: Linux may give every session an equal part
        (``sched_autogroup_enabled``), which distorts what is measured. Raises ``ClusterNotFound``.
        """
        self._detached = detached
        self.directory = directory.resolve()
        self.plan = ClusterPlan.read(self.directory)
        plan, tls = self.plan.zookeeper, self.directory / "tls"
        #: The cluster's own ZooKeeper, if it has one.
        self.zookeeper = (
            ZooKeeperServer(
                self.directory / "zookeeper",
                EnsembleMember(1, *plan.ports),
                tls=ZooKeeperTls(*self._certificate(_ZOOKEEPER), tls / "ca.crt") if plan.shows_certificates else None,
            )
            if plan.kind == "local"
            else None
        )

    @classmethod
    def found(cls, directory: Path, plan: ClusterPlan, *, detached: bool = True) -> LocalCluster:
        """Write the files of a new cluster; nothing is started.

        Raises ``InvalidConfig`` before anything is written, and ``InvalidRequest`` for a directory with other things
        in it.
        """
        directory = directory.resolve()
        if directory.exists() and any(directory.iterdir()):
            raise InvalidRequest(f"{directory} is not empty and holds no cluster; choose another --dir")
        for node in plan.nodes:
            plan.node_config(node, directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ClusterSecret.create(directory / "secret")
        if plan.tls:
            authority = Authority.create(directory / "tls")
            for node in plan.nodes:
                authority.issue(node.id, _HOSTS)
            if plan.zookeeper.shows_certificates:
                authority.issue(_ZOOKEEPER, _HOSTS)
                authority.issue(_CLIENT)
        plan.write(directory)
        return cls(directory, detached=detached)

    @property
    def ca(self) -> Path | None:
        """Whose certificates clients are to believe; None where nothing is encrypted."""
        return self.directory / "tls" / "ca.crt" if self.plan.tls else None

    @property
    def client_certificate(self) -> tuple[Path, Path] | None:
        """What clients are to show, the certificate and its key: the cluster's own ZooKeeper wants to see one."""
        return self._certificate(_CLIENT) if self.plan.zookeeper.shows_certificates else None

    def trusted(self) -> AbstractContextManager[None]:
        """In this block clients of this process, and of those that it starts, believe what belongs to the cluster."""
        return believing(self.ca, self.client_certificate)

    # All of it

    def up(self, *, timeout: float = READY_TIMEOUT_S, tell: TellStatus = _tell_nobody) -> ClusterStatus:
        """Start what is down and wait until every shard has a leader that serves.

        Raises ``ClusterNotReady`` or ``NodeEnded``; the processes then stay as they are, to be looked at.
        """
        with self._locked():
            self.start_zookeeper()
            for node in self.plan.nodes:
                process = self.process(node.id)
                if process.state is ProcessState.PAUSED:
                    process.send(signal.SIGCONT)
                elif process.state is ProcessState.STOPPED:
                    self._spawn(node)
        return self.wait_ready(timeout=timeout, tell=tell)

    def wait_ready(self, *, timeout: float = READY_TIMEOUT_S, tell: TellStatus = _tell_nobody) -> ClusterStatus:
        """The status once every process that was started answers and every shard has a leader that serves.

        Raises ``ClusterNotReady``; ``NodeEnded`` when a process that was there is gone meanwhile.
        """
        deadline = time.monotonic() + timeout
        begun = {node.id for node in self.plan.nodes if self.process(node.id).pid is not None}
        while True:
            status = self.status()
            tell(status)
            if not status.waits_for:
                return status
            for node in status.nodes:
                if node.id in begun and node.pid is None:
                    raise self._ended(node.id)
            if time.monotonic() > deadline:
                raise ClusterNotReady(
                    f"not ready after {timeout:.0f} s: {'; '.join(status.waits_for)}; the logs are in "
                    f"{self.directory}/*/node.log"
                )
            time.sleep(_POLL_S)

    def down(self, *, delete: bool = False) -> None:
        """Stop all processes, kill those that do not end in time, ZooKeeper last; with ``delete`` remove all files."""
        with self._locked():
            processes = [self.process(node.id) for node in self.plan.nodes]
            for process in processes:
                process.send(signal.SIGTERM)
                process.send(signal.SIGCONT)
            deadline = time.monotonic() + self._stop_timeout_s
            for process in processes:
                if not process.wait_end(max(0.0, deadline - time.monotonic())):
                    process.send(signal.SIGKILL)
                    process.wait_end(KILL_TIMEOUT_S)
            self.stop_zookeeper()
            if delete:
                self._delete()

    def status(self) -> ClusterStatus:
        """Processes and shards as they are now. A node that hangs is waited for a second."""
        processes = {}
        for node in self.plan.nodes:
            process = self.process(node.id)
            processes[node.id] = (process.pid, process.state)
        return collect(self.plan, processes, self.ca, token=self.token)

    @property
    def token_file(self) -> Path | None:
        """The token of a first administrator, where nodes ask who their clients are and one has written it."""
        files = [self.directory / node.id / "data" / FIRST_TOKEN for node in self.plan.nodes]
        return next((file for file in files if file.exists()), None)

    @property
    def token(self) -> str | None:
        """What is in :attr:`token_file`."""
        file = self.token_file
        return None if file is None else file.read_text().strip()

    # One node

    def configuration(self, node: str) -> Path:
        """The file with the node's configuration, which is written where there is none yet."""
        directory = self.directory / node
        directory.mkdir(mode=0o700, exist_ok=True)
        file = directory / "node.toml"
        if not file.exists():  # Afterwards it is the user's to change.
            config_file.write(file, self.plan.node_config(self.plan.node(node), self.directory))
        return file

    def process(self, node: str) -> OwnProcess:
        return OwnProcess(self.directory / self.plan.node(node).id)

    def start(
        self,
        node: str,
        *,
        timeout: float = READY_TIMEOUT_S,
        settings: Mapping[str, Any] | None = None,
        program: Sequence[str] = _PROGRAM,
    ) -> int:
        """Start a node and wait until it answers, whether or not its shards serve; one that is paused goes on. Its pid.

        ``settings`` count for this start alone, and so does the ``program`` that Python is told to run as ``lsmq``.
        Raises ``NodeEnded``, ``ClusterNotReady``.
        """
        process = self.process(node)
        if process.pid is None:
            self._spawn(self.plan.node(node), settings, program)
        elif process.state is ProcessState.PAUSED:
            process.send(signal.SIGCONT)
        deadline = time.monotonic() + timeout
        while not answers(f"{self.plan.node(node).url}/healthz", ca=self.ca):
            if process.pid is None:
                raise self._ended(node)
            if time.monotonic() > deadline:
                raise ClusterNotReady(f"{node} does not answer after {timeout:.0f} s; its log is {process.log}")
            time.sleep(_POLL_S)
        return process.pid or 0

    def stop(self, node: str) -> int:
        """SIGTERM, and wait for the end; killed when it takes longer than its grace. The pid it had."""
        process = self.process(node)
        pid = self._send(node, signal.SIGTERM)
        process.send(signal.SIGCONT)
        if not process.wait_end(self._stop_timeout_s):
            return self.kill(node)
        return pid

    def kill(self, node: str) -> int:
        """SIGKILL, and wait until the process is gone. The pid it had. Raises ``NodeNotRunning``."""
        pid = self._send(node, signal.SIGKILL)
        if not self.process(node).wait_end(KILL_TIMEOUT_S):
            raise ClusterNotReady(f"{node} (pid {pid}) did not end after SIGKILL: it waits for a disk")
        return pid

    def pause(self, node: str) -> int:
        """SIGSTOP: the process keeps its connections and does nothing. Its pid. Raises ``NodeNotRunning``."""
        pid = self._send(node, signal.SIGSTOP)
        # The signal is there at once, and takes effect when the process is next scheduled.
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while self.process(node).state is ProcessState.RUNNING and time.monotonic() < deadline:
            time.sleep(0.001)
        return pid

    def resume(self, node: str) -> int:
        """SIGCONT. Its pid. Raises ``NodeNotRunning``."""
        return self._send(node, signal.SIGCONT)

    def add_node(self, base_port: int | None = None) -> NodePlan:
        """Plan one more node, which does not vote. :meth:`start` starts it.

        On ports from ``base_port`` on, or else those behind the others' where these are free. Raises ``AddressInUse``.
        """
        with self._locked():
            self.plan = ClusterPlan.read(self.directory)
            if base_port is None:
                try:
                    ports = choose_ports(PORTS_PER_NODE, self.plan.next_port())
                except AddressInUse:
                    ports = choose_ports(PORTS_PER_NODE)
            else:
                ports = choose_ports(PORTS_PER_NODE, base_port)
            self.plan = self.plan.with_new_node(ports)
            if self.plan.tls:
                Authority(self.directory / "tls").issue(self.plan.nodes[-1].id, _HOSTS)
            self.plan.write(self.directory)
            return self.plan.nodes[-1]

    def forget_node(self, node: str) -> None:
        """Drop a node that does not vote and whose process is stopped, with its files. Remove it from the cluster
        before."""
        if self.plan.node(node).voter:
            raise InvalidRequest(
                f"{node} is one of the voters that the cluster was founded with, and the configuration of every node "
                "names it; where another one votes in its place, leave it stopped"
            )
        if self.process(node).pid is not None:
            raise InvalidRequest(f"{node} runs; stop it first")
        with self._locked():
            self.plan = self.plan.without_node(node)
            self.plan.write(self.directory)
            shutil.rmtree(self.directory / node, ignore_errors=True)

    # ZooKeeper

    def start_zookeeper(self) -> None:
        if self.zookeeper is not None:
            self.zookeeper.start()
            self.zookeeper.wait_ready()

    def stop_zookeeper(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.zookeeper is not None:
            self.zookeeper.stop(number)

    # Inside

    def _certificate(self, name: str) -> tuple[Path, Path]:
        tls = self.directory / "tls"
        return tls / f"{name}.crt", tls / f"{name}.key"

    def _spawn(
        self, node: NodePlan, settings: Mapping[str, Any] | None = None, program: Sequence[str] = _PROGRAM
    ) -> None:
        file = self.configuration(node.id)
        environment = {name: text for name, text in os.environ.items() if not name.startswith("LSMQ_")}
        for name, value in (settings or {}).items():
            environment[f"LSMQ_{name.upper().replace('.', '_')}"] = str(value)
        command = [sys.executable, *program, "serve", "--config", str(file)]
        self.process(node.id).start(command, environment, detached=self._detached)

    def _send(self, node: str, number: signal.Signals) -> int:
        pid = self.process(node).send(number)
        if pid is None:
            raise NodeNotRunning(f"{node} is not running; start it: lsmq cluster start {node} --dir {self.directory}")
        return pid

    def _ended(self, node: str) -> NodeEnded:
        process = self.process(node)
        return NodeEnded(f"{node} ended by itself; the end of {process.log}:\n{process.log_tail()}")

    @property
    def _stop_timeout_s(self) -> float:
        config = self.plan.node_config(self.plan.nodes[0], self.directory)
        return config.shutdown_grace_ms / 1000 + STOP_MARGIN_S

    def _delete(self) -> None:
        """Remove what a cluster consists of; a directory in which somebody put other things stays with them."""
        for node in self.plan.nodes:
            shutil.rmtree(self.directory / node.id, ignore_errors=True)
        for name in ("zookeeper", "tls"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in ("secret", "cluster.json", "lock"):
            (self.directory / name).unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.directory / "lock", "w", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

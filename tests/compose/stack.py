"""The Compose file, run for real: a project of its own, on ports of its own, on locally made base images."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any

from support.ports import free_ports

ROOT = Path(__file__).parents[2]
COMPOSE_DIRECTORY = ROOT / "compose"
NODES = ("n1", "n2", "n3")
ZOOKEEPERS = ("zk1", "zk2", "zk3")
#: The image of the tested tree. It keeps its name, so that the next run builds on its layers.
IMAGE = "lsmq-tested:latest"

_DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
    print("reached")
except OSError as error:
    print(error)
"""
_PUBLISHED = """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start(timeout=20)
print(client.get(sys.argv[2])[0].decode())
client.stop()
"""
#: What a port speaks to whom it believes, and then says to who shows no certificate.
_SPOKEN = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="/etc/lsmq-tls/ca.crt")
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as plain:
    with context.wrap_socket(plain, server_hostname=sys.argv[1]) as asking:
        print(asking.version())
        try:
            print(asking.recv(1))
        except OSError as error:
            print(getattr(error, "reason", error))
"""
_PUBLISHED_BY_TLS = """
import sys
from functools import partial
from pathlib import Path
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from lsmq.kazoo_handler import KazooHandler
from lsmq_coordinator.tls import dialling_context
own = [Path(f"/etc/lsmq-tls/{name}") for name in ("ca.crt", "node.crt", "node.key")]
client = KazooClient(sys.argv[1], handler=KazooHandler(partial(dialling_context, *own)))
client.start(timeout=20)
try:
    print(*client.get_children("/lsmq/lsmq/topics"))
except NoNodeError:
    pass
client.stop()
"""


class CannotRunDocker(Exception):
    """This machine cannot run containers; the message says why."""


@contextmanager
def docker_daemon() -> Iterator[None]:
    """Have a Docker daemon answer. One that had to be started for tests is ended by the last of them, whichever process
    that is in. Raises ``CannotRunDocker``."""
    script = COMPOSE_DIRECTORY / "local-docker"
    with open(Path(tempfile.gettempdir()) / "lsmq-tests-docker", "a+") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        started = subprocess.run([script, "start"], capture_output=True, text=True, check=False)
        if started.returncode:
            raise CannotRunDocker(" ".join(started.stderr.split()))
        users.write(started.stdout)
        users.flush()
        try:
            yield
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                users.seek(0)
                if users.read():
                    users.truncate(0)
                    subprocess.run([script, "stop"], check=True)


def make_local_images() -> bool:
    """Make base images, so that a registry that is away fails nothing; False where that takes rights we lack."""
    if os.getuid() != 0:
        return False
    made = subprocess.run([COMPOSE_DIRECTORY / "local-images"], stderr=subprocess.PIPE, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return True


def compose_command() -> list[str]:
    """The plugin, else the program of its own."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    assert shutil.which("docker-compose") is not None
    return ["docker-compose"]


def _open_files() -> int:
    """A daemon that a test started may have no more open files than the test."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 65_536 if most == resource.RLIM_INFINITY else min(65_536, most)


class Stack:
    """One project of ``compose/docker-compose.yml``. Ports, names and images come by the environment."""

    def __init__(self, *, local_images: bool) -> None:
        self.project = f"lsmq-test-{uuid.uuid4().hex[:8]}"
        ports = free_ports(4)
        self.urls = {node: f"http://localhost:{port}" for node, port in zip((*NODES, "n4"), ports, strict=True)}
        settings = {
            "COMPOSE_PROJECT_NAME": self.project,
            "NODE_IMAGE": IMAGE,
            "NODE_CPUS": str(min(2, os.cpu_count() or 1)),
            "OPEN_FILES": str(_open_files()),
            **{f"N{number}_PORT": str(port) for number, port in enumerate(ports, 1)},
        }
        if local_images:
            settings |= {"PYTHON_IMAGE": "lsmq-local/python", "ZOOKEEPER_IMAGE": "lsmq-local/zookeeper"}
        self._environment = os.environ | settings
        self._command = compose_command()

    def in_tls(self) -> Stack:
        """Another project, of both files."""
        made = copy(self)
        made.project = f"{self.project}-tls"
        made._environment = {**self._environment, "COMPOSE_PROJECT_NAME": made.project}
        made._command = [*self._command, "-f", "docker-compose.yml", "-f", "docker-compose.tls.yml"]
        return made

    def compose(self, *arguments: str, **options: Any) -> str:
        """Run Compose from its directory, as README.md says; what it printed."""
        return self._run([*self._command, *arguments], **options)

    def docker(self, *arguments: str) -> str:
        return self._run(["docker", *arguments])

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self.project}-{service}"

    def kill(self, service: str) -> None:
        self.docker("kill", self.container(service))

    def start(self, service: str) -> None:
        self.docker("start", self.container(service))

    def may_write(self, service: str, directory: str) -> bool:
        """Whether a file can be made there by what runs in the service's container."""
        words = ["docker", "exec", self.container(service), "mktemp", f"{directory}/XXXXXX"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "Read-only" in done.stderr or "Permission denied" in done.stderr, done.stderr
        return done.returncode == 0

    def ready(self, node: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.urls[node]}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def overview(self, node: str) -> dict[str, Any]:
        """GET /v1/cluster"""
        with urllib.request.urlopen(f"{self.urls[node]}/v1/cluster", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def shards(self, node: str) -> dict[int, dict[str, Any]]:
        """The shards as a node knows them; none while it does not answer."""
        try:
            return {shard["id"]: shard for shard in self.overview(node)["shards"]}
        except OSError:
            return {}

    @contextmanager
    def up(self) -> Iterator[None]:
        """All containers started; removed with all that is theirs afterwards, their logs printed on failure."""
        try:
            self.compose("up", "--detach")
            yield
        except BaseException:
            print(self._run([*self._command, "logs", "--no-color", "--tail", "40"], check=False))
            raise
        finally:
            self.compose("--profile", "n4", "down", "--volumes", "--timeout", "10")

    def health(self, service: str) -> str:
        return self.docker("inspect", "--format", "{{.State.Health.Status}}", self.container(service)).strip()

    def published(self, node: str) -> dict[str, Any]:
        """The document that clients find in ZooKeeper, read from within the private network."""
        hosts = ",".join(f"{zookeeper}-inside:2181" for zookeeper in ZOOKEEPERS)
        found: dict[str, Any] = json.loads(
            self.docker("exec", self.container(node), "python", "-c", _PUBLISHED, hosts, "/lsmq/lsmq/cluster")
        )
        return found

    def published_by_tls(self, node: str, zookeeper: str) -> str:
        """The topics that clients find in ZooKeeper, read with the certificate of a node."""
        words = ("exec", self.container(node), "python", "-c", _PUBLISHED_BY_TLS, f"{zookeeper}-inside:2281")
        return self.docker(*words).strip()

    def address(self, node: str) -> str:
        """Of a node in the private network."""
        networks = json.loads(
            self.docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self.container(node))
        )
        return str(networks[f"{self.project}_inside"]["IPAddress"])

    def dial(self, node: str, address: str, port: int = 7601) -> str:
        """``reached`` where a node reaches a port, that for nodes, at an address, else why not."""
        return self.docker("exec", self.container(node), "python", "-c", _DIAL, address, str(port)).strip()

    def spoken(self, node: str, address: str, port: int) -> list[str]:
        """The version of TLS that a port speaks to a node which believes it, and what it says to who shows nothing."""
        words = ("exec", self.container(node), "python", "-c", _SPOKEN, address, str(port))
        return self.docker(*words).splitlines()

    @contextmanager
    def cut_off(self, node: str) -> Iterator[None]:
        """Without the private network, as README.md takes it from a node."""
        network = f"{self.project}_inside"
        self.docker("network", "disconnect", network, self.container(node))
        try:
            yield
        finally:
            self.docker("network", "connect", "--alias", f"{node}-inside", network, self.container(node))

    def drill(self, name: str) -> dict[str, Any]:
        """The report of one round of ``lsmq drill`` on these containers; its nodes are stopped in the end."""
        words = ["drill", name, "--rounds", "1", "--seed", "1", "--json", "--compose", "docker-compose.yml"]
        report: dict[str, Any] = json.loads(self._run([sys.executable, "-m", "lsmq", *words], check=False))
        return report

    def leftovers(self) -> str:
        """Containers, volumes and networks of the project that are still there."""
        of_project = ("--quiet", "--filter", f"label=com.docker.compose.project={self.project}")
        kinds = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return "".join(self.docker(*kind, *of_project) for kind in kinds)

    def _run(self, command: list[str], *, check: bool = True, stdin: str | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=COMPOSE_DIRECTORY,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        is_well = done.returncode == 0 or (done.stdout and not check)
        assert is_well, f"{' '.join(command)}: {done.returncode}\n{done.stderr}{done.stdout}"
        return done.stdout


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
    """Seconds until the condition held. Asked now and then: a question may cost a process."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + timeout_s, f"in {timeout_s} s it never came true that {what}"
        time.sleep(0.1)
    return time.monotonic() - began

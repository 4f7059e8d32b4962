"""A Kafka broker and Spark's Kafka source, as Maven gives them: for comparison only, and never in the test suite."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsmq_lab.benchmarks.report import BenchFailed, Progress

KAFKA = "4.1.0"
#: What ``spark.jars`` needs, without what Spark has already. Their versions go together, and need not be Spark's own:
#: not every release of each is where Maven looks.
SOURCE_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
BROKER_ARTIFACTS = (("org.apache.kafka", "kafka_2.13", KAFKA), ("org.slf4j", "slf4j-simple", "1.7.36"))
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{exclusions}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
#: A broker that is starved of the processor for nine seconds, as on a small machine that others use too, would be taken
#: for dead by itself, and its partitions would be without a leader: so it is given two minutes.
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
broker.session.timeout.ms=120000
log.cleaner.enable=false
"""


def jars(directory: Path, progress: Progress) -> tuple[Path, Path]:
    """Directories with the jars of the source and of the broker, brought by Maven if they are not there.

    Raises :class:`BenchFailed` that says what is missing.
    """
    found = []
    for name, artifacts, exclusions in (("source", SOURCE_ARTIFACTS, _ALONE), ("broker", BROKER_ARTIFACTS, "")):
        place = directory / name
        if not any(place.glob("*.jar")):
            if shutil.which("mvn") is None:
                raise BenchFailed("mvn is not on PATH, so Kafka cannot be brought: apt-get install maven")
            progress(f"bringing Kafka's {name} with Maven into {place}")
            place.mkdir(parents=True, exist_ok=True)
            dependencies = "".join(_DEPENDENCY.format(*artifact, exclusions=exclusions) for artifact in artifacts)
            (place / "pom.xml").write_text(_PROJECT.format(dependencies=dependencies))
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={place}"]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
                raise BenchFailed(f"Maven could not bring Kafka: {(lines or ['no reason given'])[0][:400]}")
        found.append(place)
    return found[0], found[1]


@contextmanager
def broker(jars_directory: Path, directory: Path) -> Iterator[tuple[str, int]]:
    """A broker over fresh files: its address and process id. Its acknowledgements wait for no fsync."""
    port, controller = _free_port(), _free_port()
    directory.mkdir(parents=True)
    settings = directory / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, logs=directory / "logs"))
    logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = ["java", "-Xmx1g", logging, "-cp", f"{jars_directory}/*"]
    format_command = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(settings)]
    subprocess.run(format_command, check=True, capture_output=True, timeout=120)
    log = directory / "broker.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=output, stderr=output)
    try:
        began = time.monotonic()
        while not _listens(port):
            if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise BenchFailed("Kafka did not come up")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", process.pid
    except BenchFailed as error:
        raise BenchFailed(f"{error}\nKafka said last:\n{log.read_text(errors='replace')[-1500:]}") from error
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cache_directory() -> Path:
    """Where jars are kept for the next run."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "lsmq" / f"kafka-{KAFKA}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

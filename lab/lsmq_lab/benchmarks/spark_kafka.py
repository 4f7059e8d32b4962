"""A Kafka broker and Spark's Kafka source, as Maven gives them: for comparison only, and never in the test suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .maven import Jars
from .report import TellProgress
from .suite.systems.kafka import BROKER, running

#: What ``spark.jars`` needs, without what Spark has already. Their versions go together, and need not be Spark's own:
#: not every release of each is where Maven looks.
SOURCE = Jars(
    "spark-kafka-source",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.1"),
    ),
    alone=True,
)


def jars(progress: TellProgress) -> Path:
    """The directory with the jars of the source, brought by Maven if they are not there; and the broker's beside.

    Raises :class:`.report.BenchFailed` that says what is missing.
    """
    BROKER.bring(progress)
    return SOURCE.bring(progress)


@contextmanager
def broker(directory: Path) -> Iterator[tuple[str, int]]:
    """A broker over fresh files: its address and process id. Its acknowledgements wait for no fsync."""
    with running(directory, settings={}) as server:
        yield server.address, server.pids[0]

"""A cluster of nodes under Spark: who is read, and what happens when leaders, drivers and most nodes are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from lsmq.sync import Client, Producer
from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster
from lsmq_pipeline.jobs.audit import audit
from support.clusters import running_cluster
from support.spark_standalone import SparkStandalone
from support.spark_topic import numbers
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("spark-failures")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with three shards, each shard on all of them."""
    directory = tmp_path_factory.mktemp("cluster") / "c"
    small = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, directory, zookeeper="local", settings=small) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: LocalCluster) -> str:
    return ",".join(node.url for node in cluster.status().nodes)


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def leader_of(cluster: LocalCluster, shard: int) -> str:
    found: list[str] = []

    def there_is_one() -> bool:
        leader = next(each.leader for each in cluster.status().shards if each.id == shard)
        if leader is not None:
            found.append(leader)
        return leader is not None

    eventually(there_is_one, f"shard {shard} has a leader")
    return found[0]


def send(client: Client, topic: str, count: int, *, width: int = 0) -> None:
    """The numbers up to ``count``, with spaces behind them to so many bytes."""
    client.create_topic(topic, queues=6)
    with Producer(client, topic) as producer:
        for number in range(count):
            producer.send(f"{number:<{width}}", key=f"key-{number % 40}")


class Pause:
    """A task says that it is half-way, and waits until the test has done its worst."""

    def __init__(self, directory: Path) -> None:
        self.reached, self.go_on = str(directory / "reached"), str(directory / "go-on")

    def between(self, last: int) -> Any:
        """A function for ``mapInArrow`` that pauses once the row ``last`` has gone by."""
        reached, go_on = self.reached, self.go_on

        def pausing(batches: Any) -> Any:
            import time
            from pathlib import Path

            for batch in batches:
                yield batch
                if str(last) in batch.column("body").to_pylist():
                    Path(reached).touch()
                    while not Path(go_on).exists():
                        time.sleep(0.02)

        return pausing


def kill_and_start_again(cluster: LocalCluster, pause: Pause, shard: int) -> None:
    eventually(lambda: Path(pause.reached).exists(), "the task is half-way", 120)
    victim = leader_of(cluster, shard)
    cluster.kill(victim)
    Path(pause.go_on).touch()
    eventually(lambda: leader_of(cluster, shard) != victim, f"shard {shard} has another leader")
    cluster.start(victim)


def test_a_failed_over_leader_costs_a_write_nothing(
    spark: SparkSession, cluster: LocalCluster, client: Client, url: str, topic_name: str, tmp_path: Path
) -> None:
    client.create_topic(topic_name, queues=6)
    pause = Pause(tmp_path)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        rows = spark.range(4000, numPartitions=1).selectExpr("cast(id as string) body", "concat('k', id % 40) key")
        rows = rows.mapInArrow(pause.between(1999), rows.schema)
        writer = rows.write.format("lsmq").options(url=url, topic=topic_name, batchMessages="100").mode("append")
        with ThreadPoolExecutor(1) as pool:
            # Writing is this thread's: in another one Spark does not know its session, and no data source.
            killing = pool.submit(kill_and_start_again, cluster, pause, 1)
            writer.save()
            killing.result()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert numbers(spark.read.format("lsmq").options(url=url, topic=topic_name).load()) == list(range(4000))


@pytest.mark.soak
def test_a_failed_over_leader_costs_a_read_nothing(
    spark: SparkSession, cluster: LocalCluster, client: Client, url: str, topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, 5000)
    found_in = {"zookeeper": cluster.plan.zookeeper.hosts, "cluster": cluster.plan.name}
    frame = spark.read.format("lsmq").options(**found_in, topic=topic_name, fetchBytes="2048").load().select("body")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(numbers, frame)
        cluster.kill(victim := leader_of(cluster, 2))
        eventually(lambda: leader_of(cluster, 2) != victim, "shard 2 has another leader")
        cluster.start(victim)
        assert reading.result() == list(range(5000))


@pytest.mark.parametrize("sink", ["lsmq", "parquet"])
def test_a_failed_over_leader_costs_a_stream_nothing(
    spark: SparkSession, cluster: LocalCluster, client: Client, url: str, topic_name: str, tmp_path: Path, sink: str
) -> None:
    """Killed in the midst of a batch: leaders of what is read, and of what is written where that is a topic."""
    source, target = f"{topic_name}-in", f"{topic_name}-out"
    send(client, source, 4000, width=800)
    client.create_topic(target, queues=6)
    into = {"lsmq": {"url": url, "topic": target, "batchMessages": "50"}, "parquet": {"path": str(tmp_path / "files")}}
    pause = Pause(tmp_path)
    reading = {"url": url, "topic": source, "startingOffsets": "earliest", "readFrom": "leader", "fetchBytes": "8192"}
    frame = spark.readStream.format("lsmq").options(maxMessagesPerTrigger="1000", minPartitions="3", **reading).load()
    rows = frame.selectExpr("trim(cast(body as string)) body", "key")
    query = (
        rows.mapInArrow(pause.between(1500), rows.schema)
        .writeStream.format(sink)
        .options(**into[sink])
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        kill_and_start_again(cluster, pause, 1)
        query.awaitTermination()
    finally:
        query.stop()
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= 4, "there were batches before and after"
    if sink == "lsmq":
        assert numbers(spark.read.format("lsmq").options(url=url, topic=target).load()) == list(range(4000))
    else:
        assert numbers(spark.read.parquet(str(tmp_path / "files"))) == list(range(4000))


@pytest.mark.soak
def test_a_driver_that_is_killed_on_a_cluster_of_spark_goes_on_where_it_was(
    spark: SparkSession, client: Client, url: str, topic_name: str, tmp_path: Path
) -> None:
    source, target = f"{topic_name}-in", f"{topic_name}-out"
    send(client, source, 1200)
    client.create_topic(target, queues=4)
    with SparkStandalone(tmp_path / "spark") as standalone:
        given = {
            "master": standalone.url,
            "url": url,
            "source": source,
            "target": target,
            "directory": str(tmp_path),
            "executors": 2,
        }
        with driver(given) as first:
            batches = tmp_path / "checkpoint-topic" / "commits"

            def two_batches_are_done() -> bool:
                assert first.poll() is None, first.communicate()[1][-3000:]
                return batches.exists() and len(list(batches.glob("[0-9]*"))) >= 2

            eventually(two_batches_are_done, "two batches are done", 240)
            # The Python and the Java of the driver at once: neither gets to tidy up.
            os.killpg(first.pid, signal.SIGKILL)
            said, _ = first.communicate()
        assert "done" not in said, "the driver was too quick to be killed on the way"
        assert "executors 2" in said
        with driver(given, submitted=True) as second:
            said, errors = second.communicate(timeout=400)
            assert second.returncode == 0, said + errors
    copied = spark.read.format("lsmq").options(url=url, topic=target).load()
    assert numbers(copied) == list(range(1200))
    assert numbers(spark.read.parquet(str(tmp_path / "files"))) == list(range(1200))


@contextmanager
def driver(given: dict[str, Any], *, submitted: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process group of its own, which is gone afterwards; started by ``spark-submit`` if wanted."""
    home = Path(pyspark.__file__).parent
    submit = [str(home / "bin" / "spark-submit"), "--master", given["master"], "--driver-memory", "600m"]
    program = Path(__file__).with_name("copy_driver.py")
    process = subprocess.Popen(
        [*(submit if submitted else [sys.executable]), str(program), json.dumps(given)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(ValueError):  # What it said may have been read already.
            process.communicate()


def follower_reads(cluster: LocalCluster) -> float:
    """Reads that replicas answered which do not lead, of all nodes that run."""
    total = 0.0
    for node in cluster.status().nodes:
        with opener().open(f"{node.url}/metrics", timeout=10) as answer:
            (value,) = re.findall(r"^lsmq_follower_reads_total (\S+)$", answer.read().decode(), re.MULTILINE)
        total += float(value)
    return total


def test_followers_are_read_unless_the_leader_is_asked_for_and_an_audit_reads_every_replica(
    spark: SparkSession, cluster: LocalCluster, client: Client, url: str, topic_name: str
) -> None:
    send(client, topic_name, 600)
    before = follower_reads(cluster)
    options = {"url": url, "topic": topic_name}
    leaders = spark.read.format("lsmq").options(readFrom="leader", **options).load()
    assert numbers(leaders) == list(range(600))
    assert follower_reads(cluster) == before
    assert numbers(spark.read.format("lsmq").options(**options).load()) == list(range(600))
    assert follower_reads(cluster) > before, "by default followers are read"

    report = audit(spark, {"url": url}, topic_name)
    assert report.problems == [] and report.facts["all_replicas"]
    assert report.sheet is not None
    nodes = {node.id for node in cluster.status().nodes}
    assert {row[0] for row in report.sheet.rows} == {"leaders", *nodes}
    assert len({row[1:] for row in report.sheet.rows}) == 1, "all hold the same messages, with the same checksum"


@pytest.mark.soak
def test_a_shard_without_leader_is_waited_for_and_then_told(
    spark: SparkSession, cluster: LocalCluster, client: Client, url: str, topic_name: str
) -> None:
    send(client, topic_name, 60)
    victims = [node.id for node in cluster.status().nodes][:2]
    for victim in victims:
        cluster.kill(victim)
    try:
        options = {"url": url, "topic": topic_name, "deadlineMs": "2000", "requestTimeoutMs": "1000"}
        with pytest.raises(Exception, match="had no success within 2 s"):
            spark.read.format("lsmq").options(**options).load().count()
    finally:
        for victim in victims:
            cluster.start(victim)
    patient = spark.read.format("lsmq").options(url=url, topic=topic_name, deadlineMs="60000").load()
    assert numbers(patient) == list(range(60))

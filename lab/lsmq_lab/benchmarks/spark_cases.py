"""What ``lsmq bench spark`` measures, in a process with a Spark of its own: rows into a system, and back."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

TOPIC = "bench"
#: Acknowledged by all replicas, which is one; and patient, so that a busy machine makes it slow and not fail.
KAFKA_PRODUCER = {
    "acks": "all",
    "request.timeout.ms": "120000",
    "max.block.ms": "600000",
    "delivery.timeout.ms": "600000",
}


def transfer(
    system: str,
    address: str,
    rows: str,
    directory: str,
    messages: int,
    message_bytes: int,
    partitions: int,
    cores: int,
    jars: str,
    repeat: int,
) -> dict[str, Any]:
    """Write the rows at ``rows`` to ``system`` and read them back, ``repeat`` times after once for warmth.

    Gives seconds and processor seconds of Spark (its Java and its Python workers) for each.
    """
    from lsmq_pipeline import spark_session

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.files.maxPartitionBytes": str(1 << 30),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if jars:
        settings["spark.jars"] = ",".join(str(path) for path in sorted(Path(jars).glob("*.jar")))
    spark = spark_session("bench", master=f"local[{cores}]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    writes, reads = [], []
    for number in range(repeat + 1):
        place = f"{directory}/{system}-{number}" if system == "parquet" else f"{TOPIC}-{number}"
        _create(spark, system, address, place, partitions)
        writes.append(_timed(partial(_write, spark, system, address, rows, place)))
        reads.append(_timed(partial(_read, spark, system, address, place, cores)))
        found = _source(spark, system, address, place, cores).count()
        if found != messages:
            raise RuntimeError(f"{system} gave {found} rows of {messages}")
    spark.stop()
    return {"write": writes[1:], "read": reads[1:]}


def _create(spark: Any, system: str, address: str, place: str, partitions: int) -> None:
    """The topic. Kafka would make it when it is first written to, but the first batch of such a topic may hang."""
    if system == "lsmq":
        from lsmq.sync import Client

        with Client(address) as client:
            client.create_topic(place, queues=partitions)
    elif system == "kafka":
        java = spark._jvm.java.util
        admin = spark._jvm.org.apache.kafka.clients.admin
        client = admin.AdminClient.create(java.HashMap({"bootstrap.servers": address}))
        topic = admin.NewTopic(place, java.Optional.of(partitions), java.Optional.empty())
        client.createTopics([topic]).all().get()
        client.close()


def _write(spark: Any, system: str, address: str, rows: str, place: str) -> None:
    frame = spark.read.parquet(rows)
    match system:
        case "lsmq":
            writer = frame.withColumnRenamed("value", "body").write.format("lsmq")
            writer.options(url=address, topic=place).mode("append").save()
        case "kafka":
            writer = frame.write.format("kafka").option("kafka.bootstrap.servers", address)
            writer.options(topic=place, **{f"kafka.{name}": value for name, value in KAFKA_PRODUCER.items()}).save()
        case _:
            frame.write.mode("overwrite").parquet(place)


def _source(spark: Any, system: str, address: str, place: str, cores: int) -> Any:
    match system:
        case "lsmq":
            source = spark.read.format("lsmq").options(url=address, topic=place, preserveOrder="false")
            return source.option("minPartitions", str(cores)).load()
        case "kafka":
            source = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", place)
            # A task asks for bounds behind the fetch that the one before left waiting, half a second by default.
            source = source.option("kafka.fetch.max.wait.ms", "10")
            return source.option("minPartitions", str(cores)).load()
        case _:
            return spark.read.parquet(place)


def _read(spark: Any, system: str, address: str, place: str, cores: int) -> None:
    _source(spark, system, address, place, cores).write.format("noop").mode("overwrite").save()


def _timed(work: Any) -> dict[str, float]:
    began_s, began_cpu_s = time.monotonic(), cpu_s(os.getpid())
    work()
    return {"s": time.monotonic() - began_s, "cpu_s": cpu_s(os.getpid()) - began_cpu_s}


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and all below it, those that have ended included."""
    ticks = 0
    below: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        own = int(path.parent.name)
        below.setdefault(int(fields[1]), []).append(own)
        used[own] = sum(map(int, fields[11:15]))
    waiting = [pid]
    while waiting:
        own = waiting.pop()
        ticks += used.get(own, 0)
        waiting += below.get(own, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def make_rows(path: str, messages: int, message_bytes: int, keys: int) -> None:
    """Rows of a key and a value into one Parquet file; values that do not compress to nothing."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    letters = random.integers(97, 123, (messages, message_bytes), dtype=np.uint8)
    bounds = np.arange(0, (messages + 1) * message_bytes, message_bytes, dtype=np.int32)
    values = pa.BinaryArray.from_buffers(
        pa.binary(), messages, [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(letters))]
    )
    names = pa.array([f"key-{number}" for number in range(keys)]).take(pa.array(random.integers(0, keys, messages)))
    pq.write_table(pa.table({"key": names, "value": values}), path)

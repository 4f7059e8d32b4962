"""A driver in a process of its own, to be killed: copies a topic into another one and into files, as a stream each.

Arguments, as JSON: ``master``, ``url``, ``source``, ``target``, ``directory``, and ``executors``, how many to wait for.
Prints ``executors N`` once they are there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from lsmq_pipeline import register, spark_session


def main() -> None:
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = spark_session("copy", master=given["master"], settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)  # Two streams start at the same moment below.
    options = {
        "url": given["url"],
        "topic": given["source"],
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": "300",
        "minPartitions": "2",
    }
    frame = spark.readStream.format("lsmq").options(**options).load()
    while (executors := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < given["executors"]:
        time.sleep(0.05)
    print(f"executors {executors}", flush=True)
    queries = [
        frame.select("key", "body")
        .writeStream.format("lsmq")
        .options(url=given["url"], topic=given["target"], batchMessages="50")
        .option("checkpointLocation", str(directory / "checkpoint-topic"))
        .trigger(availableNow=True)
        .start(),
        frame.select("key", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint-files"))
        .option("path", str(directory / "files"))
        .trigger(availableNow=True)
        .start(),
    ]
    for query in queries:
        query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

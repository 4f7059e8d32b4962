"""A program that uses Spark through Spark Connect alone: what it finds, as JSON.

Arguments, as JSON: ``server``, ``url`` of a node, ``topic``, which holds the numbers ``[0, count)``, and ``directory``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsmq_pipeline import register, spark_session
from lsmq_pipeline.jobs.audit import audit
from lsmq_pipeline.jobs.usage import usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


class Program:
    """The steps, each of which returns what it found."""

    def __init__(self, spark: SparkSession, given: dict[str, Any]) -> None:
        self.spark = spark
        self.url, self.topic = given["url"], given["topic"]
        self.directory = Path(given["directory"])

    def read(self, topic: str | None = None, **options: str) -> DataFrame:
        options = {"url": self.url, "topic": topic or self.topic, **options}
        return self.spark.read.format("lsmq").options(**options).load()

    def written_twice(self) -> list[int]:
        """A batch write that is repeated under its name."""
        options = {"url": self.url, "topic": f"{self.topic}-batch", "queryId": "load-1"}
        for _ in range(2):
            rows = self.read(minPartitions="2").select("key", "tag", "body")
            rows.write.format("lsmq").options(**options).mode("append").save()
        return numbers(self.read(options["topic"]))

    def streamed(self, kind: str, **options: str) -> None:
        """A stream of small batches until there is no more, into another topic or into files."""
        source = {"url": self.url, "topic": self.topic, "startingOffsets": "earliest", "maxMessagesPerTrigger": "150"}
        query = (
            self.spark.readStream.format("lsmq")
            .options(**source)
            .load()
            .select("key", "body")
            .writeStream.format(kind)
            .options(**options)
            .option("checkpointLocation", str(self.directory / f"checkpoint-{kind}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_the_last_batch(self, kind: str) -> None:
        """As if Spark had died when a batch was written, before it noted that."""
        commits = self.directory / f"checkpoint-{kind}" / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def refusal(self, what: DataFrame | None) -> str:
        """What is said when a topic is not there, or rows do not fit."""
        try:
            if what is None:
                self.read("not-there").count()
            else:
                what.write.format("lsmq").options(url=self.url, topic=self.topic).mode("append").save()
        except Exception as error:
            return str(error)
        return ""


def main() -> None:
    given = json.loads(sys.argv[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to set")
        spark = spark_session(master=given["server"])
    program = Program(spark, given)
    found: dict[str, Any] = {"session": type(spark).__module__, "read": numbers(program.read())}
    found["columns"] = program.read().columns
    own = spark.read.format("lsmq").schema("queue int, body binary")
    own.options(url=program.url, topic=program.topic).load().createOrReplaceTempView("narrow")
    found["own_schema"] = numbers(spark.sql("select body from narrow where queue >= 0"))
    found["written_twice"] = program.written_twice()
    for again in (True, False):
        program.streamed("lsmq", url=program.url, topic=f"{program.topic}-stream")
        program.streamed("parquet", path=str(program.directory / "files"))
        if again:
            program.forget_the_last_batch("lsmq")
            program.forget_the_last_batch("parquet")
    found["stream"] = numbers(program.read(f"{program.topic}-stream"))
    found["files"] = numbers(spark.read.parquet(str(program.directory / "files")))
    found["unknown_topic"] = program.refusal(None)
    found["schema_mismatch"] = program.refusal(spark.sql("select 1 as text"))
    audited = audit(spark, {"url": program.url}, program.topic)
    found["audit"] = [audited.facts["messages"], *audited.problems]
    found["usage"] = usage(spark, {"url": program.url}, [program.topic]).facts["messages"]
    register(spark)
    found["registered"] = numbers(program.read())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()

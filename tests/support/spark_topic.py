"""A topic as Spark sees it, the files that a stream goes into, and the numbers of what a data frame holds."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsmq.sync import Client, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


@dataclass(frozen=True)
class SparkTopic:
    """Reads and writes a topic. Options are taken besides its address and its name, or instead of these."""

    spark: SparkSession
    client: Client
    url: str
    name: str

    def create(self, queues: int = 4) -> None:
        self.client.create_topic(self.name, queues=queues)

    def send(self, count: int, first: int = 0) -> None:
        """Messages ``first`` and so on, their number as body and in turn one of eight keys and three tags."""
        self.create()
        with Producer(self.client, self.name) as producer:
            for number in range(first, first + count):
                more = {"tag": f"tag-{number % 3}", "properties": {"n": str(number)}}
                producer.send(str(number), key=f"key-{number % 8}", **more)

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("lsmq").options(**self._options(options))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("lsmq").options(**self._options(options)).load()

    def write(self, rows: DataFrame, **options: Any) -> None:
        rows.write.format("lsmq").options(**self._options(options)).mode("append").save()

    def trim(self, before: int) -> None:
        """Delete what is before this offset in every queue."""
        queues = list(range(self.client.topic(self.name).queues))
        order = {"queues": queues, "offsets": [before] * len(queues), "before": True}
        request = urllib.request.Request(
            f"{self.url}/v1/topics/{self.name}/delete",
            json.dumps(order).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            pass

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """``{topic}`` in an option is the topic's name."""
        named = {option: str(value).replace("{topic}", self.name) for option, value in given.items()}
        return {"url": self.url, "topic": self.name, **named}


@dataclass(frozen=True)
class StreamFiles:
    """Parquet files that a stream writes, and its checkpoint."""

    spark: SparkSession
    directory: Path

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def take(self, frame: DataFrame) -> list[int]:
        """Run a stream until it has read all there is; the number of rows of each batch."""
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / "files"))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    def forget_batches_from(self, first: int) -> None:
        """As if the driver had died while it was about the batch ``first``, its end noted and nothing more."""
        logs = {self.checkpoint / "commits": first, self.checkpoint / "offsets": first + 1}
        written = self.directory / "files" / "_spark_metadata"
        if written.exists():
            logs[written] = first
        for log, kept in logs.items():
            for path in log.iterdir():
                number = path.name.removeprefix(".").removesuffix(".crc")
                if number.isdecimal() and int(number) >= kept:
                    path.unlink()

    def numbers(self) -> list[int]:
        return numbers(self.spark.read.parquet(str(self.directory / "files")))

"""Numbered messages for tests of Spark, and the numbers of what a data frame holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsmq.sync import Client, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def send(client: Client, topic: str, count: int, queues: int = 4, first: int = 0) -> None:
    """Messages ``first`` and so on, their number as body and in turn one of eight keys and three tags."""
    client.create_topic(topic, queues=queues)
    with Producer(client, topic) as producer:
        for number in range(first, first + count):
            producer.send(str(number), key=f"key-{number % 8}", tag=f"tag-{number % 3}", properties={"n": str(number)})


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())

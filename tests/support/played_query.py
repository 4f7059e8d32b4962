"""A query of a stream that is asked as Spark asks it, without Spark, and who sends what it is to read."""

from __future__ import annotations

import json
import weakref
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from lsmq.sync import Client, Producer
from lsmq_pipeline.options import read_options
from lsmq_pipeline.schema import message_schema
from lsmq_pipeline.stream_reader import LsmqStreamReader

Offsets = dict[str, Any]


class PlayedQuery:
    """What Spark keeps of a query: where its last batch ended. Each reader is a driver of its own, and ends with it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.options = {"url": url, **{name: str(value) for name, value in options.items()}}
        self.ended: list[Offsets] = []
        self.bodies: list[str] = []
        self.reader = self.start()

    def start(self, **options: Any) -> LsmqStreamReader:
        self.options |= {name: str(value) for name, value in options.items()}
        schema = message_schema(include_queue_names=True)
        self.reader = LsmqStreamReader(read_options(self.options, streaming=True), schema)
        weakref.finalize(self, self.reader.stop)
        if not self.ended:
            self.ended.append(self._kept(self.reader.initialOffset()))
        return self.reader

    def again(self, **options: Any) -> None:
        self.reader.stop()
        self.start(**options)

    def batch(self, limit: ReadLimit | None = None) -> list[str] | None:
        """The next batch's messages as ``name body``; None where there is none."""
        start = self.ended[-1]
        end = self.reader.latestOffset(start, limit or ReadAllAvailable())
        if end == start:
            return None
        self.ended.append(self._kept(end))
        found = self.read(start, end)
        self.bodies += found
        return found

    def read(self, start: Offsets, end: Offsets) -> list[str]:
        rows = []
        for planned in self.reader.partitions(start, end):
            for batch in self.reader.read(planned):
                columns = batch.to_pydict()
                pairs = zip(columns["queue_name"], columns["body"], strict=True)
                rows += [f"{name} {body.decode()}" for name, body in pairs]
        return rows

    def _kept(self, offsets: Offsets) -> Offsets:
        """As it comes back from the checkpoint."""
        found: Offsets = json.loads(json.dumps(offsets))
        return found


class NamedSender:
    """Sends numbers to queues of names; remembers what there is to be read."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic, self.sent = client, topic, list[str]()

    def send(self, names: list[str]) -> None:
        with Producer(self.client, self.topic) as producer:
            for name in names:
                producer.send(str(len(self.sent)), queue=name)
                self.sent.append(f"{name} {len(self.sent)}")

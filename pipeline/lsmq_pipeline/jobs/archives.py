"""Archives: topics as Parquet files, with manifests that say which offsets they hold.

::

    PATH/data/run=000001/topic=flights/date=2026-11-21/part-*.parquet
    PATH/manifests/000001.json

A row has all that a message holds (``whole_schema``): keys are bytes, and ``key_is_text`` tells which were text. Files
of earlier releases have no ``expires_time``, and so it is null in their rows.

A run's files count once its manifest is there, which appears in one step, by a rename. What a killed run left behind is
written over by the next, since it has the same number. A manifest holds ``version``, ``run``, ``kind`` (``archive``, or
the job that made a new archive of an old one), ``start`` and ``end`` (documents of :mod:`lsmq_pipeline.offsets`),
``messages``, and ``from``, the archive it was made of.

Paths are Hadoop's: a local directory, ``hdfs://``, ``s3a://``, whatever Spark is set up for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DateType, IntegerType

from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.offsets import TopicOffsets, from_document
from lsmq_pipeline.schema import whole_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 2


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """One run of an archive."""

    run: int
    kind: str
    messages: int
    start: dict[str, Any] | None
    end: dict[str, Any] | None
    made_from: str | None = None

    def to_text(self) -> str:
        fields = {
            "version": VERSION,
            "run": self.run,
            "kind": self.kind,
            "messages": self.messages,
            "start": self.start,
            "end": self.end,
            "from": self.made_from,
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, source: str) -> ArchiveManifest:
        """Raises ``JobFailed`` naming ``source``."""
        try:
            fields = json.loads(text)
            if fields["version"] != VERSION:
                raise ValueError(f"version {fields['version']}, this release reads {VERSION}")
            return cls(
                int(fields["run"]),
                str(fields["kind"]),
                int(fields["messages"]),
                fields["start"],
                fields["end"],
                fields.get("from"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise JobFailed(f"{source} is not a manifest of an archive: {error!r}") from error


class Archive:
    """An archive in a place that Hadoop's file systems know."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._spark = spark
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise JobFailed("archives need a Spark driver of one's own (classic PySpark), not Spark Connect")
        self._jvm = jvm
        self._files = self._path().getFileSystem(spark._jsc.hadoopConfiguration())

    def _path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self.path, *parts)))

    def manifests(self) -> list[ArchiveManifest]:
        """All runs that count, in order."""
        if not self._files.exists(self._path("manifests")):
            return []
        found = []
        for status in self._files.listStatus(self._path("manifests")):
            name = str(status.getPath().getName())
            if name.endswith(".json") and not name.startswith((".", "_")):
                found.append(ArchiveManifest.from_text(self._read(status.getPath()), f"{self.path}/manifests/{name}"))
        return sorted(found, key=lambda manifest: manifest.run)

    def must_exist(self) -> list[ArchiveManifest]:
        """:meth:`manifests`; raises ``JobFailed`` when there are none."""
        found = self.manifests()
        if not found:
            raise JobFailed(f"there is no archive at {self.path}: it has no manifest")
        return found

    def must_be_new(self) -> None:
        """Raises ``JobFailed`` when there is an archive already."""
        if self.manifests():
            raise JobFailed(f"there is an archive at {self.path} already; choose another place")

    def ends(self) -> dict[str, TopicOffsets]:
        """How far each topic has been archived."""
        ends: dict[str, TopicOffsets] = {}
        for manifest in self.manifests():
            if manifest.end is not None:
                ends |= from_document(manifest.end)
        return ends

    def frame(self) -> DataFrame:
        """The messages of all runs that count: the columns of ``whole_schema``, and ``run`` and ``date``."""
        runs = [self._files_of(manifest.run) for manifest in self.must_exist() if manifest.messages]
        if not runs:
            raise JobFailed(f"the archive at {self.path} is empty")
        # Spark would take a topic called 007 for a number, were it left to guess.
        columns = whole_schema().add("run", IntegerType()).add("date", DateType())
        return self._spark.read.schema(columns).option("basePath", f"{self.path}/data").parquet(*runs)

    def write(self, frame: DataFrame, run: int, *, compression: str = "zstd") -> int:
        """Write a run's files over what may be there of it; the number of messages in them."""
        from pyspark.sql import functions as F

        target = f"{self.path}/data/run={run:06d}"
        dated = frame.withColumn("date", F.to_date("stored_time"))
        # All of a killed run's files, whatever partitions they are of and the session says.
        writer = dated.write.mode("overwrite").option("partitionOverwriteMode", "static")
        writer.option("compression", compression).partitionBy("topic", "date").parquet(target)
        if not any(status.isDirectory() for status in self._files.listStatus(self._path("data", f"run={run:06d}"))):
            return 0  # No partition: no rows, and nothing whose schema Spark could read.
        return int(self._spark.read.parquet(self._files_of(run)).count())

    def add(self, manifest: ArchiveManifest) -> None:
        """Make a run count."""
        name = f"{manifest.run:06d}.json"
        hidden, final = self._path("manifests", f"_{name}"), self._path("manifests", name)
        stream = self._files.create(hidden, True)
        try:
            stream.write(manifest.to_text().encode())
            stream.hsync()
        finally:
            stream.close()
        if self._files.exists(final) or not self._files.rename(hidden, final):
            raise JobFailed(f"{self.path}/manifests/{name} is there already: does another job write to this archive?")

    def _files_of(self, run: int) -> str:
        """As Spark is asked for a run's files: it takes a path for a pattern."""
        return re.sub(r"([\\*?\[\]{}])", r"\\\1", f"{self.path}/data/run={run:06d}")

    def _read(self, path: Any) -> str:
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def stored_between(frame: DataFrame, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """The messages of a frame that were stored in ``[since_ms, until_ms)``; None is no bound."""
    from pyspark.sql import functions as F

    if since_ms is not None:
        frame = frame.where(F.col("stored_time") >= F.timestamp_millis(F.lit(since_ms)))
    if until_ms is not None:
        frame = frame.where(F.col("stored_time") < F.timestamp_millis(F.lit(until_ms)))
    return frame


def total(manifests: list[ArchiveManifest]) -> int:
    """Messages of all runs."""
    return sum(manifest.messages for manifest in manifests)


def as_offsets(document: Mapping[str, Any]) -> str:
    """A document of offsets as an option of the data source."""
    return json.dumps(document)

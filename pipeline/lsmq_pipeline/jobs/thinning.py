"""``lsmq pipeline dedupe`` and ``lsmq pipeline compact``: a new archive of an old one, with less in it.

*Dedupe* keeps the first of all messages that are alike: by id, by key, or by topic, key and body. *Compact* keeps the
last message of each key and all that have none, as a table of the latest state. Either leaves the old archive alone and
writes fewer, larger files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.jobs.archives import Archive, ArchiveManifest, total
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet
from lsmq_pipeline.offsets import to_document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALIKE = {"id": ("id",), "key": ("topic", "key"), "body": ("topic", "key", "body")}
MESSAGES_PER_FILE = 1_000_000


def dedupe(
    spark: SparkSession, path: str, target: str, *, by: str = "body", progress: JobProgress | None = None
) -> JobReport:
    """Write the archive at ``path`` to ``target`` without repeats; ``by`` is one of ``ALIKE``.

    Messages without a key are no repeats of each other when it goes by key.
    """
    if by not in ALIKE:
        raise JobFailed(f"repeats are told by {', '.join(ALIKE)}, not by {by!r}")
    return _thin(spark, path, target, "dedupe", ALIKE[by], newest=False, keyed=by == "key", progress=progress)


def compact(spark: SparkSession, path: str, target: str, *, progress: JobProgress | None = None) -> JobReport:
    """Write the archive at ``path`` to ``target`` with the last message of each topic and key."""
    return _thin(spark, path, target, "compact", ALIKE["key"], newest=True, keyed=True, progress=progress)


def _thin(
    spark: SparkSession,
    path: str,
    target: str,
    kind: str,
    columns: Sequence[str],
    *,
    newest: bool,
    keyed: bool,
    progress: JobProgress | None,
) -> JobReport:
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    shown = progress or Quiet()
    source, place = Archive(spark, path), Archive(spark, target)
    place.must_be_new()
    manifests = source.must_exist()
    frame = source.frame()
    # Time first: offsets of one queue cannot be compared with another's, and a key may have changed its queue.
    order = [F.col(name) for name in ("stored_time", "run", "queue", "offset")]
    directed = [column.desc() if newest else column.asc() for column in order]
    window = Window.partitionBy(*columns).orderBy(*directed)
    ranked = frame.withColumn("_rank", F.row_number().over(window))
    kept: DataFrame = ranked.where(F.col("_rank") == 1)
    if keyed:
        keyless = frame.where(F.col("key").isNull())
        kept = kept.where(F.col("key").isNotNull()).drop("_rank").unionByName(keyless)
    kept = kept.drop("_rank", "run", "date")
    before = total(manifests)
    files = max(1, -(-before // MESSAGES_PER_FILE))
    ordered = kept.repartition(files, "queue").sortWithinPartitions("topic", "queue", "offset")
    with shown.step(f"{kind} of {before:,} messages"):
        count = place.write(ordered, 1)
    ends = to_document(source.ends())
    place.add(ArchiveManifest(1, kind, count, None, ends, source.path))
    facts = {"archive": source.path, "target": place.path, "messages": before, "kept": count, "dropped": before - count}
    return JobReport(kind, facts)

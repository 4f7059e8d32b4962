"""``lsmq pipeline replay``: an archive back into a topic, the order of each queue kept, a stretch of time if wanted.

Rows of a queue are one task's, in order of offset. So they are written in the order they had; and since that order
is the same each time, a replay that is started again under its name stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.jobs.archives import Archive, stored_between
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, reader_options
from lsmq_pipeline.options import write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 16
WRITTEN = ("queue", "key", "key_is_text", "tag", "type", "priority", "subpriority", "properties", "headers", "body")


def replay(
    spark: SparkSession,
    connection: Mapping[str, Any],
    path: str,
    source: str,
    target: str,
    *,
    name: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    create: bool = False,
    progress: JobProgress | None = None,
) -> JobReport:
    """Write the archived messages of topic ``source`` stored in ``[since_ms, until_ms)`` to topic ``target``.

    Every message goes to the queue it was in. ``name`` is this replay's: the same name again, with the same archive,
    times and target, repeats what was left undone and nothing else. ``create`` makes the target if it is not there.
    """
    from pyspark.sql import functions as F

    shown = progress or Quiet()
    archived = Archive(spark, path).frame().where(F.col("topic") == source)
    frame = stored_between(archived, since_ms, until_ms)
    with shown.step(f"looking at {path}"):
        found = frame.agg(F.count("*").alias("messages"), F.max("queue").alias("queue")).first()
    assert found is not None
    if not found.messages:
        raise JobFailed(f"the archive at {path} has no messages of topic {source!r} in that time")
    options = reader_options(connection, topic=target, queryId=f"replay:{name}")
    with PipelineClient(write_options(options).connection) as cluster:
        topic = cluster.create_topic(target, found.queue + 1) if create else cluster.topic(target)
    if topic.queues <= found.queue:
        raise JobFailed(f"topic {target!r} has {topic.queues} queues; the archive has messages of queue {found.queue}")
    ordered = frame.repartition(PARTITIONS, "queue").sortWithinPartitions("queue", "run", "offset").select(*WRITTEN)
    with shown.step(f"replaying {found.messages:,} messages into {target}"):
        ordered.write.format("lsmq").options(**options).mode("append").save()
    return JobReport(
        "replay", {"archive": path, "from": source, "to": target, "messages": found.messages, "name": name}
    )

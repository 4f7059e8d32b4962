"""``lsmq pipeline replay``: an archive back into a topic, the order of each queue kept, a stretch of time if wanted.

Rows of a queue are one task's, in order of offset. So they are written in the order they had; and since that order
is the same each time, a replay that is started again under its name stores nothing twice.

So nothing of it goes by the time at which it runs. A message that expires lives as long again as it had to live when it
was stored, and none has expired before it comes back. Where moments are to stay what they were, the time is given by
which some had expired, and these are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsmq.messages import MAX_TTL_MS
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.jobs.archives import Archive, stored_between
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, reader_options
from lsmq_pipeline.options import write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    expired_by_ms: int | None = None,
    create: bool = False,
    progress: JobProgress | None = None,
) -> JobReport:
    """Write the archived messages of topic ``source`` stored in ``[since_ms, until_ms)`` to topic ``target``.

    Every message goes to the queue it was in. ``name`` is this replay's: the same name again, with the same archive,
    times and target, repeats what was left undone and nothing else. ``create`` makes the target if it is not there.

    A message that expires lives as long as it had to when it was stored. With ``expired_by_ms``, milliseconds since
    1970, it expires when it would have, and what had expired by then is left out; nodes take nothing that expired more
    than a day before it reaches them.
    """
    from pyspark.sql import functions as F

    shown = progress or Quiet()
    archived = Archive(spark, path).frame().where(F.col("topic") == source)
    frame, expiry = _expiring(stored_between(archived, since_ms, until_ms), expired_by_ms)
    with shown.step(f"looking at {path}"):
        found = frame.agg(F.count("*").alias("messages"), F.max("queue").alias("queue")).first()
    assert found is not None
    if not found.messages:
        raise JobFailed(
            f"the archive at {path} has no messages of topic {source!r} in that time"
            + ("" if expired_by_ms is None else " that had not expired")
        )
    options = reader_options(connection, topic=target, queryId=f"replay:{name}")
    with PipelineClient(write_options(options).connection) as cluster:
        topic = cluster.create_topic(target, found.queue + 1) if create else cluster.topic(target)
    if topic.named:
        raise JobFailed(
            f"topic {target!r} has queues with names, and those of an archive have numbers: name another one"
        )
    if topic.queues <= found.queue:
        raise JobFailed(f"topic {target!r} has {topic.queues} queues; the archive has messages of queue {found.queue}")
    shown.note(f"the name of this replay is {name}: should it fail, give it again")
    ordered = frame.repartition(PARTITIONS, "queue").sortWithinPartitions("queue", "run", "offset")
    with shown.step(f"replaying {found.messages:,} messages into {target}"):
        ordered.select(*WRITTEN, expiry).write.format("lsmq").options(**options).mode("append").save()
    return JobReport(
        "replay", {"archive": path, "from": source, "to": target, "messages": found.messages, "name": name}
    )


def _expiring(frame: DataFrame, expired_by_ms: int | None) -> tuple[DataFrame, str]:
    """The messages that are written, and the column that says when they expire."""
    from pyspark.sql import functions as F

    moment = F.unix_millis("expires_time")
    if expired_by_ms is None:
        lifetime = moment - F.unix_millis("stored_time")
        within = F.least(F.greatest(lifetime, F.lit(1)), F.lit(MAX_TTL_MS))
        return frame.withColumn("ttl_ms", F.when(moment.isNotNull(), within)), "ttl_ms"
    kept = frame.where(moment.isNull() | (moment > expired_by_ms))
    return kept.withColumn("expires_at_ms", F.unix_millis("expires_time")), "expires_at_ms"

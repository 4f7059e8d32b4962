"""``lsmq pipeline archive``: topics to partitioned Parquet, going on where the last run ended.

Each run takes at most so many messages, a share of each queue's backlog, and counts as a whole or not at all
(:mod:`lsmq_pipeline.jobs.archives`). So a job that was killed is simply started again, and every message is in the
archive exactly once, with all that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.jobs.archives import Archive, ArchiveManifest, as_offsets, total
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, reader_options
from lsmq_pipeline.offsets import TopicOffsets, to_document
from lsmq_pipeline.options import read_options
from lsmq_pipeline.resolve import admit, check_loss, same_topic
from lsmq_pipeline.schema import whole_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lsmq.topics import Topic


def archive(
    spark: SparkSession,
    connection: Mapping[str, Any],
    topics: Sequence[str],
    path: str,
    *,
    messages_per_run: int = 10_000_000,
    fail_on_data_loss: bool = True,
    progress: JobProgress | None = None,
) -> JobReport:
    """Archive what the topics hold by now. ``connection`` are options of the data source: ``url``, ``zookeeper``.

    Raises ``DataLoss`` when retention took messages that were not archived yet, unless told to go on.
    """
    shown = progress or Quiet()
    place = Archive(spark, path)
    options = read_options(reader_options(connection, topic=",".join(topics)))
    known = place.ends()
    with PipelineClient(options.connection) as cluster:
        found = cluster.topics(options.topics, None)
        goal = {topic.name: TopicOffsets(topic.name, topic.id, cluster.bounds(topic).latest) for topic in found}
        begun = {topic.name: _start(cluster, topic, known, fail_on_data_loss) for topic in found}
    run = max((manifest.run for manifest in place.manifests()), default=0)
    before = run
    messages = 0
    left = sum(int((goal[name].offsets - start.offsets).clip(0).sum()) for name, start in begun.items())
    while any((goal[name].offsets > start.offsets).any() for name, start in begun.items()):
        run += 1
        ends = _ends(begun, goal, messages_per_run)
        start_document, end_document = to_document(begun), to_document(ends)
        reader = spark.read.format("lsmq").schema(whole_schema())
        frame = reader.options(
            **reader_options(
                connection,
                topic=",".join(topics),
                startingOffsets=as_offsets(start_document),
                endingOffsets=as_offsets(end_document),
                failOnDataLoss=fail_on_data_loss,
                preserveOrder=False,
            )
        )
        with shown.step(f"archiving run {run}, {left:,} messages left"):
            count = place.write(frame.load(), run)
        place.add(ArchiveManifest(run, "archive", count, start_document, end_document))
        shown.note(f"run {run}: {count:,} messages")
        messages += count
        left -= count
        begun = ends
    facts = {
        "archive": place.path,
        "topics": list(topics),
        "runs": run - before,
        "messages": messages,
        "messages_in_archive": total(place.manifests()),
    }
    return JobReport("archive", facts)


def _start(cluster: PipelineClient, topic: Topic, ends: Mapping[str, TopicOffsets], fail: bool) -> TopicOffsets:
    """Where the archive goes on with a topic; at the earliest with one it does not know."""
    earliest = cluster.bounds(topic).earliest
    known = ends.get(topic.name)
    if known is None or not same_topic(topic, known, fail_on_data_loss=fail):
        return TopicOffsets(topic.name, topic.id, earliest)
    start = earliest.copy()
    start[: len(known.offsets)] = known.offsets
    check_loss(topic, start < earliest, start, "earliest", earliest, fail)
    return TopicOffsets(topic.name, topic.id, np.maximum(start, earliest))


def _ends(begun: Mapping[str, TopicOffsets], goal: Mapping[str, TopicOffsets], limit: int) -> dict[str, TopicOffsets]:
    names = sorted(goal)
    starts = np.concatenate([begun[name].offsets for name in names])
    admitted = admit(starts, np.concatenate([goal[name].offsets for name in names]), limit)
    parts = np.split(admitted, np.cumsum([len(goal[name].offsets) for name in names])[:-1])
    return {name: TopicOffsets(name, goal[name].topic_id, part) for name, part in zip(names, parts, strict=True)}

"""``lsmq pipeline audit``: reads a whole topic, on every replica that can be read, and proves what it should be.

Of each queue: offsets are dense between its bounds, none is there twice, and all replicas hold the same messages, by a
checksum over all their fields. The bounds are taken first, so that what is written meanwhile does not matter.

Where a topic has its messages go one by one, as with ``ttl_ms``, its offsets are not dense; and what expires within
:data:`EXPIRING_S` is left out, since it may while replicas are read one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from lsmq.admin import ClusterInfo
from lsmq.topics import parse_ranges
from lsmq_pipeline.client import Bounds, PipelineClient
from lsmq_pipeline.jobs.archives import as_offsets
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, Sheet, reader_options
from lsmq_pipeline.offsets import TopicOffsets, to_document
from lsmq_pipeline.options import read_options
from lsmq_pipeline.schema import whole_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lsmq.topics import Topic


EXPIRING_S = 600


@dataclass(frozen=True, slots=True)
class _Replica:
    """A node's copies of shards. ``node`` is None for the leaders, wherever they are."""

    name: str
    node: str | None
    queues: str


def audit(
    spark: SparkSession,
    connection: Mapping[str, Any],
    topic_name: str,
    *,
    progress: JobProgress | None = None,
) -> JobReport:
    """Audit one topic. The report's problems say everything that is not as it should be."""
    shown = progress or Quiet()
    options = read_options(reader_options(connection, topic=topic_name))
    with PipelineClient(options.connection) as cluster:
        topic = cluster.topic(topic_name)
        bounds = cluster.bounds(topic)
        replicas, problems = _replicas(cluster, topic)
        all_replicas = cluster.offers_follower_reads() and not problems
    span = {
        "startingOffsets": as_offsets(to_document({topic.name: TopicOffsets(topic.name, topic.id, bounds.earliest)})),
        "endingOffsets": as_offsets(to_document({topic.name: TopicOffsets(topic.name, topic.id, bounds.latest)})),
    }
    expiring = datetime.now(UTC) + timedelta(seconds=EXPIRING_S)
    sums: dict[str, DataFrame] = {}
    rows: list[tuple[Any, ...]] = []
    for replica in replicas:
        more = {"readFrom": "leader", "queues": replica.queues or None, "preserveOrder": False}
        if replica.node is not None:
            more |= {"readFrom": "any", "readNode": replica.node}
        frame = _whole(spark, reader_options(connection, topic=topic_name, **span, **more))
        if topic.options.get("ttl_ms") is not None:
            frame = frame.where(frame.expires_time > expiring)
        with shown.step(f"reading {topic_name} from {replica.name}"):
            found = _sums(frame).cache()
            rows.append((replica.name, *_totals(found)))
        problems += _check(found, topic, bounds, replica)
        sums[replica.name] = found
    for replica in replicas[1:]:
        problems += _compare(sums[replicas[0].name], sums[replica.name], replica)
    for found in sums.values():
        found.unpersist()
    expected = int((bounds.latest - bounds.earliest).sum())
    facts = {
        "topic": topic_name,
        "queues": topic.queues,
        "messages": rows[0][1],
        "offsets": expected,
        "deleted": expected - rows[0][1],
        "replicas_read": len(replicas),
        "all_replicas": all_replicas,
    }
    return JobReport("audit", facts, Sheet(("replica", "messages", "queues", "bytes", "checksum"), rows), problems)


def _replicas(cluster: PipelineClient, topic: Topic) -> tuple[list[_Replica], list[str]]:
    """The leaders as one, and each node with what it has, where nodes let others than the leader be read.

    Nodes that are down cannot be read, which is a problem: what they hold is not proven.
    """
    found = [_Replica("leaders", None, "")]
    problems: list[str] = []
    if not cluster.offers_follower_reads():
        return found, problems
    info = ClusterInfo.from_dict(cluster.ask("/v1/cluster"))
    for node in info.nodes:
        held = {shard.id for shard in info.replicas_on(node.id)}
        ranges = [f"{route.first}-{route.end - 1}" for route in topic.routes if route.shard in held]
        if ranges and node.alive is False:
            problems.append(f"{node.id}: was not read, since it is down")
        elif ranges:
            found.append(_Replica(node.id, node.url, ",".join(ranges)))
    return found, problems


def _goes_one_by_one(topic: Topic) -> bool:
    """Whether messages leave gaps by what the topic is like. Such as were deleted, or have a time to live of their own,
    do in any topic."""
    options = topic.options
    return (
        options.get("ttl_ms") is not None
        or options.get("cleanup") == "compact"
        or options.get("overflow") in ("drop_lowest_priority", "drop_nearest_deadline")
    )


def _whole(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A topic with all that its messages hold."""
    return spark.read.format("lsmq").schema(whole_schema()).options(**options).load()


def _sums(frame: DataFrame) -> DataFrame:
    """Each queue's count, bounds, bytes and a checksum that does not depend on the order of reading."""
    from pyspark.sql import functions as F

    fields = [name for name in whole_schema().names if name != "properties"]
    properties = F.to_json(F.map_from_entries(F.array_sort(F.map_entries("properties"))))
    checksum = F.bit_xor(F.xxhash64(*fields, properties))
    return frame.groupBy("queue").agg(
        F.count("*").alias("messages"),
        F.count_distinct("offset").alias("offsets"),
        F.count_distinct("id").alias("ids"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.sum(F.length("body")).alias("bytes"),
        checksum.alias("checksum"),
    )


def _totals(found: DataFrame) -> tuple[Any, ...]:
    from pyspark.sql import functions as F

    row = found.agg(F.sum("messages"), F.count("*"), F.sum("bytes"), F.bit_xor("checksum")).first()
    assert row is not None
    messages, queues, size_bytes, checksum = row
    return int(messages or 0), int(queues), int(size_bytes or 0), f"{(checksum or 0) & (1 << 64) - 1:016x}"


def _check(found: DataFrame, topic: Topic, bounds: Bounds, replica: _Replica) -> list[str]:
    """Duplicates, offsets outside the bounds, and gaps. A deleted message leaves a gap, which is told as such."""
    problems = []
    for row in found.where("messages != offsets or messages != ids").limit(20).collect():
        problems.append(f"{replica.name}: queue {row.queue} has {row.messages - row.offsets} offsets twice")
    dense = not _goes_one_by_one(topic)
    for row in found.where("last - first + 1 != messages").limit(20).collect() if dense else ():
        missing = row.last - row.first + 1 - row.messages
        problems.append(f"{replica.name}: queue {row.queue} lacks {missing} offsets between {row.first} and {row.last}")
    bare = np.zeros(topic.queues, np.bool_)
    for part in parse_ranges(replica.queues or f"0-{topic.queues - 1}"):
        bare[part.start : part.stop] = True
    bare &= bounds.latest > bounds.earliest
    for row in found.toLocalIterator():
        bare[row.queue] = False
        first, last = int(bounds.earliest[row.queue]), int(bounds.latest[row.queue]) - 1
        if (row.first, row.last) != (first, last) if dense else row.first < first or row.last > last:
            problems.append(
                f"{replica.name}: queue {row.queue} of {topic.name!r} has offsets {row.first} to {row.last}, not "
                f"{first} to {last} as its bounds say"
            )
        if len(problems) >= 100:
            return [*problems, "and perhaps more"]
    for queue in np.flatnonzero(bare)[:20].tolist() if dense else ():
        problems.append(
            f"{replica.name}: queue {queue} of {topic.name!r} has none of the offsets {bounds.earliest[queue]} to "
            f"{bounds.latest[queue] - 1}, as its bounds say"
        )
    return problems


def _compare(leader: DataFrame, other: DataFrame, replica: _Replica) -> list[str]:
    """Queues that are not the same, of those that the replica holds: also where one of the two has none of a queue."""
    held = " or ".join(f"queue between {part.start} and {part.stop - 1}" for part in parse_ranges(replica.queues))
    both = leader.where(held).alias("a").join(other.alias("b"), "queue", "full")
    same = "a.checksum <=> b.checksum and a.messages <=> b.messages"
    return [
        f"{replica.name}: queue {row.queue} differs from its leader's"
        for row in both.where(f"not ({same})").select("queue").orderBy("queue").limit(20).collect()
    ]

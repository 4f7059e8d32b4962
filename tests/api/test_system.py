"""Health, readiness, metrics, status, and group commit as the metrics show it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.node_process import NodeProcess

from .calls import Api


def test_a_fresh_node_is_healthy_and_ready(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        assert api.get(path).json() == {"status": "ok", "reasons": []}


def test_monitoring_may_add_query_parameters(api: Api) -> None:
    for path in ("/healthz?probe=1", "/metrics?name[]=up", "/v1/status?pretty"):
        api.get(path)


def test_status_says_what_runs_where(api: Api, shared_node: NodeProcess) -> None:
    status = api.status()
    assert status["pid"] == shared_node.pid
    assert status["data_dir"] == str(shared_node.data)
    assert status["uptime_s"] > 0
    assert [shard["shard"] for shard in status["shards"]] == [0]
    assert status["config"]["port"] == shared_node.port


def test_metrics_are_valid_and_count(api: Api, topic_name: str) -> None:
    api.create(topic_name, 5)
    before = api.metric("lsmq_store_records_written_total")
    api.send(topic_name, *[{"body": "x"}] * 25)
    api.send(topic_name, {}, status=400)
    text = api.get("/metrics").body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert api.metric("lsmq_store_records_written_total") == before + 25
    sends = {
        sample.labels["status"]: sample.value
        for sample in families["lsmq_http_requests"].samples
        if sample.labels["operation"] == "sendMessages"
    }
    assert sends["200"] >= 1 and sends["400"] >= 1
    assert families["lsmq_http_request_seconds"].type == "histogram"
    assert {"process_resident_memory_bytes", "lsmq_waiters", "lsmq_store_pressure"} <= families.keys()
    assert all(family.documentation for family in families.values())
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))


@pytest.mark.part(2)
def test_many_writers_share_few_commits(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    api = Api(node.url)
    api.create("t", 32)
    writers, each = 32, 40

    def write(queue: int) -> None:
        for number in range(each):
            api.send("t", {"queue": queue, "body": str(number)})

    commits = api.metric("lsmq_store_commits_total")
    syncs = api.metric("lsmq_store_fsyncs_total")
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    commits = api.metric("lsmq_store_commits_total") - commits
    syncs = api.metric("lsmq_store_fsyncs_total") - syncs
    assert api.metric("lsmq_committed_writes_total") >= writers * each
    assert commits < writers * each / 3
    assert syncs < writers * each / 3
    for queue in range(writers):
        assert api.all_bodies("t", queue) == [str(number) for number in range(each)]


def test_asynchronous_flush_acknowledges_without_waiting_for_the_disk(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(flush_mode="async", flush_interval_ms=1000).start()
    api = Api(node.url)
    api.create("t", 1)
    syncs = api.metric("lsmq_store_fsyncs_total")
    for number in range(100):
        api.send("t", {"body": str(number)})
    assert api.metric("lsmq_store_fsyncs_total") - syncs < 20
    node.kill9()  # The process dies, the machine lives: nothing written is lost.
    node.restart()
    assert api.all_bodies("t", 0) == [str(number) for number in range(100)]

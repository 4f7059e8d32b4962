"""The benchmarks run, compare what they say they compare, and put every figure into the result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from lsmq.sync import Client
from lsmq_lab.benchmarks import BENCHES, BenchFailed, engines, latency, messages, node_servers, replay, work
from lsmq_lab.benchmarks.command import show
from lsmq_lab.benchmarks.isolate import run_case
from lsmq_lab.benchmarks.node_ways import WAYS
from lsmq_lab.benchmarks.report import BenchReport, rate_text, ratio, ratio_text, spread
from lsmq_lab.benchmarks.store_cases import reopen
from lsmq_lab.benchmarks.workload import Contents, PutWorkload, number_of, queue_of
from support.extent import soaked
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually


def put_all(workload: PutWorkload) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[bytes]]]:
    cycle = list(workload.cycle())
    for at, count in workload.puts():
        queues, bodies = cycle[at]
        yield queues[:count], bodies[:count]


@pytest.mark.parametrize(("messages", "queues", "batch"), [(1000, 7, 64), (500, 9, 50), (30, 7, 64), (641, 900, 64)])
def test_the_workload_is_the_same_for_writer_and_reader(
    messages: int, queues: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_lab.benchmarks.workload.CYCLE", 200)
    workload = PutWorkload(messages, queues, batch, message_bytes=58)
    written: dict[int, list[bytes]] = {queue: [] for queue in range(queues)}
    for chosen, bodies in put_all(workload):
        for queue, body in zip(chosen.tolist(), bodies, strict=True):
            written[queue].append(body)
    contents = Contents(workload)
    assert sum(map(len, written.values())) == messages
    assert [len(bodies) for bodies in written.values()] == contents.lengths.tolist()
    for queue, bodies in written.items():
        assert all(len(body) == 58 and queue_of(body) == queue for body in bodies)
        numbers = [number_of(body) for body in bodies]
        assert contents.numbers(queue, 0, messages) == numbers
        assert contents.numbers(queue, 3, 2) == numbers[3:5]


def test_a_cycle_meets_every_queue_equally_often() -> None:
    assert set(np.bincount(PutWorkload(1000, 50, 100, 58).picks()).tolist()) == {20}


@pytest.mark.parametrize("name", engines.available()[0])
def test_every_engine_gives_back_what_was_put(name: str, tmp_path: Path) -> None:
    store = engines.open_engine(name, tmp_path / "store", "async", 9)
    expected: dict[int, list[bytes]] = {}
    for queues, bodies in put_all(PutWorkload(messages=500, queues=9, batch=50, message_bytes=20)):
        store.put(engines.prepare(name, queues, bodies))
        for queue, body in zip(queues.tolist(), bodies, strict=True):
            expected.setdefault(queue, []).append(body)
    store.flush()
    for queue, bodies in expected.items():
        assert store.get(queue, 0, 1000) == bodies
        assert store.get(queue, 5, 3) == bodies[5:8]
    store.close()


def test_options_have_quick_values_and_refuse_nonsense() -> None:
    bench = BENCHES["store"]
    assert bench.values({})["messages"] == 5_000_000
    assert bench.values({"quick": True})["messages"] == 300_000
    assert bench.values({"quick": True, "messages": 10})["messages"] == 10
    with pytest.raises(BenchFailed, match="at least 1"):
        bench.values({"messages": 0})
    with pytest.raises(BenchFailed, match="no option colour"):
        bench.values({"colour": 1})


def test_figures_read_well() -> None:
    assert rate_text(spread([1_200_000.0, 1_260_000.0, 1_310_000.0])) == "1.26 M/s (1.20-1.31)"
    assert rate_text(spread([94_000.0])) == "94.0 k/s"
    assert ratio_text(ratio({"median": 3.0}, {"median": 2.0})) == "1.50x"
    assert ratio_text(ratio({"median": 3.0}, None)) == "-"


def test_a_case_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="KeyError: 'no such engine'"):
        run_case(
            reopen,
            engine="no such engine",
            path=str(tmp_path / "store"),
            flush_mode="async",
            messages=1,
            queues=1,
            batch=1,
            message_bytes=58,
            seconds=1,
            rest_seconds=0,
        )


def test_bench_control_measures_every_decision_of_a_cluster_that_is_made_up() -> None:
    bench = BENCHES["control"]
    said: list[str] = []
    report = bench.run(bench.values({"quick": True}), said.append)
    json.dumps(report.result)
    assert all(found["median"] > 0 for found in report.result["milliseconds"].values())
    assert len(report.tables[0].rows) == len(report.result["milliseconds"])
    assert report.result["state_bytes"] > 200 * 3


@pytest.mark.slow
def test_bench_store_compares_with_rocksdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_lab.benchmarks.store.FEW_QUEUES", (1,))
    bench = BENCHES["store"]
    said: list[str] = []
    report = bench.run(bench.values({"quick": True, "messages": 20_000, "queues": 20_000, "batch": 1_000}), said.append)
    json.dumps(report.result)
    engines_seen = {each["engine"] for each in report.result["writes"]}
    assert engines_seen == {"lsmq", "rocksdb"}
    assert all(value is not None and value > 0 for value in report.result["ratios"].values())
    assert {(each["engine"], each["ending"]) for each in report.result["reopens"]} == {
        (engine, ending) for engine in engines_seen for ending in ("closed", "killed")
    }
    assert len(report.tables) == 3
    assert any("write 1/1" in line for line in said)


@pytest.mark.slow
@pytest.mark.soak
def test_bench_store_without_rocksdb_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_lab.benchmarks.store.available", lambda: (["lsmq"], [engines.ROCKSDB_REMEDY]))
    monkeypatch.setattr("lsmq_lab.benchmarks.store.FEW_QUEUES", ())
    bench = BENCHES["store"]
    said: list[str] = []
    values = bench.values({"quick": True, "messages": 2_000, "queues": 1, "batch": 1_000})
    report = bench.run(values, said.append)
    assert engines.ROCKSDB_REMEDY in said
    assert report.result["missing"] == [engines.ROCKSDB_REMEDY]
    assert report.result["ratios"]["random_gets_per_s"] is None


@pytest.mark.slow
def test_bench_node_runs_and_says_how_to_get_what_is_missing() -> None:
    bench = BENCHES["node"]
    said: list[str] = []
    report = bench.run(bench.values({"quick": True, "messages": 5_000, "readers": 2, "writers": 2}), said.append)
    json.dumps(report.result)
    servers = {(each["server"], each["durability"]) for each in report.result["servers"]}
    assert {("lsmq", "sync"), ("lsmq", "async")} <= servers
    assert all(each[name]["median"] > 0 for each in report.result["servers"] for name in ("write_1", "read_n"))
    ours = [each for each in report.result["servers"] if each["server"] == "lsmq"]
    figures = [f"{way}_{what}" for way in WAYS for what in ("per_s", "client_ns")]
    assert all(each[name]["median"] > 0 for each in ours for name in figures)
    assert [row[:2] for row in report.tables[1].rows][:5] == [("lsmq sync", way) for way in WAYS]
    if shutil.which("redis-server") is None:
        assert any("apt-get install redis-server" in line for line in said)
    else:
        assert {("redis", "always"), ("redis", "everysec")} <= servers


def test_a_missing_redis_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert any("apt-get install redis-server" in line for line in node_servers.missing())


@pytest.mark.slow
def test_bench_cluster_compares_one_node_with_three() -> None:
    bench = BENCHES["cluster"]
    quick = {"quick": True, "messages": 2_000, "queues": 30, "writers": 2, "readers": 2}
    report = bench.run(bench.values(quick), lambda line: None)
    assert [(each["nodes"], each["ack"]) for each in report.result["cases"]] == [
        (1, "quorum"),
        (3, "quorum"),
        (3, "leader"),
    ]
    for each in report.result["cases"]:
        assert each["write_1"]["median"] > 0 and each["write_n"]["median"] > 0 and each["read_n"]["median"] > 0
    assert set(report.result["ratios"]) == {
        f"{name}/3/{ack}" for name in ("write_1", "write_n", "read_n") for ack in ("quorum", "leader")
    }


@pytest.mark.slow
@pytest.mark.soak
def test_bench_processes_compares_one_with_two_under_a_load_that_costs_less() -> None:
    bench = BENCHES["processes"]
    report = bench.run(bench.values({"quick": True, "batch": 500, "queues": 30}), lambda line: None)
    cases = report.result["cases"]
    assert [(each["processes"], each["shards"]) for each in cases] == [(1, 1), (1, 2), (2, 2)]
    for each in cases:
        assert each["write"]["median"] > 0
        assert 0 < each["load_us"]["median"] < each["node_us"]["median"]
    assert report.result["ratios"]["1/1"] == 1.0
    assert len(report.tables[0].rows) == 3


def test_what_is_replayed_is_stored_and_a_refusal_ends_it(shared_node: NodeProcess) -> None:
    with Client(shared_node.url) as client:
        client.create_topic("replayed", queues=7)
        sizes = {"batch": 50, "message_bytes": 20, "connections": 2, "seconds": 0.2}
        done = replay.load(shared_node.url, "replayed", **sizes)
        latest = sum(client.offsets("replayed").latest)
        # What was on its way at the end was sent, and nobody waited for its answer.
        assert 0 < done["messages"] <= latest <= done["messages"] + 2 * sizes["batch"]
        client.delete_topic("replayed")
        client.create_topic("replayed", queues=7, max_message_bytes=10)
        with pytest.raises(BenchFailed, match="message_too_large"):
            replay.load(shared_node.url, "replayed", **sizes)


@pytest.mark.slow
@pytest.mark.soak
def test_bench_backlog_compares_with_and_without_the_redirect() -> None:
    bench = BENCHES["backlog"]
    quick = bench.values({"quick": True, "drain_mib_s": 10})
    report = bench.run(quick, lambda line: None)
    cases = {case["case"]: case for case in report.result["cases"]}
    assert list(cases) == ["undisturbed", "redirect", "busy neighbour", "no redirect"]
    assert [name for name, case in cases.items() if case["drained_mib_s"]["min"] > 0] == ["redirect", "no redirect"]
    assert [name for name, case in cases.items() if case["reader_cores"]["min"] > 0] == list(cases)[1:]
    for case in report.result["cases"]:
        assert 0 < case["receive_p50_ms"]["min"] <= case["receive_p99_ms"]["max"]
    assert report.result["ratios"]["receive_p99_ms/redirect"] > 0


@pytest.mark.parametrize("face", ["long poll", "push"])
def test_latency_is_measured_of_every_message(shared_node: NodeProcess, face: str) -> None:
    found = latency.measure(shared_node.url, face, queues=50, ack="leader", rate=100, each=64, seconds=0.5)
    assert 0 < found["receive_p50_ms"] <= found["receive_p99_ms"] <= found["receive_p99.9_ms"]
    assert 0 < found["produce_p50_ms"] <= found["produce_p99_ms"]


@pytest.mark.parametrize("face", [work.WORK, work.PLAIN])
def test_consumers_take_all_messages_and_one_that_waits_has_each(shared_node: NodeProcess, face: str) -> None:
    queues = 31 if face == work.WORK else 37
    work.fill(shared_node.url, queues, 7, messages=500, each=64, batch=100)
    found = work.drain(shared_node.url, face, queues, "taken", batch=100, start_s=time.monotonic(), part=0, parts=1)
    assert found["messages"] == 500 and found["began_s"] < found["ended_s"]
    waited = work.measure(shared_node.url, face, queues, each=64, rate=100, seconds=0.3)
    assert 0 < waited["receive_p50_ms"] <= waited["settle_p99_ms"]
    work.hold(shared_node.url, queues, 20)


@pytest.mark.slow
@pytest.mark.parametrize("case", soaked(messages.CASES, but=["filters", "once"]))
def test_each_case_of_bench_messages_measures_what_its_tables_show(case: str) -> None:
    bench = BENCHES["messages"]
    report = bench.run(bench.values({"quick": True, "case": case, "seconds": 1}), lambda line: None)
    json.dumps(report.result)
    assert list(report.result["cases"]) == [case]
    assert report.tables and all(table.rows for table in report.tables)
    found = report.result["cases"][case]
    if case == "once":
        assert found["ids"] == 20_000 and found["memory"]["ids"] > 0
    if case == "filters":
        assert found["ways"][0]["wanted"] == 30_000
    if case == "waits":
        assert all(way["beside"]["p99_ms"] > 0 for way in found["ways"].values())


def test_a_remedy_is_printed_with_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    show(BenchReport({}, [], ['RocksDB is missing: pip install "lsmq[bench]"']))
    assert capsys.readouterr().out == '- RocksDB is missing: pip install "lsmq[bench]"\n'


def test_one_that_is_ended_takes_down_what_it_has_started(tmp_path: Path) -> None:
    command = ["suite", "--only", "single", "--quick", "--peers", "none", "--directory", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "lsmq", "bench", *command], stderr=subprocess.DEVNULL) as bench:
        started = psutil.Process(bench.pid)

        def serves() -> bool:
            return any("serve" in " ".join(child.cmdline()) for child in started.children(recursive=True))

        eventually(serves, "it has started a node")
        family = started.children(recursive=True)
        bench.terminate()
    assert bench.returncode != 0
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []

"""The suite runs every row, keeps what it measured, names what is missing, and says what was not reached and why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from lsmq_lab.benchmarks import BENCHES, BenchFailed, engines
from lsmq_lab.benchmarks.maven import Jars, digest_of
from lsmq_lab.benchmarks.report import BenchReport, Option
from lsmq_lab.benchmarks.suite import bench, page_files
from lsmq_lab.benchmarks.suite.kills import Acknowledgements, PeerServers
from lsmq_lab.benchmarks.suite.limits import ceilings, measure_limits
from lsmq_lab.benchmarks.suite.page import draw_page
from lsmq_lab.benchmarks.suite.page_files import forget, read_through
from lsmq_lab.benchmarks.suite.plot import draw
from lsmq_lab.benchmarks.suite.rocketmq_failover import DEFAULTS, Heard, kill_masters
from lsmq_lab.benchmarks.suite.rounds import measure_row
from lsmq_lab.benchmarks.suite.row import (
    LSMQ,
    Case,
    FigureColumn,
    FigureTarget,
    Plot,
    Row,
    figure,
    least_over_greatest,
    over,
)
from lsmq_lab.benchmarks.suite.rows import ROWS
from lsmq_lab.benchmarks.suite.rows.amplification import theory
from lsmq_lab.benchmarks.suite.systems import PEERS, system
from lsmq_lab.benchmarks.suite.systems.system import ClientLoad, readers, split
from lsmq_lab.benchmarks.suite.texts import number_text, target_text
from lsmq_lab.drills.report import OutageTimes
from support.extent import soaked
from support.waiting import eventually

FACTS: Mapping[str, Any] = {
    "cpu": "a processor",
    "cpus": 2,
    "memory_bytes": 1 << 30,
    "python": "3.11.0",
    "load": 0.0,
    "fdatasync_ms": 0.2,
    "disk_write_bytes_per_s": 1e9,
    "disk_read_bytes_per_s": 2e9,
    "loopback_bytes_per_s": 3e9,
    "loopback_round_trip_ms": 0.05,
}
#: What needs more than a few seconds even at its smallest: whole clusters.
#: Of a store, of a node, and of a cluster.
USUAL = ("write-amplification", "thesis", "replicate")
SLOW = ("replicate", "failover", "many-queues", "backlog", "sleepers")
ALONE = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW) + [pytest.mark.soak] * (name not in USUAL))
    for name in ROWS
    if name not in ("spark",)
]


def run_suite(**given: Any) -> BenchReport:
    suite = BENCHES["suite"]
    return suite.run(suite.values({"quick": True, **given}), lambda line: None)


def schema() -> Any:
    text = (resources.files("lsmq_lab.benchmarks.suite") / "report.schema.json").read_text()
    found: Any = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def check_page(page: str, rows: list[str]) -> None:
    """It is well-formed, has every row, and asks nobody for anything."""
    root = ElementTree.fromstring(page)
    headings = [each.get("id") for each in root.iter("h2")]
    assert [each for each in headings if each] == rows
    for element in root.iter():
        assert element.tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & set(element.attrib) or element.get("href", "").startswith("#")
    assert "url(" not in page and "@import" not in page


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.part(4)
def test_a_row_runs_without_peers_and_is_reported(name: str, tmp_path: Path) -> None:
    said = run_suite(only=name, peers="none", report=str(tmp_path / "report"), directory=str(tmp_path))
    jsonschema.validate(said.result, schema())
    [row] = said.result["rows"]
    assert row["row"] == name
    assert any(each["system"] == LSMQ for each in row["cases"])
    shown = {column.figure for column in ROWS[name].columns}
    for each in row["cases"]:
        assert shown & set(each["figures"]), each["case"]
        assert all(of["min"] <= of["median"] <= of["max"] for of in each["figures"].values())
    assert json.loads((tmp_path / "report" / "suite.json").read_text()) == said.result
    check_page((tmp_path / "report" / "suite.html").read_text(), [name])
    assert said.tables[0].title.startswith(f"{name}: ")
    assert {path.name for path in tmp_path.iterdir()} == {"report"}


@pytest.mark.parametrize("name", soaked(["contest", "cold-read", "write-amplification"], but=["write-amplification"]))
@pytest.mark.part(4)
def test_the_store_is_measured_beside_rocksdb(name: str, tmp_path: Path) -> None:
    if engines.ROCKSDB not in engines.available()[0]:
        pytest.skip(engines.ROCKSDB_REMEDY)
    [row] = run_suite(only=name, peers="rocksdb", directory=str(tmp_path)).result["rows"]
    assert {LSMQ, "rocksdb"} <= {each["system"] for each in row["cases"]}


@pytest.mark.parametrize("name", soaked(["thesis", "single", "many-topics"], but=["many-topics"]))
@pytest.mark.part(4)
def test_a_node_is_measured_beside_redis(name: str, tmp_path: Path) -> None:
    if remedy := system("redis").lacks():
        pytest.skip(remedy)
    [row] = run_suite(only=name, peers="redis", directory=str(tmp_path)).result["rows"]
    assert {LSMQ, "redis"} <= {each["system"] for each in row["cases"]}
    assert all(each["figures"]["per_s"]["median"] > 0 for each in row["cases"])
    assert [target["value"] for target in row["targets"] if "Redis" in target["text"]] != [None]


@pytest.mark.part(2)
def test_a_peer_that_is_missing_is_a_gap_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said = run_suite(only="thesis", peers="redis", report=str(tmp_path), sizes="in_flight=1000")
    [gap] = said.result["missing"]
    assert gap["peer"] == "redis" and "apt-get install redis-server" in gap["reason"]
    [row] = said.result["rows"]
    assert {each["system"] for each in row["cases"]} == {LSMQ}
    assert any("redis-server is not on PATH" in each for each in row["gaps"])
    assert [target["reached"] for target in row["targets"] if "Redis" in target["text"]] == [None, None]
    assert "redis-server is not on PATH" in (tmp_path / "suite.html").read_text()
    jsonschema.validate(said.result, schema())


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_says_what_it_lacks_and_when_it_acknowledges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = system(name)
    assert peer.name == name and "sync" in peer.promise
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    assert peer.lacks()


def made(cases: list[Case], **changed: Any) -> Row:
    shape: dict[str, Any] = {
        "name": "made",
        "title": "made for a test",
        "work": "Nothing.",
        "options": (),
        "cases": lambda values, peers: cases,
        "columns": (FigureColumn("per_s", "rate", "/s"),),
    }
    return Row(**{**shape, **changed})


def measured(row: Row, tmp_path: Path, rounds: int = 1) -> dict[str, Any]:
    return measure_row(row, {"rounds": rounds, "peers": "none"}, (), FACTS, tmp_path, lambda line: None)


def test_cases_take_turns_on_fresh_directories_and_the_median_counts(tmp_path: Path) -> None:
    order: list[str] = []
    places: set[Path] = set()

    def case(name: str, rates: Iterator[float]) -> Case:
        def run(place: Path) -> dict[str, float]:
            assert place.is_dir() and not any(place.iterdir())
            (place / "left").touch()
            order.append(name)
            places.add(place)
            return {"per_s": next(rates)}

        return Case(name, LSMQ, run)

    row = made([case("a", iter((5.0, 1.0, 3.0))), case("b", iter((2.0, 2.0, 2.0)))])
    found = measured(row, tmp_path, rounds=3)
    assert order == ["a", "b"] * 3 and len(places) == 6
    assert found["cases"][0]["figures"]["per_s"] == {"min": 1.0, "median": 3.0, "max": 5.0}
    assert list(tmp_path.iterdir()) == []


def fails(place: Path) -> dict[str, float]:
    raise BenchFailed("it did not come up")


def test_a_peer_that_fails_is_left_out_with_its_reason(tmp_path: Path) -> None:
    row = made([Case("ours", LSMQ, lambda place: {"per_s": 1.0}), Case("theirs", "kafka", fails)])
    found = measured(row, tmp_path, rounds=2)
    assert [each["case"] for each in found["cases"]] == ["ours"]
    assert found["gaps"] == ["theirs: it did not come up"]


def test_a_case_of_ours_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="made, ours: it did not come up"):
        measured(made([Case("ours", LSMQ, fails)]), tmp_path)


def test_what_is_not_reached_is_red_and_names_the_nearest_limit(tmp_path: Path) -> None:
    def run(place: Path) -> dict[str, float]:
        return {"per_s": 100_000.0, "processor_us": 10.0, "written_bytes": 200.0}

    row = made(
        [Case("ours", LSMQ, run)],
        targets=lambda values: [
            FigureTarget("fast", figure("ours", "per_s"), 1e6, "/s", case="ours"),
            FigureTarget("slow", figure("ours", "per_s"), 1e3, "/s", case="ours"),
            FigureTarget("beside another", over("ours", "theirs", "per_s"), 1.0),
        ],
    )
    found = measured(row, tmp_path)
    missed, reached, unknown = found["targets"]
    assert missed["reached"] is False
    assert missed["limit"] == "nearest limit: processor, 10.00 us of processor a message on 2 cores: 200,000/s at most"
    assert reached["reached"] is True and reached["limit"] is None
    assert unknown["reached"] is None and unknown["value"] is None
    assert target_text(missed).startswith("fast: 100 k/s, at least 1.00 M/s: NOT REACHED (nearest limit: processor")
    root = ElementTree.fromstring(draw_page({"missing": [], "rows": [found]}, {"made": row}))
    assert [each.text for each in root.iter("td") if each.get("class") == "missed"] == ["100 k/s"]


def test_ceilings_come_least_first_and_only_of_what_is_known() -> None:
    figures = {"per_s": 1.0, "processor_us": 4.0, "written_bytes": 1000.0, "is_remote": 1.0, "waits_for_each": 1.0}
    found = ceilings(FACTS, figures, 100)
    assert [each["what"] for each in found] == ["fdatasync", "processor", "disk", "loopback"]
    assert [round(each["per_s"]) for each in found] == [4_000, 500_000, 1_000_000, 30_000_000]
    assert [each["what"] for each in ceilings(FACTS, {"per_s": 1.0, "processor_us": 4.0}, 100)] == ["processor"]
    assert ceilings(FACTS, {"p50_ms": 1.0}, 100) == []


def test_the_limits_of_this_machine_are_measured(tmp_path: Path) -> None:
    facts = measure_limits(tmp_path, quick=True)
    assert all(facts[name] > 0 for name in FACTS if name not in ("load", "cpu", "python"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.part(2)
def test_a_report_keeps_its_rows_until_they_run_again(tmp_path: Path) -> None:
    run_suite(only="group-commit", peers="none", report=str(tmp_path), sizes="most_writers=1,messages=10")
    said = run_suite(only="cold-read", peers="none", report=str(tmp_path), sizes="most_flushes=1,queues=20")
    assert [each["row"] for each in said.result["rows"]] == ["cold-read", "group-commit"]
    said = run_suite(only="group-commit", peers="none", report=str(tmp_path), sizes="most_writers=1,messages=20")
    assert [each["row"] for each in said.result["rows"]] == ["cold-read", "group-commit"]
    assert said.result["rows"][1]["options"]["messages"] == 20
    assert [table.title.split(":")[0] for table in said.tables] == ["group-commit"]
    check_page((tmp_path / "suite.html").read_text(), ["cold-read", "group-commit"])


@pytest.mark.parametrize("content", ["not json", '{"bench": "store"}', '{"bench": "suite", "format": 99}'])
def test_a_file_that_is_no_report_is_left_alone(content: str, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text(content)
    with pytest.raises(BenchFailed, match="no report of this suite"):
        run_suite(only="group-commit", peers="none", report=str(tmp_path))
    assert (tmp_path / "suite.json").read_text() == content


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"only": "nothing"}, "no row 'nothing'; there are: contest"),
        ({"peers": "oracle"}, "no peer 'oracle'; there are: none, all, rocksdb"),
        ({"only": "single", "sizes": "colour=1"}, "no row that runs has a size 'colour'; there are: message_bytes"),
        ({"only": "single", "sizes": "messages=many"}, "messages is 'many'; it must be a whole number"),
        ({"only": "single", "sizes": "message_bytes=1"}, "message_bytes must be at least 16, not 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchFailed, match=said):
        run_suite(**{"peers": "none", **given})


def test_the_command_of_a_row_runs_it_again_with_its_sizes() -> None:
    row = ROWS["single"]
    values = {option.name: option.default for option in row.options} | {"rounds": 3, "peers": "all"}
    command = row.command(values)
    assert command.startswith("lsmq bench suite --only single --peers all --rounds 3 --sizes messages=5000,")
    sizes = command.rpartition("--sizes ")[2]
    assert bench._sizes(sizes, [row]) == {option.name: option.default for option in row.options}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_says_what_it_does_and_shows_what_it_plots(name: str) -> None:
    row = ROWS[name]
    assert row.name == name and row.work.endswith(".") and row.columns
    assert all(isinstance(option, Option) and option.help.endswith(".") for option in row.options)
    values = {option.name: option.default for option in row.options}
    cases = row.cases(values, row.peers)
    assert len({case.name for case in cases}) == len(cases)
    known = {case.name for case in cases}
    assert all(target.case in known for target in row.targets(values) if target.case)
    assert {plot.figure for plot in row.plots} <= {column.figure for column in row.columns}


def test_curves_and_bars_are_drawn_with_their_spread_and_their_names() -> None:
    spread = {"min": 1.0, "median": 2.0, "max": 4.0}
    cases = [{"case": f"a & b, {x}", "series": "a & b", "x": x, "figures": {"ms": spread}} for x in (1, 10, 1_000)] + [
        {"case": "c", "series": "c", "x": None, "figures": {}}
    ]
    curves = ElementTree.fromstring(draw(Plot("ms", "t < u", "ms", "writers"), cases))
    assert len(list(curves.iter("circle"))) == 3 and len(list(curves.iter("polyline"))) == 1
    assert "a & b" in [each.text for each in curves.iter("text")]
    bars = ElementTree.fromstring(draw(Plot("ms", "t", "ms"), [{**cases[0], "x": None}]))
    assert len(list(bars.iter("rect"))) == 1
    assert draw(Plot("absent", "t", "ms"), cases) == ""
    part = {"p50_ms": spread, "p99_ms": spread}
    points = ((50.0, "p50_ms"), (99.0, "p99_ms"))
    percentiles = draw(Plot("p50_ms", "t", "ms", points=points), [{"case": "kill", "x": None, "figures": part}])
    assert percentiles.count("<circle") == 2


def test_a_gap_in_acknowledgements_begins_before_the_fault_and_ends_with_the_first_after_it() -> None:
    found = Acknowledgements(4)
    found.times[3] = [1.0, 1.5, 1.9, 4.0, 4.1, 4.2]
    assert found.gap_s(3, since=2.0) == pytest.approx(2.1)
    assert found.gap_s(3, since=4.05) == pytest.approx(0.1)
    assert found.gap_s(0, since=2.0) == 0.0
    assert found.are_on_all([3], since=3.9) and not found.are_on_all([3], since=4.0)
    assert not found.are_on_all([3, 0], since=0.0)


def test_what_the_writer_of_rocketmq_says_is_heard() -> None:
    heard = Heard()
    for number in range(3):
        heard.take("acknowledged", float(number))
    assert heard.acknowledges(since=-1.0) and not heard.acknowledges(since=0.0)
    heard.take("replicas 127.0.0.1:10911 2", 3.0)
    assert heard.master == "127.0.0.1:10911" and not heard.are_in_sync(since=2.0)
    heard.take("replicas 127.0.0.1:10921 3", 4.0)
    assert heard.master == "127.0.0.1:10921" and heard.are_in_sync(since=3.0) and not heard.are_in_sync(since=4.0)
    for number in range(9):
        heard.take(f"refused for reason {number}", 5.0)
    assert heard.last() == "refused for reason 6 | refused for reason 7 | refused for reason 8"


def test_servers_are_killed_and_started_again_and_one_that_ends_by_itself_is_named(tmp_path: Path) -> None:
    servers, log = PeerServers(), tmp_path / "log"
    try:
        servers.start("one", ["sleep", "1000"], log)
        servers.kill("one")
        servers.start("one", ["sleep", "1000"], log)
        assert servers.ended() == ""
        servers.start("two", ["sh", "-c", "echo $WHY; echo ' at 7'; exit 3"], log, {"WHY": "no room"})
        eventually(servers.ended, "one has ended")
        assert servers.ended() == "two has ended with 3, and said last: no room"
    finally:
        servers.stop()


def test_without_a_compiler_the_failover_of_rocketmq_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BenchFailed, match=r"javac is not on PATH, .* apt-get install default-jdk-headless"):
        kill_masters(tmp_path, 1, DEFAULTS)


def test_jars_that_are_not_the_right_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.jar").write_bytes(b"one")
    digest = digest_of(tmp_path)
    assert Jars("made", (), digest).bring(place=tmp_path) == tmp_path
    (tmp_path / "one.jar").write_bytes(b"another")
    with pytest.raises(BenchFailed, match="remove the directory"):
        Jars("made", (), digest).bring(place=tmp_path)


def test_shares_of_readers_cover_all_queues_and_no_more_than_was_written() -> None:
    assert split(10, 3) == [3, 3, 4]
    parts = readers(ClientLoad("module", "address", "write", 1_000, 100, queues=10), 3)
    assert [(each.first, each.end) for each in parts] == [(0, 3), (3, 6), (6, 10)]
    assert all(0 < each.messages <= 1_000 * (each.end - each.first) // 10 for each in parts)
    assert [each.messages for each in readers(ClientLoad("module", "address", "write", 50, 100), 4)] == [50]


def test_flatness_is_the_least_over_the_greatest_of_what_was_measured() -> None:
    found = {"a": {"per_s": 80.0}, "b": {"per_s": 100.0}, "c": {}}
    assert least_over_greatest(["a", "b", "c", "d"], "per_s")(found) == pytest.approx(0.8)
    assert least_over_greatest(["a"], "per_s")(found) is None


def test_the_theory_of_merging_grows_by_one_for_each_time_the_runs_grow_by_four() -> None:
    assert theory(4) == 2
    assert theory(8) == 3
    assert theory(8 * 4**3) == pytest.approx(6)


def test_what_a_file_has_room_for_is_not_counted_as_read(tmp_path: Path) -> None:
    """Room that nothing was written to is read in no time, and would make the disk look quick."""
    with (tmp_path / "log").open("wb") as file:
        file.write(bytes(3 * page_files.BUFFER_BYTES + 5))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        file.truncate(1 << 30)
    (tmp_path / "empty").touch()
    written = [end - start for start, end in page_files.written_parts(tmp_path / "log")]
    assert 3 * page_files.BUFFER_BYTES + 5 <= sum(written) < 5 * page_files.BUFFER_BYTES
    assert list(page_files.written_parts(tmp_path / "empty")) == []
    assert read_through(tmp_path) > 0


def test_forgotten_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"content")
    forget(tmp_path)
    assert (tmp_path / "below" / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_260_000, "/s", "1.26 M/s"),
        (94_000, "/s", "94.0 k/s"),
        (12, "/s", "12.0/s"),
        (0.45, "ms", "0.45 ms"),
        (0.82, "x", "0.82x"),
        (0.004, "x", "0.004x"),
        (0, "%", "0 %"),
        (4096, "MiB", "4,096 MiB"),
    ],
)
def test_figures_are_written_in_their_units(value: float, unit: str, text: str) -> None:
    assert number_text(value, unit) == text


def test_a_drill_has_all_times_without_an_acknowledgement() -> None:
    times = OutageTimes.of([0.3, 0.1, 0.2])
    assert times.all_ms == (100.0, 200.0, 300.0) and times.p50_ms == 200.0 and times.max_ms == 300.0

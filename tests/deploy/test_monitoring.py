"""The alert rules and the dashboard: they ask for what nodes tell, and every alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.calls import Api
from lsmq_lab.believed import opener
from support.clusters import running_cluster
from support.node_process import NodeProcess
from support.waiting import eventually

from .promql import Asked, asked

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "alerts.yml"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((RULES.parent / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMTOOL = shutil.which("promtool")
#: What Prometheus itself gives every target.
GIVEN = {"job", "instance"}

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool to check it (Debian: prometheus)")


def dashboard_expressions() -> list[str]:
    """As Prometheus gets them from Grafana."""
    asked_for = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$__range", "3h") for each in asked_for]


EXPRESSIONS = {"alerts": [rule["expr"] for rule in ALERTS], "dashboard": dashboard_expressions()}


@dataclass
class Told:
    """What nodes tell: by metric, the labels of its samples; none where there is no sample now."""

    labels: dict[str, set[str]] = field(default_factory=dict)

    def add(self, text: str) -> None:
        for family in text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
            for suffix in suffixes:
                self.labels.setdefault(family.name + suffix, set())
            for sample in family.samples:
                self.labels.setdefault(sample.name, set()).update(sample.labels)

    def lacks(self, wanted: Asked) -> list[str]:
        """What is asked for and not told, in words."""
        missing = [f"metric {name}" for name in wanted.labels.keys() - self.labels.keys() - {"up"}]
        known = {name: there | GIVEN for name in wanted.labels if (there := self.labels.get(name, set()))}
        for name, there in known.items():
            missing += [f"label {label} of {name}" for label in wanted.labels[name] - there]
        if known.keys() == wanted.labels.keys():
            missing += [f"label {label}" for label in wanted.grouping - set().union(*known.values())]
        return missing


@pytest.fixture(scope="module")
def of_a_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a node of its own tells, some messages later."""
    node = NodeProcess(tmp_path_factory.mktemp("monitored") / "data").start()
    yield _used([node.url])[0]
    node.stop()


@pytest.fixture(scope="module")
def of_a_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What each node of a cluster tells."""
    directory = tmp_path_factory.mktemp("monitored") / "cluster"
    small = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, directory, settings=small) as cluster:
        yield _used([node.url for node in cluster.plan.nodes])


def _metrics(url: str) -> str:
    with opener().open(f"{url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def _used(urls: list[str]) -> list[str]:
    """What these nodes tell once they have six messages, which wait for a group."""
    api = Api(urls[0])
    api.create("orders", 6)
    api.send("orders", *[{"queue": queue, "body": "x"} for queue in range(6)])
    api.call(
        "POST", "/v1/groups/g/offsets", {"topic": "orders", "queues": [0], "offsets": [0], "reset": True}, status=200
    )
    found: list[str] = []

    def counted() -> bool:
        found[:] = [_metrics(url) for url in urls]
        return total(found, "lsmq_topic_written_messages_total") == 6 and total(found, "lsmq_group_lag_messages") > 0

    eventually(counted, "topics and groups were counted")
    return found


def total(texts: list[str], name: str) -> float:
    """Of a metric, over all nodes."""
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_all_that_is_asked_for_is_told_by_a_node(source: str, of_a_node: str) -> None:
    told = Told()
    told.add(of_a_node)
    assert {each: told.lacks(asked(each)) for each in EXPRESSIONS[source] if told.lacks(asked(each))} == {}


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_all_that_is_asked_for_is_told_by_the_nodes_of_a_cluster(source: str, of_a_cluster: list[str]) -> None:
    told = Told()
    for text in of_a_cluster:
        told.add(text)
    assert "follower" in told.labels["lsmq_shard_lag_bytes"], "they follow one another"
    assert {each: told.lacks(asked(each)) for each in EXPRESSIONS[source] if told.lacks(asked(each))} == {}


@pytest.mark.parametrize(
    ("expression", "lacks"),
    [
        ("rate(lsmq_store_fsync_total[5m]) > 0", ["metric lsmq_store_fsync_total"]),
        ('sum(lsmq_http_requests_total{code="500"})', ["label code of lsmq_http_requests_total"]),
        ("sum by (queue) (lsmq_store_tables)", ["label queue"]),
        ('lsmq_http_request_seconds_bucket{le="0.5", operation!~"a|b"} offset 5m', []),
    ],
)
def test_what_is_not_told_is_found(expression: str, lacks: list[str], of_a_node: str) -> None:
    told = Told()
    told.add(of_a_node)
    assert told.lacks(asked(expression)) == lacks


def test_messages_are_counted_once_in_a_cluster(of_a_cluster: list[str]) -> None:
    assert total(of_a_cluster, "lsmq_topic_written_messages_total") == 6
    assert total(of_a_cluster, "lsmq_store_records_written_total") > 6, "at each replica"


def test_names_keep_to_the_conventions(of_a_node: str) -> None:
    families = [each for each in text_string_to_metric_families(of_a_node) if each.name.startswith("lsmq_")]
    assert len(families) > 100
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert re.fullmatch(r"lsmq(_[a-z0-9]+)+", family.name)
        assert not re.search(r"_(ms|us|minutes|hours|kb|mb|kib|mib|percent|total)$", family.name), (
            "base units, no total"
        )
    # The parser takes the suffix of counters away: it must have been there.
    for line in of_a_node.splitlines():
        if line.startswith("# TYPE lsmq_"):
            _, _, name, kind = line.split()
            assert name.endswith("_total") == (kind == "counter"), line


def test_every_alert_says_what_to_do_and_where_it_is_explained() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names)) > 20
    for rule in ALERTS:
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook"}
        assert notes["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["alert"] in headings
        assert f"| [{rule['alert']}](#{rule['alert'].lower()}) | {rule['labels']['severity']} |" in page
    assert {heading for heading in headings if heading.startswith("Lsmq")} == set(names)


def test_the_dashboard_can_be_imported() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    assert "id" not in DASHBOARD and DASHBOARD["uid"] == "lsmq" and DASHBOARD["schemaVersion"] > 30
    everything = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]+)"', everything)) == {"${datasource}", "lsmq"}
    used = set(re.findall(r"\$\{?(\w+)", everything))
    assert used <= variables.keys() | {"__rate_interval", "__range", "__all"}
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identifiers) == len(set(identifiers))
    for panel in PANELS:
        assert panel["title"] and panel["description"].endswith(".") and panel["targets"]
        assert all('job=~"$job"' in target["expr"] for target in panel["targets"]), "one cluster at a time"


def test_no_panel_covers_another() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        cells |= own


@needs_promtool
def test_prometheus_takes_the_rules_and_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{at}", "expr": each} for at, each in enumerate(EXPRESSIONS["dashboard"])]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", RULES)
    promtool("check", "rules", panels)


@needs_promtool
def test_prometheus_takes_the_configuration_in_the_docs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    found = re.search(r"```yaml\n(# prometheus.yml\n.*?)```", page, re.DOTALL)
    assert found is not None
    (job,) = yaml.safe_load(found[1])["scrape_configs"]
    assert re.fullmatch("lsmq.*", job["job_name"])
    config = tmp_path / "prometheus.yml"
    config.write_text(found[1])
    promtool("check", "config", "--syntax-only", config)


@needs_promtool
@pytest.mark.part(3)
def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", Path(__file__).with_name("alerts_test.yml"))


@needs_promtool
def test_prometheus_finds_nothing_to_mend_in_what_nodes_tell(of_a_node: str, of_a_cluster: list[str]) -> None:
    for text in (of_a_node, *of_a_cluster):
        promtool("check", "metrics", text=text)


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

"""The pages on HTTP, configuration and metrics name everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lsmq.messages import key_hash
from lsmq_coordinator.http_status import _CODES
from lsmq_node.api.app import route_table
from lsmq_node.api.openapi import ANYWHERE
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.config import NodeConfig
from lsmq_node.config_file import reference_table

from .calls import Api

#: Errors that nodes tell one another, or the command line; and what nobody expected.
BETWEEN_NODES = {
    "control_stopped",
    "deliveries_ahead",
    "internal",
    "invalid_config",
    "log_trimmed",
    "node_runs",
    "not_authenticated",
    "not_control_leader",
}
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "queues"), [(DOCS / "http.md", 16), (DOCS.parent / "README.md", 4096)])
def test_the_example_with_curl_reads_the_queue_that_it_sends_to(page: Path, queues: int) -> None:
    found = re.search(
        r'"key": "([^"]+)", "body".*?/v1/topics/orders/queues/(\d+)/messages', page.read_text(), re.DOTALL
    )
    assert found is not None
    assert key_hash(found[1]) % queues == int(found[2])


def test_every_route_and_its_error_codes_stand_in_the_page_on_http() -> None:
    page = (DOCS / "http.md").read_text()
    for route in route_table(NodeConfig(data=Path("unused"))):
        assert f"`{route.method} {route.path}`" in page
        for error in (*route.errors, *ANYWHERE):
            assert f"`{error.code}`" in page


def test_every_error_that_a_client_may_be_told_stands_in_the_page_on_http_by_its_status() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \| ([^|]+) \|", (DOCS / "http.md").read_text(), re.MULTILINE)
    said = {
        (int(status), code)
        for statuses, codes in rows
        for status in statuses.split(",")
        for code in re.findall(r"`(\w+)`", codes)
    }
    told = {(status, code) for status, codes in _CODES.items() for code in codes if code not in BETWEEN_NODES}
    assert told - said == set()


@pytest.mark.parametrize(("kind", "prefix"), [(NodeConfig, ""), (ClusterConfig, "cluster.")])
def test_the_page_on_configuration_has_the_settings_as_the_code_has_them(
    kind: type[NodeConfig] | type[ClusterConfig], prefix: str
) -> None:
    """``python -m lsmq_node.config_file --tables`` prints what belongs there."""
    assert reference_table(kind, prefix) in (DOCS / "configuration.md").read_text()


def test_every_metric_stands_in_the_page_on_metrics(api: Api) -> None:
    page = (DOCS / "metrics.md").read_text()
    api.get("/healthz")  # The metrics of requests appear with the first one.
    # Families, whether or not they have a sample now: some have none on a node of its own.
    names = set(re.findall(r"^# TYPE (lsmq_\w+)", api.get("/metrics").body.decode(), re.MULTILINE))
    documented = set(re.findall(r"lsmq_\w+", page))
    assert names - documented == set()
    assert documented - names <= {"lsmq_store_"}

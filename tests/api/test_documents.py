"""The pages on HTTP, configuration and metrics name everything there is."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from lsmq_node.api.app import route_table
from lsmq_node.config import NodeConfig

from .calls import Api

DOCS = Path(__file__).parents[2] / "docs"
UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def test_every_route_and_its_error_codes_stand_in_the_page_on_http() -> None:
    page = (DOCS / "http.md").read_text()
    for route in route_table(NodeConfig(data=Path("unused"))):
        assert f"`{route.method} {route.path}`" in page
        for error in route.errors:
            assert f"`{error.code}`" in page


def number(text: str) -> int:
    value, _, unit = text.partition(" ")
    return int(value) * UNITS.get(unit, 1)


def test_every_setting_and_its_default_stand_in_the_page_on_configuration() -> None:
    page = (DOCS / "configuration.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE))
    assert list(rows) == [setting.name for setting in fields(NodeConfig)]
    for setting in fields(NodeConfig):
        written, default = rows[setting.name], setting.default
        if default is MISSING:
            assert written == "(required)"
        elif default is None:
            assert written == ""
        elif isinstance(default, int):
            assert number(written) == default, setting.name
        else:
            assert written == f"`{default.value if isinstance(default, Enum) else default}`"


def test_every_metric_stands_in_the_page_on_metrics(api: Api) -> None:
    page = (DOCS / "metrics.md").read_text()
    api.get("/healthz")  # The metrics of requests appear with the first one.
    names = {
        re.split(r"[ {]", line)[0]
        for line in api.get("/metrics").body.decode().splitlines()
        if line.startswith("lsmq_")
    }
    names = {re.sub(r"(_seconds)_(bucket|sum|count)$", r"\1", name) for name in names}
    documented = set(re.findall(r"lsmq_\w+", page))
    assert names - documented == set()
    assert documented - names <= {"lsmq_store_"}

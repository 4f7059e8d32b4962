"""Which tests stay in one process where several run them (``--dist loadgroup``): those of one ``xdist_group``.

pytest-xdist 3.8 would know it by a suffix that it writes to the tests' ids in the workers, and with pytest 9.2 they no
longer take it: without a word each test went its own way, and each worker made a Spark session, a cluster and images of
its own. So the marks are read from the files here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class GroupedTests(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out one test at a time, or one group; the largest groups first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self.config.rootpath, nodeid) or nodeid


def group_of(root: Path, nodeid: str) -> str | None:
    file, _, rest = nodeid.partition("::")
    groups = _groups_in(root / file)
    return groups.get(rest.partition("[")[0], groups.get(""))


@cache
def _groups_in(file: Path) -> dict[str, str]:
    """By function; with an empty name that of the whole module."""
    found: dict[str, str | None] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = _marked(node.decorator_list)
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            found[""] = _marked([node.value])
    return {name: group for name, group in found.items() if group is not None}


def _marked(marks: Iterable[ast.expr]) -> str | None:
    for mark in marks:
        for node in ast.walk(mark):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.xdist_group":
                return str(ast.literal_eval(node.args[0]))
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupedTests | None:
    return GroupedTests(config, log) if config.getvalue("dist") == "loadgroup" else None

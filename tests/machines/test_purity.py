"""What decides is pure: it imports nothing that could do I/O, tell the time, wait or throw dice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lsmq_node

NODE = Path(lsmq_node.__file__).parent
IMPURE = {"aiohttp", "asyncio", "os", "random", "secrets", "socket", "structlog", "threading", "time", "lsmq.runtime"}
PURE = {
    "machines": ("clock", "documents", "idle", "step"),
    "groups": ("assignment", "group", "holdings", "lag", "plan", "ranges"),
    "workqueue": (
        "chunks",
        "lanes",
        "ledger",
        "open_messages",
        "pace",
        "receipts",
        "settings",
        "tasks",
        "turns",
        "waiting_queues",
        "window",
    ),
    "transactions": ("book", "lanes", "memory", "records", "shares"),
    "delayed": ("counts", "deliveries", "ids"),
    "schedules": ("cron", "records"),
    "push": ("ledger", "merge", "options", "part", "sharing"),
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
            found.update(f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("room", PURE)
def test_what_decides_imports_nothing_impure(room: str) -> None:
    for module in PURE[room]:
        found = imports(NODE / room / f"{module}.py")
        assert not found & IMPURE, module
        siblings = {name[1:] for name in found if name.startswith(".") and "." not in name[1:] and name[1:]}
        assert siblings <= set(PURE[room]) | {"delivery"}, f"{module} is made of what is pure as well"

"""The protocol stays pure: it imports nothing that could do I/O, tell the time or throw dice."""

from __future__ import annotations

import ast
from pathlib import Path

import lsmq_coordinator.lives
import lsmq_node.replication

PURE = {"__future__", "collections.abc", "dataclasses", "enum", "typing", "lsmq.errors"}
PACKAGE = Path(lsmq_node.replication.__file__).parent
# Values that it shares with the control plane.
SHARED = lsmq_coordinator.lives
# What the protocol is made of. Streams, snapshots and other shells may come to lie beside it.
MODULES = (
    "actions",
    "candidate",
    "control",
    "core",
    "events",
    "follower",
    "history",
    "identity",
    "insync",
    "leader",
    "lease",
    "messages",
    "promises",
    "pulling",
    "shipping",
    "state",
)


def imported(module: str) -> set[str]:
    """What a module imports; modules of the protocol itself as ``.name``."""
    return imported_by(PACKAGE / f"{module}.py")


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def test_the_protocol_imports_nothing_impure() -> None:
    allowed = PURE | {SHARED.__name__} | {f".{module}" for module in MODULES}
    assert {module: sorted(imported(module) - allowed) for module in MODULES if imported(module) - allowed} == {}
    assert imported_by(Path(SHARED.__file__)) <= PURE


def test_the_core_and_all_it_is_made_of_are_looked_at() -> None:
    reached, waiting = set(), ["core"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [name[1:] for name in imported(module) if name.startswith(".")]
    assert reached == set(MODULES)

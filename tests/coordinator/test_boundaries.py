"""Who may import what, and that the package says no more than it holds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lsmq_coordinator

PACKAGE = Path(lsmq_coordinator.__file__).parent
ONLY_IN = {"pysyncobj": {"raft_transport"}, "kazoo": {"zookeeper"}}
PURE = (
    "state",
    "commands",
    "command_fields",
    "shard_commands",
    "election",
    "reassignment",
    "balance",
    "balancer",
    "pieces",
    "founding",
    "overview",
    "lease",
    "liveness",
    "routes",
    "raft_core",
    "raft_following",
    "raft_frames",
    "raft_kept",
    "raft_leading",
    "raft_log",
    "raft_messages",
    "raft_outbox",
    "raft_pace",
    "raft_records",
    "raft_terms",
)
NOT_PURE = {"asyncio", "aiohttp", "time", "random", "socket", "threading", "uuid"}


def imported(module: str) -> set[str]:
    """First parts of the names of all modules it imports, those of the package as ``.name``."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(f".{node.module}" if node.level else str(node.module).split(".")[0])
    return found


MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_nothing_of_ours_but_the_client_and_libraries_only_in_their_room(module: str) -> None:
    names = imported(module)
    assert not names & {"lsmq_node", "lsmq_pipeline"}
    for library, rooms in ONLY_IN.items():
        assert library not in names or module in rooms


@pytest.mark.parametrize("module", PURE)
def test_decisions_know_no_clock_no_sockets_and_no_randomness(module: str) -> None:
    # The type of randomness is no randomness: it is given.
    given = {"random"} if module.startswith("raft_") else set()
    assert not imported(module) & (NOT_PURE - given)

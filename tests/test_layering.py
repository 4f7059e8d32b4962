"""Who may import whom. The client stands alone; the storage engine knows nothing of the daemon above it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client"
NODE = ROOT / "node"
COORDINATOR = ROOT / "coordinator"
LAB = ROOT / "lab"
PIPELINE = ROOT / "pipeline"
OURS = ("lsmq_node", "lsmq_coordinator", "lsmq_lab", "lsmq_pipeline")
# What only the node installs: the light client must work without.
NODE_ONLY = (
    "cryptography",
    "jwt",
    "kazoo",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pysyncobj",
    "sortedcontainers",
    "structlog",
)

# For each package, what of ours it may import besides itself. Lower rooms know nothing of upper ones.
ALLOWED = {
    "lsmq": (),
    "lsmq_command": ("lsmq.cli",),
    "lsmq_pytest": ("lsmq.errors", "lsmq.runtime", "lsmq.sync", "lsmq.testing"),
    "lsmq_node.storage": (
        "lsmq.differences",
        "lsmq.errors",
        "lsmq.filter_expressions",
        "lsmq.filters",
        "lsmq.queue_names",
        "lsmq.record_batch",
        "lsmq.runtime",
        "lsmq_node.descriptors",
    ),
    "lsmq_node.machines": ("lsmq", "lsmq_coordinator.parts", "lsmq_node.broker", "lsmq_node.storage"),
    "lsmq_node": ("lsmq", "lsmq_coordinator"),
    "lsmq_lab.history": (),
    "lsmq_coordinator": ("lsmq",),
    "lsmq_pipeline": ("lsmq",),
    "pyspark_lsmq": ("lsmq_pipeline.source",),
}
# The rooms of the daemon, and its single modules, from below: each may import those that stand before it.
NODE_ROOMS = (
    "descriptors",
    "listening",
    "parts",
    "settings",
    "storage",
    "disks",
    "replication",
    "choices",
    "data_config",
    "trusted_proxies",
    "client_port_config",
    "backup_config",
    "cluster_nodes",
    "cluster_zookeeper",
    "cluster_config",
    "tls_settings",
    "config",
    "config_file",
    "workers",
    "broker",
    "connections",
    "metrics",
    "history",
    "tracing",
    "monitoring",
    "console",
    "rights",
    "machines",
    "letters",
    "delayed",
    "schedules",
    "groups",
    "workqueue",
    "push",
    "transactions",
    "cluster",
    "backups",
    "node",
    "api",
    "processes",
)
# Libraries that one module of a package alone may import, so that what they promise is read in one place.
ONLY_IN = {
    "pysyncobj": {"lsmq_coordinator.raft_transport"},
    "kazoo": {"lsmq_coordinator.zookeeper", "lsmq._zookeeper", "lsmq.kazoo_handler"},
    "obstore": {"lsmq_node.backups.objects"},
}
# What a simulation replaces comes from `lsmq.runtime`, and so from none of these.
REPLACED = ("queue", "random", "secrets", "threading", "time", "uuid", "concurrent.futures.ThreadPoolExecutor")
REPLACED_OF_OS = ("os.urandom", "os.register_at_fork")
# Outside of every simulation: the runtime itself, the command line and what it alone runs, ZooKeeper, a process apart.
REAL = (
    "lsmq.runtime",
    "lsmq.cli",
    "lsmq._zookeeper",
    "lsmq_coordinator.zookeeper",
    "lsmq_coordinator.zookeeper_server",
    "lsmq_coordinator.sentinel",
    "lsmq_node.backups.objects",
)


#: What is private of something called a client, in the text of a module.
CLIENTS_OWN = re.compile(r"client\)*\s*\._(?!_)")


@cache
def modules() -> tuple[tuple[str, Path], ...]:
    """Every module of ours by its dotted name."""
    return tuple(
        (".".join(part for part in path.relative_to(base).with_suffix("").parts if part != "__init__"), path)
        for base in (CLIENT, NODE, COORDINATOR, LAB, PIPELINE)
        for path in sorted(base.rglob("*.py"))
    )


@cache
def imports(name: str, path: Path) -> frozenset[str]:
    """Absolute names of all modules that a file imports, wherever in it, for type checking alone as well."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_every_room_is_looked_at() -> None:
    names = {name for name, _ in modules()}
    assert {"lsmq.record_batch", "lsmq_node.storage.wal", "lsmq_lab.history"} <= names


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        if within(name, (package,))
        for imported in sorted(imports(name, path))
        if within(imported, ("lsmq", *OURS)) and not _is_allowed(imported, package)
    ]
    assert wrong == []


def _is_allowed(imported: str, package: str) -> bool:
    if within(imported, (package, *ALLOWED[package])):
        return True
    # `from lsmq import errors` names both the package and the module.
    return any(allowed.startswith(f"{imported}.") for allowed in ALLOWED[package])


def test_nobody_but_the_client_uses_its_private_modules() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        if not within(name, ("lsmq",))
        for imported in sorted(imports(name, path))
        if within(imported, ("lsmq",)) and any(part[0] == "_" != part[1] for part in imported.split("."))
    ]
    assert wrong == []


@pytest.mark.part(2)
def test_nobody_but_the_client_reaches_into_a_client() -> None:
    wrong = [
        f"{name}:{node.lineno} uses {ast.unparse(node)}"
        for name, path in modules()
        if not within(name, ("lsmq",)) and CLIENTS_OWN.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if ast.unparse(node.value).endswith("client")
    ]
    assert wrong == []


def test_threads_clocks_and_randomness_come_from_the_runtime() -> None:
    wrong = [
        f"{name} uses {used}"
        for name, path in modules()
        if within(name, ("lsmq", "lsmq_node", "lsmq_coordinator")) and not within(name, REAL)
        for used in (
            *(imported for imported in sorted(imports(name, path)) if within(imported, REPLACED)),
            *(called for called in REPLACED_OF_OS if f"{called}(" in path.read_text()),
        )
    ]
    assert wrong == []


def node_room(name: str) -> str | None:
    """The room of the daemon that a module is in; None for modules of others."""
    package, _, rest = name.partition(".")
    return rest.partition(".")[0] or None if package == "lsmq_node" else None


def test_no_room_of_the_daemon_imports_one_above_it() -> None:
    place = {room: at for at, room in enumerate(NODE_ROOMS)}
    rooms = {name: room for name, _ in modules() if (room := node_room(name)) is not None}
    assert set(rooms.values()) == set(place)
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        if name in rooms
        for imported in sorted(imports(name, path))
        if (room := node_room(imported)) is not None and place[room] > place[rooms[name]]
    ]
    assert wrong == []


def test_the_test_sees_a_wrong_import(tmp_path: Path) -> None:
    room = tmp_path / "storage.py"
    room.write_text("from ..api import app\ndef later():\n    import lsmq_node.config\n")
    found = imports("lsmq_node.storage.room", room)
    assert {"lsmq_node.api", "lsmq_node.api.app", "lsmq_node.config"} <= found


BLOCKER = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without(absent: tuple[str, ...], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which some packages are not installed."""
    source = BLOCKER.format(absent=absent) + program
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("module", ["lsmq", "lsmq.sync", "lsmq.cli"])
def test_the_client_imports_without_the_node_and_what_only_the_node_needs(module: str) -> None:
    done = run_without((*OURS, *NODE_ONLY), f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_command_offers_its_help_without_the_node() -> None:
    program = "from lsmq.cli import main; sys.argv = ['lsmq', '--help']; main()"
    done = run_without((*OURS, *NODE_ONLY), program)
    assert done.returncode == 0, done.stderr
    assert "produce" in done.stdout


def test_a_command_of_the_node_says_how_to_get_it() -> None:
    program = "from lsmq.cli import main; sys.argv = ['lsmq', 'serve', '--data', 'nowhere']; main()"
    done = run_without((*OURS, *NODE_ONLY), program)
    assert done.returncode == 1
    assert "lsmq[node]" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_client_stays_quick() -> None:
    program = "import lsmq; heavy = {'rich', 'click', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    done = run_without((), f"import sys\n{program}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("library", "only"), ONLY_IN.items())
def test_a_library_that_needs_care_is_imported_in_one_module_a_package(library: str, only: set[str]) -> None:
    users = {name for name, path in modules() if any(within(found, (library,)) for found in imports(name, path))}
    assert users == only


def test_http_is_an_adapter_of_the_node() -> None:
    """What a node does knows no HTTP: that is the clients' adapter, how nodes of a cluster talk to each other, and how
    an issuer is asked for its keys."""
    speakers = ("lsmq_node.api", "lsmq_node.cluster", "lsmq_node.rights.issuer")
    node = [(name, imports(name, path)) for name, path in modules() if within(name, ("lsmq_node",))]
    assert [name for name, found in node if "aiohttp" in found and not within(name, speakers)] == []

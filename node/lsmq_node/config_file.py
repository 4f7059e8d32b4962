"""Configuration files with every key explained, and the tables of the page on configuration, both made from the code.

``python -m lsmq_node.config_file`` prints a file with all defaults; with ``--tables`` the tables of the page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.cluster_nodes import VoterAddresses
from lsmq_node.config import NodeConfig
from lsmq_node.settings import KIB, MIB, known_fields, plain

_WIDTH = 110
_UNITS = (
    ("_bytes_per_s", "bytes per second"),
    ("_bytes", "bytes"),
    ("_ms", "milliseconds"),
    ("_s", "seconds"),
    ("port", "port number"),
)
_BINARY = ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_HEAD = """\
# Configuration of an LSMQ node. Every key there is stands here; one behind a "#" shows its default.
# The environment (LSMQ_<KEY>, LSMQ_CLUSTER_<KEY>) and options of the command line win over this file.
"""
_CLUSTER_HEAD = """\
# The node's place in a cluster. All but `node` and the addresses to listen on must be the same on all nodes.
"""


def render(config: NodeConfig) -> str:
    """A TOML file that makes ``config``: every key with what it is, its unit, default, range and hazard."""
    parts = [_HEAD, *_entries(config, NodeConfig, skip=("cluster",))]
    if config.cluster is not None:
        parts += [f"\n{_CLUSTER_HEAD}[cluster]", *_entries(config.cluster, ClusterConfig, skip=("voters", "founders"))]
        for table in ("voters", "founders"):
            parts.append(_comments(next(entry for entry in fields(ClusterConfig) if entry.name == table)))
            for id, node in getattr(config.cluster, table).items():
                parts.append(f"[cluster.{table}.{_key(id)}]")
                parts += [f"{name} = {_toml(value)}" for name, value in node.to_dict().items()]
                parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n"


def write(path: Path, config: NodeConfig) -> None:
    """Write :func:`render` to a file that nobody else may read, replacing it as a whole."""
    temporary = path.with_suffix(".new")
    temporary.touch(mode=0o600)
    temporary.write_text(render(config))
    temporary.replace(path)


def reference_table(kind: type[NodeConfig] | type[ClusterConfig], prefix: str = "") -> str:
    """The Markdown table of all settings of ``kind``, as the page on configuration has it."""
    rows = ["| setting | default | range | | hazard |", "|---|---|---|---|---|"]
    for entry in known_fields(kind).values():
        description, hazard = entry.metadata["description"], entry.metadata["hazard"]
        rows.append(f"| `{prefix}{entry.name}` | {_default(entry)} | {_range(entry)} | {description} | {hazard} |")
    return "\n".join(rows) + "\n"


def _entries(config: Any, kind: type[NodeConfig] | type[ClusterConfig], skip: tuple[str, ...]) -> Iterator[str]:
    for entry in known_fields(kind).values():
        if entry.name in skip:
            continue
        value = config.data_text if entry.name == "data" else getattr(config, entry.name)
        yield _comments(entry)
        if value is None:
            yield f"#{entry.name} ="
        else:
            yield f"{'#' if value == entry.default else ''}{entry.name} = {_toml(value)}"
        yield ""


def _comments(entry: Field[Any]) -> str:
    texts = [entry.metadata["description"]]
    unit = next((unit for ending, unit in _UNITS if entry.name.endswith(ending)), None)
    required = entry.default is MISSING and entry.default_factory is MISSING
    facts = {"Unit": unit, "Default": "" if required else _default(entry), "Range": _range(entry)}
    stated = [f"{name}: {text}." for name, text in facts.items() if text]
    if required:
        stated.append("Required.")
    if stated:
        texts.append(" ".join(stated))
    if entry.metadata["hazard"]:
        texts.append(f"Hazard: {entry.metadata['hazard']}")
    return "\n".join(
        textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
        for text in texts
    )


def _default(entry: Field[Any]) -> str:
    if entry.default is MISSING:
        return "(required)" if entry.default_factory is MISSING else ""
    match plain(entry.default):
        case None | "" | []:
            return ""
        case bool(flag):
            return "`true`" if flag else "`false`"
        case int(number):
            return _number(entry.name, number)
        case text:
            return f"`{text}`"


def _range(entry: Field[Any]) -> str:
    limits = entry.metadata["range"]
    return "" if limits is None else f"{_number(entry.name, limits[0])} to {_number(entry.name, limits[1])}"


def _number(name: str, number: int) -> str:
    """``8 MiB`` for sizes, ``10_000`` otherwise."""
    if name.endswith(("_bytes", "_bytes_per_s")):
        for factor, unit in _BINARY:
            if number and number % factor == 0:
                return f"{number // factor} {unit}"
    return f"{number:_}" if number >= 10_000 else str(number)


def _toml(value: Any) -> str:
    match plain(value):
        case bool(flag):
            return "true" if flag else "false"
        case int(number):
            return str(number)
        case str(text):
            escaped = "".join(c if c >= " " and c not in '"\\\x7f' else f"\\u{ord(c):04x}" for c in text)
            return f'"{escaped}"'
        case list(items):
            return f"[{', '.join(_toml(item) for item in items)}]"
        case other:
            raise TypeError(f"{other!r} has no place in a configuration file")


def _key(id: str) -> str:
    return id if id.replace("-", "").replace("_", "").isalnum() else _toml(id)


def main() -> None:
    if sys.argv[1:] == ["--tables"]:
        print(reference_table(NodeConfig), reference_table(ClusterConfig, "cluster."), sep="\n", end="")
        return
    voters = {
        f"n{number}": VoterAddresses(
            url=f"http://node{number}:7600", internal_url=f"http://node{number}:7601", raft=f"node{number}:7602"
        )
        for number in (1, 2, 3)
    }
    cluster = ClusterConfig(node="n1", secret_file=Path("/etc/lsmq/secret"), voters=voters)
    print(render(NodeConfig(data=Path("/var/lib/lsmq"), cluster=cluster)), end="")


if __name__ == "__main__":
    main()

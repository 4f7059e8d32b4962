"""The nodes that a cluster is founded on, as the table ``[cluster]`` names them: voters, and others with shards."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from lsmq_node.settings import InvalidConfig, convert, setting

_LABEL = re.compile(r"[A-Za-z0-9._:/-]{1,255}")
_ADDRESS = re.compile(r"[^\s:/]+:(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Founder:
    """One of the nodes that hold shards from the founding on, with its addresses and labels."""

    url: str = setting(..., "URL for clients.")
    internal_url: str = setting(..., "URL of the internal port.")
    host: str = setting("", "Its `cluster.host`: what shards are founded by.")
    rack: str = setting("", "Its `cluster.rack`.")

    def to_dict(self) -> dict[str, Any]:
        """What is set, in plain types."""
        entries = {entry.name: (getattr(self, entry.name), entry.default) for entry in fields(self)}
        return {name: value for name, (value, default) in entries.items() if value != default}


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterAddresses(Founder):
    """One of the nodes that keep the control state, with its addresses as the other nodes reach it."""

    raft: str = setting(..., "`host:port` of the Raft port. IPv4 or a name.")
    only_votes: bool = setting(False, "It is given no replicas when the cluster is founded.")


_Kind = TypeVar("_Kind", Founder, VoterAddresses)


def read_nodes(kind: type[_Kind], value: Any, what: str) -> dict[str, _Kind]:
    """Nodes by id from a table of tables, or from an inline table of TOML. Raises ``InvalidConfig``."""
    if isinstance(value, str):
        try:
            value = tomllib.loads(f"nodes = {value}")["nodes"]
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"{what} is no inline table of TOML: {error}", setting=what) from error
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"{what} is {value!r}; it must be a table of nodes", setting=what)
    types = typing.get_type_hints(kind)
    required = {entry.name for entry in fields(kind) if entry.default is MISSING}
    known = {entry.name: types[entry.name] for entry in fields(kind)}
    nodes = {}
    for id, table in value.items():
        if isinstance(table, kind):
            nodes[id] = table
            continue
        if not isinstance(table, Mapping) or not required <= set(table) <= set(known):
            must, may = sorted(required), sorted(set(known) - required)
            raise InvalidConfig(
                f"{what}.{id} must have {', '.join(must)}, and may have {', '.join(may)}, and nothing else",
                setting=f"{what}.{id}",
            )
        nodes[id] = kind(**{name: convert(table[name], known[name], f"{what}.{id}.{name}") for name in table})
    return nodes


def check_nodes(nodes: Mapping[str, Founder], where: str) -> None:
    """Addresses and labels of each node; no two have the same address. Raises ``InvalidConfig``."""
    for id, node in nodes.items():
        for name in ("url", "internal_url"):
            check_url(getattr(node, name), f"{where}.{id}.{name}")
        for name in ("host", "rack"):
            check_label(getattr(node, name), f"{where}.{id}.{name}")
    for name in ("url", "internal_url"):
        if len({getattr(node, name) for node in nodes.values()}) < len(nodes):
            raise InvalidConfig(f"two of {where} have the same {name}", setting=where)


def check_url(url: str, what: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise InvalidConfig(f"{what} is {url!r}; it must begin with http:// or https://", setting=what)


def is_address(text: str) -> bool:
    """Whether it is ``host:port``."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) <= 65_535


def check_label(label: str, what: str) -> None:
    if label and not _LABEL.fullmatch(label):
        raise InvalidConfig(
            f"{what}: {label!r} is no label; use up to 255 letters, digits, '.', '_', '-', '/' and ':'", setting=what
        )

"""Where a cluster's routes are for clients to find: the settings ``cluster.zookeeper`` and those of its TLS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lsmq_node.cluster_nodes import is_address
from lsmq_node.settings import InvalidConfig

#: Before hosts of ZooKeeper that are to be reached by TLS.
TLS_SCHEME = "tls://"


def check_zookeeper(hosts: str, tls: Mapping[str, Path | None]) -> None:
    """``tls``: the files by the names of their settings, below ``zookeeper_tls_``. Raises ``InvalidConfig``."""
    for address in hosts.removeprefix(TLS_SCHEME).partition("/")[0].split(",") if hosts else ():
        if not is_address(address.strip()):
            raise InvalidConfig(
                f"cluster.zookeeper is {hosts!r}, and {address!r} in it is no host:port", setting="cluster.zookeeper"
            )
    for name, path in tls.items():
        if path is not None and not hosts.startswith(TLS_SCHEME):
            raise InvalidConfig(
                f"cluster.zookeeper_tls_{name} is set, and cluster.zookeeper is {hosts!r}: let it begin with "
                f"{TLS_SCHEME}",
                setting=f"cluster.zookeeper_tls_{name}",
            )
    if (tls["cert"] is None) != (tls["key"] is None):
        missing = "key" if tls["key"] is None else "cert"
        raise InvalidConfig(
            "of cluster.zookeeper_tls_cert and cluster.zookeeper_tls_key one is set; set "
            f"cluster.zookeeper_tls_{missing} too",
            setting=f"cluster.zookeeper_tls_{missing}",
        )

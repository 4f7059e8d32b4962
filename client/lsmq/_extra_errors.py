"""Errors of what an extra of the package would have to bring."""

from __future__ import annotations

from lsmq._error import LsmqError


class TracingNotInstalled(LsmqError):
    """Traces need ``lsmq[otel]``."""

    code = "tracing_not_installed"


class ZooKeeperNotInstalled(LsmqError):
    """Routes from ZooKeeper need ``lsmq[zookeeper]``."""

    code = "zookeeper_not_installed"

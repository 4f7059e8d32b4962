"""Errors of what an extra of the package would have to bring, and of what is no LSMQ; see :mod:`lsmq.errors`."""

from __future__ import annotations

from lsmq._error import LsmqError


class UnexpectedAnswer(LsmqError):
    """What answers is no LSMQ node, or one of a release that says it in another way than this client understands.

    What was asked for may have been done.
    """

    code = "unexpected_answer"


class TracingNotInstalled(LsmqError):
    """Traces need ``lsmq[otel]``."""

    code = "tracing_not_installed"


class ZooKeeperNotInstalled(LsmqError):
    """Routes from ZooKeeper need ``lsmq[zookeeper]``."""

    code = "zookeeper_not_installed"

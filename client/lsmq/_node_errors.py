"""Errors of what a node gives out by measure: its time, and snapshots of its shards; see :mod:`lsmq.errors`."""

from __future__ import annotations

from lsmq._error import LsmqError


class SnapshotGone(LsmqError):
    """The snapshot was let go, since nobody read it for a while, or its store was closed: begin again."""

    code = "snapshot_gone"


class TooManyRequests(LsmqError):
    """The caller, or its address, asks for more than it may. Nothing was done; come again in ``retry_after_ms``."""

    code = "too_many_requests"
    retriable = True


class TooManyFilters(LsmqError):
    """Consumers of a work queue pick by more different filters than may be; use fewer, or more groups."""

    code = "too_many_filters"

"""The rows of the suite, by name: a module each."""

from __future__ import annotations

from ..row import Row
from . import (
    amplification,
    backlog,
    cold_read,
    failover,
    group_commit,
    many_queues,
    many_topics,
    million_queues,
    replicate,
    single,
    sleepers,
    spark,
    thesis,
)

_MODULES = (
    million_queues,
    thesis,
    many_queues,
    many_topics,
    backlog,
    cold_read,
    amplification,
    group_commit,
    single,
    replicate,
    failover,
    sleepers,
    spark,
)
ROWS: dict[str, Row] = {module.ROW.name: module.ROW for module in _MODULES}

"""The parts of this node as its log, its readiness and its metrics show them; see :mod:`lsmq_coordinator.parts`."""

from __future__ import annotations

import structlog

from lsmq_coordinator.parts import PartReport, PartState

_log = structlog.get_logger("lsmq.node")


def tell_part(report: PartReport) -> None:
    """A line for each change."""
    match report.state:
        case PartState.RUNNING:
            _log.warning("part_runs_again", part=report.name, failures=report.failures)
        case PartState.RETRYING:
            _log.error("part_fails", part=report.name, reason=report.why, failures=report.failures)
        case PartState.STOPPED:
            _log.error("part_has_stopped", part=report.name, reason=report.why)

"""Logging of the daemon: structlog on standard error, one line an event."""

from __future__ import annotations

import sys

import structlog

from lsmq_node.config import LogFormat


def configure(form: LogFormat) -> None:
    """Set up structlog for the process. Standard output stays free for the ready line."""
    renderer: structlog.typing.Processor
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    match form:
        case LogFormat.JSON:
            shared.append(structlog.processors.format_exc_info)
            renderer = structlog.processors.JSONRenderer()
        case LogFormat.CONSOLE:
            renderer = structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )

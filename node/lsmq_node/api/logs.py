"""Logging of the daemon: structlog on standard error, one line an event."""

from __future__ import annotations

import logging
import sys

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from lsmq_node.config import LogFormat


def configure(form: LogFormat, process: str | None = None) -> None:
    """Set up structlog for the process. Standard output stays free for the ready line.

    Where several write into one log, each line has the name of its ``process``.
    """

    def named(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return event if process is None else {"process": process, **event}

    renderer: structlog.typing.Processor
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
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
    logging.getLogger().handlers = [_FromLibraries(logging.WARNING)]


def configure_in_library() -> None:
    """Hand the node's events to ``logging`` (loggers ``lsmq.node`` and below), in a process whose program has not said
    how structlog is to print them: it would print them among the program's own output."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.filter_by_level,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )


class _FromLibraries(logging.Handler):
    """What libraries log, as events. A caller who does not speak HTTP is worth a line, and no traceback; one who went
    away before the end of the answer is counted among the requests (499), and worth nothing here."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError) and record.name == "aiohttp.server":
            return
        if isinstance(error, HttpProcessingError):
            log.info("request_is_not_http", reason=" ".join(error.message.split())[:200])
        else:
            says = record.getMessage()
            log.log(record.levelno, "library_says", library=record.name, message=says, exc_info=record.exc_info)

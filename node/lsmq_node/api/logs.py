"""Logging of the daemon: structlog on standard error, one line an event.

What standard error is can fail: the disk of a file is full, who read a pipe is gone, or reads no more. No line is worth
a node: it is lost then, and counted (:class:`LogStream`).
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from lsmq_node.config import LogFormat

#: A pipe that has room takes so many bytes at once (PIPE_BUF).
_PIECE_BYTES = 4096
#: How long the first line waits for a reader that is slow: less than any lease. Those after it do not.
_PATIENCE_MS = 100


class LogStream:
    """A file descriptor that lines are written to, whatever becomes of it: never raises, and waits for nobody for long.

    Calls of :meth:`write` come one at a time.
    """

    def __init__(self, fd: int, told: Callable[[int], str]) -> None:
        """``told``: a line that says how many were lost, for when lines can be written again."""
        self._fd = fd
        self._told = told
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._untold = 0
        self._is_torn = False  # A line was begun, and is not at its end.
        #: Lines that could not be written.
        self.lost = 0

    def write(self, line: str) -> None:
        if self._untold and self._written(self._told(self._untold) + "\n"):
            self._untold = 0
        if self._untold or not self._written(line):
            self._untold += 1
            self.lost += 1

    def flush(self) -> None:
        """Nothing is held back."""

    def _written(self, line: str) -> bool:
        left = ("\n" * self._is_torn + line).encode(errors="backslashreplace")
        try:
            while left:
                if not self._poll.poll(0 if self._untold else _PATIENCE_MS):
                    return False
                count = os.write(self._fd, left[:_PIECE_BYTES])
                left = left[count:]
                self._is_torn = bool(left)
        except OSError:
            return False
        return True


class LogMetrics(Collector):
    """Of the log that this process writes."""

    def collect(self) -> Iterable[Metric]:
        lost = 0 if _stream is None else _stream.lost
        yield CounterMetricFamily("lsmq_log_lines_lost", "Lines of the log that could not be written.", lost)


#: That of the process, once :func:`configure` was called.
_stream: LogStream | None = None


def _stream_of(file: IO[Any], told: Callable[[int], str]) -> Any:
    """What lines are written to: by the descriptor where the file has one."""
    global _stream
    try:
        _stream = LogStream(file.fileno(), told)
    except (OSError, ValueError):  # Somebody reads along in memory.
        return file
    return _stream


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

    def told(lines: int) -> str:
        event: Any = {"event": "log_lines_lost", "lines": lines}
        for processor in (*shared, renderer):
            event = processor(None, "warning", event)
        return str(event)

    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=structlog.WriteLoggerFactory(_stream_of(sys.stderr, told)),
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

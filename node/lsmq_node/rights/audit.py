"""The audit log of a node: who was refused what, and who administered what, as lines of JSON.

``DATA/audit.jsonl``, and ``audit.jsonl.1`` with what is older: each up to half of ``audit_bytes``. A line is::

    {"time": "2026-03-01T12:00:00.000Z", "event": "refused" | "done" | "failed", "principal": name | null,
     "by": "token" | "certificate" | "oidc" | "session" | null, "operation": .., "method": .., "path": ..,
     "remote": address, "status": int, "code": error code | null, "right": missing right | null}
    {"time": .., "event": "limited", "principal": name | null, "operation": .., "remote": address, "code": error code,
     "setting": the limit}

Whoever comes to one of his limits again and again is noted once in :data:`LIMITED_EVERY_S`.

Lines are written within a second, by a thread; ``path`` is without its query. A stranger who knocks again and again
fills it no faster than :data:`REFUSALS_A_TURN` lines a second: what is beyond is counted, in a line ``{"event":
"refused_more", "count": ..}``. Lines that cannot be written, since the disk is full, are counted likewise, as ``lost``,
and the part ``audit`` of the node says so: requests go on.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_coordinator.parts import kept
from lsmq_node.broker import Background, Broker

FILE: Final = "audit.jsonl"
REFUSALS_A_TURN: Final = 100
LIMITED_EVERY_S: Final = 60.0
#: So many who came to a limit are remembered for that; then it begins anew.
_MOST_LIMITED: Final = 1_000
_TURN_S: Final = 1.0
#: Of administration so many wait to be written.
_MOST_LINES: Final = 10_000
_PATH_CHARACTERS: Final = 500


class Audit:
    """One for each node; it writes where clients are known. Loop thread only."""

    def __init__(self, broker: Broker, *, on: bool) -> None:
        self._broker = broker
        self._file = broker.config.data / FILE
        self._part_bytes = broker.config.audit_bytes // 2
        self.on = on and self._part_bytes > 0
        self._background = Background("audit")
        self._lines: list[str] = []
        self._refusals = 0
        self._lost = 0
        self._limited: dict[tuple[str | None, str], float] = {}  # when it was noted, by principal and limit

    def start(self) -> None:
        if self.on:
            part = self._broker.parts.part("audit", essential=False)
            self._background.start(kept(part, self._write_for_ever))

    def begin_stop(self) -> None:
        """Nobody waits for it."""

    async def stop(self) -> None:
        await self._background.stop()
        if self._lines:
            await self._write()

    def note(self, event: str, **fields: Any) -> None:
        """Have a line written. What is too much is counted."""
        if event == "refused":
            self._refusals += 1
            if self._refusals > REFUSALS_A_TURN:
                return
        if len(self._lines) >= _MOST_LINES:
            self._lost += 1
            return
        fields["path"] = str(fields.get("path", ""))[:_PATH_CHARACTERS]
        self._lines.append(_line(event, fields))

    def note_limited(self, principal: str | None, operation: str, remote: str | None, error: LsmqError) -> None:
        """Have a line written of somebody who came to a limit, unless there was one lately."""
        setting, now = str(error.details.get("setting")), runtime.monotonic()
        if now - self._limited.get((principal, setting), float("-inf")) >= LIMITED_EVERY_S:
            if len(self._limited) >= _MOST_LIMITED:
                self._limited.clear()
            self._limited[principal, setting] = now
            self.note(
                "limited", principal=principal, operation=operation, remote=remote, code=error.code, setting=setting
            )

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TURN_S)
            if self._lines or self._refusals or self._lost:
                await self._write()

    async def _write(self) -> None:
        counted = [("refused_more", self._refusals - REFUSALS_A_TURN), ("lost", self._lost)]
        counted = [(event, count) for event, count in counted if count > 0]
        lines = [*self._lines, *(_line(event, {"count": count}) for event, count in counted)]
        self._lines, self._refusals, self._lost = [], 0, 0
        try:
            await asyncio.to_thread(_append, self._file, lines, self._part_bytes)
        except OSError:
            own = max(0, len(lines) - len(counted))
            self._lost += own + sum(count for _, count in counted[max(0, len(counted) - len(lines)) :])
            raise


def _line(event: str, fields: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(runtime.wall_ms() / 1000, UTC)
    time = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    return json.dumps({"time": time, "event": event, **fields}) + "\n"


def _append(file: Path, lines: list[str], most_bytes: int) -> None:
    """Write the lines, each whole or not at all, and take those written out of the list. Blocking."""
    while lines:
        size = file.stat().st_size if file.exists() else 0
        if size and size + len(lines[0]) > most_bytes:
            file.replace(file.with_name(f"{FILE}.1"))
            size = 0
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "a", encoding="ascii") as opened:  # JSON is written in ASCII.
                opened.write(lines[0])
        except OSError:
            with suppress(OSError):
                os.truncate(file, size)
            raise
        del lines[0]

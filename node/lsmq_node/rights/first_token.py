"""The token of a node's first administrator, which the node makes at its first start with authentication on.

``DATA/admin.token``, mode 600. Who can read it can read the node's data anyway. Where it is deleted, the node makes
another at its next start, and the former is good no longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from lsmq import runtime

FILE: Final = "admin.token"
_log = structlog.get_logger("lsmq.rights")


async def keep_first_token(data: Path, register: Callable[[str], Awaitable[None]]) -> None:
    """Have the file. What is not registered is not written: a crash between the two leaves a token nobody has."""
    file = data / FILE
    if await asyncio.to_thread(file.exists):
        return
    secret = f"lsmq_{runtime.token_hex(32)}"
    await register(secret)
    await asyncio.to_thread(_write, file, secret)
    _log.info("first_token_written", file=str(file))


def _write(file: Path, secret: str) -> None:
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as opened:
        opened.write(f"{secret}\n")
        opened.flush()
        os.fsync(opened.fileno())
    part.rename(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

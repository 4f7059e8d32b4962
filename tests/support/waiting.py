"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"in {timeout_s} s it never came true that {what}"
        time.sleep(0.01)

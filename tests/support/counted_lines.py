"""What work costs in lines of the interpreter: the same on any machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CountedLines:
    """Lines that a block has run; those of its own function, which had begun before, are not counted."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += event == "line"
        return self._trace


@contextmanager
def counted_lines() -> Iterator[CountedLines]:
    found = CountedLines()
    sys.settrace(found._trace)
    try:
        yield found
    finally:
        sys.settrace(None)

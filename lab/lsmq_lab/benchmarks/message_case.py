"""What a case of ``lsmq bench messages`` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .report import Option, TellProgress, TextTable


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case has found: plain data, and tables made of it."""

    figures: dict[str, Any]
    tables: list[TextTable]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MessageCase:
    """``run`` takes values of all options, and a directory of its own; ``options`` are those of the case."""

    options: tuple[Option, ...]
    run: Callable[[Mapping[str, Any], Path, TellProgress], Measured]

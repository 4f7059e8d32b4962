"""What differs between two things that were to be the same, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .queue_names import NAMED


def asked_topic(queues: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """A topic in the words in which it is asked for: of one with named queues nobody says how many."""
    rest = {name: value for name, value in options.items() if name != "named"}
    return {**rest, "queues": NAMED if options.get("named") else queues}


def differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In words: what of a topic is not as it was asked for, such as ``queues is 8, not 4``."""
    return "; ".join(
        f"{name} is {_or(there.get(name), 'not set')}, not {_or(asked.get(name), 'left out')}"
        for name in sorted(there.keys() | asked.keys())
        if there.get(name) != asked.get(name)
    )


def _or(value: object, missing: str) -> object:
    return missing if value is None else value

"""What the broker's figures show of the connections of its clients."""

from __future__ import annotations

from typing import Protocol


class Door(Protocol):
    """Attributes: connections there are, that were accepted and refused, and how often there was no room for one."""

    count: int
    accepted: int
    refused: int
    accept_failures: int

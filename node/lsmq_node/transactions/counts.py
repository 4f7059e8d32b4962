"""What is counted of transactions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What happened to transactions since the node began."""

    begun: int = 0
    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0  # of those rolled back: by the broker, since nobody decided
    checks: int = 0
    expired: int = 0
    delivered_batches: int = 0
    delivery_failures: int = 0
    dropped_batches: int = 0

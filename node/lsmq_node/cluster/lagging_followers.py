"""Which followers of the shards led here have been out of sync for long, as a part of the node says it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lsmq_coordinator.parts import Part
from lsmq_coordinator.state import Shard

#: Whoever restarts, or was filled, is in sync again by then.
PATIENCE_S = 60.0
_SHOWN = 10


class LaggingFollowers:
    """``part`` does not run while there are any."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._since: dict[tuple[str, int], float] = {}  # by node and shard: since when it has been out of sync

    def look(self, led: Iterable[Shard], now: float) -> None:
        """At all shards that are led here now; those that are being filled for the first time are not counted."""
        out = sorted(
            (node, shard.id)
            for shard in led
            for node in shard.replicas
            if node not in shard.in_sync_nodes and node not in shard.adding
        )
        self._since = {each: self._since.get(each, now) for each in out}
        shards: dict[str, list[int]] = {}
        for (node, shard), since in self._since.items():
            if now - since >= PATIENCE_S:
                shards.setdefault(node, []).append(shard)
        if not shards:
            self._part.running()
            return
        said = "; ".join(f"{node} in shard {_listed(numbers)}" for node, numbers in shards.items())
        self._part.retrying(f"out of sync for more than {PATIENCE_S:.0f} s: {said}")


def _listed(numbers: list[int]) -> str:
    more = len(numbers) - _SHOWN
    return ", ".join(map(str, numbers[:_SHOWN])) + (f" and {more} more" if more > 0 else "")

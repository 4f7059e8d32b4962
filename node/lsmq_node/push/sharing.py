"""Which subscriber gets which queues of a shard. Pure.

Each of ``m`` subscribers gets ``n // m`` of the shard's ``n`` queues and ``n % m`` of them one more. Every shard begins
to give out the odd ones at another subscriber, so that over all shards it comes out even as well. Only what is too much
where it is moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lsmq_node.groups.assignment import Demand, max_pieces, share_out
from lsmq_node.groups.ranges import RangePairs

Shares = Mapping[str, RangePairs]


def share(first: int, end: int, subscribers: Iterable[str], previous: Shares) -> dict[str, RangePairs]:
    """Queues ``[first, end)`` shared out, given how they were before; who gets none is left out."""
    ordered = tuple(sorted(subscribers))
    if not ordered:
        return {}
    base, odd = divmod(end - first, len(ordered))
    lucky = {ordered[(first + number) % len(ordered)] for number in range(odd)}
    quotas = {name: base + (name in lucky) for name in ordered}
    held = {name: _shift(previous[name], -first) for name in ordered if name in previous}
    demand = Demand(end - first, ordered)
    found = share_out(demand, held, quotas)
    if sum(len(ranges) for ranges in found.values()) > max_pieces(len(ordered)):
        found = share_out(demand, {}, quotas)
    return {name: _shift(ranges, first) for name, ranges in found.items()}


def _shift(ranges: RangePairs, by: int) -> RangePairs:
    return tuple((first + by, end + by) for first, end in ranges)

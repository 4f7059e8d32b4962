"""Which member should own which queues: a pure function of members, queues and what they owned before.

Of a topic with ``n`` queues, each of its ``m`` members owns ``n // m``, and ``n % m`` of them one more. Only what is
too much where it is moves. Everything is in ranges: a million queues cost what ten do.

Many rounds of joining and leaving cut the ranges into ever smaller pieces. Beyond ``max_pieces`` a topic is shared out
anew, in one piece a member; that moves more than need be, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from .ranges import NONE, Ranges, clip, count, normal, subtract, union

Shares = Mapping[str, Ranges]
_BALANCE_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Demand:
    """A topic to share out: its number of queues, and the members that subscribe to it."""

    queues: int
    members: tuple[str, ...]


def max_pieces(members: int) -> int:
    """So many ranges a topic may be cut into."""
    return max(256, 4 * members)


def assign(topics: Mapping[str, Demand], previous: Mapping[str, Shares]) -> dict[str, dict[str, Ranges]]:
    """The shares of all topics. Deterministic; members without a queue have no entry.

    Each topic is shared out for itself; who gets the odd queues of each is chosen so that members own about as many in
    all, and then so that as few as possible move.
    """
    held = {name: _held(demand, previous.get(name, {})) for name, demand in topics.items()}
    quotas = _quotas(topics, held)
    shares: dict[str, dict[str, Ranges]] = {}
    for name, demand in topics.items():
        found = share_out(demand, held[name], quotas[name])
        if sum(len(ranges) for ranges in found.values()) > max_pieces(len(demand.members)):
            found = share_out(demand, {}, quotas[name])
        shares[name] = found
    return shares


def _held(demand: Demand, previous: Shares) -> dict[str, Ranges]:
    """What is left of the shares before: of members and queues that there are, and each queue once."""
    clipped = {member: clip(previous.get(member, NONE), demand.queues) for member in sorted(demand.members)}
    held = {member: ranges for member, ranges in clipped.items() if ranges}
    pieces = sorted(piece for ranges in held.values() for piece in ranges)
    if any(after[0] < before[1] for before, after in pairwise(pieces)):
        taken: Ranges = NONE
        for member, ranges in held.items():
            held[member] = subtract(ranges, taken)
            taken = union(taken, ranges)
    return held


def _quotas(topics: Mapping[str, Demand], held: Mapping[str, Shares]) -> dict[str, dict[str, int]]:
    """How many queues of each topic each of its members gets."""
    odd: dict[str, set[str]] = {}
    totals: dict[str, int] = {}
    for name in sorted(topics):
        demand = topics[name]
        if not demand.members:
            odd[name] = set()
            continue
        share, rest = divmod(demand.queues, len(demand.members))
        before = {member: count(held[name].get(member, NONE)) for member in demand.members}
        order = sorted(demand.members, key=lambda member: (-before[member], totals.get(member, 0), member))
        odd[name] = set(order[:rest])
        for member in demand.members:
            totals[member] = totals.get(member, 0) + share + (member in odd[name])
    if len(topics) > 1:
        _balance(topics, odd, totals)
    return {
        name: {
            member: demand.queues // len(demand.members) + (member in odd[name]) for member in sorted(demand.members)
        }
        for name, demand in topics.items()
    }


def _balance(topics: Mapping[str, Demand], odd: dict[str, set[str]], totals: dict[str, int]) -> None:
    """Move odd queues from members that own most in all to those that own least, as long as that evens them out."""
    for _ in range(_BALANCE_ROUNDS):
        moved = False
        for name in sorted(topics):
            with_one, without = odd[name], [member for member in topics[name].members if member not in odd[name]]
            if not with_one or not without:
                continue
            most = max(with_one, key=lambda member: (totals[member], member))
            least = min(without, key=lambda member: (totals[member], member))
            if totals[most] >= totals[least] + 2:
                with_one.remove(most)
                with_one.add(least)
                totals[most] -= 1
                totals[least] += 1
                moved = True
        if not moved:
            return


def share_out(demand: Demand, held: Shares, quotas: Mapping[str, int]) -> dict[str, Ranges]:
    """Take what is over the quotas from those who hold it, and give it, and what nobody holds, to the others."""
    if not demand.members:
        return {}
    kept = {member: _keep(held.get(member, NONE), quota) for member, quota in quotas.items()}
    pool = _Pool(subtract(((0, demand.queues),), normal(piece for ranges in kept.values() for piece in ranges)))
    found: dict[str, Ranges] = {}
    wanting = sorted(quotas, key=lambda member: (kept[member][0] if kept[member] else (demand.queues, 0), member))
    for member in wanting:  # First what lies beside what they have, so that pieces grow together.
        found[member] = union(kept[member], pool.beside(kept[member], quotas[member] - count(kept[member])))
    for member in wanting:
        found[member] = union(found[member], pool.take(quotas[member] - count(found[member])))
    return {member: found[member] for member in sorted(found) if found[member]}


def _keep(ranges: Ranges, quota: int) -> Ranges:
    """As many of the queues as the quota allows: the longest pieces, and the beginning of the last one of those."""
    if count(ranges) <= quota:
        return ranges
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges, key=lambda piece: (piece[0] - piece[1], piece[0])):
        size = min(end - first, quota)
        if size <= 0:
            break
        found.append((first, first + size))
        quota -= size
    return normal(found)


class _Pool:
    """Queues that nobody keeps."""

    def __init__(self, ranges: Ranges) -> None:
        self._end_of = dict(ranges)
        self._first_of = {end: first for first, end in ranges}
        self._firsts = list(self._end_of)  # a heap; those that are gone are passed over
        heapify(self._firsts)

    def beside(self, ranges: Ranges, wanted: int) -> Ranges:
        """Up to ``wanted`` queues that touch ``ranges``."""
        found: list[tuple[int, int]] = []
        for first, end in ranges:
            if wanted <= 0:
                break
            if end in self._end_of:
                found.append(self._cut(end, self._end_of[end], wanted, from_end=False))
                wanted -= found[-1][1] - found[-1][0]
            if wanted > 0 and first in self._first_of:
                found.append(self._cut(self._first_of[first], first, wanted, from_end=True))
                wanted -= found[-1][1] - found[-1][0]
        return normal(found)

    def take(self, wanted: int) -> Ranges:
        """``wanted`` queues, from the lowest on."""
        found: list[tuple[int, int]] = []
        while wanted > 0 and self._end_of:
            first = heappop(self._firsts)
            if first in self._end_of:
                found.append(self._cut(first, self._end_of[first], wanted, from_end=False))
                wanted -= found[-1][1] - found[-1][0]
        return normal(found)

    def _cut(self, first: int, end: int, wanted: int, *, from_end: bool) -> tuple[int, int]:
        """Take up to ``wanted`` queues of the piece away, from its end or its beginning."""
        del self._end_of[first], self._first_of[end]
        size = min(end - first, wanted)
        taken = (end - size, end) if from_end else (first, first + size)
        rest = (first, end - size) if from_end else (first + size, end)
        if rest[0] < rest[1]:
            self._end_of[rest[0]] = rest[1]
            self._first_of[rest[1]] = rest[0]
            heappush(self._firsts, rest[0])
        return taken


def moved(previous: Shares, shares: Sequence[tuple[str, Ranges]]) -> int:
    """How many queues have another owner than before, or one for the first time."""
    return sum(count(subtract(ranges, previous.get(member, NONE))) for member, ranges in shares)

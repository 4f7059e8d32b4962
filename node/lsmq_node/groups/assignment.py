"""Which member should own which queues: a pure function of members, queues and what they owned before.

Of a topic with ``n`` queues, each of its ``m`` members owns ``n // m``, and ``n % m`` of them one more. Only what is
too much where it is moves. Everything is in ranges: a million queues cost what ten do.

Of several topics, that leaves open who gets the odd queues that nobody can keep, and who keeps them where more could:
so that members own about as many in all. Totals beyond that are no reason to move anything, with one exception: of
topics that have fewer queues than members, whose queues are all odd, somebody who joins would never get any. These
move, too, from who has at least two more in all.

Many rounds of joining and leaving cut the ranges into ever smaller pieces. Beyond ``max_pieces`` a topic is shared out
anew, in one piece a member; that moves more than need be, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import pairwise

from .ranges import NONE, RangePairs, clip, count, normal, subtract, union

Shares = Mapping[str, RangePairs]
#: Looks at members and topics to even out totals: some tenths of a second.
_MOST_STEPS = 300_000


@dataclass(frozen=True, slots=True)
class Demand:
    """A topic to share out: its number of queues, and the members that subscribe to it."""

    queues: int
    members: tuple[str, ...]


def max_pieces(members: int) -> int:
    """So many ranges a topic may be cut into."""
    return max(256, 4 * members)


def assign(topics: Mapping[str, Demand], previous: Mapping[str, Shares]) -> dict[str, dict[str, RangePairs]]:
    """The shares of all topics. Deterministic; members without a queue have no entry.

    Each topic is shared out for itself, so that as few queues as possible move; then so that members own about as many
    in all.
    """
    held = {name: _held(demand, previous.get(name, {})) for name, demand in topics.items()}
    quotas = _quotas(topics, held)
    shares: dict[str, dict[str, RangePairs]] = {}
    for name, demand in topics.items():
        found = share_out(demand, held[name], quotas[name])
        if sum(len(ranges) for ranges in found.values()) > max_pieces(len(demand.members)):
            found = share_out(demand, {}, quotas[name])
        shares[name] = found
    return shares


def _held(demand: Demand, previous: Shares) -> dict[str, RangePairs]:
    """What is left of the shares before: of members and queues that there are, and each queue once."""
    clipped = {
        member: clip(previous[member], demand.queues) for member in sorted(previous.keys() & set(demand.members))
    }
    held = {member: ranges for member, ranges in clipped.items() if ranges}
    pieces = sorted(piece for ranges in held.values() for piece in ranges)
    if any(after[0] < before[1] for before, after in pairwise(pieces)):
        taken: RangePairs = NONE
        for member, ranges in held.items():
            held[member] = subtract(ranges, taken)
            taken = union(taken, ranges)
    return held


def _quotas(topics: Mapping[str, Demand], held: Mapping[str, Shares]) -> dict[str, dict[str, int]]:
    """How many queues of each topic each of its members gets; who gets none may be left out."""
    odds = [_Odd(name, topics[name], held[name]) for name in sorted(topics) if topics[name].members]
    totals: dict[str, int] = {}
    for odd in odds:
        for member in odd.members:
            totals.setdefault(member, 0)
        for member, quota in odd.quotas().items():
            totals[member] += quota
    for odd in sorted(odds, key=lambda odd: odd.left):  # Last those that leave a choice.
        for member in nsmallest(odd.left, odd.choice - odd.lucky, key=lambda member: (totals[member], member)):
            odd.lucky.add(member)
            totals[member] += 1
    if len(odds) > 1:
        _even_out(odds, totals)
        for odd in odds:
            if not odd.share:
                odd.choice = set(odd.members)
        _even_out(odds, totals)
    quotas = {odd.name: odd.quotas() for odd in odds}
    return {name: quotas.get(name, {}) for name in topics}


class _Odd:
    """The odd queues of a topic, each of which makes one of its members ``lucky``.

    Nobody loses a queue that he could keep: whoever has more than ``share`` is lucky, or, where those are more than
    there are odd queues, nobody else is. ``choice`` are those among whom that leaves a choice, ``left`` how many.
    """

    def __init__(self, name: str, demand: Demand, held: Shares) -> None:
        self.name = name
        self.members = sorted(demand.members)
        self.share, rest = divmod(demand.queues, len(self.members))
        keepers = {member for member, ranges in held.items() if count(ranges) > self.share}
        few = len(keepers) <= rest
        self.lucky = set(keepers) if few else set[str]()
        self.choice = set(self.members) - keepers if few else keepers
        self.left = rest - len(self.lucky)

    def quotas(self) -> dict[str, int]:
        """As it stands; without those who get none, of whom there may be many."""
        return {member: self.share + (member in self.lucky) for member in (self.members if self.share else self.lucky)}

    def hand_on(self, giver: str, taker: str) -> None:
        assert giver in self.lucky and taker not in self.lucky
        self.lucky.remove(giver)
        self.lucky.add(taker)


def _even_out(odds: Sequence[_Odd], totals: dict[str, int]) -> None:
    """Hand odd queues on within the choices, from who has most in all to who has least, until nothing evens out more.

    Also over several members: one gives a queue of one topic and takes one of another. No such chain is left at the end
    if and only if the sum of the squares of all totals is as small as the choices allow, unless there are so many
    members and topics that looking for it would take too long.
    """
    steps = _MOST_STEPS
    while steps > 0:
        least = min(totals.values())
        givers = [member for member, total in totals.items() if total >= least + 2]
        for giver in sorted(givers, key=lambda member: (-totals[member], member)):
            chain, looked_at = _chain(odds, totals, giver)
            steps -= looked_at
            if chain or steps <= 0:
                break
        else:
            return
        for odd, one, other in chain:
            odd.hand_on(one, other)
        if chain:
            totals[giver] -= 1
            totals[chain[-1][2]] += 1


def _chain(odds: Sequence[_Odd], totals: Mapping[str, int], giver: str) -> tuple[list[tuple[_Odd, str, str]], int]:
    """The shortest way of an odd queue's worth from ``giver`` to one who has two less in all; and how long it took."""
    came: dict[str, tuple[_Odd, str]] = {}
    seen = {giver}
    unseen = [odd for odd in odds if odd.choice & odd.lucky and odd.choice - odd.lucky]
    line = deque([giver])
    looked_at = len(odds)
    while line:
        one = line.popleft()
        looked_at += len(unseen)
        mine = [odd for odd in unseen if one in odd.lucky and one in odd.choice]
        for odd in mine:
            unseen.remove(odd)
            takers = odd.choice - odd.lucky - seen
            looked_at += len(odd.choice)
            seen |= takers
            for other in sorted(takers):
                came[other] = odd, one
                if totals[other] <= totals[giver] - 2:
                    return _way(came, giver, other), looked_at
                line.append(other)
    return [], looked_at


def _way(came: Mapping[str, tuple[_Odd, str]], giver: str, taker: str) -> list[tuple[_Odd, str, str]]:
    way: list[tuple[_Odd, str, str]] = []
    while taker != giver:
        odd, one = came[taker]
        way.append((odd, one, taker))
        taker = one
    return way[::-1]


def share_out(demand: Demand, held: Shares, quotas: Mapping[str, int]) -> dict[str, RangePairs]:
    """Take what is over the quotas from those who hold it, and give it, and what nobody holds, to the others."""
    if not demand.members:
        return {}
    found = {member: _keep(held.get(member, NONE), quota) for member, quota in quotas.items()}
    missing = {member: quota - count(found[member]) for member, quota in quotas.items()}
    pool = _Pool(subtract(((0, demand.queues),), normal(piece for ranges in found.values() for piece in ranges)))
    wanting = sorted(
        (member for member, wanted in missing.items() if wanted),
        key=lambda member: (found[member][0] if found[member] else (demand.queues, 0), member),
    )
    for member in wanting:  # First what lies beside what they have, so that pieces grow together.
        beside = pool.beside(found[member], missing[member])
        if beside:
            found[member] = union(found[member], beside)
            missing[member] -= count(beside)
    for member in wanting:
        if missing[member]:
            taken = pool.take(missing[member])
            found[member] = union(found[member], taken) if found[member] else taken
    return {member: found[member] for member in sorted(found) if found[member]}


def _keep(ranges: RangePairs, quota: int) -> RangePairs:
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

    def __init__(self, ranges: RangePairs) -> None:
        self._end_of = dict(ranges)
        self._first_of = {end: first for first, end in ranges}
        self._firsts = list(self._end_of)  # a heap; those that are gone are passed over
        heapify(self._firsts)

    def beside(self, ranges: RangePairs, wanted: int) -> RangePairs:
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

    def take(self, wanted: int) -> RangePairs:
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

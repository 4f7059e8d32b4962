"""How one node takes another's vote, step by step. Pure.

The newcomer learns first: it is sent the log, and does not vote. Once it has all of it, it votes, and the old one goes;
an old one that is not heard goes before that, so that at no moment more voters are needed than before. What is to
become of it stands in the membership (``old``, ``new``), so that whoever leads next goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lsmq.errors import InvalidRequest

from .raft_membership import Electorate
from .state import ClusterState, NodeState

#: What people ask for; the leader of the control plane makes a ``set_voters`` of it.
REPLACE, CANCEL = "replace_voter", "keep_voter"
#: Why a replacement is refused that was done before, perhaps: whoever got no answer takes it for one.
REPLACED = "replaced"


def asked(
    command: Mapping[str, Any],
    now: Electorate,
    state: ClusterState,
    *,
    alive: Set[str],
    at_hand: Set[str],
    addresses: Mapping[str, str],
) -> Electorate:
    """What ``command`` begins; ``now``, where that is under way. A newcomer that still learns may be replaced too, by
    another one.

    ``alive`` are the nodes that are heard, ``at_hand`` the voters that follow by Raft, the leader among them,
    ``addresses`` where nodes would be reached if they voted. Raises ``InvalidRequest``.
    """
    if command["op"] == CANCEL:
        return _cancelled(now, str(command["node"]))
    old, new = str(command["node"]), str(command["by"])
    if (old, new) == (now.old, now.new):
        return now
    other = now.new is not None and old == now.new in now.learners
    if old in state.nodes and not now.has(old) and now.has(new):
        raise _refused(
            REPLACED,
            f"node {old!r} does not vote, and node {new!r} votes already, or is about to: if that was to be, it is "
            f"done; the voters are {', '.join(sorted(now.voters))}",
        )
    if now.old is not None and not other:
        raise _refused("change_under_way", f"node {now.new!r} is taking the vote of {now.old!r}; one change at a time")
    if old not in now.voters and not other:
        raise _refused("no_voter", f"node {old!r} does not vote; the voters are {', '.join(sorted(now.voters))}")
    if now.has(new):
        raise _refused("votes_already", f"node {new!r} votes already, or is about to")
    known = state.nodes.get(new)
    if known is None or known.state is NodeState.REMOVED:
        raise _refused("unknown_node", f"there is no node {new!r}")
    if new not in alive:
        raise _refused("node_away", f"node {new!r} is not heard: start it first")
    address = addresses.get(new)
    if address is None:
        raise _refused("node_unable", f"node {new!r} runs a release that takes no voter's place, or has just started")
    if address in now.voting:
        raise _refused(
            "address_taken", f"node {new!r} would be reached at {address}, as a voter is: set its cluster.raft_address"
        )
    after = (now.voters.keys() - {old}) | {new}
    if 2 * len(after & (at_hand | {new})) <= len(after):
        away = ", ".join(sorted(after - at_hand - {new}))
        raise _refused("no_majority", f"too many of those that would vote are not heard ({away}): start them first")
    leaving = now.old if other else old
    return replace(now, number=now.number + 1, learners=MappingProxyType({new: address}), old=leaving, new=new)


def _cancelled(now: Electorate, old: str) -> Electorate:
    if now.old != old:
        under_way = "nothing is under way" if now.old is None else f"it is {now.old!r} whose vote is being taken"
        raise _refused("no_change", f"nobody is taking the vote of node {old!r}: {under_way}")
    if now.new not in now.learners:
        raise _refused("too_late", f"node {now.new!r} votes already: have {old!r} take its vote when this is done")
    if old not in now.voters:
        raise _refused(
            "too_late",
            f"node {old!r} votes no more, and {now.new!r} will once it has the whole log; if that one is gone too: "
            f"lsmq voter replace {now.new} ANOTHER",
        )
    return _done(replace(now, number=now.number + 1, learners=MappingProxyType({})))


def next_step(now: Electorate, at_hand: Set[str], caught_up: Set[str]) -> Electorate | None:
    """What comes next of the change that is under way; None: nothing, or not yet.

    ``at_hand`` are ids of those who follow by Raft, the leader among them; ``caught_up`` those of them, and of the
    learners, who have all of the log.
    """
    if now.old is None or now.new is None:
        return None
    if now.new in now.learners:
        if now.new not in caught_up:
            return None
        if now.old in now.voters and now.old not in at_hand and len(now.voters) > 1:
            return _without(now)
        voters = MappingProxyType({**now.voters, now.new: now.learners[now.new]})
        step = replace(now, number=now.number + 1, voters=voters, learners=MappingProxyType({}))
        return step if now.old in now.voters else _done(step)
    return _done(_without(now))


def _without(now: Electorate) -> Electorate:
    voters = MappingProxyType({id: address for id, address in now.voters.items() if id != now.old})
    return replace(now, number=now.number + 1, voters=voters)


def _done(step: Electorate) -> Electorate:
    return replace(step, old=None, new=None)


def _refused(reason: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, reason=reason)

"""Voters that are replaced without being told: by whom, when, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lsmq.errors import Unavailable
from lsmq_coordinator.commands import apply
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.liveness import LivenessTiming
from lsmq_coordinator.overseer import Overseer, OverseerTiming
from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.state import ClusterState
from lsmq_coordinator.voter_care import VoterTiming

from .test_overseer import LIFE, FakeRaft, VirtualTime, registered
from .test_state import founded

AFTER_S = 10.0


class VotingRaft(FakeRaft):
    """Knows who votes: by what is proposed, which is committed at once while voters are at hand."""

    def __init__(self, state: ClusterState, voters: int) -> None:
        super().__init__(state)
        nodes = sorted(state.nodes)
        self.membership = Electorate(0, {node: f"{node}:7602" for node in nodes[:voters]})
        self.alive = set(nodes)
        self.known: list[Electorate] = [self.membership]
        self.old_releases: set[str] = set()
        #: Who is heard, and has not all of the log.
        self.behind: set[str] = set()

    @property
    def status(self) -> Any:
        near = frozenset(address for address in self.membership.addresses if address.split(":")[0] in self.alive)
        caught_up = near - {f"{node}:7602" for node in self.behind}
        known = {"heard": near, "caught_up": caught_up, "old": frozenset(self.old_releases), "settled": True}
        return SimpleNamespace(term=self.term, resigned_term=0, membership=self.membership, **known)

    @status.setter
    def status(self, status: Any) -> None:
        self.term = status.term

    def leads(self, *, term: int) -> None:
        self.is_leader, self.leader, self.term = True, "n0", term

    async def submit(self, command: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        if command["op"] not in ("replace_voter", "keep_voter"):
            return await super().submit(command, timeout)
        told = self.testify(command)
        return await self.change_voters(Electorate.from_dict(told["membership"]), timeout)

    async def change_voters(self, changed: Electorate, timeout: float = 5.0) -> dict[str, Any]:
        assert changed.follows(self.membership)
        if 2 * len(self.alive & changed.voters.keys()) <= len(changed.voters):
            raise Unavailable("no majority has the log")
        self.membership = changed
        self.known.append(changed)
        command = {"op": "set_voters", "request_id": f"v{changed.number}", "membership": changed.to_dict()}
        self.state, result = apply(self.state, command)
        return result


class Council:
    """An overseer of nodes, of which the first vote. ``n0`` leads and stays."""

    def __init__(self, nodes: int, voters: int, labels: Mapping[str, Mapping[str, str]], after_s: float) -> None:
        state = founded(nodes=[f"n{number}" for number in range(nodes)], shards=2)
        self.raft, self.time = VotingRaft(registered(state), voters), VirtualTime()
        for node, named in labels.items():
            fields = {"url": f"http://{node}", "internal_url": f"http://{node}:1", "life": LIFE, "former": LIFE}
            self.do(op="register_node", node=node, **fields, **named)
        timing = OverseerTiming(
            liveness=LivenessTiming(node_timeout_s=0.3), voters=VoterTiming(after_s, repeat_s=0.1), settle_s=1e9
        )
        self.overseer = Overseer(self.raft, timing=timing, spread=False, clock=lambda: self.time.now)  # type: ignore[arg-type]
        self.unable: set[str] = set()
        self.time.step = self._step

    async def _step(self) -> None:
        for node in sorted(self.raft.alive):
            address = None if node in self.unable else f"{node}:7602"
            self.overseer.heartbeat(NodeHeartbeat(node, LIFE, raft=address))
        await self.overseer.look()

    def do(self, **command: Any) -> None:
        self.raft.state, result = apply(self.raft.state, {**command, "request_id": f"{self.time.now} {command}"})
        assert result["ok"], result

    def loses(self, *nodes: str) -> None:
        self.raft.alive -= set(nodes)

    def voters(self) -> set[str]:
        return set(self.raft.membership.voters)

    def plan(self) -> list[dict[str, Any]]:
        voters: list[dict[str, Any]] = self.overseer.plan()["voters"]
        return voters

    async def stays(self, seconds: float = 2 * AFTER_S) -> None:
        before = self.raft.membership
        await self.time.passes(seconds)
        assert self.raft.membership == before


def council(
    test: Callable[[Council], Awaitable[None]],
    nodes: int = 5,
    voters: int = 3,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    after_s: float = AFTER_S,
) -> None:
    async def main() -> None:
        made = Council(nodes, voters, labels or {}, after_s)
        await made.time.passes(2)
        assert made.plan() == []
        await test(made)

    asyncio.run(main())


def test_a_voter_that_is_gone_is_replaced_and_one_that_comes_back_later_votes_no_more() -> None:
    async def test(council: Council) -> None:
        council.loses("n1")
        await council.time.passes(AFTER_S - 2)
        (planned,) = council.plan()
        assert (planned["old"], planned["new"], planned["waits_for"]) == ("n1", "n3", None)
        assert 1 < planned["in_s"] < 3
        assert council.voters() == {"n0", "n1", "n2"}
        await council.time.passes(4)
        assert council.voters() == {"n0", "n2", "n3"}
        council.raft.alive.add("n1")
        await council.stays()
        assert council.plan() == []
        assert not council.raft.state.nodes["n1"].voter

    council(test)


def test_a_voter_that_comes_back_in_time_goes_on_voting_however_often() -> None:
    async def test(council: Council) -> None:
        for _ in range(5):
            council.loses("n1")
            await council.time.passes(AFTER_S - 2)
            council.raft.alive.add("n1")
            await council.time.passes(2)
        assert council.raft.known == [council.raft.membership]

    council(test)


def test_of_two_voters_that_are_gone_one_is_replaced_after_the_other() -> None:
    async def test(council: Council) -> None:
        council.loses("n1", "n2")
        await council.time.passes(AFTER_S + 5)
        assert {"n0", "n3", "n4"} < council.voters() and len(council.voters()) == 5
        for one, other in zip(council.raft.known, council.raft.known[1:], strict=False):
            assert len(one.voters.keys() ^ other.voters.keys()) <= 1
            assert len(other.learners) <= 1

    council(test, nodes=8, voters=5)


def test_the_one_that_votes_next_is_on_a_host_and_in_a_rack_of_its_own() -> None:
    labels = {f"n{number}": {"host": f"h{number}", "rack": f"r{number % 3}"} for number in range(7)}
    labels["n3"]["rack"], labels["n5"]["host"] = "r2", "h2"

    async def test(council: Council) -> None:
        council.loses("n1")
        await council.time.passes(AFTER_S + 2)
        assert council.voters() == {"n0", "n2", "n4"}, "n3 is in the rack of n2, n5 on its host, n4 where n1 was"

    council(test, nodes=7, labels=labels)


@pytest.mark.parametrize("which", ["host", "unable", "draining"])
def test_where_no_node_may_take_its_place_it_stays_and_the_plan_says_why(which: str) -> None:
    async def test(council: Council) -> None:
        if which == "unable":
            council.unable.add("n3")
            council.overseer._voters.begin()
        elif which == "draining":
            council.do(op="drain_node", node="n3")
        council.loses("n1")
        await council.stays()
        (planned,) = council.plan()
        assert planned["new"] is None and planned["in_s"] == 0
        assert "start one" in planned["waits_for"]

    labels = {"n3": {"host": "n2"}} if which == "host" else {}
    council(test, nodes=4, labels=labels)


def test_where_half_of_the_nodes_are_away_nothing_happens_until_some_are_back() -> None:
    async def test(council: Council) -> None:
        council.loses("n1", "n4", "n5")
        await council.stays()
        assert "half of the nodes" in council.plan()[0]["waits_for"]
        council.raft.alive.add("n4")
        await council.time.passes(2)
        assert council.voters() == {"n0", "n2", "n3"}

    council(test, nodes=6)


def test_while_moves_are_paused_or_it_is_switched_off_or_a_voter_would_not_follow_nothing_begins() -> None:
    async def paused(council: Council) -> None:
        council.do(op="pause_moves")
        council.loses("n1")
        await council.stays()
        assert "lsmq shard resume" in council.plan()[0]["waits_for"]
        council.do(op="resume_moves")
        await council.time.passes(2)
        assert council.voters() == {"n0", "n2", "n3"}

    async def off(council: Council) -> None:
        council.loses("n1")
        await council.stays()
        (planned,) = council.plan()
        assert planned["in_s"] is None and "lsmq voter replace" in planned["waits_for"]

    async def old(council: Council) -> None:
        council.raft.old_releases.add("n2:7602")
        council.loses("n1")
        await council.stays()
        assert "upgrade" in council.plan()[0]["waits_for"]

    council(paused)
    council(off, after_s=0.0)
    council(old)


def test_without_a_majority_that_has_the_log_nothing_begins() -> None:
    async def test(council: Council) -> None:
        council.raft.behind.add("n2")
        council.loses("n1")
        await council.stays()
        assert "no majority has all of the control plane's log" in council.plan()[0]["waits_for"]
        council.raft.behind.clear()
        await council.time.passes(2)
        assert council.voters() == {"n0", "n2", "n3"}

    council(test)


def test_a_newcomer_that_is_gone_is_replaced_in_turn_and_where_the_old_one_is_back_that_goes_on_voting() -> None:
    async def begun(council: Council) -> None:
        """``n3`` is to be filled, which takes it too long: it is gone."""
        council.loses("n1")
        await council.time.passes(AFTER_S - 1)
        council.raft.membership = Electorate(1, council.raft.membership.voters, {"n3": "n3:7602"}, old="n1", new="n3")
        council.loses("n3")
        await council.time.passes(AFTER_S - 2)
        assert council.raft.membership.new == "n3"

    async def other(council: Council) -> None:
        await begun(council)
        assert [(each["old"], each["new"]) for each in council.plan()] == [("n3", "n4")]
        await council.time.passes(4)
        assert council.voters() == {"n0", "n2", "n4"} and council.raft.membership.old is None

    async def back(council: Council) -> None:
        await begun(council)
        council.raft.alive.add("n1")
        await council.time.passes(1)
        assert [(each["old"], each["new"]) for each in council.plan()] == [("n3", "n1")]
        await council.time.passes(3)
        assert council.voters() == {"n0", "n1", "n2"} and council.raft.membership.old is None

    council(other, nodes=6)
    council(back, nodes=6)


def test_another_leader_counts_anew() -> None:
    async def test(council: Council) -> None:
        council.loses("n1")
        await council.time.passes(AFTER_S - 1)
        council.raft.leads(term=2)
        await council.time.passes(AFTER_S - 1)
        assert council.voters() == {"n0", "n1", "n2"}
        await council.time.passes(3)
        assert council.voters() == {"n0", "n2", "n3"}

    council(test)

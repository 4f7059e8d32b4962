"""Who is elected, how leaders spread, where replicas go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.deaf_leaders import DeafLeaders
from lsmq_coordinator.election import (
    ReplicaProgress,
    choose_candidate,
    leader_counts,
    place_replicas,
    spread_leaders,
)
from lsmq_coordinator.lives import InSyncMember, LifeId, RegisteredStart
from lsmq_coordinator.overseer import failovers, transfers
from lsmq_coordinator.state import ClusterSettings, ClusterState, NodeRecord, NodeState, Shard
from support.extent import part_in_number

NAMES = ["a", "b", "c", "d", "e"]


def listed(nodes: Iterable[str], incarnation: int = 7) -> tuple[InSyncMember, ...]:
    return tuple(InSyncMember(node, incarnation) for node in nodes)


def started(nodes: Iterable[str], incarnation: int = 7) -> tuple[RegisteredStart, ...]:
    return tuple(RegisteredStart(node, incarnation, 1, 99, confirmed=True) for node in sorted(nodes))


def report(epoch: int, end_lsn: int, incarnation: int = 7, start: int = 1, flawed: int = 0) -> ReplicaProgress:
    return ReplicaProgress(epoch, end_lsn, incarnation, start, flawed=flawed)


def everybody_reports(state: ClusterState) -> dict[str, dict[int, ReplicaProgress]]:
    return {node: {id: report(1, 0) for id in state.shards} for node in state.nodes}


def cluster(shards: list[Shard], nodes: list[str] = NAMES, draining: tuple[str, ...] = ()) -> ClusterState:
    entries = {
        name: NodeRecord(name, "u", "i", True, NodeState.DRAINING if name in draining else NodeState.ACTIVE)
        for name in nodes
    }
    return ClusterState(
        1,
        ClusterSettings("c", len(shards), 3, 2, 1 << 20),
        MappingProxyType(entries),
        MappingProxyType({shard.id: shard for shard in shards}),
    )


def shard(id: int, replicas: tuple[str, ...], leader: str, epoch: int, in_sync: tuple[InSyncMember, ...]) -> Shard:
    return Shard(id, replicas, leader, epoch, in_sync, 1, leading=LifeId(7, 1), starts=started(replicas))


@st.composite
def clusters(draw: st.DrawFn, max_shards: int = 8) -> ClusterState:
    nodes = NAMES[: draw(st.integers(1, 5))]
    shards = []
    for id in range(draw(st.integers(1, max_shards))):
        replicas = tuple(draw(st.permutations(nodes))[: draw(st.integers(1, len(nodes)))])
        in_sync = tuple(node for node in replicas if draw(st.booleans())) or replicas[:1]
        shards.append(shard(id, replicas, draw(st.sampled_from(in_sync)), 1, listed(in_sync)))
    draining = tuple(node for node in nodes if draw(st.integers(0, 4)) == 0)
    return cluster(shards, nodes, draining)


SHARD = shard(0, ("a", "b", "c"), "a", 3, listed("abc"))


def test_only_a_live_member_of_the_in_sync_set_is_a_candidate() -> None:
    shard = replace(SHARD, in_sync=listed("ab"))
    assert choose_candidate(shard, {"c"}) is None
    reports = {"b": report(1, 1), "c": report(9, 9)}
    assert choose_candidate(shard, {"b", "c"}, reports) == "b"
    assert choose_candidate(shard, {"b", "c"}, reports, preferred="c") == "b"
    assert choose_candidate(shard, {"b", "c"}, {}) is None, "nobody says that its replica works"


def test_the_candidate_is_the_preferred_one_else_who_reaches_furthest_else_who_leads_least() -> None:
    alive = {"b", "c"}
    near, far = report(3, 100), report(3, 200)
    assert choose_candidate(SHARD, alive, {"b": near, "c": far}) == "c"
    assert choose_candidate(SHARD, alive, {"b": report(4, 1), "c": far}) == "b"
    assert choose_candidate(SHARD, alive, {"b": near, "c": far}, preferred="b") == "b"
    assert choose_candidate(SHARD, alive, {"b": report(9, 9, flawed=1), "c": report(0, 0)}) == "c"
    assert choose_candidate(SHARD, alive, {"b": report(9, 9, flawed=1)}) == "b", "better than nobody"
    assert choose_candidate(SHARD, alive, {"b": near, "c": near}, loads={"b": 5, "c": 1}) == "c"
    assert choose_candidate(SHARD, alive, {"b": near, "c": near}) == "b"


def test_a_replica_that_is_not_what_the_set_lists_is_no_candidate() -> None:
    alive = {"b", "c"}
    emptied, same = report(9, 900, incarnation=8), report(3, 100, incarnation=7)
    shard = replace(SHARD, starts=(*started("a"), *started("b", 8), *started("c")))
    assert choose_candidate(shard, alive, {"b": emptied, "c": same}) == "c"
    assert choose_candidate(shard, {"b"}, {"b": emptied}) is None
    unclaimed = replace(shard, in_sync=listed("abc", 0))
    assert choose_candidate(unclaimed, alive, {"b": emptied, "c": same}) == "b"


def test_a_replica_is_elected_in_no_life_but_the_one_that_is_registered_and_confirmed() -> None:
    former, present = report(9, 900, start=1), report(3, 100, start=2)
    for confirmed, expected in ((True, "b"), (False, None)):
        start = RegisteredStart("b", 7, 2, 5, confirmed)
        shard = replace(SHARD, starts=(start,))
        assert choose_candidate(shard, {"b"}, {"b": former}) is None
        assert choose_candidate(shard, {"b"}, {"b": present}) == expected


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 40))
def test_replicas_are_placed_evenly(nodes: int, replicas: int, shards: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    replicas = min(replicas, nodes)
    placed = place_replicas(names, shards, replicas)
    held = Counter(dict.fromkeys(names, 0))
    led = Counter(dict.fromkeys(names, 0))
    for chosen in placed.values():
        assert len(set(chosen)) == replicas
        held.update(chosen)
        led.update(chosen[:1])
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1


def run_transfers(state: ClusterState, alive: frozenset[str]) -> ClusterState:
    """Take every transfer, one at a time, as the overseer would."""
    for turn in range(200):
        commands = transfers(state, alive)
        assert len(commands) <= 1, "more than one shard in motion"
        if not commands:
            return state
        state, result = apply(state, {**commands[0], "request_id": str(turn)})
        assert result["ok"], result
        state.check()
    raise AssertionError("transfers do not end")


@settings(max_examples=part_in_number(300, 3))
@given(clusters(), st.sets(st.sampled_from(NAMES)))
def test_spreading_ends_and_leaves_no_better_single_transfer(state: ClusterState, dead: set[str]) -> None:
    alive = frozenset(state.nodes) - frozenset(dead)
    if any(shard.leader not in alive for shard in state.shards.values()):
        assert spread_leaders(state, alive) == []
        return
    after = run_transfers(state, alive)
    counts = leader_counts(after, alive & set(after.active_nodes()))
    for shard in after.shards.values():
        fit = [node for node in shard.in_sync_nodes if node in counts]
        assert shard.leader in counts or not fit, "a draining node leads on without need"
        if shard.replicas[0] in fit:
            assert shard.leader == shard.replicas[0]
        elif fit:
            assert all(counts[str(shard.leader)] - counts[target] <= 1 for target in fit)


@settings(max_examples=part_in_number(100, 3))
@given(clusters(max_shards=5))
def test_where_the_preferred_cannot_lead_spreading_is_as_even_as_any_choice(state: ClusterState) -> None:
    alive = frozenset(state.nodes)
    willing = set(state.active_nodes())
    choices = []
    for shard in state.shards.values():
        fit = [node for node in shard.in_sync_nodes if node in willing] or [shard.leader]
        choices.append([shard.replicas[0]] if shard.replicas[0] in fit else fit)
    best = min(sum(count * count for count in Counter(choice).values()) for choice in product(*choices))
    after = run_transfers(state, alive)
    assert sum(count * count for count in Counter(s.leader for s in after.shards.values()).values()) == best


def test_leaders_return_to_their_first_replicas_when_a_node_comes_back() -> None:
    placed = place_replicas(["a", "b", "c"], 6, 3)
    shards = [shard(id, chosen, chosen[0], 1, listed(chosen)) for id, chosen in placed.items()]
    everybody = frozenset("abc")
    state = cluster(shards, ["a", "b", "c"])
    for number, command in enumerate(failovers(state, everybody - {"a"}, everybody_reports(state))):
        state, result = apply(state, {**command, "request_id": f"f{number}"})
        assert result["ok"]
    assert leader_counts(state, everybody) == {"a": 0, "b": 3, "c": 3}
    whole = {id: replace(shard, in_sync=listed(shard.replicas)) for id, shard in state.shards.items()}
    state = run_transfers(replace(state, shards=MappingProxyType(whole)), everybody)
    assert {shard.leader == shard.replicas[0] for shard in state.shards.values()} == {True}


@given(clusters(), st.sets(st.sampled_from(NAMES)))
def test_a_failover_elects_the_living_and_keeps_enough_in_sync(state: ClusterState, dead: set[str]) -> None:
    alive = frozenset(state.nodes) - frozenset(dead)
    for number, command in enumerate(failovers(state, alive, everybody_reports(state))):
        former = state.shards[command["shard"]]
        state, result = apply(state, {**command, "request_id": str(number)})
        assert result["ok"], result
        shard = state.shards[former.id]
        assert shard.leader in alive
        assert len(shard.in_sync) >= min(len(former.in_sync), state.settings.min_in_sync)
    for shard in state.shards.values():
        assert shard.leader in alive or not set(shard.in_sync_nodes) & alive


def test_an_election_that_is_asked_for_lifts_the_epoch_and_may_choose_the_same_leader() -> None:
    state = cluster([SHARD], ["a", "b", "c"])
    everybody = frozenset("abc")
    reports = {node: {0: report(3, lsn, 7)} for node, lsn in (("a", 300), ("b", 200), ("c", 100))}
    assert failovers(state, everybody, reports, {0: 2}) == []
    for above, epoch in ((3, 4), (9, 10)):
        [command] = failovers(state, everybody, reports, {0: above})
        after, result = apply(state, {**command, "request_id": "asked"})
        assert result["epoch"] == epoch
        assert after.shards[0].leader == "a"
    # A leader whose replica no longer works does not report it.
    del reports["a"][0]
    [command] = failovers(state, everybody, reports, {0: 3})
    assert command["candidate"] == "b"
    assert command["suspects"] == []


LED_BY_A = cluster([SHARD], ["a", "b", "c"])
LED_BY_B = cluster([replace(SHARD, leader="b", epoch=4)], ["a", "b", "c"])


def working(nodes: str, epoch: int = 3) -> dict[str, dict[int, ReplicaProgress]]:
    """What nodes report whose replicas' logs end in an epoch."""
    return {node: {0: report(epoch, 100, 7)} for node in nodes}


def asking(
    state: ClusterState, times: Iterable[float], reports: dict[str, dict[int, ReplicaProgress]], alive: str = "abc"
) -> list[dict[int, str]]:
    """Who is to lead at each of the times, when the leader says each time that it hears too few."""
    deaf, shard = DeafLeaders(), state.shards[0]
    found = []
    for now in times:
        deaf.say(0, str(shard.leader), shard.epoch, now)
        found.append(deaf.successors(state, set(alive), reports, now))
    return found


def test_a_leader_that_hears_too_few_is_replaced_by_another_and_stays_in_the_set_for_now() -> None:
    reports = working("abc")
    reports["a"][0] = report(3, 900, 7)
    assert asking(LED_BY_A, (10.0, 10.5), reports) == [{}, {0: "b"}]
    [command] = failovers(LED_BY_A, frozenset("abc"), reports, {}, {0: "b"})
    after, result = apply(LED_BY_A, {**command, "request_id": "deaf"})
    assert result["ok"]
    assert (after.shards[0].leader, after.shards[0].epoch, after.shards[0].in_sync) == ("b", 4, SHARD.in_sync)


@pytest.mark.parametrize(
    ("alive", "reporting", "in_sync"),
    [("a", "abc", "abc"), ("ab", "abc", "abc"), ("abc", "ab", "abc"), ("abc", "abc", "a")],
)
def test_a_leader_that_hears_too_few_stays_where_no_other_could_acknowledge_anything(
    alive: str, reporting: str, in_sync: str
) -> None:
    state = cluster([replace(SHARD, in_sync=listed(in_sync))], ["a", "b", "c"])
    assert asking(state, (10.0, 10.5, 11.0, 11.5), working(reporting), alive) == [{}, {}, {}, {}]


def test_a_leader_whose_followers_come_back_must_ask_again_after_that() -> None:
    deaf, reports, alive = DeafLeaders(), working("abc"), set("abc")
    for now in (10.0, 10.5, 11.0):
        deaf.say(0, "a", 3, now)
        assert deaf.successors(LED_BY_A, {"a"}, reports, now) == {}
    for now in (11.1, 11.5, 12.4, 13.0):
        assert deaf.successors(LED_BY_A, alive, reports, now) == {}, "it has heard them meanwhile"
    for now, expected in ((20.0, {}), (20.5, {0: "b"})):
        deaf.say(0, "a", 3, now)
        assert deaf.successors(LED_BY_A, alive, reports, now) == expected


def test_what_is_said_of_another_epoch_or_by_another_node_is_not_heeded() -> None:
    for node, epoch in (("a", 2), ("b", 3)):
        deaf = DeafLeaders()
        for now in (10.0, 10.5, 11.0):
            deaf.say(0, node, epoch, now)
            assert deaf.successors(LED_BY_A, set("abc"), {}, now) == {}


@pytest.mark.parametrize(
    ("began", "reports", "expected"),
    [
        (12.0, working("abc"), {}),
        (12.0, {**working("bc"), **working("a", epoch=4)}, {0: "a"}),
        (41.0, working("abc"), {0: "a"}),
    ],
)
def test_who_heard_too_few_is_not_elected_in_turn_before_a_later_leader_reached_it_or_long_after(
    began: float, reports: dict[str, dict[int, ReplicaProgress]], expected: dict[int, str]
) -> None:
    deaf = DeafLeaders()
    deaf.say(0, "a", 3, 10.0)
    for now in (began, began + 0.5):
        deaf.say(0, "b", 4, now)
        found = deaf.successors(LED_BY_B, set("abc"), reports, now)
    assert found == expected


def test_leadership_returns_to_the_preferred_only_when_the_leaders_epoch_has_come_there() -> None:
    """A node that nobody can call may stay listed, where too few others are."""
    state = cluster([replace(SHARD, leader="b", epoch=4)], ["a", "b", "c"])
    everybody = frozenset("abc")
    assert transfers(state, everybody, working("abc")) == []
    assert [command["candidate"] for command in transfers(state, everybody, working("abc", epoch=4))] == ["a"]


def test_leadership_returns_to_the_preferred_only_when_its_replica_works() -> None:
    state = cluster([replace(SHARD, leader="b")], ["a", "b", "c"])
    everybody = frozenset("abc")
    assert [command["candidate"] for command in transfers(state, everybody)] == ["a"]
    for broken in ({}, {0: report(3, 9, incarnation=8)}):
        assert transfers(state, everybody, {"a": broken}) == []
    assert transfers(state, everybody, {"a": {0: report(3, 9, incarnation=7)}}) != []


def test_a_leader_handed_over_stays_where_it_was_put() -> None:
    placed = place_replicas(["a", "b", "c"], 3, 3)
    state = cluster([shard(id, chosen, chosen[0], 1, listed(chosen)) for id, chosen in placed.items()], list("abc"))
    command = {"op": "transfer_leader", "shard": 0, "candidate": "b", "expected_epoch": 1}
    state, result = apply(state, {**command, "request_id": "1"})
    assert (result["ok"], state.shards[0].leader, state.shards[0].replicas[0]) == (True, "b", "b")
    assert transfers(state, frozenset("abc")) == []


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.lists(st.sampled_from(NAMES), max_size=4))
def test_first_leaders_lead_first(nodes: int, replicas: int, shards: int, leaders: list[str]) -> None:
    names = NAMES[:nodes]
    leaders = [leader for leader in leaders if leader in names]
    placed = place_replicas(names, shards, min(replicas, nodes), leaders)
    for id, chosen in placed.items():
        assert chosen[0] == (leaders or names)[id % len(leaders or names)]
        assert len(set(chosen)) == min(replicas, nodes)

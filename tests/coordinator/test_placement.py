"""Replicas keep to hosts and racks, whatever the layout: when they are founded, drained, moved apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import place_replicas
from lsmq_coordinator.founding import founding_command, register_command
from lsmq_coordinator.overview import overview
from lsmq_coordinator.placement import (
    NodePlace,
    better_places,
    fits_beside,
    host_count,
    objection,
    places_of,
    shared_hosts,
)
from lsmq_coordinator.reassignment import drain_targets, next_steps
from lsmq_coordinator.state import ClusterState, NodeRecord, NodeState
from support.extent import part_in_number

from .test_reassignment import Cluster

#: Processes of each host: what up to four hosts may have; each is tried in up to three racks.
SIZES = [sizes for hosts in range(1, 5) for sizes in combinations_with_replacement((1, 2, 3), hosts)]


def layouts() -> Iterator[dict[str, NodePlace]]:
    for sizes in SIZES:
        for racks in product("abc", repeat=len(sizes)):
            yield layout(sizes, racks)


def layout(sizes: Sequence[int], racks: Sequence[str]) -> dict[str, NodePlace]:
    return {
        f"h{host}p{process}": NodePlace(f"h{host}", racks[host])
        for host, size in enumerate(sizes)
        for process in range(size)
    }


def nodes_of(places: Mapping[str, NodePlace]) -> list[NodeRecord]:
    return [
        NodeRecord(id, f"http://{id}", f"http://{id}", False, host=place.host, rack=place.rack)
        for id, place in places.items()
    ]


def assert_kept(places: Mapping[str, NodePlace], replicas: Sequence[str]) -> None:
    """No host twice, and racks as even as hosts allow."""
    assert not shared_hosts(places, replicas), replicas
    hosts: dict[str, set[str]] = {}
    for place in places.values():
        hosts.setdefault(place.rack, set()).add(place.host)
    held = Counter(dict.fromkeys(hosts, 0))
    held.update(places[node].rack for node in replicas)
    for full, other in product(held, held):
        has_room = held[other] < len(hosts[other])
        assert held[full] - held[other] <= 1 or not has_room, f"{replicas} leave room in {other}: {held}"


@pytest.mark.part(2)
def test_every_layout_is_founded_on_different_hosts_and_even_racks() -> None:
    for places in layouts():
        nodes = sorted(places)
        for replicas, shards in product(range(1, host_count(places) + 1), (1, 5, 12)):
            placed = place_replicas(nodes, shards, replicas, places=places)
            for chosen in placed.values():
                assert len(chosen) == replicas
                assert_kept(places, chosen)
            led = Counter(dict.fromkeys(nodes, 0))
            led.update(chosen[0] for chosen in placed.values())
            assert max(led.values()) - min(led.values()) <= 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_machines_that_are_alike_hold_about_as_much(processes: int) -> None:
    for hosts, replicas in product((3, 4, 6), (1, 2, 3)):
        places = layout([processes] * hosts, "ababab" if hosts == 4 else "abcabc")
        placed = place_replicas(sorted(places), 24, replicas, places=places)
        held = Counter(node for chosen in placed.values() for node in chosen)
        assert max(held.values()) - min(held.values()) <= min(processes, 2), (hosts, replicas, held)


def test_more_replicas_than_hosts_are_refused_by_name() -> None:
    places = layout([2, 2], "ab")
    with pytest.raises(ValueError, match=r"3 replicas do not fit on 2 hosts \(h0, h1\)"):
        place_replicas(sorted(places), 1, 3, places=places)


def founded(places: Mapping[str, NodePlace], shards: int, replicas: int) -> ClusterState:
    nodes = {
        id: {"url": f"http://{id}", "internal_url": f"http://{id}", "host": place.host, "rack": place.rack}
        for id, place in places.items()
    }
    command = founding_command("c", shards, replicas, 1, 1 << 20, nodes)
    state, result = apply(ClusterState(), {**command, "request_id": "found"})
    assert result["ok"], result
    return state


@st.composite
def any_layout(draw: st.DrawFn) -> dict[str, NodePlace]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=6))
    return layout(sizes, draw(st.lists(st.sampled_from("abc"), min_size=len(sizes), max_size=len(sizes))))


def moved(cluster: Cluster) -> None:
    """Everything is where it should be, and nothing is on its way."""
    cluster.settle()
    assert next_steps(cluster.state, frozenset(cluster.alive)) == []


def cluster_of(state: ClusterState) -> Cluster:
    cluster = Cluster()
    cluster.state, cluster.alive = state, set(state.nodes)
    return cluster


@settings(max_examples=part_in_number(60, 3))
@given(any_layout(), st.integers(1, 3), st.integers(1, 6), st.data())
def test_what_is_drained_goes_to_hosts_of_its_own_or_stays(
    places: dict[str, NodePlace], replicas: int, shards: int, data: st.DataObject
) -> None:
    replicas = min(replicas, host_count(places))
    cluster = cluster_of(founded(places, shards, replicas))
    gone = data.draw(st.sets(st.sampled_from(sorted(places)), max_size=len(places) - 1))
    for node in sorted(gone):
        assert cluster.do(op="drain_node", node=node)["ok"]
    moved(cluster)
    left = {id: place for id, place in places.items() if id not in gone}
    for shard in cluster.state.shards.values():
        assert not shared_hosts(places, shard.replicas)
        if host_count(left) >= replicas and not (gone & set(shard.replicas)):
            assert_kept(left, shard.replicas)
        # What stays on a draining node has no host to go to.
        if gone & set(shard.replicas):
            used = {places[node].host for node in shard.replicas}
            assert all(place.host in used for place in left.values())
    assert drain_targets(cluster.state) == {}


@settings(max_examples=part_in_number(60, 3))
@given(any_layout(), st.integers(1, 3), st.integers(1, 6))
def test_replicas_that_are_found_to_share_a_host_or_a_rack_are_moved_apart(
    places: dict[str, NodePlace], replicas: int, shards: int
) -> None:
    replicas = min(replicas, host_count(places))
    cluster = cluster_of(founded({id: NodePlace(id) for id in places}, shards, replicas))
    for node in nodes_of(places):
        command = register_command(node.id, node.url, node.internal_url, "life", node.host, node.rack)
        assert cluster.do(**command)["ok"]
    moved(cluster)
    for shard in cluster.state.shards.values():
        assert_kept(places, shard.replicas)
        assert objection(cluster.state, shard.replicas, cluster.alive) is None


def test_nothing_moves_for_racks_before_every_node_has_one() -> None:
    places = {id: NodePlace(id) for id in ("n0", "n1", "n2", "n3")}
    cluster = cluster_of(founded(places, 4, 2))
    for number, node in enumerate(places):
        assert better_places(cluster.state, cluster.alive) == {}
        rack = "aabb"[number]
        assert cluster.do(**register_command(node, "http://u", "http://i", "life", rack=rack))["ok"]
    assert {place.rack for place in places_of(cluster.state.nodes.values()).values()} == {"a", "b"}
    assert better_places(cluster.state, cluster.alive)


def test_what_fits_beside_others_keeps_to_hosts_and_racks_in_every_layout() -> None:
    for places in layouts():
        replicas = min(3, host_count(places))
        state = founded(places, 4, replicas)
        fits = fits_beside(state, state.nodes)
        for shard in state.shards.values():
            # Whichever of the later ones goes, the rest is as the founding chose it: even.
            others = shard.replicas[:-1]
            fitting = [node for node in places if node not in others and fits(node, others)]
            assert shard.replicas[-1] in fitting
            for node in fitting:
                assert_kept(places, (*others, node))


def test_a_host_that_cannot_be_left_is_told() -> None:
    state = founded({id: NodePlace(id) for id in ("a", "b")}, 1, 2)
    for node in ("a", "b"):
        command = register_command(node, "http://u", "http://i", "life", host="h1")
        state, _ = apply(state, {**command, "request_id": node})
    assert better_places(state, {"a", "b"}) == {}
    seen = overview(state)
    assert "a and b are on one host (h1)" in seen["shards"][0]["misplaced"]
    assert [node["host"] for node in seen["nodes"]] == ["h1", "h1"]
    assert objection(state, ("a", "b"), {"a", "b"}) == seen["shards"][0]["misplaced"]


def test_a_move_that_would_be_undone_is_objected_to() -> None:
    places = layout([1, 1, 1, 1], "aabb")
    state = founded(places, 1, 2)
    objected = objection(state, ("h0p0", "h1p0"), places)
    assert objected is not None and "h0p0 in a, h1p0 in a" in objected
    assert objection(state, ("h0p0", "h3p0"), places) is None
    # With the other rack away there is nothing better.
    assert objection(state, ("h0p0", "h1p0"), {"h0p0", "h1p0"}) is None


def test_who_only_votes_is_founded_without_replicas_and_is_given_none() -> None:
    url = {"url": "http://u", "internal_url": "http://i", "host": "h"}
    command = founding_command("c", 4, 1, 1, 1 << 20, {"p0": url, "p1": url, "control": {**url, "only_votes": True}})
    state, result = apply(ClusterState(), {**command, "request_id": "found"})
    assert result["ok"], result
    state.check()
    assert Counter(shard.leader for shard in state.shards.values()) == {"p0": 2, "p1": 2}
    assert (state.nodes["control"].voter, state.nodes["control"].state) == (True, NodeState.DRAINING)
    assert next_steps(state, frozenset(state.nodes)) == []


def test_labels_are_kept_with_the_state_and_change_no_byte_where_there_are_none() -> None:
    state = founded(layout([2], "a"), 1, 1)
    assert ClusterState.decode(state.encode()) == state
    assert (state.nodes["h0p1"].host, state.nodes["h0p1"].rack) == ("h0", "a")
    plain = founded({id: NodePlace("", "") for id in ("a", "b")}, 1, 1)
    assert set(plain.nodes["a"].to_dict()) == {"url", "internal_url", "voter", "state", "life"}

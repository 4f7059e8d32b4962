"""The commands do to a shard what the simulator's control plane does, under which the protocol was checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator import state as coordinator
from lsmq_coordinator.commands import apply
from lsmq_lab.simulation.control import ControlPlane
from lsmq_lab.simulation.world import Options, World
from lsmq_node import replication
from lsmq_node.cluster.hosted import view_of
from lsmq_node.replication import Member

from .test_state import founded

NODES = ["n0", "n1", "n2", "n3"]
node_ids = st.sampled_from(NODES)
members = st.tuples(node_ids, st.integers(0, 2))
commands = st.one_of(
    st.tuples(
        st.just("set_in_sync"), st.lists(members, min_size=1, max_size=4), st.integers(-1, 0), st.integers(-1, 0)
    ),
    st.tuples(st.just("leave_in_sync"), members, st.integers(-1, 0)),
    st.tuples(st.just("set_replicas"), node_ids),
    st.tuples(st.just("elect"), node_ids, st.sets(node_ids), st.integers(0, 9)),
)


def test_an_unclaimed_member_is_the_same_on_both_sides() -> None:
    assert coordinator.UNCLAIMED == replication.UNCLAIMED
    assert coordinator.Member._fields == Member._fields


@settings(max_examples=400, deadline=None)
@given(st.lists(commands, max_size=30), st.integers(1, 3))
def test_commands_do_what_the_simulated_control_plane_does(sequence: list[Any], min_in_sync: int) -> None:
    state = founded(nodes=NODES, shards=1, replicas=3, min_in_sync=min_in_sync)
    control = ControlPlane(World(0), Options(), frozenset(state.shards[0].replicas), min_in_sync)
    control.view = view_of(state, state.shards[0])

    def run(**command: Any) -> None:
        nonlocal state
        state, _ = apply(state, {**command, "shard": 0, "request_id": f"r{state.version}-{len(state.results)}"})

    for command in sequence:
        view = control.view
        # Versions rise with every change in both, but the simulator takes a set that stays the same for one.
        version = {control.view.version + by: state.shards[0].version + by for by in (-1, 0)}
        match command:
            case "set_in_sync", listed, epoch_off, version_off:
                epoch, expected = view.epoch + epoch_off, view.version + version_off
                given_members = frozenset(Member(*member) for member in listed)
                control.set_in_sync(str(view.leader), epoch, expected, given_members)
                in_sync = [list(member) for member in given_members]
                run(op="set_in_sync", epoch=epoch, expected_version=version[expected], in_sync=in_sync)
            case "leave_in_sync", (node, incarnation), version_off:
                expected = view.version + version_off
                control.leave_in_sync(Member(node, incarnation), expected)
                run(op="leave_in_sync", node=node, incarnation=incarnation, expected_version=version[expected])
            case "set_replicas", node:
                replicas = view.replicas ^ {node}
                control.set_replicas(replicas)
                run(op="set_replicas", expected_version=state.shards[0].version, replicas=sorted(replicas))
            case "elect", node, suspects, above:
                listed_as = view.listed(node)
                started = view.start_of(node) is not None
                if listed_as is not None and node not in suspects and started:
                    suspected = frozenset(member for member in view.in_sync if member.node in suspects)
                    control.elect(Member(node, listed_as), above, suspected)
                fresh = {"expected_epoch": view.epoch, "min_epoch": above + 1, "suspects": sorted(suspects)}
                run(op="elect", candidate=node, **fresh)
        state.check()
        ours, theirs = view_of(state, state.shards[0]), control.view
        assert replace(ours, version=theirs.version) == theirs, command

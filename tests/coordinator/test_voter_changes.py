"""How one node takes another's vote: what is refused, and that every way there is safe and comes to its end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq_coordinator.commands import apply
from lsmq_coordinator.overview import overview
from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.state import ClusterState
from lsmq_coordinator.voter_changes import CANCEL, REPLACE, asked, next_step

from .test_state import founded

NODES = tuple(f"n{number}" for number in range(7))
ADDRESSES = {node: f"{node}:7602" for node in NODES}


def of(number: int, *voters: str, **more: Any) -> Electorate:
    return Electorate(number, {node: ADDRESSES[node] for node in voters}, **more)


STATE: ClusterState = founded(nodes=list(NODES))


def ask(now: Electorate, old: str, new: str, **facts: Any) -> Electorate:
    known = {"alive": set(NODES), "at_hand": set(now.voters), "addresses": ADDRESSES, **facts}
    return asked({"op": REPLACE, "node": old, "by": new}, now, STATE, **known)


def reason(now: Electorate, old: str, new: str, **facts: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        ask(now, old, new, **facts)
    return str(refused.value.details["reason"])


THREE = of(0, "n0", "n1", "n2")


def test_what_cannot_be_is_refused() -> None:
    assert reason(THREE, "n5", "n3") == "no_voter"
    assert reason(THREE, "n0", "n1") == "votes_already"
    assert reason(THREE, "n0", "stranger") == "unknown_node"
    assert reason(THREE, "n0", "n3", alive=set(NODES) - {"n3"}) == "node_away"
    assert reason(THREE, "n0", "n3", addresses={}) == "node_unable"
    assert reason(THREE, "n0", "n3", addresses={"n3": ADDRESSES["n1"]}) == "address_taken"
    assert reason(THREE, "n0", "n3", at_hand={"n0"}) == "no_majority"
    under_way = ask(THREE, "n0", "n3")
    assert reason(under_way, "n1", "n4") == "change_under_way"
    removed, _ = apply(STATE, {"op": "remove_node", "request_id": "1", "node": "n6"})
    if removed.nodes["n6"].state == "removed":
        with pytest.raises(InvalidRequest, match="there is no node"):
            known = {"alive": set(NODES), "at_hand": set(THREE.voters), "addresses": ADDRESSES}
            asked({"op": REPLACE, "node": "n0", "by": "n6"}, THREE, removed, **known)  # type: ignore[arg-type]


def test_the_same_again_is_the_same_change_and_what_was_done_is_refused_as_that() -> None:
    now, everybody = ask(THREE, "n0", "n3"), set(NODES)
    assert ask(now, "n0", "n3") == now
    assert reason(now, "n0", "n4") == "change_under_way"
    both = next_step(now, everybody, everybody)
    assert both is not None and ask(both, "n0", "n3") == both
    done = next_step(both, everybody, everybody)
    assert done is not None and reason(done, "n0", "n3") == "replaced"
    assert reason(done, "stranger", "n3") == reason(done, "n4", "n0") == "no_voter"


def test_a_newcomer_learns_votes_and_then_the_old_one_goes() -> None:
    now = ask(THREE, "n0", "n3")
    everybody = set(NODES)
    assert (now.number, set(now.voters), set(now.learners)) == (1, {"n0", "n1", "n2"}, {"n3"})
    assert next_step(now, everybody, everybody - {"n3"}) is None, "it is not filled yet"
    both = next_step(now, everybody, everybody)
    assert both is not None and set(both.voters) == {"n0", "n1", "n2", "n3"} and not both.learners
    done = next_step(both, everybody, everybody)
    assert done == of(3, "n1", "n2", "n3")
    assert next_step(done, everybody, everybody) is None


def test_an_old_one_that_is_not_heard_goes_first_so_that_never_more_are_needed_than_before() -> None:
    now = ask(THREE, "n0", "n3", at_hand={"n1", "n2"})
    left = {"n1", "n2"}
    two = next_step(now, left, {"n1", "n2", "n3"})
    assert two is not None and set(two.voters) == left and set(two.learners) == {"n3"}
    done = next_step(two, left, {"n1", "n2", "n3"})
    assert done == of(3, "n1", "n2", "n3")


def test_a_change_is_called_off_while_the_newcomer_learns_and_not_later() -> None:
    def cancel(now: Electorate, old: str) -> Electorate:
        known: dict[str, Any] = {"alive": set(NODES), "at_hand": set(now.voters), "addresses": ADDRESSES}
        return asked({"op": CANCEL, "node": old}, now, STATE, **known)

    now = ask(THREE, "n0", "n3")
    assert cancel(now, "n0") == of(2, "n0", "n1", "n2")
    for membership, old in ((now, "n1"), (THREE, "n0")):
        with pytest.raises(InvalidRequest, match="nobody is taking the vote"):
            cancel(membership, old)
    both = next_step(now, set(NODES), set(NODES))
    assert both is not None
    with pytest.raises(InvalidRequest, match="votes already"):
        cancel(both, "n0")


def test_a_newcomer_that_is_gone_too_is_replaced_by_another_one() -> None:
    now = ask(THREE, "n0", "n3", at_hand={"n1", "n2"})
    two = next_step(now, {"n1", "n2"}, {"n1", "n2", "n3"})
    assert two is not None and len(two.voters) == 2
    with pytest.raises(InvalidRequest, match="lsmq voter replace n3 ANOTHER"):
        asked({"op": CANCEL, "node": "n0"}, two, STATE, alive=set(), at_hand=set(), addresses={})
    other = ask(two, "n3", "n4")
    assert (set(other.voters), set(other.learners), other.old, other.new) == ({"n1", "n2"}, {"n4"}, "n0", "n4")
    assert next_step(other, {"n1", "n2"}, {"n1", "n2", "n4"}) == of(4, "n1", "n2", "n4")


@given(
    st.sampled_from([1, 3, 5]),
    st.data(),
)
@pytest.mark.part(3)
def test_whoever_comes_and_goes_each_step_is_of_one_voter_and_the_end_is_what_was_asked_for(
    voters: int, data: st.DataObject
) -> None:
    now = of(0, *NODES[:voters])
    old, new = data.draw(st.sampled_from(NODES[:voters])), data.draw(st.sampled_from(NODES[voters:]))
    wanted = (set(now.voters) - {old}) | {new}
    now, former = ask(now, old, new), now
    for turn in range(40):
        assert now.follows(former) and len(now.voters) in {voters - 1, voters, voters + 1} - {0}
        at_hand = set(NODES) if turn > 30 else data.draw(st.sets(st.sampled_from(NODES)))
        step = next_step(now, at_hand, at_hand)
        if step is not None:
            former, now = now, step
    assert set(now.voters) == wanted and now.old is None and not now.learners


def test_the_agreed_state_says_who_votes_and_how_far_a_change_is() -> None:
    now = ask(THREE, "n0", "n3")
    state, result = apply(STATE, {"op": "set_voters", "request_id": "v1", "membership": now.to_dict()})
    assert result["ok"] and state.membership == now
    assert overview(state)["voter_change"] == {"old": "n0", "new": "n3", "step": "filling"}
    assert ClusterState.decode(state.encode()) == state
    assert STATE.changed(state.encode_changes(STATE)).membership == now
    for turn in range(2):
        step = next_step(now, set(NODES), set(NODES))
        assert step is not None
        now = step
        state, _ = apply(state, {"op": "set_voters", "request_id": f"w{turn}", "membership": now.to_dict()})
    assert {id for id, node in state.nodes.items() if node.voter} == {"n1", "n2", "n3"}
    assert overview(state)["voter_change"] is None


def test_state_without_a_change_of_voters_is_the_bytes_that_releases_before_know() -> None:
    assert b"membership" not in STATE.encode()

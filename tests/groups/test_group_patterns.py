"""All members of a topic subscribe to it by one pattern, or by none, and what that is outlives them."""

from __future__ import annotations

import msgpack
import pytest

from lsmq.errors import GroupPatternMismatch
from lsmq_node.groups.group import Beat, CoordinatedGroup
from lsmq_node.groups.plan import GenerationPlan

TOPICS = {"t": (1, 8), "u": (2, 8)}


def group(plan: GenerationPlan | None = None) -> CoordinatedGroup:
    return CoordinatedGroup("g", plan or GenerationPlan(), 0, 0.0)


def hear(group: CoordinatedGroup, member: str, *topics: str, version: int = 0, **fields: str | int | None) -> None:
    group.hear(Beat(member, topics, version=version, **fields), 0.0)  # type: ignore[arg-type]


def planned(group: CoordinatedGroup) -> GenerationPlan:
    """The next plan, as it is read again."""
    plan = group.stage(TOPICS.get)
    group.publish()
    found = GenerationPlan.decode(plan.encode(), "group/g")
    assert (found.patterns, found.members) == (plan.patterns, plan.members)
    return found


def test_members_of_a_topic_have_one_pattern_and_those_of_another_theirs() -> None:
    shared = group()
    hear(shared, "m1", "t", pattern="a.*")
    for topics, pattern in ((("t",), None), (("u", "t"), "b.*")):
        with pytest.raises(GroupPatternMismatch, match=r"subscribe to the pattern 'a\.\*' of topic 't'") as refused:
            hear(shared, "m2", *topics, pattern=pattern)
        assert refused.value.details == {"group": "g", "topic": "t", "pattern": "a.*"}
    hear(shared, "m2", "u")
    hear(shared, "m3", "t", pattern="a.*")
    assert planned(shared).patterns == {"t": "a.*"} and shared.members.keys() == {"m1", "m2", "m3"}


def test_a_member_keeps_its_pattern_of_a_topic() -> None:
    """Else it would have queues that it never took over."""
    alone = group()
    hear(alone, "m1", "t", pattern="a.*")
    planned(alone)
    version = alone.answer("m1", {}).version
    with pytest.raises(GroupPatternMismatch):
        hear(alone, "m1", "t", version=version, pattern="b.*")
    hear(alone, "m1", "u", version=version, pattern="b.*")
    assert planned(alone).patterns == {"t": "a.*", "u": "b.*"}, "of what nobody subscribes to, the last one is known"
    version = alone.answer("m1", {}).version
    hear(alone, "m1", "t", "u", version=version, pattern="b.*")
    assert planned(alone).patterns == {"t": "b.*", "u": "b.*"}


def test_the_next_process_of_a_static_id_may_have_another_pattern_where_nobody_else_has_one() -> None:
    alone = group()
    hear(alone, "m1", "t", static_id="one", pattern="a.*")
    before = planned(alone)
    hear(alone, "m2", "t", static_id="one", pattern="a.*")
    assert planned(alone).generation == before.generation
    hear(alone, "m3", "t", static_id="one", pattern="b.*")
    after = planned(alone)
    assert after.patterns == {"t": "b.*"} and after.generation > before.generation, "all is taken over anew"
    assert list(after.topics["t"].shares) == ["m3"]
    hear(alone, "m4", "t", pattern="b.*")
    with pytest.raises(GroupPatternMismatch):
        hear(alone, "m5", "t", static_id="one", pattern="a.*")
    assert alone.members.keys() == {"m3", "m4"}


def test_who_coordinates_next_knows_the_pattern_of_those_that_were_members() -> None:
    first = group()
    hear(first, "m1", "t", pattern="a.*")
    second = group(planned(first))
    with pytest.raises(GroupPatternMismatch):
        hear(second, "m2", "t")
    second.leave("m1")
    third = group(planned(second))
    assert not third.members and third.plan.patterns == {"t": "a.*"}
    hear(third, "m2", "t")
    assert planned(third).patterns == {}


def test_what_is_known_of_a_topic_goes_with_it() -> None:
    first = group()
    hear(first, "m1", "t", "u", pattern="a.*")
    planned(first)
    first.leave("m1")
    plan = first.stage({"u": (2, 8)}.get)
    assert plan.patterns == {"u": "a.*"}


def test_a_group_without_patterns_is_stored_as_ever() -> None:
    shared = group()
    hear(shared, "m1", "t")
    assert msgpack.unpackb(shared.stage(TOPICS.get).encode()) == {
        "version": 1,
        "mode": "clustered",
        "generation": 1,
        "names": ["t"],
        "topics": [[0, 1, 8]],
        "members": [["m1", None, 10_000, "", [0], [[0, [0, 8]]], []]],
    }

"""A static id's next process gets the place of the one before."""

from __future__ import annotations

from lsmq_node.groups.group import Beat, CoordinatedGroup
from lsmq_node.groups.plan import GenerationPlan
from lsmq_node.groups.ranges import RangePairs


def shares(group: CoordinatedGroup) -> dict[str, RangePairs]:
    group.stage({"t": (1, 6)}.get)
    group.publish()
    return dict(group.plan.topics["t"].shares)


def test_processes_that_follow_one_another_before_a_plan_is_made_keep_the_place_of_the_first() -> None:
    group = CoordinatedGroup("g", GenerationPlan(), 0, 0.0)

    def start(member: str, static_id: str) -> None:
        group.hear(Beat(member, ("t",), static_id=static_id), 0.0)

    start("m1", "one")
    start("m2", "two")
    first = shares(group)
    for member, static_id in (("m3", "one"), ("m4", "two"), ("m6", "one"), ("m5", "two")):
        start(member, static_id)
    assert shares(group) == {"m6": first["m1"], "m5": first["m2"]}

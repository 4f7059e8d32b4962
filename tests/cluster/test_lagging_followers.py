"""Followers that have been out of sync for long, decision by decision."""

from __future__ import annotations

from lsmq_coordinator.lives import InSyncMember
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.state import Shard
from lsmq_node.cluster.lagging_followers import PATIENCE_S, LaggingFollowers


def shard(number: int, in_sync: str, adding: tuple[str, ...] = ()) -> Shard:
    members = tuple(InSyncMember(f"n{each}", 1) for each in in_sync)
    return Shard(number, ("n1", "n2", "n3", *adding), "n1", 1, members, 1, adding=adding)


def test_a_follower_is_named_once_it_has_been_out_of_sync_for_a_minute() -> None:
    parts = Parts()
    followers = LaggingFollowers(parts.part("followers", essential=False))

    def said(now: float, *led: Shard) -> list[str]:
        followers.look(led, now)
        assert not parts.problems(essential=True)
        return parts.problems(essential=False)

    assert said(0, shard(0, "123"), shard(1, "12"), shard(2, "123")) == []
    assert said(30, shard(0, "12"), shard(1, "12"), shard(2, "123", ("n4",))) == []
    assert said(60, shard(0, "12"), shard(1, "12"), shard(2, "123", ("n4",))) == [
        "followers: out of sync for more than 60 s: n3 in shard 1"
    ]
    assert said(95, shard(0, "12"), shard(1, "12"), shard(2, "13", ("n4",))) == [
        "followers: out of sync for more than 60 s: n3 in shard 0, 1"
    ]
    assert said(154, shard(0, "123"), shard(2, "13", ("n4",))) == [], "one is back, one has another leader"
    assert said(155, shard(0, "12"), shard(1, "12"), shard(2, "13", ("n4",))) == [
        "followers: out of sync for more than 60 s: n2 in shard 2"
    ], "for the others it begins anew"


def test_of_many_shards_some_are_named() -> None:
    parts = Parts()
    followers = LaggingFollowers(parts.part("followers", essential=False))
    for now in (0.0, PATIENCE_S):
        followers.look((shard(number, "12") for number in range(1_000)), now)
    (said,) = parts.problems(essential=False)
    assert said.endswith("n3 in shard 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more")

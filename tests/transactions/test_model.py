"""Coordinator and shards in a world where everything goes wrong; see :mod:`.world`."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.transactions import TransactionRecord, TransactionState, book
from support.extent import part_in_number

from .world import GROUP, SHARDS, Coordinator, Target, World


@settings(max_examples=part_in_number(60, 3))
@given(st.integers(0, 2**32), st.integers(10, 250))
def test_what_is_committed_is_everywhere_once_and_nothing_else_is_anywhere(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.check_end()


@patch.object(book, "_CHECKED_BYTES", 1)  # What is numbered anew takes a change for each.
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_a_coordinator_that_lost_what_it_had_decided_loses_nothing_that_comes_after(seed: int) -> None:
    """Asynchronous flush and a power cut: its log goes back, those of other shards do not."""
    world = World(seed)
    world.may_lose = True
    world.coordinator.put(world.coordinator.book.join((GROUP, "m0"), 5_000, "", checks=True, now=0))
    kept = None
    for _ in range(60):
        world.step()
        if kept is None and world.rng.random() < 0.1:
            kept = world.log.copy()
    world.heal()
    world.log = kept or world.log
    world.bag.clear()
    world.coordinator = Coordinator(world)
    world.heal()
    before = {shard: len(world.visible(shard)) for shard in SHARDS}
    world.coordinator.put(world.coordinator.book.join((GROUP, "new"), 5_000, "", checks=True, now=0))
    for number in (1, 2, 3):
        id = f"new-{number}"
        transaction = TransactionRecord(GROUP, id, "new", "", "", "", 0, 1_000, 1_000, 2)
        world.coordinator.put(world.coordinator.book.begin(transaction, number, world.part(id, 0)))
        world.coordinator.put(world.coordinator.book.decide((GROUP, id), TransactionState.COMMITTED, "new", 0))
    wanted = dict.fromkeys(SHARDS, 0)
    for number in (1, 2, 3):
        for shard, count in world.coordinator.book.transactions[GROUP, f"new-{number}"].batches.items():
            wanted[shard] += count
    world.heal()
    for shard in SHARDS:
        fresh = [body for body in world.visible(shard)[before[shard] :] if body.startswith(b"new-")]
        assert len(fresh) == len(set(fresh)) == wanted[shard]


def test_a_torn_delivery_is_known_to_the_next_leader() -> None:
    """A crash can leave batches without the document that says so."""
    world = World(1)
    coordinator = world.coordinator
    coordinator.put(coordinator.book.join((GROUP, "m0"), 5_000, "", checks=True, now=0))
    world.rng.seed(3)
    transaction = TransactionRecord(GROUP, "m0-1", "m0", "", "", "", 0, 1_000, 1_000, 2)
    part = world.part("m0-1", 0)
    coordinator.put(coordinator.book.begin(transaction, 1, part))
    coordinator.put(coordinator.book.decide((GROUP, "m0-1"), TransactionState.COMMITTED, "m0", 0))
    shard = next(iter(part.batches))
    coordinator.send(shard)
    target = world.targets[shard]
    commit, target.log.commit = target.log.commit, lambda: None  # type: ignore[method-assign,misc,assignment]
    world.bag[0]()
    target.log.commit = commit  # type: ignore[method-assign]
    target.log.commit(1)
    target.log.line.clear()
    assert len(target.log.records) == 1 and not target.log.documents
    world.targets[shard] = Target(shard, target.log)
    assert target.log.documents == {"transaction-lane/0": b"1"}
    world.heal()
    assert len(target.log.records) == 1

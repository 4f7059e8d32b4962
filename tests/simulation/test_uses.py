"""What clients do in a world: of each use, that its checks find what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lsmq._bundles import Bundles
from lsmq._requests import Requests
from lsmq_lab.world.runs import in_child, prepare, uses_of
from lsmq_lab.world.uses import USES
from lsmq_node.api import find
from lsmq_node.delayed import shard_delayed
from lsmq_node.schedules.records import Schedule
from lsmq_node.schedules.shard_schedules import ShardSchedules
from lsmq_node.storage import ShardStore
from lsmq_node.storage.dedupe import DedupeIds
from lsmq_node.storage.key_cleaner import KeyCleaner
from lsmq_node.storage.key_search import Position
from lsmq_node.storage.lapses import Lapses
from lsmq_node.storage.queries import Queries
from lsmq_node.storage.queue_bytes import QueueBytes
from lsmq_node.storage.retention import Retention
from lsmq_node.storage.sequences import Sequences
from lsmq_node.storage.shard_time import ShardTime
from lsmq_node.storage.sieve import Picked
from lsmq_node.storage.state import TopicState
from lsmq_node.storage.topic_names import TopicNames
from lsmq_node.workqueue.ledger import NEVER, WorkLedger
from lsmq_node.workqueue.open_messages import OpenMessages
from lsmq_node.workqueue.tasks import OpenMessage
from lsmq_node.workqueue.turns import TenantTurns
from lsmq_node.workqueue.waiting_queues import WaitingQueues

Patch = pytest.MonkeyPatch
_SEEDS = 20


def superseded_is_the_one_behind(patch: Patch) -> None:
    deletes = KeyCleaner._delete
    patch.setattr(KeyCleaner, "_delete", lambda self, topic, queues, offsets: deletes(self, topic, queues, offsets + 1))


def ids_are_forgotten(patch: Patch) -> None:
    patch.setattr(DedupeIds, "find", lambda self, ids, since_ms: np.full(len(ids.high), -1))


def due_too_early(patch: Patch) -> None:
    patch.setattr(shard_delayed, "_AHEAD_MS", 400)
    patch.setattr(shard_delayed, "_split", lambda records, upto_ms: (records, None))


def deleted_queues_stay(patch: Patch) -> None:
    """Whoever asks is told that they are gone."""
    patch.setattr(TopicNames, "delete", lambda self, names: (None, list(names)))


def everything_is_picked(patch: Patch) -> None:
    patch.setattr(Picked, "may_pass", lambda self, columns, count: np.ones(count, bool))
    patch.setattr(Picked, "passing", lambda self, records: None)


def trims_leave_a_message(patch: Patch) -> None:
    trim = ShardStore.trim

    def trims(self: ShardStore, topic_id: int, queues: Any, offsets: Any, *why: Any) -> Any:
        return trim(self, topic_id, queues, np.maximum(np.asarray(offsets) - 1, 0), *why)

    patch.setattr(ShardStore, "trim", trims)


def the_first_time_comes_twice(patch: Patch) -> None:
    after = ShardSchedules._after

    def again(self: ShardSchedules, schedule: Schedule, now_ms: int) -> Schedule:
        found = after(self, schedule, now_ms)
        return replace(found, next_ms=schedule.next_ms) if found.count == 1 else found

    patch.setattr(ShardSchedules, "_after", again)


def nothing_expires(patch: Patch) -> None:
    patch.setattr(ShardTime, "expired", lambda self, stored_ms, expires_ms: np.zeros(len(stored_ms), bool))


def priorities_are_one(patch: Patch) -> None:
    lane = TenantTurns._lane
    patch.setattr(TenantTurns, "_lane", lambda self, level, tenant: lane(self, 0, tenant))


def queues_hold_twice_their_bytes(patch: Patch) -> None:
    use = QueueBytes.__init__
    patch.setattr(QueueBytes, "__init__", lambda self, limit: use(self, 2 * limit))


def what_a_queue_had_counts_for_nothing(patch: Patch) -> None:
    """Of messages that came under another leader."""
    patch.setattr(QueueBytes, "read", lambda self, item, queries, stop: None)


def what_comes_during_a_look_is_forgotten(patch: Patch) -> None:
    found = WaitingQueues.found

    def forgets(self: WaitingQueues, queues: Any) -> None:
        self.compare()
        found(self, queues)

    patch.setattr(WaitingQueues, "found", forgets)


def answers_of_a_bundle_are_exchanged(patch: Patch) -> None:
    ask = Bundles._ask

    async def exchanged(self: Bundles, *given: Any) -> list[Any]:
        return (await ask(self, *given))[::-1]

    patch.setattr(Bundles, "_ask", exchanged)


def the_fastest_group_counts(patch: Patch) -> None:
    def floors(self: Retention, item: TopicState, wanted: Any) -> Any:
        offsets, topic_id, count = self._state.offsets, item.topic.id, item.end - item.first
        groups = [offsets.get(group, topic_id) for group in offsets.groups_of(topic_id)]
        found = np.max([np.zeros(count, int), *(each.first(count) - 1 for each in groups if each)], axis=0)
        return found, np.ones(count, np.bool_)

    patch.setattr(Retention, "_consumed_floors", floors)


def one_delivery_less_is_enough(patch: Patch) -> None:
    rest = WorkLedger._rest

    def rests(self: WorkLedger, task: OpenMessage, now: int) -> None:
        if task.count == self.settings.max_deliveries - 1:
            task.at_ms = NEVER
        rest(self, task, now)

    patch.setattr(WorkLedger, "_rest", rests)


def idle_queues_are_forgotten(patch: Patch) -> None:
    """With what they hold."""
    forget, look = TopicNames._forget, Queries.are_empty

    def are_empty(self: Queries, topic_id: int, queues: Any) -> Any:
        empty, ends = look(self, topic_id, queues)
        return np.ones_like(empty), ends

    patch.setattr(Queries, "are_empty", are_empty)
    patch.setattr(TopicNames, "_forget", lambda self, numbers, round_, **how: forget(self, numbers, round_))


def what_makes_room_just_goes(patch: Patch) -> None:
    patch.setattr(Lapses, "drop", lambda self, topic_id, queues, offsets: False)


def any_number_is_in_flight(patch: Patch) -> None:
    patch.setattr(OpenMessages, "room_of", lambda self, tenant: 1_000)


def a_page_ends_before_its_last_millisecond(patch: Patch) -> None:
    cursor = find._cursor
    patch.setattr(find, "_cursor", lambda place: cursor(Position(place.stored_ms - 1, 1 << 62, 1 << 62)))


def whoever_waits_is_given_the_answer(patch: Patch) -> None:
    def take(self: Requests, message: Any) -> None:
        waiting = next((reply for reply in self._waiting.values() if not reply.done()), None)
        if waiting is not None:
            waiting.set_result(message)

    patch.setattr(Requests, "_take", take)


def half_an_age_is_enough(patch: Patch) -> None:
    expired_before = ShardTime.expired_before
    patch.setattr(ShardTime, "expired_before", lambda self, age_ms: expired_before(self, age_ms // 2))


def positions_are_forgotten(patch: Patch) -> None:
    patch.setattr(Sequences, "position", lambda self, producer_id: -1)


BROKEN: dict[str, Callable[[Patch], None]] = {
    "aged": half_an_age_is_enough,
    "awaited": what_comes_during_a_look_is_forgotten,
    "bounded": queues_hold_twice_their_bytes,
    "compacted": superseded_is_the_one_behind,
    "consumed": the_fastest_group_counts,
    "dead": one_delivery_less_is_enough,
    "deduplicated": ids_are_forgotten,
    "delayed": due_too_early,
    "fair": any_number_is_in_flight,
    "found": a_page_ends_before_its_last_millisecond,
    "forgotten": idle_queues_are_forgotten,
    "moved": what_makes_room_just_goes,
    "named": deleted_queues_stay,
    "pushed": everything_is_picked,
    "requested": whoever_waits_is_given_the_answer,
    "ring": trims_leave_a_message,
    "scheduled": the_first_time_comes_twice,
    "short-lived": nothing_expires,
    "taken": positions_are_forgotten,
    "together": answers_of_a_bundle_are_exchanged,
    "urgent": priorities_are_one,
}


def test_each_use_has_a_bug_and_is_played_by_some_seed() -> None:
    assert BROKEN.keys() == USES.keys()
    assert {use for seed in range(60) for use in uses_of(seed)} >= USES.keys()


@pytest.mark.slow
@pytest.mark.part(3)
@pytest.mark.parametrize("use", USES)
def test_what_is_broken_on_purpose_is_found_in_a_calm(use: str) -> None:
    prepare()
    found: list[str] = []
    for seed in range(_SEEDS):  # Not each one comes to a moment at which it matters.
        with pytest.MonkeyPatch.context() as patch:
            found += in_child(seed, (), lambda: BROKEN[use](patch), (use,)).problems
        if any(problem.startswith(f"{use}: ") for problem in found):
            return
    raise AssertionError(f"{use} is broken, and in {_SEEDS} runs nothing but {found} was found")

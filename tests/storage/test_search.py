"""Looking through a topic from a time on: whatever is passed over at once, what is found is the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lsmq.filter_expressions import Expression
from lsmq.filters import MessageFilter
from lsmq_node.storage import SearchQuery
from lsmq_node.storage import search as room
from lsmq_node.storage.sieve import Picked
from support.clock import SimClock

from .harness import flush, open_stepped, put, tiny

QUEUES = 40


@pytest.mark.parametrize("worth", [1, 3, 10_000])
def test_what_a_time_picks_is_found_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth: int) -> None:
    monkeypatch.setattr(room, "_WORTH_A_JUMP", worth)
    monkeypatch.setattr(room, "SIEVED_RECORDS", 3 * worth)
    clock, chance = SimClock(), random.Random(worth)
    with open_stepped(tmp_path / "s", tiny(), clock=clock) as store:
        topic, stored = store.create_topic("t", QUEUES), dict[tuple[int, int], int]()
        for round_ in range(60):
            clock.time_ms += 1_000
            chosen = sorted(chance.sample(range(QUEUES), 8))
            offsets = put(store, topic.id, *((queue, b"x") for queue in chosen))
            stored |= dict.fromkeys(zip(chosen, offsets, strict=True), round_)
            if round_ == 30:
                flush(store)
        began = clock.now_ms()
        for back in (0, 1, 10, 45, 100):
            from_ms = began - 1_000 * back
            picked = Picked(MessageFilter(expression=Expression(f"stored_ms >= {from_ms}")), exact=True)
            found, begin = list[tuple[int, int]](), (0, 0)
            while True:
                answer = store.search(SearchQuery(topic.id, picked, 7, 1 << 20, begin, from_ms=from_ms))
                for queue, (first, end) in answer.spans.items():
                    found += [(queue, at) for at in range(first, end) if stored[queue, at] >= 59 - back]
                if answer.reached is None:
                    break
                assert answer.reached > begin
                begin = answer.reached
            assert found == sorted(place for place, round_ in stored.items() if round_ >= 59 - back)

"""Queue ranges, routes, partitioners and pauses: the pure parts of the client."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq import InvalidRequest, UnknownQueue
from lsmq._queue_positions import QueuePositions
from lsmq._retries import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Backoff
from lsmq._wire_values import chunks_of_ranges
from lsmq.client import Client
from lsmq.partitioners import among, by_key, round_robin
from lsmq.topics import Topic, format_ranges, parse_ranges


def topic(queues: int, *bounds: int) -> Topic:
    """A topic whose routes end at ``bounds``, each a shard of its own with its own leader."""
    edges = [0, *bounds, queues]
    routes = [
        {"first": first, "end": end, "shard": shard, "leader": f"http://node{shard}:1/", "epoch": 1}
        for shard, (first, end) in enumerate(itertools.pairwise(edges))
    ]
    return Topic.from_dict(
        {"name": "t", "id": 1, "queues": queues, "options": {}, "created_ms": 0, "routes": routes[::-1]}
    )


def test_every_queue_has_the_route_that_covers_it() -> None:
    found = topic(100, 10, 60)
    assert [found.route(queue).shard for queue in (0, 9, 10, 59, 60, 99)] == [0, 0, 1, 1, 2, 2]
    assert found.leader_of_shard(1) == "http://node1:1"
    for queue in (-1, 100):
        with pytest.raises(UnknownQueue, match="queues 0 to 99"):
            found.route(queue)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_are_read_as_they_were_written(queues: set[int]) -> None:
    text = ",".join(format_ranges(sorted(queues)))
    assert [queue for part in parse_ranges(text) for queue in part] == sorted(queues)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "5-3", "1,,2", "1-2-3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        parse_ranges(text)


def test_long_range_lists_are_sent_in_portions() -> None:
    queues = list(range(0, 20_000, 2))
    chunks = chunks_of_ranges(queues)
    assert max(map(len, chunks)) <= 4_000
    assert [queue for chunk in chunks for part in parse_ranges(chunk) for queue in part] == queues
    assert chunks_of_ranges(range(50)) == ["0-49"]


def test_round_robin_takes_all_queues_in_turn() -> None:
    choose = round_robin(2)
    assert [choose("same", b"x", 4) for _ in range(5)] == [2, 3, 0, 1, 2]
    anywhere = round_robin()
    assert {anywhere(None, b"x", 4) for _ in range(4)} == {0, 1, 2, 3}


def test_by_key_and_among_choose_as_they_say() -> None:
    assert by_key(None, b"x", 7) == 0
    assert by_key("a", b"x", 7) == by_key("a", b"y", 7)
    choose = among([5, 9])
    assert [choose(None, b"x", 10) for _ in range(3)] == [5, 9, 5]


def test_pauses_grow_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(random.Random(1))
    pauses_ms = [backoff.next_s() * 1000 for _ in range(12)]
    assert FIRST_PAUSE_MS / 2 <= pauses_ms[0] <= FIRST_PAUSE_MS
    assert LONGEST_PAUSE_MS / 2 <= pauses_ms[-1] <= LONGEST_PAUSE_MS
    backoff.reset()
    assert backoff.next_s() * 1000 <= FIRST_PAUSE_MS


@pytest.mark.parametrize("queues", [range(10, 20), [12, 3, 3, 7]])
def test_positions_know_their_queues_and_nothing_else(queues: range | list[int]) -> None:
    positions = QueuePositions(queues, track_changes=True)
    assert list(positions) == sorted(set(queues))
    positions.hand_out(12, 5)
    positions.move(12, 3)
    assert positions[12] == 3 and positions.changed == {12: 3}
    assert 4 not in positions
    with pytest.raises(UnknownQueue):
        positions.move(4, 0)


def test_positions_are_split_by_the_leader_of_each_queue() -> None:
    positions = QueuePositions([1, 5, 30, 31, 99], track_changes=False)
    assert positions.slots_by_leader(topic(100, 10, 60)) == {
        "http://node0:1": [range(2)],
        "http://node1:1": [range(2, 4)],
        "http://node2:1": [range(4, 5)],
    }
    assert positions.queue_bytes([range(1, 3)]) == bytes([5, 0, 0, 0, 30, 0, 0, 0])


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:port"])
def test_what_is_no_url_of_a_node_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="http://"):
        Client(url)


def test_urls_come_from_the_environment_and_may_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSMQ_URL", "http://a:1/, b:2")
    assert Client().urls == ["http://a:1", "http://b:2"]
    monkeypatch.delenv("LSMQ_URL")
    assert Client().urls == ["http://127.0.0.1:7600"]

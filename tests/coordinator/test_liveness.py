"""The failure detector: who is dead when, by an invented clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.liveness import FailureDetector


def begun() -> FailureDetector:
    detector = FailureDetector()
    detector.begin(["a", "b"], 0.0)
    return detector


def run(detector: FailureDetector, start: float, end: float, beating: str) -> set[str]:
    """Tick every 50 ms with heartbeats of ``beating``; who died."""
    died: set[str] = set()
    steps = round((end - start) / 0.05)
    for step in range(1, steps + 1):
        now = start + step * 0.05
        for node in beating:
            detector.heartbeat(node, now)
        died |= detector.tick(now).died
    return died


def test_a_silent_node_is_dead_after_the_timeout_and_not_before() -> None:
    detector = begun()
    assert run(detector, 0.0, 0.5, "a") == set()
    assert run(detector, 0.5, 0.6, "a") == {"b"}
    assert detector.alive == {"a"}


def test_a_proven_death_counts_at_once_and_the_next_life_returns() -> None:
    detector = begun()
    detector.died("b")
    detector.died("stranger")
    assert detector.tick(0.05).died == {"b"}
    detector.died("b")
    assert detector.tick(0.06).died == set()
    assert detector.heartbeat("b", 0.1)
    assert detector.tick(0.11).returned == {"b"}


def test_nothing_but_silence_and_proof_condemns() -> None:
    """What its port answers, or its connections suffer, is not even asked."""
    detector = begun()
    assert run(detector, 0.0, 0.5, "") == set()


def test_who_comes_and_goes_is_given_nothing_back_for_ever_longer() -> None:
    detector, now, waits = begun(), 0.0, []
    assert detector.restless(0.0) == set()
    for _ in range(9):
        now += 5.0
        detector.tick(now)
        detector.died("b")
        detector.heartbeat("b", now)
        wait_s = 0.0
        while "b" in detector.restless(now + wait_s):
            wait_s += 1.0
        waits.append(wait_s)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    detector.tick(now + 700.0)
    detector.died("b")
    detector.heartbeat("b", now + 700.0)
    assert "b" not in detector.restless(now + 702.0), "it had been calm"


def test_a_paused_detector_condemns_nobody() -> None:
    detector = begun()
    run(detector, 0.0, 1.0, "ab")
    assert detector.tick(60.0).died == set()
    assert run(detector, 60.0, 60.4, "a") == set()
    assert run(detector, 60.4, 60.7, "a") == {"b"}


def test_a_new_leadership_gives_everybody_the_full_time() -> None:
    detector = begun()
    run(detector, 0.0, 2.0, "")
    detector.begin(["a", "b"], 2.0)
    assert detector.alive == {"a", "b"}
    assert run(detector, 2.0, 2.5, "") == set()
    assert run(detector, 2.5, 2.6, "") == {"a", "b"}


def test_who_counts_as_alive_unheard_is_not_taken_for_heard() -> None:
    detector = begun()
    assert detector.alive == frozenset("ab") and detector.heard == frozenset()
    detector.heartbeat("a", 0.1)
    assert detector.heard == {"a"}
    detector.died("a")
    assert detector.heard == frozenset()
    detector.heartbeat("a", 0.2)
    detector.begin("ab", 0.3)
    assert detector.heard == frozenset()


def test_nodes_come_and_go() -> None:
    detector = begun()
    assert not detector.heartbeat("c", 0.1)
    detector.set_nodes(["a", "c"], 0.1)
    assert detector.alive == {"a", "c"}
    detector.died("b")
    assert detector.tick(0.1).died == set()


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.01, 0.25)), max_size=80))
def test_who_is_heard_often_enough_never_dies(gaps: list[tuple[str, float]]) -> None:
    detector = begun()
    now, heard = 0.0, {"a": 0.0, "b": 0.0}
    for node, gap in gaps:
        now += gap
        detector.tick(now)
        detector.heartbeat(node, now)
        heard[node] = now
        for name, moment in heard.items():
            if now - moment <= 0.25:
                assert name in detector.alive

"""The failure detector: who is dead when, by an invented clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.liveness import FailureDetector


def begun() -> FailureDetector:
    detector = FailureDetector()
    detector.begin(["a", "b"], 0.0)
    return detector


def run(detector: FailureDetector, start: float, end: float, beating: dict[str, str]) -> set[str]:
    """Tick every 50 ms with heartbeats of ``beating``; who died."""
    died: set[str] = set()
    steps = round((end - start) / 0.05)
    for step in range(1, steps + 1):
        now = start + step * 0.05
        for node, instance in beating.items():
            detector.heartbeat(node, instance, now)
        died |= detector.tick(now).died
    return died


def test_a_silent_node_is_dead_after_the_timeout_and_not_before() -> None:
    detector = begun()
    assert run(detector, 0.0, 0.5, {"a": "1"}) == set()
    assert run(detector, 0.5, 0.6, {"a": "1"}) == {"b"}
    assert detector.alive == {"a"}


def test_a_refused_probe_is_death_at_once_and_a_suspicion_alone_is_not() -> None:
    detector = begun()
    assert detector.suspect("b", 0.1)
    assert not detector.suspect("b", 0.15), "probed twice in a row"
    detector.probed("b", False, 0.12)
    assert detector.tick(0.12).died == set()
    assert detector.suspect("b", 0.3)
    detector.probed("b", True, 0.31)
    assert detector.tick(0.31).died == {"b"}


def test_late_heartbeats_of_a_process_that_is_gone_do_not_revive_it_but_its_successor_is_believed() -> None:
    detector = begun()
    detector.heartbeat("b", "old", 0.1)
    detector.suspect("b", 0.2)
    detector.probed("b", True, 0.2)
    detector.tick(0.2)
    assert not detector.heartbeat("b", "old", 0.25)
    assert "b" not in detector.alive
    assert detector.heartbeat("b", "new", 0.26)
    assert detector.tick(0.27).returned == {"b"}


def test_a_process_wrongly_found_gone_is_believed_again_when_it_goes_on() -> None:
    detector = begun()
    detector.heartbeat("b", "one", 0.1)
    detector.suspect("b", 0.1)
    detector.probed("b", True, 0.1)
    assert not detector.heartbeat("b", "one", 0.3)
    assert detector.heartbeat("b", "one", 0.45)


def test_quiet_nodes_are_probed_before_their_time_is_over() -> None:
    detector = begun()
    detector.heartbeat("a", "1", 0.2)
    assert detector.tick(0.22).probe == {"b"}
    assert detector.tick(0.25).probe == set()


def test_a_paused_detector_condemns_nobody() -> None:
    detector = begun()
    run(detector, 0.0, 1.0, {"a": "1", "b": "1"})
    assert detector.tick(60.0).died == set()
    assert run(detector, 60.0, 60.4, {"a": "1"}) == set()
    assert run(detector, 60.4, 60.7, {"a": "1"}) == {"b"}


def test_a_new_leadership_gives_everybody_the_full_time() -> None:
    detector = begun()
    run(detector, 0.0, 2.0, {})
    detector.begin(["a", "b"], 2.0)
    assert detector.alive == {"a", "b"}
    assert run(detector, 2.0, 2.5, {}) == set()
    assert run(detector, 2.5, 2.6, {}) == {"a", "b"}


def test_nodes_come_and_go() -> None:
    detector = begun()
    assert not detector.heartbeat("c", "1", 0.1)
    detector.set_nodes(["a", "c"], 0.1)
    assert detector.alive == {"a", "c"}
    assert not detector.suspect("b", 0.1)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.01, 0.25)), max_size=80))
def test_who_is_heard_often_enough_never_dies(gaps: list[tuple[str, float]]) -> None:
    detector = begun()
    now, heard = 0.0, {"a": 0.0, "b": 0.0}
    for node, gap in gaps:
        now += gap
        detector.tick(now)
        detector.heartbeat(node, "1", now)
        heard[node] = now
        for name, moment in heard.items():
            if now - moment <= 0.25:
                assert name in detector.alive

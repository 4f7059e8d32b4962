"""Warnings that may come with each message do not flood the log, and say how many they stand for."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from lsmq._rate_limited import FIRST_SILENCE_S, LONGEST_SILENCE_S, RateLimitedWarnings


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_first_is_said_and_the_next_counts_those_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    seldom = RateLimitedWarnings(clock)
    with caplog.at_level(logging.DEBUG, "lsmq"):
        for number in range(50):
            seldom.warn("message %d failed", number)
        clock.now_s = FIRST_SILENCE_S
        seldom.warn("message %d failed", 50)
    assert _warnings(caplog) == [
        "message 0 failed",
        "message 50 failed (and 49 times more since this was said last)",
    ]
    assert len(caplog.records) == 51, "those left out can still be had"


def test_what_goes_on_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    seldom = RateLimitedWarnings(clock)
    said_at: list[float] = []
    for second in range(1_000):
        clock.now_s = float(second)
        seldom.warn("it failed")
        if len(_warnings(caplog)) > len(said_at):
            said_at.append(second)
    assert said_at[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert {later - earlier for earlier, later in pairwise(said_at[6:])} == {LONGEST_SILENCE_S}


def test_after_a_quiet_minute_it_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    seldom = RateLimitedWarnings(clock)
    for second in (0.0, 1.0, 3.0):
        clock.now_s = second
        seldom.warn("it failed")
    clock.now_s += 4 + LONGEST_SILENCE_S
    seldom.warn("it failed")
    clock.now_s += FIRST_SILENCE_S
    seldom.warn("it failed")
    assert _warnings(caplog) == ["it failed"] * 5

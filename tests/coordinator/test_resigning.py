"""When leaders of the control plane that cannot be called give way, by an invented clock."""

from __future__ import annotations

from lsmq_coordinator.resigning import Resigning, ResignTiming

STEP_S = 0.05
#: From a resignation to the next leader.
ELECTION_S = 0.3


class Voters:
    """Three voters that lead in turn: who resigns is followed by the next. All learn of a resignation."""

    def __init__(self, deaf: set[int]) -> None:
        """``deaf``: who cannot be called."""
        self.now = 0.0
        self.deaf = deaf
        self.resigned_at: list[float] = []
        self._each = [Resigning(ResignTiming(), self.now) for _ in range(3)]
        self._leader, self._term, self._leads_from = 0, 1, 0.0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            if self.now >= self._leads_from:
                self._lead(self._each[self._leader])

    def _lead(self, resigning: Resigning) -> None:
        if self._leader not in self.deaf:
            resigning.reached(self.now)
        elif resigning.is_due(self.now):
            for each in self._each:
                each.resigned(self._term, self.now)
            self.resigned_at.append(self.now)
            self._leader, self._term = (self._leader + 1) % 3, self._term + 1
            self._leads_from = self.now + ELECTION_S
            self._each[self._leader].reached(self._leads_from)


def test_one_that_alone_is_out_of_reach_gives_way_soon() -> None:
    voters = Voters(deaf={0})
    voters.run(60.0)
    assert len(voters.resigned_at) == 1 and voters.resigned_at[0] < 1.2


def test_two_of_three_that_are_out_of_reach_are_passed_over() -> None:
    voters = Voters(deaf={0, 1})
    voters.run(60.0)
    assert len(voters.resigned_at) == 2 and voters.resigned_at[-1] < 4.0


def test_where_heartbeats_are_slow_everywhere_leaders_stay_ever_longer() -> None:
    voters = Voters(deaf={0, 1, 2})
    voters.run(3_600.0)
    pauses = [round(b - a) for a, b in zip([0.0, *voters.resigned_at], voters.resigned_at, strict=False)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 30]
    assert set(pauses[5:]) == {30}, "and not longer: one of them may be heard again"


def test_what_was_slow_is_forgotten_when_it_has_been_well_for_long() -> None:
    voters = Voters(deaf={0, 1, 2})
    voters.run(60.0)
    voters.deaf = set()
    voters.run(700.0)
    voters.deaf = {0, 1, 2}
    first = len(voters.resigned_at)
    began = voters.now
    voters.run(10.0)
    assert voters.resigned_at[first] - began < 1.2


def test_a_resignation_counts_once_however_often_it_is_told() -> None:
    resigning = Resigning(ResignTiming(), 0.0)
    for _ in range(5):
        resigning.resigned(7, 1.0)
    assert resigning.patience_s(1.0) == 2.0
    resigning.resigned(6, 1.0)
    assert resigning.patience_s(1.0) == 2.0
    resigning.resigned(8, 2.0)
    assert resigning.patience_s(2.0) == 4.0

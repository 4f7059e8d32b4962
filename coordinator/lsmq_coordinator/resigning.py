"""When a leader of the control plane that cannot be called gives way. Without a clock: times are seconds, passed in.

A majority of the voters follows it, and their heartbeats do not come. Either it cannot be called, and another one can;
or heartbeats are slow everywhere (busy event loops, a network that is full), and the next leader does no better: then
leaders that take turns decide nothing at all. From within the two look the same. So each resignation, whoever
resigned, doubles the time for which the next leader holds out, until none came for long: one that is out of reach is
replaced soon, and where all are, leaders stay.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResignTiming:
    """Seconds."""

    #: A leader that too few could call for so long resigns; twice as long after each resignation,
    first_s: float = 1.0
    #: and never longer than this, nor
    longest_s: float = 30.0
    #: when nobody has resigned for so long.
    calm_s: float = 600.0


class Resigning:
    """One for each voter, for as long as it runs: it must outlast leaderships."""

    def __init__(self, timing: ResignTiming, now: float) -> None:
        self._timing = timing
        self._patience_s = timing.first_s
        self._resigned_at = float("-inf")
        self._resigned_term = 0
        self._reached_at = now

    def patience_s(self, now: float) -> float:
        """For how long a leader now holds out."""
        return self._patience_s if now - self._resigned_at < self._timing.calm_s else self._timing.first_s

    def reached(self, now: float) -> None:
        """This voter begins to lead, or could be called by enough of the others."""
        self._reached_at = now

    def resigned(self, term: int, now: float) -> None:
        """The leader of ``term`` has resigned, this voter or another. May be said again."""
        if term > self._resigned_term:
            self._patience_s = min(2 * self.patience_s(now), self._timing.longest_s)
            self._resigned_term, self._resigned_at = term, now

    def is_due(self, now: float) -> bool:
        """Whether a leader that is not reached is to resign."""
        return now - self._reached_at > self.patience_s(now)

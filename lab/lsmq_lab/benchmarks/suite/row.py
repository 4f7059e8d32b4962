"""What a row of the suite is: cases that take turns, what to reach, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..report import Option

LSMQ = "lsmq"
#: A case's figures: medians, by name.
Medians: TypeAlias = Mapping[str, Mapping[str, float]]
Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured. ``run`` takes an empty directory of its own and measures once, from nothing.

    Among the figures it returns these have a meaning of their own: ``per_s``, messages a second; ``processor_us``,
    processor time a message of all processes that had part in it; ``written_bytes``, what the disk got a message.
    """

    name: str
    #: Whose figures they are: ``lsmq``, or a peer's name. What fails at a peer is a gap of the report, not an error.
    system: str
    run: Callable[[Path], dict[str, float]]
    #: Where on the x axis of a plot it stands.
    x: float | None = None
    #: Which curve it is a point of.
    series: str = ""


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A figure that is shown: its name in a case, a title, and a unit of :data:`UNITS`."""

    figure: str
    title: str
    unit: str


UNITS = ("/s", "ms", "us", "s", "MiB", "MiB/s", "%", "x", "")


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves of one figure over ``x`` of the cases, or bars where they have none. With ``points``, pairs of x and a
    figure's name, each case is a curve."""

    figure: str
    title: str
    unit: str
    x_title: str = ""
    points: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FigureTarget:
    """A figure to reach: at least ``goal``, or at most. ``value`` is None where what it is made of was not measured."""

    text: str
    value: Callable[[Medians], float | None]
    goal: float
    unit: str = "x"
    at_most: bool = False
    #: The case whose limits say why it is not reached, where it is not.
    case: str = ""
    #: What else keeps it from being reached, where that is known.
    because: str = ""

    def reached(self, value: float) -> bool:
        return value <= self.goal if self.at_most else value >= self.goal


@dataclass(frozen=True, slots=True)
class Row:
    """A row: ``cases`` makes them for values of all ``options`` and the names of the peers that can take part."""

    name: str
    title: str
    #: What is done, in a sentence or two.
    work: str
    options: tuple[Option, ...]
    cases: Callable[[Values, tuple[str, ...]], list[Case]]
    columns: tuple[FigureColumn, ...]
    #: For given values: what is to be reached depends on the sizes that were chosen.
    targets: Callable[[Values], list[FigureTarget]] = field(default=lambda values: [])
    plots: tuple[Plot, ...] = ()
    #: The peers that have a case in it.
    peers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: Gaps that are known beforehand: what is not measured here, and why.
    gaps: tuple[str, ...] = ()

    def command(self, values: Values) -> str:
        """What runs this row alone as it was run."""
        given = [f"{option.name}={values[option.name]}" for option in self.options]
        sizes = f" --sizes {','.join(given)}" if given else ""
        return f"lsmq bench suite --only {self.name} --peers {values['peers']} --rounds {values['rounds']}{sizes}"


def figure(case: str, name: str) -> Callable[[Medians], float | None]:
    """A target's value: a figure as it is."""

    def value(found: Medians) -> float | None:
        return found.get(case, {}).get(name)

    return value


def over(case: str, other: str, name: str, divisor: str = "") -> Callable[[Medians], float | None]:
    """A target's value: a case's figure over another's; ``divisor`` where that has another name."""

    def value(found: Medians) -> float | None:
        mine, others = found.get(case, {}).get(name), found.get(other, {}).get(divisor or name)
        return None if mine is None or not others else mine / others

    return value


def least_over_greatest(cases: Sequence[str], name: str) -> Callable[[Medians], float | None]:
    """A target's value: how flat a curve of these cases is."""

    def value(found: Medians) -> float | None:
        values = [found[case][name] for case in cases if name in found.get(case, {})]
        return min(values) / max(values) if len(values) > 1 and max(values) else None

    return value

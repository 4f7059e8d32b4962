"""Cron expressions: when a schedule is due. Pure but for the time zones, which are read from the system.

Five fields, ``minute hour day-of-month month day-of-week``, each ``*`` or a list of numbers, ranges and steps, such as
``0,30``, ``9-17``, ``*/15`` or ``10-40/5``. Months and days of the week may have three letters; Sunday is 0 or 7.
Where both days are restricted, one that fits is enough, as crontab(5) has it. ``@hourly``, ``@daily``, ``@weekly``,
``@monthly`` and ``@yearly`` stand for what they say.

A time that the clock skips in spring is as much later as it skips. One that it shows twice in autumn counts once, the
first time, unless minute or hour begins with ``*``: then it is a matter of intervals, and comes both times, as cron(8)
has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from lsmq.errors import InvalidRequest

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
#: Name, least, greatest, and the names of values.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
#: The 29th of February is away eight years at most, and forty where it must be on one day of the week.
_FURTHEST = timedelta(days=41 * 366)
#: Where the date line was moved, clocks skipped a day, or showed one twice.
_LONGEST_CHANGE = timedelta(days=1)
#: Zones that are whatever somebody has set up on a machine: another leader would have other times.
_OF_EACH_SYSTEM = ("localtime", "posixrules")


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    any_day: bool
    any_weekday: bool
    repeats: bool  # Times that the clock shows twice come twice.

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Raises ``InvalidRequest`` naming the field that is wrong, or for what never comes."""
        parts = _NAMED.get(text.strip().lower(), text).split()
        if len(parts) != len(_FIELDS):
            raise _wrong(text, f"it has {len(parts)} fields, and needs 5: minute hour day-of-month month day-of-week")
        found = [_values(text, part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = found
        cron = cls(
            minutes,
            hours,
            days,
            months,
            frozenset(day % 7 for day in weekdays),
            parts[2].startswith("*"),
            parts[4].startswith("*"),
            parts[0].startswith("*") or parts[1].startswith("*"),
        )
        if cron._next_local(datetime(2024, 1, 1)) is None:
            raise _wrong(text, "there is no such day")
        return cron

    def next_ms(self, after_ms: int, zone: ZoneInfo) -> int:
        """The first time behind ``after_ms``, milliseconds since 1970, by the clocks of the zone."""
        after = datetime.fromtimestamp(after_ms / 1000, UTC)
        local, first = after.astimezone(zone).replace(tzinfo=None), None
        # What the clock would show that was not put forward within a day: of the times that were skipped some may come.
        unskipped = (after + _offset(after - _LONGEST_CHANGE, zone)).replace(tzinfo=None)
        if unskipped < local and _is_skipped(unskipped, zone):
            local = unskipped
        if self.repeats:  # And what a clock would that was put back already, for what it shows again.
            local = min(local, (after + _offset(after + _LONGEST_CHANGE, zone)).replace(tzinfo=None))
        while True:
            found = self._next_local(local)
            assert found is not None, "the expression was checked when it was parsed"
            moment, skipped = found.replace(tzinfo=zone).astimezone(UTC), _is_skipped(found, zone)
            again = found.replace(tzinfo=zone, fold=1).astimezone(UTC) if self.repeats and not skipped else moment
            coming = [each for each in (first, moment, again) if each is not None and each > after]
            first = min(coming, default=None)
            if first is not None and moment > after and not skipped:
                return round(first.timestamp() * 1000)  # Times that are not skipped come in their order.
            local = found

    def _next_local(self, after: datetime) -> datetime | None:
        """The first fitting minute behind a local time."""
        at = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
        last = at + _FURTHEST
        while at < last:
            if at.month not in self.months:
                at = (at.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._fits_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def _fits_day(self, at: datetime) -> bool:
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.any_day or self.any_weekday else (day or weekday)


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    found = at.astimezone(zone).utcoffset()
    assert found is not None, "zones know it at all times"
    return found


def _is_skipped(local: datetime, zone: ZoneInfo) -> bool:
    """Whether the zone's clock never shows this time."""
    return local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local


def zone_of(name: str) -> ZoneInfo:
    """Raises ``InvalidRequest`` for a time zone that this system does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"tz is {name!r:.80}, which is no time zone that this node knows; write one such as Europe/Berlin or UTC",
            field="tz",
        ) from error


def zone_to_keep(name: str) -> ZoneInfo:
    """:func:`zone_of` of a schedule that is made: none that each system has its own of. Raises ``InvalidRequest``."""
    if name.rpartition("/")[2] in _OF_EACH_SYSTEM:
        raise InvalidRequest(
            f"tz is {name!r:.80}, which is another time zone on each node; write one such as Europe/Berlin or UTC",
            field="tz",
        )
    return zone_of(name)


def _values(text: str, part: str, what: str, least: int, most: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for item in part.lower().split(","):
        span, _, step = item.partition("/")
        if step and not (step.isascii() and step.isdecimal() and int(step) > 0):
            raise _wrong(text, f"the step {step!r} of the {what} must be a number above 0")
        low, dash, high = span.partition("-")
        if span == "*":
            first, last = least, most
        else:
            first = _number(text, low, what, least, most, names)
            last = _number(text, high, what, least, most, names) if dash else most if step else first
        if first > last:
            raise _wrong(text, f"the {what} {span!r} ends before it begins")
        found.update(range(first, last + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, word: str, what: str, least: int, most: int, names: dict[str, int]) -> int:
    value = names.get(word, int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else -1)
    if not least <= value <= most:
        raise _wrong(text, f"the {what} {word!r} must be {least} to {most}")
    return value


def _wrong(text: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"cron is {text!r:.80}: {problem}", field="cron")

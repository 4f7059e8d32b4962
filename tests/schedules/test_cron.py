"""When a cron expression is due, against trying every minute; and over the hours that clocks skip and repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq_node.schedules.cron import Cron, zone_of, zone_to_keep
from support.extent import part_in_number

BERLIN = ZoneInfo("Europe/Berlin")


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, 20)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    item = st.one_of(st.just("*"), number.map(str), span, stepped)
    return st.lists(item, min_size=1, max_size=3).map(",".join)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def fits(cron: Cron, at: datetime) -> bool:
    day, weekday = at.day in cron.days, at.isoweekday() % 7 in cron.weekdays
    both = (day and weekday) if cron.any_day or cron.any_weekday else (day or weekday)
    return at.minute in cron.minutes and at.hour in cron.hours and at.month in cron.months and both


@given(
    minute=field(0, 59), hour=field(0, 23), day=field(1, 31), weekday=field(0, 7), start=st.integers(0, 4_000_000_000)
)
@settings(max_examples=part_in_number(150, 3))
def test_the_next_time_is_the_first_minute_that_fits(
    minute: str, hour: str, day: str, weekday: str, start: int
) -> None:
    cron = Cron.parse(f"{minute} {hour} {day} * {weekday}")
    found = cron.next_ms(start * 1000, ZoneInfo("UTC")) // 1000
    assert found > start and found % 60 == 0
    assert fits(cron, datetime.fromtimestamp(found, UTC))
    at = datetime.fromtimestamp(start - start % 60 + 60, UTC)
    for _ in range(min(5000, (found - start) // 60 - 1)):
        assert not fits(cron, at)
        at += timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("0 9 * * 1-5", "2026-11-20T09:00+01:00", "2026-11-23T09:00+01:00"),
        ("0 9 * * mon-fri", "2026-11-23T08:59:59+01:00", "2026-11-23T09:00+01:00"),
        ("30 2 * * *", "2026-03-28T12:00+01:00", "2026-03-29T03:30+02:00"),  # it is never 2:30 on this day
        ("30 2 * * *", "2026-10-24T12:00+02:00", "2026-10-25T02:30+02:00"),  # and twice on this one
        ("30 2 * * *", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"),
        ("0,30 2 * * *", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"),  # nor on the half of that
        ("30 2 * * *", "2026-03-29T03:29:59+02:00", "2026-03-29T03:30+02:00"),
        ("30 2 * * *", "2026-03-29T03:30+02:00", "2026-03-30T02:30+02:00"),
        ("15 2,3 * * *", "2026-03-29T01:00+01:00", "2026-03-29T03:15+02:00"),  # both at once, and once
        ("15 2,3 * * *", "2026-03-29T03:15+02:00", "2026-03-30T02:15+02:00"),
        ("*/20 * * * *", "2026-03-29T01:40+01:00", "2026-03-29T03:00+02:00"),
        ("*/20 * * * *", "2026-03-29T03:00+02:00", "2026-03-29T03:20+02:00"),
        ("*/20 * * * *", "2026-10-25T02:40+02:00", "2026-10-25T02:00+01:00"),  # by intervals it goes on in both hours
        ("*/20 * * * *", "2026-10-25T02:00+01:00", "2026-10-25T02:20+01:00"),
        ("*/20 2 * * *", "2026-10-25T02:40+02:00", "2026-10-25T02:00+01:00"),  # whichever of the two is an interval
        ("30 * * * *", "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"),
        ("@hourly", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"),
        ("0-30/10 2 * * *", "2026-10-25T02:30+02:00", "2026-10-26T02:00+01:00"),  # by numbers alone it does not
        ("0 0 29 2 *", "2026-01-01T00:00+01:00", "2028-02-29T00:00+01:00"),
        ("0 0 29 feb *", "2096-03-01T00:00+01:00", "2104-02-29T00:00+01:00"),
        ("0 0 13 * fri", "2026-11-01T00:00+01:00", "2026-11-06T00:00+01:00"),
        ("0 0 * * 7", "2026-11-23T00:00+01:00", "2026-11-29T00:00+01:00"),
        ("@yearly", "2026-11-23T00:00+01:00", "2027-01-01T00:00+01:00"),
        ("5/10 0 1 1,7 *", "2026-01-01T00:05+01:00", "2026-01-01T00:15+01:00"),
    ],
)
def test_by_the_clocks_of_berlin(text: str, after: str, due: str) -> None:
    assert Cron.parse(text).next_ms(ms(after), BERLIN) == ms(due)


@pytest.mark.parametrize(
    ("zone", "text", "first", "last"),
    [
        ("Europe/Berlin", "7,20,41 2,3 * * *", "2026-03-28T00:00+01:00", "2026-03-31T00:00+02:00"),
        ("Australia/Lord_Howe", "1,20,35,55 1-3 * * *", "2026-10-03T00:00+10:30", "2026-10-06T00:00+11:00"),
        ("Pacific/Apia", "30 1,23 * * *", "2011-12-28T00:00-10:00", "2012-01-02T00:00+14:00"),  # without the 30th
        ("America/New_York", "59 1,2 * * *", "2026-03-07T00:00-05:00", "2026-03-10T00:00-04:00"),
        ("Europe/Berlin", "0-59/7 0-23 * * *", "2026-10-24T00:00+02:00", "2026-10-27T00:00+01:00"),
    ],
)
def test_each_time_comes_once_also_those_that_clocks_skip(zone: str, text: str, first: str, last: str) -> None:
    cron, own = Cron.parse(text), ZoneInfo(zone)
    at, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    expected = set()
    local, until = at.astimezone(own).replace(tzinfo=None), end.astimezone(own).replace(tzinfo=None)
    while (local := local + timedelta(minutes=1)) < until:
        if fits(cron, local):  # By the clock before it was put forward, or back.
            expected.add(int(local.replace(tzinfo=own).timestamp() * 1000))
    found, now = [], ms(first)
    while (now := cron.next_ms(now, own)) < ms(last):
        found.append(now)
    assert found == sorted(expected)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_in_a_year_intervals_come_whenever_the_clock_shows_them_and_fixed_times_once_a_day(zone: str) -> None:
    own = ZoneInfo(zone)
    start, end = datetime(2026, 1, 1, tzinfo=own).astimezone(UTC), datetime(2027, 1, 1, tzinfo=own).astimezone(UTC)

    def times(text: str) -> list[datetime]:
        cron, found, now = Cron.parse(text), [], round(start.timestamp() * 1000) - 1
        while (now := cron.next_ms(now, own)) < end.timestamp() * 1000:
            found.append(datetime.fromtimestamp(now / 1000, UTC))
        return found

    assert times("*/15 * * * *") == [start + timedelta(minutes=15 * at) for at in range(365 * 24 * 4)]
    for text in ("30 2 * * *", "45 1 * * *"):
        found = times(text)
        assert len({at.astimezone(own).date() for at in found}) == len(found) == 365


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("* * * *", "4 fields"),
        ("60 * * * *", "minute '60' must be 0 to 59"),
        ("* * 0 * *", "day of month '0' must be 1 to 31"),
        ("* * * foo *", "month 'foo'"),
        ("*/0 * * * *", "step '0'"),
        ("5-1 * * * *", "ends before it begins"),
        ("0 0 31 2 *", "no such day"),
        ("1,, * * * *", "minute ''"),
        ("٣ * * * *", "minute"),
        ("", "0 fields"),
    ],
)
def test_what_is_no_expression_is_refused_by_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        Cron.parse(text)
    assert refused.value.details["field"] == "cron"


@pytest.mark.parametrize("name", ["Nowhere/Town", "../../etc/passwd", "", "/etc/passwd", "Europe"])
def test_a_zone_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        zone_of(name)


@pytest.mark.parametrize("weekday", ["*/6", "*/4"])
@pytest.mark.parametrize("year", [2026, 2033, 2076, 2097])
def test_a_leap_day_that_must_be_some_day_of_the_week_comes_however_far_away_it_is(weekday: str, year: int) -> None:
    cron = Cron.parse(f"0 0 29 2 {weekday}")
    found = datetime.fromtimestamp(cron.next_ms(ms(f"{year}-03-01T00:00+00:00"), ZoneInfo("UTC")) / 1000, UTC)
    assert (found.month, found.day) == (2, 29) and found.isoweekday() % 7 in cron.weekdays


@pytest.mark.parametrize("name", ["localtime", "posixrules", "posix/localtime"])
def test_a_zone_that_each_system_has_its_own_of_is_no_schedules(name: str) -> None:
    with pytest.raises(InvalidRequest, match="another time zone on each node"):
        zone_to_keep(name)

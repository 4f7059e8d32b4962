"""Messages of a queue, as a model has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lsmq import Message


@dataclass
class Row:
    """A message. ``may_be_gone``: nobody can say by now. ``expires``: it has some moments to live."""

    number: int
    key: str | None = None
    tag: str | None = None
    priority: tuple[int, int] = (0, 0)  # and subpriority
    deletes_key: bool = False
    may_be_gone: bool = False
    expires: bool = False
    size_bytes: int = 0  # header and body, where that counts


@dataclass
class Queue:
    """Messages by offset, as far as they are there. ``keeps``: so many of the newest stay; None for all."""

    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0
    keeps: int | None = None

    def append(self, row: Row) -> int:
        offset, self.end = self.end, self.end + 1
        self.rows[offset] = row
        self.loosen()
        return offset

    def loosen(self) -> None:
        """What lies before the newest goes in the background."""
        for offset, row in self.rows.items():
            if self.keeps is not None and offset < self.end - self.keeps:
                row.may_be_gone = True

    def remove(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self.rows.pop(offset, None)

    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.rows.values())

    def settle(self) -> None:
        """What was beyond a limit that has been raised since may have gone before, or stays."""
        kept_from = 0 if self.keeps is None else self.end - self.keeps
        self.remove([offset for offset, row in self.rows.items() if row.expires or offset < kept_from])

    def compare(self, came: Sequence[tuple[int, int]], picks: Callable[[Row], bool] = lambda row: True) -> None:
        """With offsets and numbers, as they were read."""
        assert list(came) == sorted(came), "messages come in the order of their offsets"
        wanted = {offset: row for offset, row in self.rows.items() if picks(row)}
        for offset, number in came:
            assert offset in wanted, f"offset {offset} is not there, or was not asked for"
            assert wanted[offset].number == number, f"offset {offset} is another message"
        surely = {offset for offset, row in wanted.items() if not row.may_be_gone}
        assert surely <= {offset for offset, _ in came}, "messages are missing"


def stored_together(messages: Iterable[Message]) -> int:
    """How many were not stored alone in their millisecond, as while a clock that was ahead stands still: of these none
    goes by age or bytes, or all."""
    return sum(count for count in Counter(message.stored_ms for message in messages).values() if count > 1)

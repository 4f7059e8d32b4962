"""What a ledger knows of one queue: which messages are open, which are done, and which wait for their key. Pure.

Offsets of ``[cursor, next)`` were looked at; those of them that are not settled have their bit in ``unsettled``, a mask
for each chunk of offsets. A message that waits behind another of its key is nothing but that bit and eight bytes in the
:class:`KeyLine` of its key, so that very many may wait.

From ``next`` on nobody has looked in turn. Something is known of it all the same where it begins anew from what is
stored, and where consumers pick messages: which are settled (``ahead``), which have failed (``failed``), and which
somebody holds (``early``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from . import chunks
from .chunks import FailedMessage, SettledChunk
from .tasks import DeliveryState, OpenMessage

_COMPACT_AT = 512
#: Shared by windows that have none of these, which are made for each queue that has a message.
_NO_KEYS: Final[dict[int, KeyLine | None]] = {}
_NO_MASKS: Final[dict[int, int]] = {}
_NO_OFFSETS: Final[set[int]] = set()
_NO_TASKS: Final[dict[int, OpenMessage]] = {}
_NO_FAILURES: Final[dict[int, FailedMessage]] = {}


class KeyLine:
    """Offsets that wait for their key, ascending: eight bytes each."""

    __slots__ = ("_first", "_offsets")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._first = 0

    def __len__(self) -> int:
        return len(self._offsets) - self._first

    def append(self, offset: int) -> None:
        self._offsets.append(offset)

    def pop(self) -> int:
        """The first one."""
        offset = self._offsets[self._first]
        self._pass_to(self._first + 1)
        return offset

    def take_below(self, end: int) -> array[int]:
        """All before ``end``, however many."""
        place = bisect_left(self._offsets, end, self._first)
        taken = self._offsets[self._first : place]
        self._pass_to(place)
        return taken

    def _pass_to(self, place: int) -> None:
        self._first = place
        if self._first >= _COMPACT_AT and 2 * self._first > len(self._offsets):
            del self._offsets[: self._first]
            self._first = 0


class Window:
    """See the module. ``held``: keys of which a message is open, or settled and not stored; with those that wait."""

    __slots__ = (
        "ahead",
        "blocked",
        "dirty",
        "early",
        "failed",
        "held",
        "left",
        "logged",
        "next",
        "open",
        "queue",
        "settling",
        "stored",
        "unlogged",
        "unsettled",
    )

    def __init__(self, queue: int, cursor: int, *, looks: bool) -> None:
        """``looks``: whether messages are looked at before they are delivered. Else nothing is known ahead at first."""
        self.queue = queue
        self.next = cursor
        self.open: dict[int, OpenMessage] = {}
        self.unsettled: OrderedDict[int, int] = OrderedDict()  # by chunk, ascending; no mask is 0
        self.logged = cursor  # the cursor that was put in the log, or was read from there
        self.stored: set[int] = set()  # chunks that have a document
        self.dirty: set[int] = set()  # chunks that have changed
        self.unlogged = 0  # changes under way to the log
        self.held: dict[int, KeyLine | None] = {} if looks else _NO_KEYS
        self.blocked = 0  # in all lines, and those whose turn has not come
        self.left: set[int] = _NO_OFFSETS  # open, or settled, and their turn has not come
        self.ahead: dict[int, int] = _NO_MASKS  # settled offsets from ``next`` on, a mask for each chunk
        self.early: set[int] = _NO_OFFSETS  # open, though they were not looked at in their turn
        self.settling: dict[int, OpenMessage] = _NO_TASKS  # so were these, and are settled; that is not stored yet
        self.failed: dict[int, FailedMessage] = _NO_FAILURES  # of messages that were not opened yet
        if looks:
            self.know_ahead()

    def know_ahead(self) -> None:
        """To be called before anything is to be known of what lies from ``next`` on."""
        if self.early is _NO_OFFSETS:
            self.ahead, self.early, self.settling, self.failed = {}, set(), {}, {}

    @property
    def knows_ahead(self) -> bool:
        return bool(self.early or self.ahead or self.settling or self.failed)

    def is_known_ahead(self, offset: int) -> bool:
        """Whether somebody holds it that was not looked at in its turn, or it is settled."""
        return offset in self.early or offset in self.settling or self.is_settled_ahead(offset)

    @property
    def cursor(self) -> int:
        if not self.unsettled:
            return self.next
        number, mask = next(iter(self.unsettled.items()))
        return number * chunks.CHUNK_OFFSETS + (mask & -mask).bit_length() - 1

    @property
    def is_idle(self) -> bool:
        """Whether all that is known of it is its cursor, and that is stored."""
        if self.unsettled or self.open or self.dirty or self.stored or self.unlogged:
            return False
        if self.held or self.settling or self.left:
            return False
        return self.logged == self.next

    # Looking at messages, in their order

    def mark(self, offset: int) -> None:
        """It is open, or waits for its key. The last one that was looked at."""
        number, place = divmod(offset, chunks.CHUNK_OFFSETS)
        self.unsettled[number] = self.unsettled.get(number, 0) | 1 << place

    def unmark(self, offset: int) -> None:
        """It is settled."""
        number, place = divmod(offset, chunks.CHUNK_OFFSETS)
        self.dirty.add(number)
        if offset in self.early:
            self.early.discard(offset)
            self.settling[offset] = self.open[offset]
        elif mask := self.unsettled[number] & ~(1 << place):
            self.unsettled[number] = mask
        else:
            del self.unsettled[number]

    def pass_by(self, offset: int) -> None:
        """It was looked at."""
        if self.ahead:
            self.advance(offset + 1)
        else:
            self.next = offset + 1

    def touch(self, offset: int) -> None:
        """What is stored of it has changed."""
        self.dirty.add(offset // chunks.CHUNK_OFFSETS)

    def is_settled_ahead(self, offset: int) -> bool:
        number, place = divmod(offset, chunks.CHUNK_OFFSETS)
        return bool(self.ahead) and bool(self.ahead.get(number, 0) >> place & 1)

    def is_lined_up(self, offset: int) -> bool:
        """Whether it was looked at, and waits for its turn or its key."""
        number, place = divmod(offset, chunks.CHUNK_OFFSETS)
        return offset not in self.open and bool(self.unsettled.get(number, 0) >> place & 1)

    def leave_line(self, offset: int) -> None:
        """It waits no longer for its turn, which is to be passed over when it comes."""
        self.blocked -= 1
        if self.left is _NO_OFFSETS:
            self.left = set()
        self.left.add(offset)

    def hold(self, offset: int, key: int) -> None:
        """It is open, and the others of its key wait. A key of 0 is none."""
        self.mark(offset)
        if key:
            self.held[key] = None

    def take_place(self, offset: int, key: int) -> bool:
        """Whether somebody had it before it was looked at: then it holds its key from now on."""
        task = self.settling.get(offset)
        if offset in self.early:
            task = self.open[offset]
            self.early.discard(offset)
            self.mark(offset)
        if task is not None and key and key not in self.held:  # else it was handed out before there was an order
            self.held[key] = None
            task.key = key
        return task is not None

    def settled(self, task: OpenMessage) -> bool:
        """That it is settled is stored. Whether it was not looked at in its turn yet."""
        if self.settling.pop(task.offset, None) is None or task.offset < self.next:
            return False
        self._settle_ahead(task.offset, task.offset + 1)
        self.advance(self.next)
        return True

    def line_up(self, offset: int, key: int) -> None:
        """It waits for its key, which is held."""
        line = self.held[key]
        if line is None:
            line = self.held[key] = KeyLine()
        line.append(offset)
        self.mark(offset)
        self.blocked += 1

    def let_go(self, key: int, start: int) -> int | None:
        """Who held the key is settled for good: the next one, which holds it now. Those below ``start`` are gone."""
        line = self.held[key]
        if line:
            if gone := line.take_below(start):
                self._unmark_all(gone)
            if line:
                self.blocked -= 1
                offset = line.pop()
                if not line:
                    self.held[key] = None
                return offset
        del self.held[key]
        return None

    def _unmark_all(self, gone: array[int]) -> None:
        """These have waited for their key, and are gone: a million at once, where a queue was purged."""
        self.blocked -= len(gone)
        if self.failed:
            for offset in gone:
                self.failed.pop(offset, None)
        size = chunks.CHUNK_OFFSETS
        numbers, places = np.divmod(np.frombuffer(gone, np.uint64).astype(np.int64), size)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for first, end in pairwise(cuts):
            bits = np.zeros(size, np.bool_)
            bits[places[first:end]] = True
            number = int(numbers[first])
            self.dirty.add(number)
            if mask := self.unsettled[number] & ~int.from_bytes(np.packbits(bits, bitorder="little"), "little"):
                self.unsettled[number] = mask
            else:
                del self.unsettled[number]

    def advance(self, end: int) -> None:
        """Everything below ``end`` was looked at, and what is settled from there on need not be."""
        self._move(max(self.next, end))
        while self.ahead:
            number, place = divmod(self.next, chunks.CHUNK_OFFSETS)
            mask = self.ahead.get(number, 0) >> place
            run = (~mask & mask + 1).bit_length() - 1  # ones at its low end
            if not run:
                return
            self._move(self.next + run)

    def _move(self, end: int) -> None:
        if self.ahead:
            first, number = self.next // chunks.CHUNK_OFFSETS, end // chunks.CHUNK_OFFSETS
            if number - first < len(self.ahead):
                for passed in range(first, number):
                    self.ahead.pop(passed, None)
            else:
                self.ahead = {known: mask for known, mask in self.ahead.items() if known >= number}
        self.next = end

    @property
    def ahead_count(self) -> int:
        """Messages from ``next`` on that are settled, or open."""
        if not self.knows_ahead:
            return 0
        number, place = divmod(self.next, chunks.CHUNK_OFFSETS)
        known = len(self.early) + sum(offset >= self.next for offset in self.settling)
        return known + sum((mask >> place if at == number else mask).bit_count() for at, mask in self.ahead.items())

    # What is stored

    def take_over(self, documents: Iterable[SettledChunk]) -> None:
        """What they say lies ahead: it is looked at in order, when somebody asks for messages."""
        self.know_ahead()
        for chunk in documents:
            for first, end in chunk.settled:
                if end > self.next:
                    self._settle_ahead(max(first, self.next), end)
            self.failed.update(item for item in chunk.failed.items() if item[0] >= self.next)
        self.advance(self.next)

    def _settle_ahead(self, first: int, end: int) -> None:
        while first < end:
            number, place = divmod(first, chunks.CHUNK_OFFSETS)
            count = min(end - first, chunks.CHUNK_OFFSETS - place)
            self.ahead[number] = self.ahead.get(number, 0) | ((1 << count) - 1) << place
            first += count

    def chunk(self, number: int, cursor: int) -> SettledChunk:
        """What is to be stored of a chunk: of its offsets from ``cursor`` on."""
        if not (self.unsettled or self.ahead or self.settling or self.early or self.failed):
            return _EMPTY
        base = number * chunks.CHUNK_OFFSETS
        first, end = max(base, cursor), base + chunks.CHUNK_OFFSETS
        looked = (1 << max(0, min(end, self.next) - base)) - 1
        unsettled = self.unsettled.get(number, 0)
        ahead = self.ahead.get(number, 0)
        for offset in self.settling:
            if base <= offset < end:
                ahead |= 1 << offset - base
        settled = (~unsettled & looked | ahead & ~looked) >> (first - base) << (first - base)
        failed: dict[int, FailedMessage] = {}
        if self.failed:
            failed.update(item for item in self.failed.items() if first <= item[0] < end)
        for offset in self._open_in(base, unsettled & looked, first, end):
            task = self.open[offset]
            if task.ended:
                failed[offset] = FailedMessage(task.ended, _due(task), _reason(task))
        return SettledChunk(tuple(_ranges(base, settled)), dict(sorted(failed.items())))

    def _open_in(self, base: int, unsettled: int, first: int, end: int) -> Iterator[int]:
        """Offsets of open messages in ``[first, end)``; costs the lesser of these and the chunk's."""
        if len(self.open) <= unsettled.bit_count():
            yield from (offset for offset in self.open if first <= offset < end)
            return
        yield from (offset for offset in self.early if first <= offset < end)
        while unsettled:
            lowest = unsettled & -unsettled
            unsettled ^= lowest
            if (offset := base + lowest.bit_length() - 1) in self.open:
                yield offset


_EMPTY: Final = SettledChunk()


def _due(task: OpenMessage) -> int:
    return task.at_ms if task.state in (DeliveryState.WAITING, DeliveryState.DEAD) else 0


def _reason(task: OpenMessage) -> str:
    """All that was said where a dead letter needs it. Of what comes again only how it ended: a next time says more."""
    return task.reason if task.state is DeliveryState.DEAD else task.reason.partition(": ")[0]


def _ranges(base: int, mask: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of the offsets whose bits are set."""
    place = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & mask + 1).bit_length() - 1
        yield base + place + zeros, base + place + zeros + ones
        mask >>= ones
        place += zeros + ones

"""Where a consumer stands in queues that have names, which it meets as their messages come.

Such a consumer asks for names, for a pattern, or for slots, and a node remembers where it is in each queue. Kept here
is what the node may forget: where the consumer is in queues that it was sent messages of. A queue that the group has
committed up to there is forgotten, since that is where a new session begins; so a member that commits keeps nothing of
idle queues, and any other consumer some 24 bytes of each. Names are kept of none.

``ranges`` are slots, as members share them out; queues are known by their numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lsmq._queue_positions import QueuePositions
from lsmq._queue_ranges import contains, intersect, subtract, union
from lsmq._wire_values import little_endian
from lsmq.group_values import Ranges
from lsmq.queue_names import NUMBER_BITS

_PAGE_BITS = 8
_PAGE = array("i", [-1]) * (1 << _PAGE_BITS)
_IN_PAGE = (1 << _PAGE_BITS) - 1
NO_SLOT = -1
#: Of a queue that somebody seeks in, and of which nothing is known until its messages come: perhaps it is not ours.
SOUGHT = -2
UNKNOWN_SLOTS = (NO_SLOT, SOUGHT)


class NamedPositions(QueuePositions):
    """Of the slots in ``ranges``. ``forgets``: sessions begin where the group has committed.

    ``held``: queues of which nothing that comes is kept, to be fetched again. ``away``: queues that are read at
    followers, of which nothing is forgotten meanwhile.
    """

    def __init__(self, slots: Iterable[int], *, track_changes: bool, forgets: bool) -> None:
        self._forgets = forgets
        self._pages: dict[int, array[int]] = {}  # place in the columns, by number
        self._known: dict[int, int] = {}  # by page, how many
        self._free: list[int] = []  # places
        self._slots = array("h")
        self.held: set[int] = set()
        self.away: set[int] = set()
        super().__init__(slots, track_changes=track_changes)
        self.fetch, self.handed = array("q"), array("q")

    def _lay_out(self, ranges: Ranges) -> None:
        self.queues = ()  # Which they are shows as their messages come.
        self.ranges = ranges

    # Places

    def slot(self, queue: int) -> int:
        """The place of a queue in the columns; -1 when nothing is kept of it."""
        page = self._pages.get(queue >> _PAGE_BITS)
        return -1 if page is None else page[queue & _IN_PAGE]

    def share(self, queue: int) -> int:
        place = self.slot(queue)
        return NO_SLOT if place < 0 else self._slots[place]

    def meet(self, queue: int, slot: int, offset: int) -> int:
        """Its messages come, from ``offset`` on where nothing is kept of it; the offset that is wanted of it next."""
        place = self.slot(queue)
        if place >= 0:
            self._slots[place] = slot  # The number may be another name's by now.
            return self.fetch[place]
        if self._free:
            place = self._free.pop()
            self.fetch[place] = self.handed[place] = offset
            self._slots[place] = slot
        else:
            place = len(self.fetch)
            self.fetch.append(offset)
            self.handed.append(offset)
            self._slots.append(slot)
        number = queue >> _PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _PAGE[:]
        page[queue & _IN_PAGE] = place
        self._known[number] = self._known.get(number, 0) + 1
        return offset

    def _forget(self, queue: int) -> None:
        number = queue >> _PAGE_BITS
        page = self._pages[number]
        self._free.append(page[queue & _IN_PAGE])
        page[queue & _IN_PAGE] = -1
        self._known[number] -= 1
        if not self._known[number]:
            del self._pages[number], self._known[number]
        if not self._pages:
            self._free.clear()
            del self.fetch[:], self.handed[:], self._slots[:]

    def __iter__(self) -> Iterator[int]:
        for number, page in list(self._pages.items()):
            first = number << _PAGE_BITS
            yield from (first + at for at, place in enumerate(page) if place >= 0)

    def __len__(self) -> int:
        return sum(self._known.values())

    # What happens

    def own(self, ranges: Ranges) -> None:
        """Own these slots from now on; what is kept of others is forgotten."""
        for queue in [queue for queue in self if not contains(ranges, self.share(queue))]:
            self.held.discard(queue)
            self.changed.pop(queue, None)
            self.rewound.discard(queue)
            self._forget(queue)
        self.ranges = ranges
        self.paused = {who: left for who, paused in self.paused.items() if (left := intersect(paused, ranges))}
        self.generation += 1

    def move(self, queue: int, offset: int) -> None:
        if self._forgets and self.slot(queue) < 0:  # All of it was committed, or nothing has come of it yet.
            self.meet(queue, SOUGHT, offset)
            self.rewound.add(queue)
        super().move(queue, offset)

    def skip_to(self, queue: int, offset: int) -> None:
        if self.slot(queue) < 0:  # It was committed meanwhile.
            self.meet(queue, NO_SLOT, offset)
        super().skip_to(queue, offset)

    def committed(self, offsets: Mapping[int, int]) -> None:
        super().committed(offsets)
        if not self._forgets:
            return
        for queue, offset in offsets.items():
            place = self.slot(queue)
            done = place >= 0 and self.fetch[place] == self.handed[place] == offset
            if done and queue not in self.changed and queue not in self.away:
                self._forget(queue)

    # What is asked for

    def _slots_between(self, first: int, end: int) -> Ranges:
        return subtract(intersect(self.ranges, (range(first, end),)), union(*self.paused.values()))

    def where(self, queues: Sequence[int]) -> tuple[bytes, bytes]:
        """Numbers and offsets to fetch of queues that something is kept of, as requests have them."""
        kept = [(queue, place) for queue in queues if (place := self.slot(queue)) >= 0]
        offsets = [self.fetch[place] for _, place in kept]
        return little_endian("I", [queue for queue, _ in kept]), little_endian("q", offsets)

    def kept_of(self, places: Sequence[int], limit: int) -> tuple[bytes, bytes]:
        """Numbers and offsets to fetch, as requests have them, in the ranges at these ``places`` of the topic.

        Of at most so many: of others a session may begin earlier, and what comes too early is passed over.
        """
        wanted, numbers, offsets = set(places), array("I"), array("q")
        for number, page in sorted(self._pages.items()):
            if number >> (NUMBER_BITS - _PAGE_BITS) not in wanted:
                continue
            first = number << _PAGE_BITS
            for at, place in enumerate(page):
                if place >= 0:
                    numbers.append(first + at)
                    offsets.append(self.fetch[place])
            if len(numbers) >= limit:
                break
        return little_endian("I", numbers[:limit]), little_endian("q", offsets[:limit])

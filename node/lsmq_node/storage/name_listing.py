"""Names of a topic's queues on a shard in their order, a page at a time.

The order of all names is made when it is first asked for, costs 4 bytes a name, and is kept while few names have come
or gone since: a page is made of it and of the few that came, which are sorted for each.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from lsmq import runtime

from .columns import U32
from .name_order import sorted_order
from .queue_names import padded
from .topic_names import TopicNames

#: The order is made anew when the names that came since, or that it had and are gone, are more than this share of it.
_STALE_SHARE = 8
_FEW = 1_000
_LEAST_LOOK = 256
#: A page is made so often where names take the places of others meanwhile, as they may without end.
_TRIES = 4
#: So many names are looked at at once.
_AT_ONCE = 1 << 16


class NameListing:
    """Thread-safe; it may take long the first time: call it in a thread."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._lock = runtime.Lock()  # guards what follows
        self._order: U32 = np.empty(0, np.uint32)
        self._version = -1
        self._looked_at: list[U32] = []  # whose names were asked for, for a page

    def page(self, prefix: bytes, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to ``limit`` names that begin with ``prefix`` and come behind ``after``, in order, with their numbers.

        Raises ``NamesBehind``.
        """
        with self._lock:
            for _ in range(_TRIES):
                fresh, version = self._brought_up()
                self._looked_at.clear()
                found = self._page(fresh, prefix, after, limit)
                came, _ = self._names.changed_since(version)
                if came is not None and not np.isin(came, np.concatenate(self._looked_at)).any():
                    break
                # Else a name stood where another was that had its number, and names before it may be left out.
            return found

    def _page(self, fresh: U32, prefix: bytes, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        came = set(fresh.tolist())
        found = [(raw, number) for raw, number in self._raw(fresh) if _wanted(raw, prefix, after)]
        at, missed, count = self._begin(prefix, after, came), 0, 0
        while at < len(self._order) and count < limit:
            some = self._order[at : at + max(limit, _LEAST_LOOK)]
            rows = [(raw, number) for raw, number in self._raw(some) if number not in came]
            wanted = [row for row in rows if _wanted(row[0], prefix, after)]
            found += wanted
            count += len(wanted)
            missed += len(some) - len(rows)
            at += len(some)
            if rows and rows[-1][0] > prefix and not rows[-1][0].startswith(prefix):
                break
        if missed > max(_FEW, len(self._order) // _STALE_SHARE):
            self._version = -1
        found.sort()
        return found[:limit]

    def _brought_up(self) -> tuple[U32, int]:
        """The numbers that have got names since the order was made, which is made anew where they are many; and as of
        which version that is."""
        if self._version >= 0:
            fresh, version = self._names.changed_since(self._version)
            if fresh is not None and len(fresh) <= max(_FEW, len(self._order) // _STALE_SHARE):
                return fresh, version
        self._version, version = -1, self._names.version  # That of the order once it is made.
        numbers = self._names.all_numbers()
        parts = [self._names.text(numbers[at : at + _AT_ONCE]) for at in range(0, len(numbers), _AT_ONCE)]
        if not parts:
            self._order, self._version = numbers, version
            return numbers, version
        known = np.concatenate([part[0] for part in parts])
        lengths = np.concatenate([part[2] for part in parts])
        text = padded(*(part[1] for part in parts))
        self._order = known[sorted_order(text, np.cumsum(lengths) - lengths, lengths)]
        self._version = version
        return np.empty(0, np.uint32), version

    def _begin(self, prefix: bytes, after: bytes, came: set[int]) -> int:
        """Where in the order to begin looking. Those that have no name any more are passed over."""
        target = max(prefix, after)

        def name(at: int) -> bytes:
            """Of the first from there on that has kept its name."""
            while at < len(self._order):
                number = int(self._order[at])
                rows = self._raw(self._order[at : at + 1]) if number not in came else []
                if rows:
                    return rows[0][0]
                at += 1
            return b"\xff"

        found = bisect_right(range(len(self._order)), target, key=name)
        return max(0, found - 1)

    def _raw(self, numbers: U32) -> list[tuple[bytes, int]]:
        """Names and numbers of those that have names, in the order given."""
        self._looked_at.append(numbers)
        known, text, lengths = self._names.text(numbers)
        raw, ends = text.tobytes(), np.cumsum(lengths)
        starts = (ends - lengths).tolist()
        return [(raw[a:b], n) for a, b, n in zip(starts, ends.tolist(), known.tolist(), strict=True)]


def _wanted(raw: bytes, prefix: bytes, after: bytes) -> bool:
    return raw > after and raw.startswith(prefix)

"""Which offsets the records of a log entry were given, where the log before it has a hole.

The log holds no offsets: replay gives the same ones again. Behind a hole nobody knows how far the queues had come; but
each entry carries the sum of the offsets that its records were given, and offsets only grow. So

- where the sum is the one that the known ends of the queues give, none of these queues had moved in the hole;
- where only one of the queues may have moved, the sum says by how much;
- else nobody can say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..columns import I64

_MODULUS = 1 << 64


def expected_sum(counts: I64, ends: I64) -> int:
    """The sum of the offsets that so many records of each queue get, the queues being that long."""
    return sum(
        count * end + count * (count - 1) // 2 for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
    )


def ends_before(counts: I64, ends: I64, sure: NDArray[np.bool_], check: int) -> I64 | None:
    """How long the queues of an entry were when it was written; None where that cannot be told.

    Args:
        counts: records of each queue in the entry.
        ends: how long the queues were at least; exactly so long where ``sure``.
        check: of the entry: the sum of its records' offsets modulo 2**64.
    """
    missing = (check - expected_sum(counts, ends)) % _MODULUS
    if missing == 0:
        return ends
    open_ = np.flatnonzero(~sure)
    if len(open_) != 1 or missing >= _MODULUS >> 1:
        return None
    at = int(open_[0])
    steps, rest = divmod(missing, int(counts[at]))
    if rest:
        return None
    found = ends.copy()
    found[at] += steps
    return found

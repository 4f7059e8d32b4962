"""When rows are to come and to expire, as their records say it: columns of times and of delays in one.

Whether a time is over is asked of none of them: a task that is tried again has to write the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.messages import LAST_DUE_MS, MAX_DELAY_MS, MAX_TTL_MS
from lsmq_pipeline.errors import SchemaMismatch

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


def due_values(columns: Mapping[str, Any], count: int) -> I64:
    """A delay, or the time at which each row is to come; 0 for at once. Raises ``SchemaMismatch``."""
    delays = _milliseconds(columns, "delay_ms", count, (0, MAX_DELAY_MS), "a delay in milliseconds", "comes at once")
    times = _milliseconds(
        columns,
        "deliver_at_ms",
        count,
        (MAX_DELAY_MS + 1, min(LAST_DUE_MS, runtime.wall_ms() + MAX_DELAY_MS)),
        "a time in milliseconds since 1970, within ten years from now,",
        "comes at once",
    )
    _give_one_of(columns, "delay_ms", delays, "deliver_at_ms", times)
    return np.maximum(delays, times)


def expiry_values(columns: Mapping[str, Any], due: I64) -> I64:
    """A time to live, or the moment when it expires, of each row; 0 for none. Raises ``SchemaMismatch``.

    A moment cannot stand beside a delay, which counts from when the row is stored: an attempt that comes later would be
    refused what the one before has stored.
    """
    never = "does not expire"
    ttls = _milliseconds(columns, "ttl_ms", len(due), (1, MAX_TTL_MS), "a time to live in milliseconds", never)
    moments = _milliseconds(
        columns,
        "expires_at_ms",
        len(due),
        (MAX_TTL_MS + 1, LAST_DUE_MS),
        "a moment in milliseconds since 1970",
        never,
    )
    _give_one_of(columns, "ttl_ms", ttls, "expires_at_ms", moments)
    if ((moments > 0) & (due > 0) & (due <= MAX_DELAY_MS)).any():
        raise SchemaMismatch(
            "a row has both 'delay_ms' and 'expires_at_ms', so whether it would ever be delivered depends on when it "
            "is stored; give 'ttl_ms' beside a delay, or 'deliver_at_ms' beside a moment",
            column="expires_at_ms",
        )
    early = (moments > 0) & (moments <= due)
    if early.any():
        row = int(np.argmax(early))
        raise SchemaMismatch(
            f"column 'expires_at_ms' has {moments[row]} where 'deliver_at_ms' has {due[row]}: the message would never "
            "be delivered; let it expire later",
            column="expires_at_ms",
        )
    return np.maximum(ttls, moments)


def _give_one_of(columns: Mapping[str, Any], first: str, ones: I64, second: str, others: I64) -> None:
    if ((ones > 0) & (others > 0)).any():
        raise SchemaMismatch(f"a row has both {first!r} and {second!r}; leave one of the two null", column=second)


def _milliseconds(
    columns: Mapping[str, Any], name: str, count: int, bounds: tuple[int, int], what: str, without: str
) -> I64:
    """The column, 0 where it is null or not there: a message ``without`` it. ``bounds`` are allowed themselves."""
    column = columns.get(name)
    if column is None:
        return np.zeros(count, np.int64)
    found: I64 = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    first, last = bounds
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    wrong = valid & ((found < first) | (found > last))
    if wrong.any():
        raise SchemaMismatch(
            f"column {name!r} has {int(found[np.argmax(wrong)])}; {what} is {first} to {last}, or "
            f"null for a message that {without}",
            column=name,
        )
    return found

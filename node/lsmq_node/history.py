"""The last hour of a node, for people: a sample every five seconds in one array, which is all the memory it takes.

Rates are of all replicas at this node; times are those of requests that send, by the bounds of the histogram of
``/metrics``. Monitoring that keeps more reads ``/metrics``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq_node.broker import Broker, KeptService
from lsmq_node.metrics import BUCKETS_S, HttpMetrics
from lsmq_node.storage import StoreStats

EVERY_S: Final = 5.0
SAMPLES: Final = 720
#: Columns of a sample, in this order.
COLUMNS: Final = (
    "time_ms",
    "in_per_s",
    "out_per_s",
    "in_bytes_per_s",
    "out_bytes_per_s",
    "send_p50_ms",
    "send_p99_ms",
    "table_bytes",
    "disk_free_bytes",
    "memory_bytes",
    "shards_not_in_sync",
    "parts_stopped",
)
_SENDING = ("sendMessages", "sendBatch", "sendBatches")


class NodeHistory(KeptService):
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "history")
        self._ring: NDArray[np.float64] = np.zeros((SAMPLES, len(COLUMNS)))
        self._count = 0
        self._http: HttpMetrics | None = None
        self._before = (0.0, 0, 0, 0, 0)
        self._buckets: NDArray[np.int64] = np.zeros(len(BUCKETS_S) + 1, np.int64)

    def watch(self, http: HttpMetrics) -> None:
        """Take times of requests from there."""
        self._http = http

    async def _run(self) -> None:
        self._before = _counts(self._stats())
        while True:
            await asyncio.sleep(EVERY_S)
            self.sample()

    def sample(self) -> None:
        """Take a sample of this moment, in place of the oldest once there are :data:`SAMPLES`."""
        stats = self._stats()
        before, self._before = self._before, _counts(stats)
        passed_s = max(self._before[0] - before[0], 1e-3)
        # A replica that was taken away takes its counts along.
        rates = [max(0, now - then) for now, then in zip(self._before[1:], before[1:], strict=True)]
        sending = self._sending()
        served, self._buckets = sending - self._buckets, sending
        figures = [port.figures() for port in self._broker.topology.ports()]
        self._ring[self._count % SAMPLES] = (
            runtime.wall_ms(),
            *(count / passed_s for count in rates),
            quantile_ms(served, 0.5),
            quantile_ms(served, 0.99),
            sum(each.table_bytes for each in stats),
            min((disk.free_bytes for disk in self._broker.topology.disks.all if disk.problem is None), default=0),
            _resident_bytes(),
            sum(each.get("serving") is True and each.get("enough_in_sync") is False for each in figures),
            len(self._broker.parts.problems(essential=True)) + len(self._broker.parts.problems(essential=False)),
        )
        self._count += 1

    def columns(self, last: int = SAMPLES) -> Mapping[str, Sequence[float]]:
        """The ``last`` samples kept, oldest first, a list for each of :data:`COLUMNS`."""
        begin = max(0, self._count - min(last, SAMPLES))
        kept = self._ring[np.arange(begin, self._count) % SAMPLES]
        return {name: kept[:, at].round(3).tolist() for at, name in enumerate(COLUMNS)}

    def _stats(self) -> list[StoreStats]:
        return [port.store.stats() for port in self._broker.topology.ports()]

    def _sending(self) -> NDArray[np.int64]:
        found = np.zeros(len(BUCKETS_S) + 1, np.int64)
        for operation in _SENDING if self._http is not None else ():
            assert self._http is not None
            found += np.array(self._http.series(operation).buckets, np.int64)
        return found


def _counts(stats: Sequence[StoreStats]) -> tuple[float, int, int, int, int]:
    """Now, and how many records were written and read by then, and their bytes."""
    return (
        runtime.monotonic(),
        sum(each.records_written_total for each in stats),
        sum(each.records_read_total for each in stats),
        sum(each.bytes_written_total for each in stats),
        sum(each.bytes_read_total for each in stats),
    )


def quantile_ms(buckets: NDArray[np.int64], part: float) -> float:
    """The bound of the bucket in which this part of all requests is reached, in milliseconds; 0 without requests."""
    total = int(buckets.sum())
    if total == 0:
        return 0.0
    at = int(np.searchsorted(buckets.cumsum(), part * total))
    return BUCKETS_S[min(at, len(BUCKETS_S) - 1)] * 1_000


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0

"""The files of all shards, read again and again: what a disk has lost is found while other copies are whole.

Each file is read about once in ``scrub_cycle_ms``, slowly, the one that was read the longest ago first. What is found
to be damaged is told as when a reader finds it, and mended likewise: in a cluster the replica is filled again from the
others. Nothing is stored of it: after a restart it begins with any file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from lsmq import runtime
from lsmq.errors import CorruptFile, LsmqError

from .background import KeptService
from .broker import Broker
from .throttle import Throttle

_log = structlog.get_logger("lsmq.scrub")

#: While a file is read.
_BYTES_PER_S = 16 << 20
_LONGEST_PAUSE_S = 3_600.0
#: A node that has nothing to read looks again after so long.
_IDLE_S = 60.0
#: A file that could not be read is not put off for a whole cycle.
_AGAIN_S = 600.0


@dataclass(slots=True)
class ScrubCounts:
    """Since the start."""

    read_bytes: int = 0
    files: int = 0
    damaged: int = 0


class Scrubber(KeptService):
    """The part ``scrub`` of a node, which does without. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "scrub")
        self.counts = ScrubCounts()
        self._cycle_s = broker.config.scrub_cycle_ms / 1000
        self._threads = runtime.ThreadPoolExecutor(1, "lsmq-scrub")
        self._throttle = Throttle(_BYTES_PER_S)
        #: When each file was read, in the loop's time; of those that there are.
        self._read_at: dict[tuple[int, str], float] = {}

    def start(self) -> None:
        if self._cycle_s:
            super().start()

    async def stop(self) -> None:
        await super().stop()
        self._threads.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(min(_IDLE_S, self._cycle_s) * runtime.random.random())  # nodes that start at one time
        while True:
            sizes = {
                (port.number, name): size
                for port in self._broker.topology.ports()
                if port.stopped is None
                for name, size in port.store.scrub.files()
            }
            self._read_at = {file: at for file, at in self._read_at.items() if file in sizes}
            now = loop.time()
            due = [file for file in sizes if now - self._read_at.get(file, -self._cycle_s) >= self._cycle_s]
            if not due:
                await asyncio.sleep(min(_IDLE_S, self._cycle_s))
                continue
            runtime.random.shuffle(due)
            shard, name = min(due, key=lambda file: self._read_at.get(file, -self._cycle_s))
            self._read_at[shard, name] = now
            if not await self._read(shard, name):
                self._read_at[shard, name] = now - max(0.0, self._cycle_s - _AGAIN_S)
            share = sizes[shard, name] / max(1, sum(sizes.values()))
            await asyncio.sleep(min(_LONGEST_PAUSE_S, max(0.0, share * self._cycle_s - (loop.time() - now))))

    async def _read(self, shard: int, name: str) -> bool:
        """Whether it could be read, or is damaged."""
        port = next((port for port in self._broker.topology.ports() if port.number == shard), None)
        if port is None:
            return False
        loop, pieces = asyncio.get_running_loop(), port.store.scrub.read(name)
        try:
            while (size := await loop.run_in_executor(self._threads, _next, pieces)) is not None:
                self.counts.read_bytes += size
                await self._throttle.take(size)
            self.counts.files += 1
        except CorruptFile as damage:
            self.counts.damaged += 1
            _log.error("scrub_found_damage", shard=shard, file=name, damage=damage.message)
        except (OSError, LsmqError) as error:  # The store is being closed, or there is no descriptor: another time.
            _log.warning("scrub_could_not_read", shard=shard, file=name, reason=str(error))
            return False
        finally:
            await loop.run_in_executor(self._threads, _close, pieces)
        return True


def _next(pieces: Iterator[int]) -> int | None:
    return next(pieces, None)


def _close(pieces: Iterator[int]) -> None:
    """Let go of the file, where it was not read to its end."""
    close = getattr(pieces, "close", None)
    if close is not None:
        close()

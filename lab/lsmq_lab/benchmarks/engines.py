"""The stores that are compared, behind one small face: ours, and RocksDB through rocksdict.

RocksDB holds queues the way one would build them on it: the key is the queue's number and the message's
offset, both big-endian, so that a queue's messages are neighbours; the value is the message. The offsets have
to come from somewhere: they are counted in an array and the keys of a batch are packed in one go, which costs
it next to nothing. It is spared the names: its caller has queue numbers in hand.
"""

from __future__ import annotations

import importlib
import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq_node.storage import QueueStore, StoreOptions

LSMQ = "lsmq"
ROCKSDB = "rocksdb"
ROCKSDB_REMEDY = 'rocksdict is not installed, so there is nothing to compare with: pip install "lsmq[bench]"'
FLUSH_MODES = ("async", "sync")

_KEY = np.dtype([("queue", ">u4"), ("offset", ">u8")])
_KEY_STRUCT = struct.Struct(">IQ")


class Engine(Protocol):
    """A store of queues numbered from 0."""

    def put(self, batch: Any) -> None:
        """Store what :func:`prepare` made; on return it is acknowledged as the flush mode promises."""

    def get(self, queue: int, offset: int, count: int) -> list[bytes]:
        """Up to ``count`` messages of a queue from ``offset`` on."""

    def get_many(self, queues: list[int], offsets: list[int], count: int) -> list[list[bytes]]:
        """The same of many queues at once."""

    def memtable_bytes(self) -> int:
        """What messages take that are in memory only until they are flushed."""

    def flush(self) -> None:
        """Write what is in memory to table files."""

    def close(self) -> None:
        """Close the store cleanly."""


def open_engine(name: str, path: Path, flush_mode: str, queues: int) -> Engine:
    """Open or create a store under ``path``, for so many queues."""
    engines: dict[str, Callable[[Path, str, int], Engine]] = {LSMQ: LsmqEngine, ROCKSDB: RocksEngine}
    return engines[name](path, flush_mode, queues)


def prepare(name: str, queues: NDArray[np.int64], bodies: list[bytes]) -> Any:
    """Messages in the form in which the caller of a store has them in hand, for :meth:`Engine.put`."""
    forms: dict[str, Callable[[NDArray[np.int64], list[bytes]], Any]] = {
        LSMQ: LsmqEngine.prepare,
        ROCKSDB: RocksEngine.prepare,
    }
    return forms[name](queues, bodies)


def available() -> tuple[list[str], list[str]]:
    """The engines that can run here, and a remedy for each that cannot."""
    if importlib.util.find_spec("rocksdict") is None:
        return [LSMQ], [ROCKSDB_REMEDY]
    return [LSMQ, ROCKSDB], []


class LsmqEngine:
    """``QueueStore`` with its defaults. Its queues have names."""

    def __init__(self, path: Path, flush_mode: str, queues: int) -> None:
        self.store = QueueStore(path, flush_mode=flush_mode)

    @staticmethod
    def prepare(queues: NDArray[np.int64], bodies: list[bytes]) -> list[tuple[str, bytes]]:
        """Each message has a string of its own for the name, as one that came in from outside has."""
        return [(_name(queue), body) for queue, body in zip(queues.tolist(), bodies, strict=True)]

    def put(self, batch: list[tuple[str, bytes]]) -> None:
        self.store.put_many(batch)

    def get(self, queue: int, offset: int, count: int) -> list[bytes]:
        return self.store.get(_name(queue), offset, count)

    def get_many(self, queues: list[int], offsets: list[int], count: int) -> list[list[bytes]]:
        return self.store.get_many([(_name(queue), at, count) for queue, at in zip(queues, offsets, strict=True)])

    def memtable_bytes(self) -> int:
        return self.store.store.stats().memtable_bytes

    def flush(self) -> None:
        self.store.flush()

    def close(self) -> None:
        self.store.close()


def _name(queue: int) -> str:
    return f"queue-{queue}"


class RocksEngine:
    """RocksDB with its write-ahead log on, a block cache as large as ours, and two background jobs."""

    def __init__(self, path: Path, flush_mode: str, queues: int) -> None:
        # Imported by name: an optional package, and one without types.
        self._module: ModuleType = importlib.import_module("rocksdict")
        options = self._module.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(StoreOptions().memtable_bytes)
        options.set_max_background_jobs(2)
        options.set_compression_type(self._module.DBCompressionType.none())
        blocks = self._module.BlockBasedOptions()
        blocks.set_block_cache(self._module.Cache(StoreOptions().cache_bytes))
        options.set_block_based_table_factory(blocks)
        self._database = self._module.Rdict(str(path), options)
        self._write_options = self._module.WriteOptions()
        self._write_options.sync = flush_mode == "sync"
        self._lengths = np.zeros(queues, np.int64)
        self._iterator: Any = None

    @staticmethod
    def prepare(queues: NDArray[np.int64], bodies: list[bytes]) -> tuple[NDArray[np.int64], list[bytes]]:
        return queues, bodies

    def put(self, batch: tuple[NDArray[np.int64], list[bytes]]) -> None:
        queues, bodies = batch
        keys = np.empty(len(queues), _KEY)
        keys["queue"] = queues
        keys["offset"] = self._next_offsets(queues)
        packed = keys.tobytes()
        writes = self._module.WriteBatch(raw_mode=True)
        put = writes.put
        for at, body in zip(range(0, len(packed), _KEY.itemsize), bodies, strict=True):
            put(packed[at : at + 12], body)
        self._database.write(writes, self._write_options)

    def get(self, queue: int, offset: int, count: int) -> list[bytes]:
        if self._iterator is None:
            self._iterator = self._database.iter(self._module.ReadOptions())
        iterator = self._iterator
        iterator.seek(_KEY_STRUCT.pack(queue, offset))
        prefix = queue.to_bytes(4, "big")
        found: list[bytes] = []
        while len(found) < count and iterator.valid() and iterator.key()[:4] == prefix:
            found.append(iterator.value())
            iterator.next()
        return found

    def get_many(self, queues: list[int], offsets: list[int], count: int) -> list[list[bytes]]:
        return [self.get(queue, at, count) for queue, at in zip(queues, offsets, strict=True)]

    def memtable_bytes(self) -> int:
        return int(self._database.property_int_value("rocksdb.size-all-mem-tables") or 0)

    def flush(self) -> None:
        self._database.flush()

    def close(self) -> None:
        self._iterator = None
        self._database.close()

    def _next_offsets(self, queues: NDArray[np.int64]) -> NDArray[np.int64]:
        """Offsets of a batch: the queue's length, plus the place among the batch's messages of the queue."""
        order = np.argsort(queues, kind="stable")
        ordered = queues[order]
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        counts = np.diff(first, append=len(ordered))
        place = np.arange(len(ordered)) - np.repeat(first, counts)
        offsets = np.empty(len(queues), np.int64)
        offsets[order] = self._lengths[ordered] + place
        self._lengths[ordered[first]] += counts
        return offsets

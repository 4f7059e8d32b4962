"""A shard of a terabyte in a process of few descriptors and a small cache: it is read, written and flushed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lsmq_node.storage import StoreOptions

from .sparse_shard import QUEUES, build

OPEN_FILES = 256
CACHE_BYTES = 64 << 20

PROGRAM = """
import json, os, random, resource, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pathlib import Path
from lsmq_node.storage import ShardStore, StoreOptions
from storage.harness import put
from storage.sparse_shard import OFFSETS, message

path, queues = Path(sys.argv[1]), json.loads(sys.argv[2])
chance, most_open, held = random.Random(5), 0, []

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def look():
    global most_open
    if not held:
        most_open = max(most_open, len(os.listdir("/proc/self/fd")))

def check(queue, offset, count=1):
    found = store.read_bytes(topic, queue, offset, count)
    assert found == [message(queue, at) for at in range(offset, offset + count)], (queue, offset)
    look()

store = ShardStore.open(path, StoreOptions(min_free_bytes=0, cache_bytes=64 << 20))
(topic,) = [item.id for item in store.topics()]
before, at_open = resident(), store.stats()
for queue in queues:
    check(queue, 0)
    check(queue, OFFSETS - 1)
    check(queue, OFFSETS)
random_reads = store.stats()
for _ in range(2_000):
    check(chance.choice(queues), chance.randrange(OFFSETS))
for queue in queues[:3]:
    for offset in range(0, OFFSETS, 64):
        check(queue, offset, 64)
for queue in queues[3:6]:  # and by the way of consumers
    offset = 0
    while offset <= OFFSETS:
        found = store.read(topic, queue, offset, max_records=200)
        (position,) = found.positions[1].tolist()
        bodies = [item.body for batch in found.batches() for item in batch.messages("t")]
        assert bodies == [message(queue, at) for at in range(offset, position)]
        offset = position
grown = resident() - before

try:
    while True:
        held.append(socket.socket())  # whatever is left
except OSError:
    pass
for queue in queues:
    check(queue, chance.randrange(OFFSETS))
for number in range(3):
    for queue in queues:
        put(store, topic, (queue, message(queue, OFFSETS + 1 + number)))
    store.flush()
for queue in queues:
    check(queue, OFFSETS - 1, 5)
stats = store.stats()
assert not stats.stopped
held.clear()
store.close()
print(json.dumps({
    "tables": stats.tables, "opened_at_open": at_open.open_tables, "read_at_open": at_open.cache_misses_total,
    "open_tables": stats.open_tables, "most_open": most_open, "grown": grown, "cache_bytes": stats.cache_bytes,
    "first_looks": random_reads.cache_misses_total,
}))
"""


@pytest.mark.slow
def test_a_shard_of_a_terabyte_is_served_with_64_mib_of_cache_and_256_descriptors(tmp_path: Path) -> None:
    queues = sorted(random.Random(3).sample(range(QUEUES), 24))
    options = StoreOptions(min_free_bytes=0, cache_bytes=CACHE_BYTES)
    assert build(tmp_path / "s", options, queues) > 1 << 40
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), json.dumps(queues)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["tables"] > 1_000
    assert seen["opened_at_open"] == seen["read_at_open"] == 0, "opening reads no table"
    assert seen["most_open"] < OPEN_FILES // 2, "tables have a share of the descriptors, and keep to it"
    assert seen["cache_bytes"] <= CACHE_BYTES
    assert seen["grown"] < CACHE_BYTES + (24 << 20)
    # The oldest, the newest but one and the newest of each queue, of 65 runs: a few looks of root, page and block each.
    assert seen["first_looks"] < len(queues) * 3 * 14
    assert done.stderr.count("file descriptor") <= 1, "said once a minute"

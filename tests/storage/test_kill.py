"""A real process, a real disk, kill -9 while it writes: everything it had acknowledged is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from lsmq_node.storage import QueueStore, ShardStore
from lsmq_node.storage.disk import OsDisk
from support.extent import part_in_number

from .harness import TINY, assert_no_orphans, bodies, open_stepped, tiny

ROUNDS = part_in_number(5, 2)

SHARD_WRITER = """
import sys
from storage.harness import Put, batch_of, body, tiny
from lsmq_node.storage import ShardStore
store = ShardStore.open(sys.argv[1], tiny(level0_merge=2))
topic = store.create_topic("t", 5)
latest = store.latest_offsets(topic.id).tolist()
number = sum(latest)
while True:
    puts = []
    for at in range(8):
        puts.append(Put(number % 5, body(number, 50 + number % 3000)))
        number += 1
    store.wait_for_room(10)
    store.wait(store.append(topic.id, batch_of(puts)))
    print(number, flush=True)
"""

QUEUE_WRITER = """
import sys
from storage.harness import TINY, body
from lsmq_node.storage import QueueStore
store = QueueStore(sys.argv[1], **{**TINY, "level0_merge": 2})
number = sum(store.length(f"queue {at}") for at in range(20))
while True:
    offsets = store.put_many([(f"queue {(number + at) % 20}", body(number + at, 900)) for at in range(4)])
    number += 4
    print(number, flush=True)
"""


def run_and_kill(program: str, path: Path, writes: int) -> int:
    """Kill the writer with -9 after so many writes; returns the last number it acknowledged."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(writes)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()  # of what was read ahead too
    assert process.returncode == -signal.SIGKILL
    return int([line for line in lines if line.endswith(b"\n")][-1])


def test_a_killed_shard_has_everything_acknowledged_and_nothing_twice(tmp_path: Path) -> None:
    chance, path = random.Random(1), tmp_path / "shard"
    seen = 0
    for _ in range(ROUNDS):
        acknowledged = run_and_kill(SHARD_WRITER, path, chance.randint(10, 150))
        with ShardStore.open(path, tiny(level0_merge=2)) as store:
            topic_id = store.topic("t").id
            stored: dict[int, bytes] = {}
            for queue in range(5):
                found = bodies(store, topic_id, queue)
                assert list(found) == list(range(len(found)))
                numbers = [int(content[:7]) for content in found.values()]
                assert numbers == list(range(queue, 5 * len(numbers), 5)), "in order, without gaps"
                stored.update(zip(numbers, found.values(), strict=True))
            assert len(stored) in (acknowledged, acknowledged + 8), "at most the batch under way beyond"
            assert all(len(content) == 50 + number % 3000 for number, content in stored.items())
            assert len(stored) >= seen
            seen = len(stored)
        checked = open_stepped(path, tiny())
        assert_no_orphans(checked, OsDisk(), path)
        checked.close()


def test_a_killed_queue_store_has_everything_acknowledged_under_its_names(tmp_path: Path) -> None:
    chance, path = random.Random(2), tmp_path / "queues"
    for _ in range(ROUNDS):
        acknowledged = run_and_kill(QUEUE_WRITER, path, chance.randint(10, 100))
        with QueueStore(path, **{**TINY, "level0_merge": 2}) as store:
            total = 0
            for queue in range(20):
                found = store.get(f"queue {queue}", 0, 1 << 20)
                assert [int(content[:7]) for content in found] == list(range(queue, 20 * len(found), 20))
                total += len(found)
            assert total in (acknowledged, acknowledged + 4)
            assert len(store) == 20 or total < 20

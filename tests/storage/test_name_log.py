"""What names of queues are made of: their order, the changes that are written of them, the memory that one takes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lsmq.queue_names import queue_slot
from lsmq_node.storage.name_log import NameChange, NameChanges, decode, encode, offsets_of, with_offsets
from lsmq_node.storage.name_order import sorted_order


@pytest.mark.parametrize("seed", range(20))
def test_names_are_ordered_as_text_is(seed: int) -> None:
    chance = random.Random(seed)
    names = list({"".join(chance.choices("ab.é\U0001f600", k=chance.randint(1, 30))) for _ in range(200)})
    raw = [name.encode() for name in names]
    lengths = np.array([len(each) for each in raw])
    text = np.frombuffer(b"".join(raw) + bytes(16), np.uint8)
    order = sorted_order(text, np.cumsum(lengths) - lengths, lengths)
    assert [names[at] for at in order.tolist()] == sorted(names)


def test_changes_are_written_as_their_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "queue-names.md").read_text()
    put_line, forget_line = [bytes.fromhex(line) for line in page.split("```")[1].split("\n")[1:3]]
    text, one = np.frombuffer(b"inbox" + bytes(16), np.uint8), np.zeros(1, np.int64)
    five, slot = np.array((5,), np.uint32), np.array((queue_slot("inbox"),), np.uint16)
    (batch,) = encode(NameChanges(NameChange.PUT, five, slot, text, one, one + 5), 1 << 20, 10)
    assert bytes(batch.payload) == put_line
    (batch,) = encode(with_offsets(NameChange.FORGET, five, np.array((700,))), 1 << 20, 10)
    assert bytes(batch.payload) == forget_line
    found = list(decode(put_line + forget_line, np.array((len(put_line), len(forget_line)))))
    assert [(each.kind, each.numbers.tolist()) for each in found] == [(NameChange.PUT, [5]), (NameChange.FORGET, [5])]
    assert offsets_of(found[1]).tolist() == [700]


def test_names_that_are_more_than_a_batch_holds_go_into_several() -> None:
    raw = [b"%05d" % at for at in range(100)]
    lengths = np.full(100, 5, np.int64)
    text = np.frombuffer(b"".join(raw) + bytes(16), np.uint8)
    changes = NameChanges(
        NameChange.PUT,
        np.arange(100, dtype=np.uint32),
        np.zeros(100, np.uint16),
        text,
        np.cumsum(lengths) - lengths,
        lengths,
    )
    for max_bytes, max_count in ((1 << 20, 7), (60, 1000), (1, 1000)):
        batches = encode(changes, max_bytes, max_count)
        assert all(batch.record_count <= max_count for batch in batches)
        assert all(len(batch.payload) <= max(max_bytes, 11) for batch in batches)
        assert b"".join(bytes(batch.payload) for batch in batches) == bytes(encode(changes, 1 << 20, 1000)[0].payload)


MEASURED = """
import ctypes, gc, sys
import numpy as np
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.storage import ShardStore, Slots, TopicOptions

def resident():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

path, count, step = sys.argv[2], int(sys.argv[3]), 10_000
if sys.argv[1] == "fill":
    with ShardStore.open(path) as store:
        topic = store.create_topic("t", 4096, TopicOptions(named=True))
        builder = BatchBuilder()
        for at in range(step):
            builder.add(at, b"x" * 20)
        for first in range(0, count, step):
            names = "\\0".join(f"agents.{at:08d}.inbox" for at in range(first, first + step)).encode()
            store.wait(store.names(topic.id).append(names, RecordBatch(builder.build()), Slots(0, 4096))[0])
        store.flush()
else:
    before = resident()
    with ShardStore.open(path) as store:
        names = store.names(store.topics()[0].id)
        names.refresh()
        assert names.count == count
        print((resident() - before) / count)
"""


@pytest.mark.slow
def test_a_queue_and_its_name_take_at_most_120_bytes(tmp_path: Path) -> None:
    def run(what: str) -> str:
        command = [sys.executable, "-c", MEASURED, what, str(tmp_path / "shard"), "400000"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    run("fill")
    assert float(run("look")) <= 120

"""A flipped bit in a table: found, named, and never served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api, pack

MIB = 1024 * 1024


def largest_table(data: Path) -> Path:
    return max(data.rglob("*.tbl"), key=lambda path: path.stat().st_size)


def test_a_flipped_bit_is_named_to_who_reads_it(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(memtable_bytes=4 * MIB, cache_bytes=0).start()
    api = Api(node.url)
    api.create("t", 2)
    bodies = [b"%08d" % number * 64 for number in range(12_000)]
    for first in range(0, len(bodies), 500):
        api.send_batch("t", pack(*((0, body) for body in bodies[first : first + 500])))
    api.send("t", {"queue": 1, "body": "elsewhere"})
    eventually(lambda: api.metric("lsmq_store_flushes_total") >= 1, "a memtable was flushed")
    node.stop()
    table = largest_table(node.data)
    raw = bytearray(table.read_bytes())
    at = raw.index(bodies[10]) + 100
    raw[at] ^= 1
    table.write_bytes(raw)
    node.start()

    answer = api.read("t", 0, 500, offset=10, max=1)
    assert answer.code == "corrupt_file"
    assert table.name in answer.error["message"]
    for max_bytes in (64 * 1024, MIB):  # read into memory, and sent by sendfile
        assert api.fetch("t", {0: 0}, None, max_bytes=max_bytes).code == "corrupt_file"
    assert api.bodies("t", 1) == ["elsewhere"]
    assert api.get("/healthz").status == 200
    ready = api.get("/readyz")
    assert ready.status == 200
    assert [table.name in warning for warning in ready.json()["warnings"]] == [True]
    assert table.name in api.get("/v1/status").json()["shards"][0]["damage"][0]
    assert api.metric("lsmq_store_damaged_tables") == 1
    api.send("t", {"queue": 1, "body": "writes go on"})

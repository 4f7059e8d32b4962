"""Large requests: counted before they are made, unpacked off the loop, bounded after decompression."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import TooManyItems
from lsmq.record_batch import BatchBuilder, Codec, RecordBatch
from lsmq_node.api import bodies, codec, items
from lsmq_node.api.codec import BATCH_TYPE, NAMED_BATCH_TYPE
from lsmq_node.api.items import MAX_ITEMS, check_json_items, unpack_msgpack
from lsmq_node.broker import Broker
from lsmq_node.broker.reads import Reads
from lsmq_node.storage.queries import AT_HAND_BYTES
from lsmq_node.workers import LARGE_BYTES, Workers
from storage.harness import profile
from support.waiting import comes_true

from .calls import Api
from .in_process import Session, with_node

MIB = 1 << 20
MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * MAX_ITEMS + b"0]",
        b'{"a":' + b"[]," * MAX_ITEMS + b"0}",
        b"[" + b"{}," * MAX_ITEMS + b"{}]",
        b"[" * (MAX_ITEMS + 2),
        b'["",' + b'"",' * MAX_ITEMS + b"0]",
    ],
    ids=["numbers", "lists", "maps", "nested", "texts"],
)
def test_json_of_too_many_values_is_refused_before_it_is_made(body: bytes) -> None:
    with pytest.raises(TooManyItems) as refused:
        check_json_items(body)
    assert refused.value.details["limit"] == MAX_ITEMS


def test_text_is_one_value_whatever_it_says() -> None:
    for text in ("," * 2 * MAX_ITEMS, '[{"' * MAX_ITEMS, "\\" * MAX_ITEMS + '",' * MAX_ITEMS, "\u00e9,[" * MAX_ITEMS):
        check_json_items(json.dumps({"messages": [{"body": text}]}).encode())


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb([{}] * MAX_ITEMS),
        msgpack.packb([[[]] * 1_000] * 1_000),
        msgpack.packb(dict.fromkeys(range(MAX_ITEMS // 2 + 1))),
        b"\xdd\xff\xff\xff\xff" + bytes(MAX_ITEMS),
        b"\x91" * MAX_ITEMS + b"\xc0" * 3,
    ],
    ids=["maps", "lists", "keys", "announced", "nested"],
)
def test_msgpack_of_too_many_values_is_refused_while_it_is_made(body: bytes) -> None:
    with pytest.raises((TooManyItems, msgpack.exceptions.StackError)):
        unpack_msgpack(body)


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('",:[]{}\\x', max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('",:\\', max_size=3), inner, max_size=5),
    max_leaves=60,
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(1 + count(item) for item in value.values()) + 1
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@pytest.mark.part(2)
@profile(200)
@given(values, st.integers(0, 40))
def test_no_more_values_pass_than_may_and_few_are_never_refused(value: Any, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "MAX_ITEMS", limit)
        patch.setattr(items, "_FEW_BYTES", 0)
        try:
            check_json_items(json.dumps(value).encode())
        except TooManyItems:
            assert 2 * count(value) > limit, "an empty list or map counts twice"
        else:
            assert count(value) <= limit + 1


def test_what_would_take_long_is_refused_or_done_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these kept the loop for a second; none of them is unpacked in its thread now."""
    loop_thread = threading.get_ident()
    on_loop: list[int] = []

    async def test(client: Session, broker: Broker) -> None:
        async def post(path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
            async with client.post(path, data=io.BytesIO(body), headers=headers or {}) as answer:
                return answer.status, (await answer.json())["error"]["code"]

        many = json.dumps({"topic": "t", "shards": [0] * 400_000}).encode()
        assert await post("/v1/groups/g/pop", many) == (400, "invalid_request")
        beat = {"member": "m", "topics": ["t"], "owned": {f"t{at}": [[0, 1]] * 9_999 for at in range(2)}}
        assert await post("/v1/groups/g/heartbeat", json.dumps(beat).encode()) == (400, "invalid_request")
        maps = msgpack.packb([{}] * (8 * MIB - 8))
        assert await post("/v1/topics/t/messages", maps, MSGPACK) == (413, "too_many_items")
        queues = b'{"offsets":[0],"queues":[' + b"1," * 3_000_000 + b"1]}"
        assert await post("/v1/topics/t/fetch", queues) == (413, "too_many_items")

    def decode(body: bytes, form: Any) -> Any:
        if len(body) > 100_000 and threading.get_ident() == loop_thread:
            on_loop.append(len(body))
        return really(body, form)

    from lsmq_node.api import routing

    really = routing.decode
    monkeypatch.setattr(routing, "decode", decode)
    with_node(tmp_path, test)
    assert on_loop == []


def test_many_queues_are_asked_for_in_parts(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/huge", json={"queues": 2_000_000})
        for path in ("/v1/topics/huge/offsets", "/v1/groups/g/offsets?topic=huge"):
            async with client.get(path) as answer:
                assert answer.status == 400 and "ask in parts" in (await answer.json())["error"]["message"]
        async with client.get("/v1/topics/huge/offsets?queues=0-100000&time_ms=1") as answer:
            assert answer.status == 400 and (await answer.json())["error"]["limit"] == 100_000
        async with client.get("/v1/groups/g/lag?topic=huge&ranges=0-9,150000-1999999") as answer:
            assert (await answer.json())["by_range"] == [0, 0] and answer.status == 200

    with_node(tmp_path, test)


def test_others_are_answered_while_offsets_of_many_queues_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest piece that is made without a turn for others has some thousand numbers, and requests come between."""
    queues, committed, longest, healths = 1_000_000, 100_000, 0, 0
    answered = threading.Event()
    really = codec._encode_json

    def piece(value: Any) -> str:
        nonlocal longest
        if isinstance(value, list):
            longest = max(longest, len(value))
            assert threading.get_ident() != loop_thread, "it would keep the loop"
            assert answered.wait(60), "nobody is answered between two pieces"
        return really(value)

    loop_thread = threading.get_ident()
    monkeypatch.setattr(codec, "_encode_json", piece)

    async def test(client: Session, broker: Broker) -> None:
        nonlocal healths
        await client.put("/v1/topics/huge", json={"queues": queues})
        commit = {"topic": "huge", "queues": list(range(committed)), "offsets": [0] * committed}
        assert (await client.post("/v1/groups/g/offsets", json=commit)).status == 200
        for path, count in (("/v1/topics/huge/offsets", queues), ("/v1/groups/g/offsets?topic=huge", committed)):
            answered.clear()
            former = broker.workers.large
            asked = asyncio.ensure_future(client.get(path))
            await comes_true(lambda before=former: broker.workers.large > before, "a thread makes it")
            assert (await client.get("/healthz")).status == 200
            healths += not asked.done()
            answered.set()
            found = await (await asked).json(content_type=None)
            assert found["queues"] == list(range(count)) and {len(column) for column in found.values()} == {count}

    with_node(tmp_path, test)
    assert healths == 2 and longest <= 10_000


def test_offsets_of_many_queues_are_looked_up_in_turns(tmp_path: Path) -> None:
    """Also before anything is encoded: what else the loop has to do comes in between."""

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/huge", json={"queues": 500_000})
        topic = await broker.topic("huge")
        queues = np.arange(500_000)
        for work in (broker.offsets(topic, queues), broker.committed_offsets("g", topic, queues)):
            asked, turns = asyncio.create_task(work), 0
            while not asked.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 10
            await asked

    with_node(tmp_path, test)


@given(
    st.dictionaries(st.sampled_from(["queues", "offsets", "at"]), st.lists(st.integers(0, 2**62), max_size=40)),
    st.integers(1, 9),
)
@profile(100)
def test_columns_in_pieces_are_as_in_one(columns: dict[str, list[int]], turn: int) -> None:
    arrays = {name: np.array(column, np.int64) for name, column in columns.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_NUMBERS_A_TURN", turn)
        for form in codec.Format:
            assert codec.encode_columns(arrays, form) == codec.encode(columns, form)


def compressed(body: bytes, coding: str) -> bytes:
    return gzip.compress(body) if coding == "gzip" else zlib.compress(body)


@pytest.mark.part(2)
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_taken_and_what_it_becomes_is_bounded(api: Api, topic_name: str, coding: str) -> None:
    api.create(topic_name, 1)
    path, headers = f"/v1/topics/{topic_name}/messages", {"Content-Encoding": coding}
    body = json.dumps({"messages": [{"body": "packed"}]}).encode()
    api.call("POST", path, body=compressed(body, coding), headers=headers, status=200)
    large = json.dumps({"messages": [{"body": "x" * 900_000}] * 8}).encode()
    api.call("POST", path, body=compressed(large, coding), headers=headers, status=200)
    bomb = compressed(bytes(512 * MIB if coding == "gzip" else 64 * MIB), coding)
    assert api.call("POST", path, body=bomb, headers=headers, status=413).code == "request_too_large"
    for wrong in (compressed(body, coding)[:-5], body, compressed(body, coding) + b"more"):
        assert api.call("POST", path, body=wrong, headers=headers, status=400).code == "invalid_request"
    refused = api.call("POST", path, body=body, headers={"Content-Encoding": "br"}, status=415)
    assert refused.code == "unsupported_media_type"
    assert len(api.all_bodies(topic_name, 0)) == 9


@pytest.mark.parametrize("size", [8 * MIB + 1, 64 * MIB], ids=["few bytes", "many bytes"])
def test_nobody_waits_for_a_body_that_becomes_too_large_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    loop_thread, answered = threading.get_ident(), threading.Event()
    really = bodies._decompress

    def decompress(body: bytes, coding: str, limit: int) -> bytes:
        assert threading.get_ident() != loop_thread, "it would keep the loop"
        assert answered.wait(60), "nobody is answered meanwhile"
        return really(body, coding, limit)

    monkeypatch.setattr(bodies, "_decompress", decompress)
    bomb = gzip.compress(bytes(size))
    assert (len(bomb) < LARGE_BYTES) is (size < 32 * MIB)

    async def test(client: Session, broker: Broker) -> None:
        packed = {"Content-Encoding": "gzip"}
        asked = [
            asyncio.ensure_future(client.post("/v1/topics/t/messages", data=io.BytesIO(bomb), headers=packed))
            for _ in range(8)
        ]
        await comes_true(lambda: broker.workers.large == len(asked), "a thread unpacks them")
        assert (await client.get("/healthz")).status == 200
        assert (await client.post("/v1/topics/t/messages", json={"messages": [{"body": "small"}]})).status == 200
        answered.set()
        assert [answer.status for answer in await asyncio.gather(*asked)] == [413] * len(asked)
        await comes_true(lambda: broker.budget.used_bytes == 0, "their memory is given back")
        assert (await client.post("/v1/topics/t/messages", json={"messages": [{"body": "small"}]})).status == 200

    with_node(tmp_path, test)


@pytest.mark.parametrize(("threads", "refused"), [(2, 0), (4, 58)])
def test_held_fetches_that_a_message_wakes_read_no_more_at_once_than_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, refused: int
) -> None:
    """Each may find 8 MiB, and there are 20: it is refused where more threads than two could read at once."""
    reading, go_on = [0], threading.Event()
    go_on.set()
    really = Reads._read_pieces

    def read(self: Reads, *arguments: Any, **options: Any) -> Any:
        if not go_on.is_set():
            reading[0] += 1
        assert go_on.wait(60)
        return really(self, *arguments, **options)

    monkeypatch.setattr(Reads, "_read_pieces", read)

    async def test(client: Session, broker: Broker) -> None:
        wanted = {"queues": [0], "offsets": [0], "max_bytes": 8 * MIB, "wait_ms": 60_000}
        asked = [asyncio.ensure_future(client.post("/v1/topics/t/fetch", json=wanted)) for _ in range(60)]
        await comes_true(lambda: broker.waiters.count == 60, "they are held")
        assert broker.budget.used_bytes < MIB, "who waits holds no memory"
        broker.budget.limit_bytes = broker.budget.share_bytes = 20 * MIB
        broker.budget.peak_bytes = 0
        go_on.clear()
        message = {"queue": 0, "body": "more than is read at once".ljust(AT_HAND_BYTES + 1)}
        assert (await client.post("/v1/topics/t/messages", json={"messages": [message]})).status == 200
        await comes_true(lambda: reading[0] == 2 and sum(each.done() for each in asked) == refused, "two read")
        assert 16 * MIB <= broker.budget.used_bytes <= 20 * MIB
        go_on.set()
        statuses = [answer.status for answer in await asyncio.gather(*asked)]
        assert (statuses.count(200), statuses.count(503)) == (60 - refused, refused)
        assert broker.budget.peak_bytes <= 20 * MIB
        await comes_true(lambda: broker.budget.used_bytes == 0, "it is given back")

    with_node(tmp_path, test, read_threads=threads)


def test_an_answer_is_held_in_the_budget_until_it_is_taken(tmp_path: Path) -> None:
    """Readers that take nothing hold their answers' memory, and no more than there is."""

    async def test(client: Session, broker: Broker) -> None:
        for _ in range(7):
            message = {"queue": 0, "body": "x" * (MIB - 1_000)}
            assert (await client.post("/v1/topics/t/messages", json={"messages": [message]})).status == 200
        broker.budget.limit_bytes = broker.budget.share_bytes = 40 * MIB
        idle = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection(client.host, client.port, limit=1_024)
            writer.write(b"GET /v1/topics/t/queues/0/messages?offset=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            idle.append((reader, writer))
        statuses = [(await reader.readline()).split()[1] for reader, _ in idle]
        taken = statuses.count(b"200")
        assert statuses.count(b"503") == 6 - taken and 1 <= taken <= 5
        held = taken * 7 * (MIB - 1_000)
        await comes_true(lambda: broker.budget.used_bytes >= held, "what was not taken is held")
        assert broker.budget.used_bytes <= broker.budget.limit_bytes
        for _, writer in idle:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await comes_true(lambda: broker.budget.used_bytes == 0, "it is given back")

    with_node(tmp_path, test)


def test_a_client_that_takes_nothing_is_cut_off_in_time(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        object.__setattr__(broker.config, "answer_timeout_ms", 100)
        for _ in range(8):
            message = {"queue": 0, "body": "x" * (MIB - 1_000)}
            assert (await client.post("/v1/topics/t/messages", json={"messages": [message]})).status == 200
        reader, writer = await asyncio.open_connection(client.host, client.port, limit=1_024)
        writer.write(b"GET /v1/topics/t/queues/0/messages?offset=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        await comes_true(lambda: broker.budget.used_bytes == 0, "its answer is given up")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(8 * MIB)
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()

    with_node(tmp_path, test)


@pytest.mark.parametrize("named", [False, True])
def test_others_are_answered_while_the_batch_of_a_producer_is_unpacked(tmp_path: Path, named: bool) -> None:
    loop_thread, answered = threading.get_ident(), threading.Event()
    builder = BatchBuilder()
    for _ in range(3):
        builder.add(0, bytes(512 * 1024 - 100))
    packed = builder.build(codec=Codec.ZSTD)
    assert len(packed) < LARGE_BYTES
    topic, kind = ("named", NAMED_BATCH_TYPE) if named else ("t", BATCH_TYPE)
    body = (1).to_bytes(4, "little") + b"q" + packed if named else packed

    async def test(client: Session, broker: Broker) -> None:
        really = broker.admission.batch

        def batch(body: bytes) -> RecordBatch:
            assert threading.get_ident() != loop_thread, "it would keep the loop"
            assert answered.wait(60), "nobody is answered meanwhile"
            return really(body)

        broker.admission.batch = batch  # type: ignore[method-assign]
        await client.put("/v1/topics/named", json={"queues": "named"})
        path = f"/v1/topics/{topic}/batches"
        asked = asyncio.ensure_future(client.post(path, data=body, headers={"Content-Type": kind}))
        await comes_true(lambda: broker.workers.large == 1, "a thread unpacks it")
        assert (await client.get("/healthz")).status == 200
        assert not asked.done()
        answered.set()
        assert (await asked).status == 200

    with_node(tmp_path, test)


def test_the_thread_for_large_work_ends_with_the_node() -> None:
    async def test() -> None:
        workers = Workers()
        assert await workers.run(threading.get_ident, large=False) == threading.get_ident()
        assert await workers.run(threading.get_ident, large=True) != threading.get_ident()
        assert workers.large == 1
        await workers.close()

    asyncio.run(test())

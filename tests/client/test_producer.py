"""The producer against a node that is played: batching, limits, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lsmq import (
    BufferFull,
    Client,
    ClientClosed,
    ConnectionFailed,
    InvalidRequest,
    LsmqError,
    MessageTooLarge,
    OutOfOrderSequence,
    Producer,
    QuotaExceeded,
    StoreBusy,
    TimedOut,
    Topic,
    UnknownProducer,
    UnknownQueue,
)
from lsmq._bundles import Bundles
from lsmq._retries import Deadline
from lsmq._router import Router
from lsmq._transport import Response
from lsmq.partitioners import round_robin
from lsmq.record_batch import Column, RecordBatch, encode_batch, key_hash
from support.waiting import comes_true

pytestmark = pytest.mark.virtual_time


class PlayedNode(Client):
    """A client whose node stores batches in a list, or raises what ``faults`` holds for the next request."""

    def __init__(self, *, queues: int = 8, shards: int = 1, **options: Any) -> None:
        super().__init__("http://played:1", **options)
        size = queues // shards
        routes = [
            {
                "first": shard * size,
                "end": (shard + 1) * size,
                "shard": shard,
                "leader": f"http://played{shard}:1",
                "epoch": 1,
            }
            for shard in range(shards)
        ]
        self.described = Topic.from_dict(
            {"name": "t", "id": 1, "queues": queues, "options": {}, "created_ms": 0, "routes": routes}
        )
        self.stored: list[RecordBatch] = []
        self.attempts: list[bytes] = []
        self.urls_asked: list[str] = []
        self.faults: list[LsmqError | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._router = PlayedRouter(self)
        self._bundles = Bundles(self._router)

    async def topic(self, name: str) -> Topic:
        return self.described

    async def answer(self, url: str, body: bytes) -> Response:
        self.urls_asked.append(url)
        self.attempts.append(body)
        await self.gate.wait()
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        batch = RecordBatch(body)
        first = 100 + sum(before.record_count for before in self.stored)
        self.stored.append(batch)
        offsets = list(range(first, first + batch.record_count))
        return Response(200, "", {}, encode_batch(batch.record_count, {Column.OFFSET: offsets}, b""))

    def bodies(self) -> list[bytes]:
        return [message.body for batch in self.stored for message in batch.messages("t")]


class PlayedRouter(Router):
    """Knows the played node, and reaches nothing else."""

    def __init__(self, node: PlayedNode) -> None:
        super().__init__(node._transport, ["http://played:1"], request_timeout_ms=1000, refresh_s=1000)
        self.node = node

    async def known(self, name: str, deadline: Deadline) -> Topic:
        return self.table.learn_topic(self.node.described)

    async def attempt(self, topic: Topic, url: str, shards: Any, method: str, path: str, **request: Any) -> Response:
        return await self.node.answer(f"{url}{path}", request["body"])

    async def recover(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(0.01)


def unreachable() -> ConnectionFailed:
    return ConnectionFailed("no connection", sent=False)


def lost() -> ConnectionFailed:
    return ConnectionFailed("the connection broke", sent=True)


async def test_messages_wait_for_company_and_go_out_together() -> None:
    node = PlayedNode()
    async with Producer(node, "t", linger_ms=20) as producer:
        receipts = [await producer.send(f"{number}") for number in range(10)]
        assert not receipts[0].done()
        with pytest.raises(asyncio.InvalidStateError):
            receipts[0].result()
        sent = await asyncio.gather(*receipts)
    assert len(node.stored) == 1
    assert [place.offset for place in sent] == list(range(100, 110))
    assert len({place.queue for place in sent}) == 1
    assert sent[0].id == f"00000001{sent[0].queue:08x}{100:016x}"


async def test_a_message_that_nobody_joins_goes_out_when_its_time_has_come() -> None:
    clock = asyncio.get_running_loop().time
    async with Producer(PlayedNode(), "t", linger_ms=10_000) as producer:
        began = clock()
        await (await producer.send("alone"))
        assert clock() - began == pytest.approx(10, abs=0.01)


async def test_without_linger_the_first_message_goes_at_once_and_the_rest_meanwhile_together() -> None:
    node = PlayedNode()
    async with Producer(node, "t", linger_ms=0) as producer:
        node.gate.clear()
        await producer.send("first")
        await asyncio.sleep(0.01)
        for number in range(5):
            await producer.send(f"{number}")
        node.gate.set()
    assert [batch.record_count for batch in node.stored] == [1, 5]
    assert node.bodies() == [b"first", b"0", b"1", b"2", b"3", b"4"]


async def test_a_batch_never_holds_more_than_its_limit() -> None:
    node = PlayedNode()
    async with Producer(node, "t", batch_bytes=1000) as producer:
        for size in (400, 400, 400, 5000, 10):
            await producer.send(b"x" * size)
    assert [[len(m.body) for m in batch.messages("t")] for batch in node.stored] == [[400, 400], [400], [5000], [10]]


async def test_a_batch_stays_below_what_the_node_takes() -> None:
    node = PlayedNode()
    node.described = replace(node.described, max_batch_bytes=1000)
    async with Producer(node, "t") as producer:
        for size in (400, 400, 400):
            await producer.send(b"x" * size)
    assert [[len(m.body) for m in batch.messages("t")] for batch in node.stored] == [[400, 400], [400]]


async def test_messages_without_a_key_change_queue_with_the_batch() -> None:
    node = PlayedNode(queues=4)
    async with Producer(node, "t", batch_bytes=500) as producer:
        for _ in range(40):
            await producer.send(b"x" * 50)
    queues = [set(batch.column(Column.QUEUE)) for batch in node.stored]
    assert all(len(held) == 1 for held in queues)
    assert set.union(*queues) == {0, 1, 2, 3}


async def test_keys_explicit_queues_and_partitioners_decide_the_queue() -> None:
    node = PlayedNode(queues=8)
    async with Producer(node, "t") as producer:
        sent = [await producer.send_and_wait("x", key="N12345"), await producer.send_and_wait("x", queue=6)]
        assert [place.queue for place in sent] == [key_hash("N12345") % 8, 6]
        with pytest.raises(UnknownQueue, match="queues 0 to 7, not 8"):
            await producer.send("x", queue=8)
    async with Producer(node, "t", partitioner=round_robin(0)) as producer:
        sent = await (await producer.send_many(["a", ("key", "b"), "c"]))
        assert [place.queue for place in sent] == [0, 1, 2]
    async with Producer(node, "t", partitioner=lambda key, body, queues: queues) as producer:
        with pytest.raises(UnknownQueue):
            await producer.send("x")


async def test_batches_of_several_shards_go_to_their_leaders_with_their_own_sequences() -> None:
    node = PlayedNode(queues=8, shards=4)
    async with Producer(node, "t") as producer:
        for _ in range(2):
            await (await producer.send_many([(f"{number}", "x") for number in range(200)]))
    assert {url.split("/v1")[0] for url in node.urls_asked} == {f"http://played{shard}:1" for shard in range(4)}
    for batch in node.stored:
        assert len({queue // 2 for queue in batch.column(Column.QUEUE)}) == 1
    assert len({batch.producer_id for batch in node.stored}) == 4
    assert sorted(batch.sequence for batch in node.stored) == [0] * 4 + [1] * 4


@pytest.mark.parametrize("shards", [1, 4])
async def test_send_many_tells_of_every_message_in_order(shards: int) -> None:
    node = PlayedNode(queues=8, shards=shards)
    async with Producer(node, "t", batch_bytes=2000, max_buffer_bytes=5000) as producer:
        messages = [(f"key {number % 50}", f"body {number}") for number in range(1000)]
        receipts = await producer.send_many(messages)
        sent = await receipts
        assert len(receipts) == len(sent) == 1000 and receipts.done()
    assert [place.queue for place in sent] == [key_hash(key) % 8 for key, _ in messages]
    assert sorted(node.bodies()) == sorted(body.encode() for _, body in messages)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda row: (f"key {row % 17}", b"%d" % row),
        lambda row: (b"key %d" % (row % 17), f"{row}"),
        lambda row: (None if row % 5 else f"key {row}", f"{row}"),
        lambda row: (f"key {row % 3}".encode() if row % 2 else f"key {row % 3}", bytearray(b"%d" % row)),
        lambda row: b"%d" % row if row % 900 < 850 else (f"key {row}", f"{row}"),
    ],
    ids=["text", "bytes", "some", "mixed", "parts"],
)
async def test_many_go_where_they_go_one_by_one(shards: int, make: Callable[[int], Any]) -> None:
    many, single = PlayedNode(shards=shards), PlayedNode(shards=shards)
    messages = [make(row) for row in range(3_000)]
    # No two batches are alike where nothing decides the queue of a message but the turn.
    async with Producer(many, "t", batch_bytes=40_000) as producer:
        receipts = await producer.send_many(messages, tag="t")
        places = await receipts
        assert producer.buffered_bytes == 0
    async with Producer(single, "t", batch_bytes=40_000) as producer:
        for message in messages:
            key, body = message if isinstance(message, tuple) else (None, message)
            await producer.send(body, key=key, tag="t")

    def stored(node: PlayedNode, *, keyed: bool) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for batch in node.stored:
            hashes = zip(batch.messages("t"), batch.column(Column.KEY_HASH), batch.column(Column.TAG_HASH), strict=True)
            for message, *rest in hashes:
                if (message.key is not None) == keyed:
                    place = message.queue if keyed else 0
                    found.setdefault(place, []).append((message.key, message.tag, message.body, *rest))
        return found

    assert stored(many, keyed=True) == stored(single, keyed=True)
    assert {body for _, _, body, *_ in stored(many, keyed=False).get(0, [])} == {
        body for _, _, body, *_ in stored(single, keyed=False).get(0, [])
    }
    assert len(places) == len(receipts) == 3_000
    messages_of = [message for batch in many.stored for message in batch.messages("t")]
    assert [int(messages_of[place.offset - 100].body) for place in places] == list(range(3_000))
    assert [messages_of[place.offset - 100].queue for place in places] == [place.queue for place in places]


async def test_many_that_fill_the_buffer_wait_and_keep_their_order() -> None:
    node = PlayedNode()
    async with Producer(node, "t", batch_bytes=1_000, max_buffer_bytes=2_000) as producer:
        node.gate.clear()
        sending = asyncio.create_task(producer.send_many([b"%d" % row for row in range(2_000)], queue=3))
        await comes_true(lambda: producer.buffered_bytes > 1_900, "the buffer is full")
        assert not sending.done() and producer.buffered_bytes <= 2_000
        node.gate.set()
        await (await sending)
    assert [int(body) for body in node.bodies()] == list(range(2_000))


async def test_of_many_those_before_a_bad_one_are_sent() -> None:
    node = PlayedNode()

    def some() -> Any:
        yield from ("a", "b")
        raise RuntimeError("no more")

    async with Producer(node, "t") as producer:
        with pytest.raises(RuntimeError, match="no more"):
            await producer.send_many(some())
        with pytest.raises(InvalidRequest, match="body is 7"):
            await producer.send_many(["c", "d", 7, "e"])  # type: ignore[list-item]
        with pytest.raises(UnknownQueue):
            await producer.send_many(["f"], queue=8)
        with pytest.raises(InvalidRequest, match="tag is 3"):
            await producer.send_many(["f"], tag=3)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            await producer.send_many([b"g", b"x" * (2 << 20)])
    assert node.bodies() == [b"a", b"b", b"c", b"d", b"g"]


async def test_a_full_buffer_makes_send_wait_and_send_nowait_refuse() -> None:
    node = PlayedNode()
    async with Producer(node, "t", linger_ms=0, batch_bytes=1000, max_buffer_bytes=2000) as producer:
        node.gate.clear()
        accepted = 0
        with pytest.raises(BufferFull, match="the limit is 2000"):
            while True:
                producer.send_nowait(b"x" * 300)
                accepted += 1
        assert accepted == 5 and producer.buffered_bytes <= 2000
        waiting = [asyncio.create_task(producer.send(f"{number}" * 300)) for number in range(4)]
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in waiting)
        node.gate.set()
        await asyncio.gather(*waiting)
        await producer.flush()
        assert producer.buffered_bytes == 0
    assert node.bodies() == [b"x" * 300] * 5 + [f"{number}".encode() * 300 for number in range(4)]


async def test_a_sender_that_is_cancelled_while_it_waits_does_no_harm() -> None:
    node = PlayedNode()
    async with Producer(node, "t", linger_ms=0, batch_bytes=400, max_buffer_bytes=400) as producer:
        node.gate.clear()
        first = await producer.send(b"x" * 300)
        waiting = asyncio.create_task(producer.send(b"y" * 300))
        reader = asyncio.create_task(_result(first))
        await asyncio.sleep(0.01)
        waiting.cancel()
        reader.cancel()
        await asyncio.gather(waiting, reader, return_exceptions=True)
        node.gate.set()
        assert (await first).offset == 100
        await producer.send_and_wait(b"z")
    assert node.bodies() == [b"x" * 300, b"z"]


async def _result(receipt: Any) -> Any:
    return await receipt


REFUSED_EXTRAS: list[tuple[dict[str, Any], str]] = [
    ({"delete": True}, "it has no key"),
    ({"delete": True, "key": "k"}, "has no body"),
    ({"headers": [("a", "text")]}, "values of headers must be bytes"),
    ({"headers": [("a",)]}, "not a pair"),
    ({"headers": {"trace": b"x"}}, "of a dict its items()"),
    ({"headers": [(1, b"x")]}, "not a pair"),
    ({"properties": {"a": b"x"}}, "must be text"),
    ({"priority": 256}, "0 to 255"),
]


async def test_what_can_never_be_sent_is_refused_at_once() -> None:
    node = PlayedNode()
    async with Producer(node, "t", max_message_bytes=100, batch_bytes=100, max_buffer_bytes=100) as producer:
        for wrong, message in REFUSED_EXTRAS:
            with pytest.raises(InvalidRequest, match=message):
                await producer.send(b"x", **wrong)
        with pytest.raises(MessageTooLarge, match=r"needs 101 bytes.*allows 100"):
            await producer.send(b"x" * 101)
        with pytest.raises(MessageTooLarge, match="key, tag and properties"):
            await producer.send(b"x" * 60, key="k" * 60)
        with pytest.raises(MessageTooLarge, match="max_buffer_bytes"):
            await producer.send(b"x" * 60)
    assert node.stored == []


async def test_a_field_that_no_record_can_hold_is_refused_and_harms_no_other_message() -> None:
    node = PlayedNode()
    impossible: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"priority": 256}, InvalidRequest, "priority is 256; it must be a whole number from 0 to 255"),
        ({"priority": -1}, InvalidRequest, "0 to 255"),
        ({"priority": "high"}, InvalidRequest, "0 to 255"),
        ({"properties": {"a": 1}}, InvalidRequest, "property 'a' is 1"),
        ({"properties": {5: "a"}}, InvalidRequest, "property 5"),
        ({"queue": 1.5}, InvalidRequest, "queue is 1.5 of type float; it must be a whole number"),
        ({"queue": -1}, UnknownQueue, "queues 0 to 7"),
    ]
    async with Producer(node, "t") as producer:
        for fields, kind, complaint in impossible:
            before = await producer.send("before", queue=0)
            with pytest.raises(kind, match=complaint):
                await producer.send("x", **fields)
            after = await producer.send("after", queue=0)
            await before
            await after
    assert node.bodies() == [b"before", b"after"] * len(impossible)


async def test_the_limit_counts_key_tag_and_properties_to_the_byte() -> None:
    node = PlayedNode()
    async with Producer(node, "t", max_message_bytes=100) as producer:
        await producer.send(b"x" * 95, key="abc")  # array of one (1), text of three (1 + 3)
        with pytest.raises(MessageTooLarge, match="needs 101"):
            await producer.send(b"x" * 96, key="abc")
        with pytest.raises(MessageTooLarge, match="needs 104"):
            await producer.send(b"x" * 95, properties={"a": "bc"})
    assert len(node.bodies()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"batch_bytes": 0},
        {"batch_bytes": 5 << 20},
        {"max_buffer_bytes": 10},
        {"ack": "all"},
        {"flush": "never"},
        {"linger_ms": -1},
    ],
)
async def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Producer(PlayedNode(), "t", **options)


@pytest.mark.parametrize("fault", [unreachable, lost, lambda: StoreBusy("busy")])
async def test_a_retry_sends_the_same_bytes(fault: Callable[[], LsmqError]) -> None:
    node = PlayedNode()
    node.faults = [fault(), fault()]
    async with Producer(node, "t") as producer:
        await producer.send_and_wait("one")
        await producer.send_and_wait("two")
    assert node.attempts[0] == node.attempts[1] == node.attempts[2]
    assert [(batch.sequence, batch.producer_id) for batch in node.stored] == [
        (0, node.stored[0].producer_id),
        (1, node.stored[0].producer_id),
    ]


async def test_an_error_fails_exactly_the_messages_of_its_batch() -> None:
    node = PlayedNode()
    node.faults = [None, InvalidRequest("no"), None]
    async with Producer(node, "t", batch_bytes=400) as producer:
        receipts = [await producer.send(b"x" * 300) for _ in range(3)]
        results = await asyncio.gather(*receipts, return_exceptions=True)
    assert [isinstance(result, InvalidRequest) for result in results] == [False, True, False]
    # Nobody can tell what became of the failed batch's sequence number, so the next one starts afresh.
    assert node.stored[1].producer_id != node.stored[0].producer_id and node.stored[1].sequence == 0


async def test_an_error_nobody_looked_at_is_raised_by_flush_once() -> None:
    node = PlayedNode()
    node.faults = [InvalidRequest("no")]
    async with Producer(node, "t") as producer:
        await producer.send("x")
        with pytest.raises(InvalidRequest, match="no"):
            await producer.flush()
        await producer.flush()
        node.faults = [InvalidRequest("no")]
        receipt = await producer.send("x")
        with pytest.raises(InvalidRequest):
            await receipt
        await producer.flush()
    node.faults = [InvalidRequest("no")]
    with pytest.raises(InvalidRequest):
        async with Producer(node, "t") as producer:
            await producer.send("x")


async def test_the_deadline_ends_retries_and_says_whether_the_message_may_be_stored() -> None:
    def full() -> LsmqError:
        return QuotaExceeded("the topic holds 2 messages; none of them is stored")

    for fault, fate in ((unreachable, "it is not stored"), (full, "it is not stored"), (lost, "it may be stored")):
        node = PlayedNode()
        node.faults = [fault() for _ in range(1000)]
        async with Producer(node, "t", deadline_ms=150) as producer:
            receipts = [await producer.send(f"{number}") for number in range(3)]
            with pytest.raises(TimedOut, match=fate) as caught:
                await receipts[0]
            assert caught.value.details["maybe_stored"] is (fault is lost)
            assert all(isinstance(receipt.exception(), TimedOut) for receipt in receipts)
        assert 1 <= len(node.attempts) < 50


async def test_a_forgotten_producer_goes_on_under_a_new_identity_only_where_that_is_safe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = PlayedNode()
    async with Producer(node, "t") as producer:
        await producer.send_and_wait("one")
        node.faults = [UnknownProducer("forgotten")]
        await producer.send_and_wait("two")
        assert node.stored[1].producer_id != node.stored[0].producer_id and node.stored[1].sequence == 0
        node.faults = [lost(), UnknownProducer("forgotten")]
        with pytest.raises(UnknownProducer):
            await producer.send_and_wait("three")
        await producer.send_and_wait("four")
        node.faults = [lost(), OutOfOrderSequence("gap")]  # The gap proves that it is not stored.
        await producer.send_and_wait("five")
        assert (producer.stats.stored, producer.stats.failed, producer.stats.lost_state) == (4, 1, 2)
    assert node.bodies() == [b"one", b"two", b"four", b"five"]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert all("acknowledged before may be lost" in warning and "topic=t" in warning for warning in warnings)


async def test_an_answer_for_another_number_of_messages_is_an_error() -> None:
    node = PlayedNode()

    async def answer(*_: Any, **__: Any) -> Response:
        return Response(200, "", {}, encode_batch(2, {Column.OFFSET: [1, 2]}, b""))

    node.answer = answer  # type: ignore[method-assign]
    async with Producer(node, "t") as producer:
        with pytest.raises(LsmqError, match="2 offsets for a batch of 1"):
            await producer.send_and_wait("x")


async def test_a_closed_producer_refuses_and_has_sent_everything() -> None:
    node = PlayedNode()
    producer = Producer(node, "t", linger_ms=10_000)
    with pytest.raises(ClientClosed, match="not started"):
        producer.send_nowait("x")
    receipt = await producer.send("x")
    await producer.close()
    await producer.close()
    assert receipt.done() and node.bodies() == [b"x"]
    with pytest.raises(ClientClosed, match="is closed"):
        await producer.send("y")


async def test_aborting_fails_what_is_under_way() -> None:
    node = PlayedNode()
    producer = Producer(node, "t", linger_ms=0)
    node.gate.clear()
    receipts = [await producer.send(f"{number}") for number in range(3)]
    await asyncio.sleep(0.01)
    receipts.append(await producer.send("later"))
    await producer.abort()
    for receipt in receipts:
        with pytest.raises(ClientClosed, match="may be stored"):
            await receipt


async def test_flush_does_not_wait_for_messages_that_come_later() -> None:
    node = PlayedNode()
    async with Producer(node, "t", linger_ms=10_000) as producer:
        await producer.send("first")
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        late = await producer.send("late")
        await flushing
        assert node.bodies() == [b"first"] and not late.done()


async def test_callbacks_run_once_the_message_is_stored() -> None:
    node = PlayedNode()
    seen: list[int] = []
    async with Producer(node, "t") as producer:
        receipt = await producer.send("x")
        receipt.add_done_callback(lambda done: seen.append(done.result().offset))
        await receipt
        receipt.add_done_callback(lambda done: seen.append(-1))
    assert seen == [100, -1]


async def test_compressed_batches_hold_the_same_messages() -> None:
    from lsmq import Codec

    node = PlayedNode()
    async with Producer(node, "t", codec=Codec.ZSTD) as producer:
        await (await producer.send_many(["again and " * 50] * 100))
    assert node.bodies() == [b"again and " * 50] * 100
    assert sum(map(len, node.attempts)) < 3000

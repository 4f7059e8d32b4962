"""Reads that pick: what comes through is what a look at each message would give, and positions move over the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.filter_expressions import Fields
from lsmq.filters import MessageFilter
from lsmq.messages import RecordHeader, split_priority
from lsmq.record_batch import BatchBuilder, Column, Message, RecordBatch, tag_hash
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.block import Block
from lsmq_node.storage.sieve import SIEVED_RECORDS, Picked
from lsmq_node.storage.table import Table
from support.clock import SimClock

from .harness import abandon, flush, merge, open_stepped, profile, small, small_parts

QUEUES = 3


@dataclass(frozen=True)
class Sent:
    queue: int
    body: bytes = b"x"
    tag: str | None = None
    kind: str | None = None
    key: str | None = None
    priority: int = 0
    properties: dict[str, str] = field(default_factory=dict)


class Shard:
    def __init__(self, root: Path) -> None:
        self.root, self.disk = root, Drive(root)
        self.store: ShardStore = open_stepped(root / "shard", small(), self.disk, SimClock())
        self.topic = self.store.create_topic("t", QUEUES).id

    def send(self, *messages: Sent) -> None:
        builder = BatchBuilder()
        for each in messages:
            builder.add(
                each.queue,
                each.body,
                key=each.key,
                tag=each.tag,
                kind=each.kind,
                priority=each.priority,
                properties=each.properties,
            )
        self.store.wait(self.store.append(self.topic, RecordBatch(builder.build())))

    def read(self, queue: int, wanted: MessageFilter, **limits: int) -> tuple[list[Message], int]:
        """All that is picked of a queue, and how many reads that took."""
        found: list[Message] = []
        offset, reads, latest = 0, 0, self.store.bounds(self.topic, queue)[1]
        while offset < latest:
            part = self.store.read(self.topic, queue, offset, picked=Picked(wanted, exact=True), **limits)
            found += [message for batch in part.batches() for message in batch.messages("t")]
            reads += 1
            moved = int(part.next_offsets[0])
            assert moved > offset, "a read makes progress"
            offset = moved
        return found, reads

    def read_all(self, wanted: MessageFilter, **limits: int) -> list[Message]:
        """All that is picked, as a reader of all queues gets it."""
        queues, offsets = np.arange(QUEUES, dtype=np.uint32), np.zeros(QUEUES, np.int64)
        found: list[Message] = []
        latest = self.store.latest_offsets(self.topic)
        while (offsets < latest).any():
            part = self.store.read_many(self.topic, queues, offsets, picked=Picked(wanted, exact=True), **limits)
            batches = [message for batch in part.batches() for message in batch.messages("t")]
            found += [message for message in batches if message.offset >= offsets[message.queue]]
            before = offsets.copy()
            offsets[part.queues] = part.next_offsets
            assert (offsets >= before).all() and (offsets > before).any(), "a read makes progress"
        return found


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path)


def test_tags_and_types_are_picked_by_their_hashes_alone(shard: Shard) -> None:
    """No header is looked into: a reader checks the words itself."""
    shard.send(*(Sent(0, b"%d" % number, tag=f"tag {number % 5}", kind=f"type {number % 3}") for number in range(60)))
    flush(shard.store)
    wanted = Picked(MessageFilter.of("tag 1", ["type 0", "type 2"], None) or MessageFilter())
    with mock.patch("lsmq_node.storage.sieve.decode_header", side_effect=AssertionError):
        part = shard.store.read(shard.topic, 0, 0, picked=wanted)
    numbers = [int(message.body) for batch in part.batches() for message in batch.messages("t")]
    assert numbers == [number for number in range(60) if number % 5 == 1 and number % 3 != 1]
    assert part.next_offsets.tolist() == [60]


def test_words_of_one_hash_are_told_apart_where_the_reader_cannot(shard: Shard) -> None:
    with (
        mock.patch("lsmq.batch_builder.tag_hash", lambda word: 7),
        mock.patch("lsmq_node.storage.sieve.tag_hash", lambda word: 7),
    ):
        shard.send(Sent(0, b"meant", tag="a"), Sent(0, b"not", tag="b"))
        wanted = MessageFilter.of("a", None, None)
        assert wanted is not None
        exact, _ = shard.read(0, wanted)
        loose = shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
    assert [message.body for message in exact] == [b"meant"]
    candidates = [message for batch in loose.batches() for message in batch.messages("t")]
    assert [message.body for message in candidates] == [b"meant", b"not"]
    assert [wanted.passes(message) for message in candidates] == [True, False]


def test_a_read_that_finds_nothing_ends_at_its_budget_with_its_position_moved(shard: Shard) -> None:
    per_batch = 1_000
    with mock.patch("lsmq_node.storage.sieve.SIEVED_RECORDS", 5_500):
        for _ in range(12):
            shard.send(*(Sent(0) for _ in range(per_batch)))
            flush(shard.store)
        shard.send(Sent(0, b"here", tag="rare"))
        wanted = MessageFilter.of("rare", None, None)
        assert wanted is not None
        part = shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
        assert (part.record_count, part.spent) == (0, True)
        assert 5_500 <= int(part.next_offsets[0]) < 7_000
        found, reads = shard.read(0, wanted)
        assert [message.body for message in found] == [b"here"] and 2 <= reads <= 4
        assert [message.body for message in shard.read_all(wanted)] == [b"here"]
    assert SIEVED_RECORDS > 5_500


def test_what_columns_cannot_say_is_asked_of_the_header_and_of_no_others(shard: Shard) -> None:
    rows = [
        Sent(0, b"%d" % number, tag="t" if number % 10 == 0 else None, properties={"n": str(number)})
        for number in range(100)
    ]
    shard.send(*rows)
    wanted = MessageFilter.of(None, None, "tag = 't' AND n >= 50")
    assert wanted is not None
    with mock.patch(
        "lsmq_node.storage.sieve.decode_header", side_effect=lambda raw: RecordHeader("k", "t", {"n": "60"})
    ) as looked:
        shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
    assert looked.call_count == 10
    assert [int(message.body) for message in shard.read(0, wanted)[0]] == [50, 60, 70, 80, 90]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("1 = 2", []),
        ("NOT 1 = 1", []),
        ("1 IN (2, 'a')", []),
        ("1 IS NULL", []),
        ("1 BETWEEN 3 AND 4", []),
        ("3 IN (1, 3) AND 0.5 < 1", [0, 1, 2]),
        ("99999999999999999999 > 1.5 AND priority <= 99999999999999999999", [0, 1, 2]),
        ("priority = 1 OR 1 = 2", [1]),
        ("priority > subpriority", [1]),
        ("subpriority <> priority AND stored_ms >= priority", [1, 2]),
        ("priority = priority", [0, 1, 2]),
    ],
)
def test_numbers_are_compared_with_numbers_by_columns_alone(shard: Shard, condition: str, expected: list[int]) -> None:
    shard.send(Sent(0, b"0"), Sent(0, b"1", priority=1), Sent(0, b"2", priority=5 | 9 << 8))
    wanted = MessageFilter.of(None, None, condition)
    assert wanted is not None
    with mock.patch("lsmq_node.storage.sieve.decode_header", side_effect=AssertionError):
        found, _ = shard.read(0, wanted)
    assert [int(message.body) for message in found] == expected


@pytest.mark.part(3)
def test_a_long_condition_over_what_columns_do_not_say_ends_a_read_sooner(shard: Shard) -> None:
    for first in range(0, 4_000, 1_000):
        shard.send(*(Sent(0, b"%d" % number, properties={"n": str(number)}) for number in range(first, first + 1_000)))
    flush(shard.store)
    condition = " OR ".join(["n = -1"] * 800 + ["n = 3999"])
    wanted = MessageFilter.of(None, None, condition)
    assert wanted is not None
    with mock.patch("lsmq_node.storage.sieve.SIEVED_RECORDS", 10_000):
        short, _ = shard.read(0, MessageFilter.of(None, None, "n = 3999") or MessageFilter())
        part = shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
        assert (part.record_count, part.spent) == (0, True) and int(part.next_offsets[0]) < 1_500
        found, reads = shard.read(0, wanted)
    assert [message.body for message in found] == [message.body for message in short] == [b"3999"]
    assert reads >= 8


@pytest.mark.parametrize("characters", [10, 2_000])
def test_a_long_condition_over_long_headers_ends_a_read_sooner(shard: Shard, characters: int) -> None:
    """Each part of it may look at all of a property."""
    for _ in range(4):
        shard.send(*(Sent(0, properties={"n": "1" * 500}) for _ in range(10)))
        flush(shard.store)
    wanted = MessageFilter.of(None, None, " OR ".join(["n = 2"] * (characters // 9 + 1) + ["n LIKE '2%'"]))
    assert wanted is not None
    with mock.patch("lsmq_node.storage.sieve.SIEVED_BYTES", 100_000):
        part = shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
        assert part.record_count == 0 and part.spent is (characters > 1_000)
        assert shard.read(0, wanted)[0] == [] and shard.read_all(wanted) == []


def test_a_header_that_nobody_can_read_is_picked_by_nobody(shard: Shard) -> None:
    shard.send(Sent(0, b"good", properties={"a": "1"}), Sent(0, b"bad", properties={"a": "1"}))
    wanted = MessageFilter.of(None, None, "a = 1")
    assert wanted is not None
    with mock.patch("lsmq.messages.msgpack.unpackb", side_effect=[["k", None, {"a": "1"}], ValueError()]):
        part = shard.store.read(shard.topic, 0, 0, picked=Picked(wanted))
    assert part.record_count == 1 and part.next_offsets.tolist() == [2]


def test_a_property_that_is_no_text_holds_up_nobody(shard: Shard) -> None:
    odd: Any = {"n": ["b"]}
    shard.send(Sent(0, b"odd", properties=odd), Sent(0, b"b", properties={"n": "b"}))
    found, _ = shard.read(0, MessageFilter.of(None, None, "n IN ('a', 'b')") or MessageFilter())
    assert [message.body for message in found] == [b"b"]


@pytest.mark.parametrize(("one_in", "words"), [(100, 1), (100, 200), (4_000, 1), (4_000, 4_000)])
@pytest.mark.parametrize(
    "wanted", [("tag", None), (None, "type = 'tag'"), (None, "(tag = 'tag' OR tag IN ('tag')) AND priority < 9")]
)
def test_of_a_backlog_of_which_little_is_wanted_little_is_read(
    shard: Shard, one_in: int, words: int, wanted: tuple[str | None, str | None]
) -> None:
    """One message in so many has the word; the others have other words, this many different ones."""
    count, of_type = 16_000, wanted[1] is not None and "type" in wanted[1]
    for first in range(0, count, 1_000):
        shard.send(
            *(
                Sent(0, b"%6d" % number, **{"kind" if of_type else "tag": word})
                for number in range(first, first + 1_000)
                for word in ("tag" if number % one_in == one_in // 2 else f"other {number % words}",)
            )
        )
    flush(shard.store)
    merge(shard.store)
    tables = shard.store._tables.version.tables()
    blocks = sum(page.count for table in tables for page in table.pages())
    picked = MessageFilter.of(wanted[0], None, wanted[1])
    assert picked is not None
    reads: list[int] = []

    def read(table: Table, position: int, size: int) -> Block:
        reads.append(position)
        return load(table, position, size)

    load = Table._read_block
    with mock.patch.object(Table, "_read_block", read):
        found, _ = shard.read(0, picked)
    assert [int(message.body) for message in found] == list(range(one_in // 2, count, one_in))
    holding = sum(
        bool(tag_hash("tag") in block.column(Column.TYPE_HASH if of_type else Column.TAG_HASH))
        for table in tables
        for block in table.scan()
    )
    assert holding <= count // one_in + len(tables)
    assert holding <= len(reads) <= holding + max(4, blocks // 12), f"of {blocks} blocks"


def test_tables_without_words_have_no_filters_and_are_read(shard: Shard) -> None:
    shard.send(*(Sent(0, b"%6d" % number, key="k") for number in range(1_000)))
    flush(shard.store)
    (table,) = shard.store._tables.version.tables()
    assert all(len(page.word_filters()) == 0 for page in table.pages())
    assert len(shard.read(0, MessageFilter.of(None, None, "tag IS NULL") or MessageFilter())[0]) == 1_000
    assert shard.read(0, MessageFilter.of("t", None, None) or MessageFilter())[0] == []


def test_an_index_that_is_made_again_knows_no_words_and_finds_all(shard: Shard) -> None:
    shard.send(*(Sent(0, b"%6d" % number, tag="a" if number % 50 else "b") for number in range(1_000)))
    flush(shard.store)
    (table,) = shard.store._tables.version.tables()
    page = table.page(0)
    assert len(page.word_filters()) == 1
    rebuilt = table._rebuild_page(0, table.root(), None)
    assert len(rebuilt.word_filters()) == 0 and rebuilt.positions.tolist() == page.positions.tolist()
    with mock.patch.object(Table, "page", lambda table, number: rebuilt):
        assert len(shard.read(0, MessageFilter.of("b", None, None) or MessageFilter())[0]) == 20


WORDS = st.sampled_from([None, "a", "b", "ä"])
sent = st.builds(
    Sent,
    st.integers(0, QUEUES - 1),
    st.binary(min_size=1, max_size=200),
    WORDS,
    WORDS,
    WORDS,
    st.sampled_from([0, 1, 5, 255, 1 | 5 << 8, 255 << 8]),
    st.dictionaries(st.sampled_from(["n", "region"]), st.sampled_from(["1", "20", "-3.5", "eu", ""]), max_size=2),
)
operands = ["key", "tag", "type", "n", "region", "'a'", "'eu'", "20"]
numbers = ["priority", "subpriority", "stored_ms", "1", "5", "4.5"]
texts = st.one_of(
    st.builds(
        lambda left, sign, right: f"{left} {sign} {right}",
        st.sampled_from(operands),
        st.sampled_from(["=", "<>", "<", ">="]),
        st.sampled_from(operands),
    ),
    st.builds(
        lambda left, sign, right: f"{left} {sign} {right}",
        st.sampled_from(numbers),
        st.sampled_from(["=", "<>", "<", ">"]),
        st.sampled_from(numbers),
    ),
    st.sampled_from(
        [
            "tag IN ('a', 'b')",
            "type NOT IN ('a')",
            "tag IS NULL",
            "type IS NOT NULL",
            "key IS NULL",
            "priority IN (1, 255)",
            "subpriority IN (5, 255)",
            "region LIKE 'e%'",
            "n NOT BETWEEN 0 AND 10",
            "stored_ms > 1",
            "key IN ('a', 'b')",
            "tag IN ('a', 3)",
            "1 IN (2, 'a')",
            "1 IS NULL",
        ]
    ),
)
conditions = st.recursive(
    texts,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
    ),
    max_leaves=5,
)
filters = st.builds(
    MessageFilter.of,
    st.sampled_from([None, "a", ["a", "b"]]),
    st.sampled_from([None, "b"]),
    st.one_of(st.none(), conditions),
)


def _takes(wanted: MessageFilter, message: Sent) -> bool:
    if (wanted.tags and message.tag not in wanted.tags) or (wanted.types and message.kind not in wanted.types):
        return False
    ranks = split_priority(message.priority)
    fields = Fields(message.key, message.tag, message.kind, *ranks, 1_700_000_000_000, message.properties)
    return wanted.expression is None or wanted.expression.matches(fields)


@pytest.mark.part(2)
@profile(80)
@given(batches=st.lists(st.lists(sent, min_size=1, max_size=30), min_size=1, max_size=6), data=st.data())
def test_what_comes_through_is_what_a_look_at_each_message_gives(
    tmp_path_factory: pytest.TempPathFactory, batches: Sequence[Sequence[Sent]], data: Any
) -> None:
    shard = Shard(tmp_path_factory.mktemp("sieve"))
    deleted: set[tuple[int, int]] = set()
    with small_parts(), mock.patch("lsmq_node.storage.sieve.SIEVED_RECORDS", 20):
        for messages in batches:
            shard.send(*messages)
            match data.draw(st.sampled_from(["nothing", "flush", "merge", "delete"])):
                case "flush":
                    flush(shard.store)
                case "merge":
                    flush(shard.store)
                    merge(shard.store)
                case "delete":
                    place = messages[0].queue, data.draw(st.integers(0, 5))
                    if place[1] < shard.store.bounds(shard.topic, place[0])[1]:
                        deleted.add(place)
                        queue, offset = np.array(place[:1], np.uint32), np.array(place[1:])
                        shard.store.wait(shard.store.delete(shard.topic, queue, offset))
        wanted = data.draw(filters) or MessageFilter()
        limits = data.draw(st.sampled_from([{}, {"max_records": 2}, {"max_bytes": 50}]))
        expected = []
        for queue in range(QUEUES):
            of_queue = [message for messages in batches for message in messages if message.queue == queue]
            expected += [
                (queue, offset)
                for offset, message in enumerate(of_queue)
                if (queue, offset) not in deleted and _takes(wanted, message)
            ]
        one_by_one = [shard.read(queue, wanted, **limits)[0] for queue in range(QUEUES)]
        assert [(message.queue, message.offset) for found in one_by_one for message in found] == expected
        together = [(message.queue, message.offset) for message in shard.read_all(wanted, **limits)]
        assert sorted(together) == expected and len(together) == len(expected)
    abandon(shard.store)

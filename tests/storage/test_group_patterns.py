"""What a shard was told of the pattern by which a group reads: which queues are the group's, for lag and retention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lsmq_node.storage import TopicOptions, group_patterns
from lsmq_node.storage.group_patterns import FENCE_PREFIX, PREFIX, decode, encode
from lsmq_node.storage.losses import LossReason

from .harness import abandon, flush, retain
from .test_limits import gone, others
from .test_retention import Bench
from .test_topic_names import current, put


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.store.retention.rest = None
    yield bench
    abandon(bench.store)


def named(bench: Bench, **options: object) -> int:
    return bench.store.create_topic("t", 4096, TopicOptions(named=True, **options)).id  # type: ignore[arg-type]


def send(bench: Bench, topic: int, *names: str) -> None:
    for name in names:
        put(bench.store, topic, (name, b"x" * 100))
    bench.store.commit()


def tell(bench: Bench, group: str, generation: int, **patterns: str) -> None:
    """A member with these patterns (``t<id>``) takes over queues."""
    by_id = {int(topic[1:]): pattern for topic, pattern in patterns.items()}
    documents = {FENCE_PREFIX + group: b"%d" % generation, PREFIX + group: encode(generation, by_id)}
    bench.store.wait(bench.store.put_documents(documents))


def commit(bench: Bench, group: str, topic: int, **offsets: int) -> None:
    numbers = current(bench.store.names(topic)).find(list(offsets))
    wanted = np.array(list(offsets.values()))
    bench.store.wait(bench.store.commit_offsets(group, topic, numbers.astype(np.uint32), wanted))


def kept(bench: Bench, topic: int, *names: str) -> list[int]:
    """How many messages of each queue are there."""
    numbers = current(bench.store.names(topic)).find(names).astype(np.uint32)
    earliest, latest = bench.store.earliest_offsets(topic, numbers), bench.store.latest_offsets(topic, numbers)
    found: list[int] = (latest - earliest).tolist()
    return found


def test_a_document_counts_beside_the_fence_of_its_generation_alone() -> None:
    body = encode(7, {3: "a.*", 1: "**"})
    assert decode(body, b"7") == {1: "**", 3: "a.*"}
    assert decode(body, b"8") == {}, "a release before has raised it"
    assert decode(body, None) == decode(None, b"7") == {}
    assert encode(7, {}) is None


def test_the_lag_is_of_queues_that_fit_by_the_pattern_and_the_names_of_now(bench: Bench) -> None:
    topic = named(bench)
    send(bench, topic, "a", "a.x", "a.y", "b", "a.x")
    tell(bench, "g", 1, **{f"t{topic}": "a.*"})
    assert bench.store.group_lag("g", topic) == 3 and bench.store.group_lag("other", topic) == 5
    (mark,) = [mark for _, _, mark in bench.store.group_marks({("g", topic)})]
    commit(bench, "g", topic, **{"a.x": 1, "b": 1})
    assert bench.store.group_lag("g", topic) == 2
    send(bench, topic, "a.z", "c")
    assert bench.store.group_lag("g", topic) == 3
    names = current(bench.store.names(topic))
    waited, _ = names.delete(("a.z",))
    assert waited is not None
    bench.store.wait(waited)
    send(bench, topic, "d.z")
    assert current(names).find(("d.z",)).tolist() == [bench.store.numbers(topic)[0] + 4], "it has the number of a.z"
    assert bench.store.group_lag("g", topic) == 2
    tell(bench, "g", 2, **{f"t{topic}": "**"})
    assert bench.store.group_lag("g", topic) == 5
    tell(bench, "g", 3)
    assert bench.store.group_lag("g", topic) == 5
    marks = [mark for _, _, mark in bench.store.group_marks()]
    assert mark not in marks


def test_the_same_numbers_are_found_by_looking_at_what_is_new_as_by_looking_at_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = named(bench)
    patterns = bench.store.named.patterns
    for turn in range(6):
        send(bench, topic, *(f"{part}.{turn}.{at}" for part in "ab" for at in range(3)))
        if turn % 2:
            waited, _ = current(bench.store.names(topic)).delete((f"a.{turn - 1}.0", f"b.{turn - 1}.1"))
            assert waited is not None
            bench.store.wait(waited)
        for pattern in ("a.**", "*.1.*", "**"):
            found = patterns.numbers(topic, pattern)
            with monkeypatch.context() as anew:
                anew.setattr(patterns, "_fitting", {})
                whole = patterns.numbers(topic, pattern)
            assert found is not None and whole is not None
            there = current(bench.store.names(topic)).names(found)
            assert [number for number, name in zip(found, there, strict=True) if name] == whole.tolist()
    monkeypatch.setattr(group_patterns, "_REMEMBERED", 5)
    assert patterns.numbers(topic, "a.**") is not None
    assert list(patterns._fitting) == [(topic, "a.**")], "and what is remembered is limited"


def test_what_is_consumed_is_what_those_have_that_read_the_queue(bench: Bench) -> None:
    topic = named(bench, delete_consumed=True)
    send(bench, topic, "a.x", "b.x", "c", "a.x")
    tell(bench, "g", 1, **{f"t{topic}": "*.x"})
    tell(bench, "h", 1, **{f"t{topic}": "a.**"})
    commit(bench, "g", topic, **{"a.x": 2, "b.x": 1})
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x", "c") == [0, 0, 1], "h is not known before it commits, and nobody reads c"
    send(bench, topic, "a.x", "b.x")
    commit(bench, "h", topic, **{"a.x": 2})
    commit(bench, "g", topic, **{"a.x": 3, "b.x": 2})
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x", "c") == [1, 0, 1]
    bench.reopen()
    bench.store.retention.rest = None
    send(bench, topic, "b.x", "a.x")
    commit(bench, "g", topic, **{"a.x": 4, "b.x": 3})
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x", "c") == [2, 0, 1], "nor is that forgotten"
    commit(bench, "h", topic, **{"a.x": 4})
    tell(bench, "h", 2)
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x", "c") == [0, 0, 1]
    send(bench, topic, "b.x")
    commit(bench, "g", topic, **{"b.x": 4})
    retain(bench.store)
    assert kept(bench, topic, "b.x", "c") == [1, 1], "h reads all of it now"


def test_a_group_that_has_committed_in_another_shard_holds_what_fits_alone(bench: Bench) -> None:
    topic = named(bench, delete_consumed=True)
    send(bench, topic, "a.x", "b.x")
    tell(bench, "g", 1, **{f"t{topic}": "a.*"})
    tell(bench, "h", 1, **{f"t{topic}": "b.*"})
    commit(bench, "h", topic, **{"b.x": 1})
    bench.store.retention.rest = {topic: others(groups=frozenset("g"))}
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x") == [1, 0]
    send(bench, topic, "b.x")
    commit(bench, "h", topic, **{"b.x": 2})
    tell(bench, "g", 2)
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x") == [1, 1], "one of which it is not known what it reads holds all"


def test_a_number_that_goes_to_another_name_meanwhile_is_not_taken_for_the_former(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``g`` is asked about before the number is that of ``a.x``, which it reads; ``h`` has read it when it is asked."""
    topic = named(bench, delete_consumed=True)
    send(bench, topic, "b.x")
    tell(bench, "g", 1, **{f"t{topic}": "a.*"})
    commit(bench, "g", topic, **{"b.x": 0})
    commit(bench, "h", topic, **{"b.x": 0})
    numbers = bench.store.named.patterns.numbers

    def late(topic_id: int, pattern: str) -> object:
        found = numbers(topic_id, pattern)
        names = current(bench.store.names(topic))
        if names.find(("b.x",))[0] >= 0:
            waited, _ = names.delete(("b.x",))
            assert waited is not None
            bench.store.wait(waited)
            send(bench, topic, "a.x")
            commit(bench, "h", topic, **{"a.x": 2})
        return found

    monkeypatch.setattr(bench.store.named.patterns, "numbers", late)
    retain(bench.store)
    assert kept(bench, topic, "a.x") == [1]


def test_on_a_disk_nearly_full_that_stays_which_is_to_be_read(bench: Bench) -> None:
    topic = named(bench, on_disk_full="drop_oldest")
    for _ in range(10):
        bench.clock.time_ms += 1_000
        send(bench, topic, "a.x", "b.x")
    tell(bench, "g", 1, **{f"t{topic}": "a.*"})
    commit(bench, "g", topic, **{"a.x": 4})
    flush(bench.store)
    bench.store.retention.disk_shortage = lambda: 1 << 20
    retain(bench.store)
    assert kept(bench, topic, "a.x", "b.x") == [6, 1]
    assert gone(bench, topic) == {LossReason.DISK: 13}

"""Names that are read from their log while it changes, or reading breaks off; and what is committed in part."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import DiskFull, StoreBusy
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import NamesBehind, ShardStore, StoredTopic, TopicNames, TopicOptions, known_names
from lsmq_node.storage import name_listing as listings
from lsmq_node.storage.name_table import NameTable
from lsmq_node.storage.named_topics import NamedTopics
from lsmq_node.storage.state import NAMES_TOPIC
from support.clock import SimClock

from .harness import keep_house, open_stepped, tiny, torn_out_of
from .test_topic_names import bodies, current, named, put


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        yield store


def reader_of(store: ShardStore) -> NamedTopics:
    """What another node knows of names, which hears of them by its log."""
    return NamedTopics(store._state, store._line, store._queries, tiny(), store.time)


def delete(store: ShardStore, topic: int, *names: str) -> None:
    appended, _ = current(store.names(topic)).delete(names)
    assert appended is not None
    store.wait(appended)


def make(store: ShardStore, topic: int, *names: str) -> None:
    store.wait(put(store, topic, *((name, b"1") for name in names))[0])


def write_anew(store: ShardStore, topic: int) -> None:
    names = current(store.names(topic))
    begin, cursor = names.log_end(), 0
    while cursor is not None:
        appended, cursor = names.rewrite(cursor, 100)
        if appended is not None:
            store.wait(appended)
    store.wait(store.trim(topic | NAMES_TOPIC, 0, begin))


def before_read(monkeypatch: pytest.MonkeyPatch, store: ShardStore, which: int, happen: Callable[[], None]) -> None:
    """Something happens once, before the read of that number from now on."""
    read, reads = store._queries.read_many, 0

    def read_many(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == which:
            happen()
        return read(*args, **kwargs)

    monkeypatch.setattr(store._queries, "read_many", read_many)


def same_names(store: ShardStore, known: TopicNames, topic: int) -> None:
    """Who has read the log knows what its writer knows."""
    leader, reader = current(store.names(topic)), current(known)
    numbers = np.arange(0, 64, dtype=np.uint32)
    assert reader.names(numbers) == leader.names(numbers)
    there = [name for name in leader.names(numbers) if name is not None]
    assert reader.count == leader.count == len(there)
    assert reader.find(there).tolist() == leader.find(there).tolist()
    assert reader.all_numbers().tolist() == leader.all_numbers().tolist()


def busy() -> None:
    raise StoreBusy("no descriptor is left")


def torn() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("failure", "happen"), [(StoreBusy, busy), (KeyboardInterrupt, torn)])
def test_reading_of_names_that_breaks_off_goes_on_where_it_was(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException], happen: Callable[[], None]
) -> None:
    topic = named(store)
    make(store, topic, "first")
    known = reader_of(store).names(topic)
    current(known)
    make(store, topic, "x")
    delete(store, topic, "x")
    make(store, topic, "y")  # it has the number that x had
    make(store, topic, "last")
    monkeypatch.setattr(known_names, "_READ_RECORDS", 3)
    before_read(monkeypatch, store, 2, happen)
    with pytest.raises(failure):
        known.refresh()
    same_names(store, known, topic)
    assert known.find(("x", "y")).tolist() == [-1, 1]
    delete(store, topic, "y")
    same_names(store, known, topic)


def test_who_is_torn_out_of_taking_in_names_that_he_read_knows_them_afterwards(store: ShardStore) -> None:
    topic = named(store)
    make(store, topic, "first")
    known = reader_of(store).names(topic)
    current(known)
    make(store, topic, *(f"n{at}" for at in range(10)))
    with torn_out_of(NameTable, "hold"):
        known.refresh()
    same_names(store, known, topic)


@pytest.mark.parametrize("is_first", [True, False])
def test_names_are_read_whole_while_their_log_is_written_anew_and_trimmed(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    topic = named(store)
    make(store, topic, "gone", "stays")
    known = reader_of(store).names(topic)
    if not is_first:
        current(known)
    make(store, topic, "gone too", "more")
    delete(store, topic, "gone")
    delete(store, topic, "gone too")
    monkeypatch.setattr(known_names, "_READ_RECORDS", 2)
    before_read(monkeypatch, store, 2, lambda: write_anew(store, topic))
    known.refresh()
    same_names(store, known, topic)
    assert known.find(("gone", "gone too")).tolist() == [-1, -1]
    make(store, topic, "gone")
    same_names(store, known, topic)


def test_names_that_were_written_down_twice_are_there_once(store: ShardStore) -> None:
    """A node that starts, or takes over, before the log that was written anew is trimmed."""
    topic = named(store)
    many = [f"n{at}" for at in range(3_000)]
    for first in range(0, len(many), 1_000):
        make(store, topic, *many[first : first + 1_000])
    appended, _ = current(store.names(topic)).rewrite(0, len(many))
    assert appended is not None
    store.wait(appended)
    known = current(reader_of(store).names(topic))
    assert known.count == len(known.all_numbers()) == len(many)
    assert known.find(many).tolist() == current(store.names(topic)).find(many).tolist()
    delete(store, topic, *many[:10])
    assert current(known).find(many[:11]).tolist() == [-1] * 10 + current(store.names(topic)).find(many[10:11]).tolist()


def test_of_names_that_are_committed_in_part_nothing_is_read_before_the_rest_is(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "shard", tiny(), replicated=True)
    ends: list[int] = []
    store.replica.listen(lambda lsn, end, raw, entries: ends.extend(entries), lambda lsn: None, lambda told: None)
    store.replica.begin_epoch(1, 1 << 52, 3)
    store.put_topic(StoredTopic(1, "t", 4096, TopicOptions(named=True)), 0, 4096)
    store.replica.advance(store.replica.write())
    many = [f"{at:03d}".ljust(250, "x") for at in range(200)]
    del ends[:]
    put(store, 1, *((name, b"1") for name in many), by=("me",))
    store.replica.write()
    assert len(ends) == 3, "names in two batches, and messages"
    store.replica.advance(ends[0])
    assert current(store.names(1)).find(many[:2]).tolist() == [-1, -1], "their request is not committed"
    put(store, 1, ("another", b"2"), (many[0], b"3"))
    store.replica.advance(store.replica.write())
    assert bodies(store, 1, many[0]) == [b"1", b"3"] and bodies(store, 1, "another") == [b"2"]
    assert current(store.names(1)).count == 201
    assert store.named.makers.count("me") == 200
    store.close()


def test_a_name_that_is_not_to_go_after_all_outlives_the_log_that_is_written_anew(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(), disk, SimClock())
    topic = named(store)
    make(store, topic, "kept", "other")
    names = current(store.names(topic))
    names.delete(("kept",))
    waited, cursor = names.rewrite(0, 1)
    assert waited is not None and cursor == 1, "what is to go is left out, so it has to go first"
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.wait(waited)
    disk.heal()
    keep_house(store)
    assert current(names).find(("kept", "other")).tolist() == [0, 1]
    store.close()


def test_a_listing_after_a_thread_was_torn_out_says_that_names_are_to_be_read(store: ShardStore) -> None:
    topic = named(store)
    make(store, topic, "a", "b")
    current(store.names(topic))
    listing = store.named.listing(topic)
    assert [raw for raw, _ in listing.page(b"", b"", 10)] == [b"a", b"b"]
    with torn_out_of(NameTable, "hold"):
        put(store, topic, ("c", b"2"))
    store.commit()
    with pytest.raises(NamesBehind):
        listing.page(b"", b"", 10)
    current(store.names(topic))
    assert [raw for raw, _ in listing.page(b"", b"", 10)] == [b"a", b"b", b"c"]


def test_names_of_a_round_that_was_dropped_do_not_count_though_nobody_asks_for_their_topic(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(), disk, SimClock())
    topic = named(store)
    put(store, topic, ("lost", b"1"), by=("me",))
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.commit()
    disk.heal()
    keep_house(store)
    store.named.settle()
    assert store.named.count() == store.named.makers.count("me") == 0
    store.close()


def test_that_many_queues_are_deleted_costs_a_look_at_the_line_and_none_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_stepped(tmp_path / "shard", tiny(), None, SimClock())
    topic = named(store)
    many = [f"n{at}" for at in range(100)]
    make(store, topic, *many)
    names = current(store.names(topic))
    look, looks, asked = names._look_at_the_line, 0, 0

    def counted() -> None:
        nonlocal looks
        looks += 1
        look()

    def holds(item: known_names.InLine) -> bool:
        nonlocal asked
        asked += 1
        return True

    monkeypatch.setattr(names, "_look_at_the_line", counted)
    monkeypatch.setattr(known_names, "_holds", holds)
    for name in many:
        names.delete((name,))
        put(store, topic, (name, b"2"))
    in_line = len(names._in_line)
    assert in_line > 100 and asked < 10 * in_line
    store.commit()
    assert names.is_current()
    assert looks == 1
    assert bodies(store, topic, many[-1]) == [b"2"]
    store.close()


def test_a_page_has_no_name_out_of_its_place_that_came_while_it_was_made(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = named(store)
    make(store, topic, *(f"b{at}" for at in range(9)))
    names, listing = current(store.names(topic)), store.named.listing(topic)
    assert len(listing.page(b"", b"", 100)) == 9
    monkeypatch.setattr(listings, "_LEAST_LOOK", 1)
    raw_of, is_over = listing._raw, False

    def meanwhile(numbers: Any) -> Any:
        nonlocal is_over
        if not is_over and len(numbers) > 1:
            is_over = True
            delete(store, topic, "b1")
            make(store, topic, "z")  # it has the number that b1 had
            assert names.is_current()
        return raw_of(numbers)

    monkeypatch.setattr(listing, "_raw", meanwhile)
    found, after = [], b""
    while page := listing.page(b"", after, 4):
        found += [raw for raw, _ in page]
        after = found[-1]
    assert found == [b"b0", *(b"b%d" % at for at in range(2, 9)), b"z"]


def test_a_page_is_given_though_names_come_faster_than_it_is_made(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = named(store)
    make(store, topic, "a", "b")
    names = current(store.names(topic))
    monkeypatch.setattr(names, "changed_since", lambda version: (None, names.version))
    assert [raw for raw, _ in listings.NameListing(names).page(b"", b"", 10)] == [b"a", b"b"]


def test_whether_a_name_will_be_there_goes_by_what_is_in_line(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "shard", tiny(), None, SimClock())
    topic = named(store)
    make(store, topic, "old")
    names = current(store.names(topic))
    seen = [names.will_have("old"), names.will_have("new")]
    names.delete(("old",))
    put(store, topic, ("new", b"1"))
    seen += [names.will_have("old"), names.will_have("new")]
    put(store, topic, ("old", b"2"))
    seen += [names.will_have("old")]
    assert seen == [True, False, False, True, True]
    assert names.find(("old", "new")).tolist() == [0, -1], "nothing of it is committed"
    store.commit()
    assert (names.find(("old", "new")) >= 0).all() and bodies(store, topic, "old") == [b"2"]
    store.close()

"""How durable a message is before it counts, as its topic or its write says, beside others in one log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lsmq.errors import InvalidRequest
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import FlushMode, ShardStore, StoredTopic, TopicOptions
from support.waiting import eventually

from .harness import Put, abandon, append, batch_of, bodies, body, flush, open_stepped, put, sync, tiny

SYNC, ASYNC = FlushMode.SYNC, FlushMode.ASYNC


def fsyncs(store: ShardStore) -> int:
    return store.stats().fsyncs_total


def write(store: ShardStore, topic_id: int, content: bytes, mode: FlushMode | None = None) -> int:
    """How many syncs it took until it was committed."""
    before = fsyncs(store)
    store.wait(store.append(topic_id, batch_of([Put(0, content)]), flush=mode))
    return fsyncs(store) - before


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("of_topic", [None, *FlushMode])
@pytest.mark.parametrize("of_write", [None, *FlushMode])
def test_a_write_decides_before_its_topic_and_that_before_the_store(
    tmp_path: Path, mode: FlushMode, of_topic: FlushMode | None, of_write: FlushMode | None
) -> None:
    store = open_stepped(tmp_path / "s", tiny(flush_mode=mode))
    options = TopicOptions(flush=None if of_topic is None else of_topic.value)
    topic_id = store.create_topic("t", 1, options).id
    synced = (of_write or of_topic or mode) is SYNC
    for at in range(3):
        assert write(store, topic_id, b"%d" % at, of_write) == synced
        assert bodies(store, topic_id, 0)[at] == b"%d" % at, "it is shown as soon as it counts"
    store.close()


def test_a_write_that_is_synced_takes_what_was_before_it_along(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    store = open_stepped(tmp_path / "s", tiny(), drive)
    loose, firm = store.create_topic("loose", 1, TopicOptions(flush="async")).id, store.create_topic("firm", 1).id
    for at in range(5):
        assert write(store, loose, body(at, 3_000)) == 0
    assert write(store, firm, b"kept") == 1
    assert store.stats().durable_lsn == store.committed_lsn
    abandon(store)
    for seed in range(5):
        found = open_stepped(tmp_path / "s", tiny(), drive.copy().power_cut(seed))
        assert (len(bodies(found, loose, 0)), bodies(found, firm, 0)) == (5, {0: b"kept"})
        abandon(found)


def test_one_group_commit_of_both_is_synced(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "s", tiny())
    loose, firm = store.create_topic("loose", 1, TopicOptions(flush="async")).id, store.create_topic("firm", 1).id
    before = fsyncs(store)
    append(store, loose, (0, b"a"))
    append(store, firm, (0, b"b"))
    store.wait(append(store, loose, (0, b"c")))
    assert fsyncs(store) == before + 1
    assert store.stats().durable_lsn == store.committed_lsn
    store.close()


@pytest.mark.part(2)
@pytest.mark.parametrize("mode", FlushMode)
def test_power_loss_takes_nothing_that_was_synced_and_only_the_end(tmp_path: Path, mode: FlushMode) -> None:
    lost = 0
    for seed in range(40):
        chance, path, drive = random.Random(seed), tmp_path / str(seed), Drive(tmp_path)
        store = open_stepped(path, tiny(flush_mode=mode), drive)
        loose = store.create_topic("loose", 1, TopicOptions(flush="async")).id
        sync(store)
        sent: list[bytes] = []
        safe = 0
        for _ in range(2):
            for _ in range(chance.randrange(1, 15)):
                how = chance.choice([None, None, SYNC, ASYNC, "flush", "sync"])
                if how == "flush":
                    flush(store)
                    safe = len(sent)
                elif how == "sync":
                    sync(store)
                    safe = len(sent)
                else:
                    assert isinstance(how, FlushMode | None)
                    sent.append(body(len(sent), chance.randrange(100, 7_000)))
                    write(store, loose, sent[-1], how)
                    safe = len(sent) if how is SYNC else safe
            abandon(store)
            drive = drive.power_cut(seed)
            store = open_stepped(path, tiny(flush_mode=mode), drive)
            found = bodies(store, loose, 0)
            assert len(found) >= safe
            assert found == dict(enumerate(sent[: len(found)]))
            lost += len(sent) - len(found)
            del sent[len(found) :]
            safe = len(sent)
        abandon(store)
    assert lost, "no cut took anything: nothing was shown"


def test_what_is_only_written_is_synced_soon_in_the_background(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny(flush_interval_ms=20)) as store:
        topic_id = store.create_topic("t", 1, TopicOptions(flush="async")).id
        for at in range(3):
            put(store, topic_id, (0, b"%d" % at))
            end_lsn = store.committed_lsn
            eventually(lambda end_lsn=end_lsn: store.stats().durable_lsn >= end_lsn, "it is on the disk")


def test_so_many_bytes_are_synced_at_once(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny(flush_interval_ms=3_600_000, flush_bytes=20_000)) as store:
        topic_id = store.create_topic("t", 1, TopicOptions(flush="async")).id
        for at in range(8):
            put(store, topic_id, (0, body(at, 5_000)))
        eventually(lambda: store.committed_lsn - store.stats().durable_lsn < 20_000, "no more is behind")


def test_a_follower_syncs_what_its_leader_said(tmp_path: Path) -> None:
    leader = open_stepped(tmp_path / "a", tiny(), replicated=True)
    follower = open_stepped(tmp_path / "b", tiny(), replicated=True)
    leader.replica.begin_epoch(1, 7, 1)
    for topic_id, options in ((1, TopicOptions()), (2, TopicOptions(flush="async"))):
        leader.put_topic(StoredTopic(topic_id, f"t{topic_id}", 1, options, 1), 0, 1)
    leader.replica.write()
    leader.replica.advance(leader.replica.end_lsn)

    def ship() -> int:
        """How often the follower syncs for what the leader has by now, all of which it promises then."""
        before = fsyncs(follower)
        end_lsn = follower.replica.end_lsn
        follower.replica.receive(end_lsn, leader.replica.read(end_lsn, 1 << 20))
        assert follower.replica.sync() == leader.replica.end_lsn
        return fsyncs(follower) - before

    assert ship() == 1
    expected = []
    for topic_id, mode in ((1, None), (2, None), (2, SYNC), (1, ASYNC), (2, ASYNC)):
        leader.append(topic_id, batch_of([Put(0, b"x")]), flush=mode)
        leader.replica.write()
        expected.append(ship())
    assert expected == [1, 0, 1, 0, 0]
    assert leader.replica.durable_lsn == leader.replica.end_lsn
    leader.close()
    follower.close()


def test_a_topic_of_neither_mode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="flush must be None or 'sync' or 'async', not 'never'"):
        TopicOptions.from_dict({"flush": "never"})
    assert TopicOptions.from_dict({"flush": None}).to_dict().keys() == TopicOptions().to_dict().keys()
    assert TopicOptions.from_dict({"flush": "async"}).altered({"flush": None}).flush is None

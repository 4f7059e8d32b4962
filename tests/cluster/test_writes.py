"""Writes that wait for their acknowledgement: who is answered by what a shard's threads report."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from lsmq.errors import DiskFull, LsmqError, NotEnoughReplicas, NotLeader, ShardStopped, StoreBusy
from lsmq_lab.world.drive import Drive
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.single import LocalShard
from lsmq_node.cluster.writes import WaitingWrites
from lsmq_node.storage import Appended, Committed, ShardStore
from lsmq_node.storage.line import Round
from storage.harness import keep_house, open_stepped, tiny

pytestmark = pytest.mark.usefixtures("drives_there")

Write = Callable[..., asyncio.Future[None]]
Test = Callable[[WaitingWrites, Write], Awaitable[None]]


def appended(lsn: int, round_: int = 0, *, duplicate: bool = False) -> Appended:
    return Appended(lsn=lsn, fate=Round(round_), offsets=np.empty(0, np.int64), stored_ms=0, duplicate=duplicate)


def run(test: Test, **options: Any) -> None:
    """Run the test with writes at a shard of which nothing is committed, and what adds one to them."""

    async def with_writes() -> None:
        writes = WaitingWrites(0, lambda topic_id, queues: None, **options)

        def write(lsn: int, round_: int = 0, ack: Ack = Ack.QUORUM, now: float = 0.0) -> asyncio.Future[None]:
            return writes.add(appended(lsn, round_), ack, 0, now)

        await test(writes, write)

    asyncio.run(with_writes())


def test_a_commit_answers_those_up_to_its_lsn() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        waits = [write(lsn) for lsn in (10, 20, 30)]
        writes.committed(Committed(20, 0, []))
        assert [wait.done() for wait in waits] == [True, True, False]
        writes.committed(Committed(30, 0, []))
        await waits[2]
        await writes.settled()

    run(test)


def test_a_failed_round_fails_those_above_its_lsn_and_not_the_next_round() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        kept, lost, later = write(10, 0), write(20, 0), write(15, 1)
        writes.committed(Committed(10, 0, [], DiskFull("full")))
        assert [wait.done() for wait in (kept, lost, later)] == [False, True, False]
        with pytest.raises(DiskFull):
            await lost
        writes.committed(Committed(15, 1, []))
        assert kept.done() and later.done()
        assert writes.failed_commits == 1

    run(test)


def test_rounds_that_fail_one_after_another_are_one_line_in_the_log() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        with capture_logs() as logs:
            for round_ in range(50):
                writes.committed(Committed(0, round_, [], StoreBusy("no descriptor is left")))
            assert [line["event"] for line in logs] == ["writes_dropped"]
            writes.committed(Committed(10, 50, []))
            writes.committed(Committed(10, 51, [], StoreBusy("no descriptor is left")))
            assert [line["event"] for line in logs] == ["writes_dropped"] * 2
        assert writes.failed_commits == 51

    run(test)


def test_a_repeat_that_is_committed_waits_for_nothing() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        ahead = write(80)
        assert writes.add(appended(40, duplicate=True), Ack.QUORUM, 50, 0.0).done()
        in_line = writes.add(appended(90, duplicate=True), Ack.QUORUM, 50, 0.0)
        assert not in_line.done() and not ahead.done()
        writes.committed(Committed(90, 0, []))
        assert in_line.done() and ahead.done()

    run(test)


def test_a_caller_who_gives_up_does_not_disturb_the_others() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        first, second = write(10), write(20)
        first.cancel()
        writes.committed(Committed(20, 0, []))
        await second

    run(test)


def test_what_is_durable_at_the_leader_answers_those_alone_who_asked_for_no_more() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        hasty, careful = write(10, ack=Ack.LEADER), write(10, ack=Ack.QUORUM)
        writes.durable(10)
        assert hasty.done() and not careful.done()
        writes.fail(NotLeader("another leads"))
        with pytest.raises(NotLeader):
            await careful

    run(test)


def test_the_verdict_is_asked_when_a_write_has_come_far_enough() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        first, repeat = write(10), writes.add(appended(5, duplicate=True), Ack.QUORUM, 5, 0.0)
        writes.committed(Committed(10, 0, []))
        for wait in (first, repeat):
            with pytest.raises(NotLeader):
                await wait

    run(test, verdict=lambda: NotLeader("the lease has run out"))


def test_who_has_waited_too_long_is_told() -> None:
    async def test(writes: WaitingWrites, write: Write) -> None:
        early, late = write(10, now=1.0), write(20, now=2.0)
        writes.expire(6.0, lambda: NotEnoughReplicas("too late"))
        assert early.done() and not late.done()
        with pytest.raises(NotEnoughReplicas):
            await early

    run(test, timeout_s=5.0)


def test_what_a_commit_touched_is_told_once_a_topic() -> None:
    told: list[tuple[int, list[list[int]]]] = []
    writes = WaitingWrites(0, lambda topic_id, pieces: told.append((topic_id, [piece.tolist() for piece in pieces])))
    one, two = np.array([1], np.uint32), np.array([2], np.uint32)
    writes.committed(Committed(10, 0, [(7, one), (8, one), (7, two)]))
    assert told == [(7, [[1], [2]]), (8, [[1]])]


@pytest.mark.parametrize(("error", "refusal"), [(errno.ENOSPC, DiskFull), (errno.EMFILE, StoreBusy)])
def test_want_of_space_or_descriptors_drops_a_write_and_the_shard_takes_the_next(
    tmp_path: Path, error: int, refusal: type[LsmqError]
) -> None:
    async def test() -> None:
        disk = Drive(tmp_path)
        store = open_stepped(tmp_path / "s", tiny(), disk)
        shard = LocalShard(0, store, lambda topic_id, queues: None)
        disk.at(1, error, ("write",))
        with pytest.raises(refusal):
            await shard.wait(store.put_documents({"lost": b"x"}), Ack.QUORUM)
        keep_house(store)
        await shard.wait(store.put_documents({"kept": b"x"}), Ack.QUORUM)
        assert (store.documents(), shard.failures, shard.stopped) == ([("kept", b"x")], 1, None)
        await shard.close()

    asyncio.run(test())


def test_an_unknown_failure_of_the_engine_fails_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise RuntimeError("a bug")

    async def test() -> None:
        store = await asyncio.to_thread(ShardStore.open, tmp_path, tiny())
        monkeypatch.setattr(store, "commit", fail)
        shard = LocalShard(0, store, lambda topic_id, queues: None)
        with pytest.raises(LsmqError, match="a bug"):
            await shard.wait(store.put_documents({"d": b"x"}), Ack.QUORUM)
        assert isinstance(shard.stopped, ShardStopped)
        await shard.close()

    asyncio.run(test())

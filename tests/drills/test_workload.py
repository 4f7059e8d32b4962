"""The workload and the comparison of replicas, before any cluster is hurt: a good run is good, and damage is found."""

from __future__ import annotations

import asyncio
import bisect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lsmq import Message
from lsmq.dead_letters import DeadLetter
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_lab.drills.columns import DrillColumns
from lsmq_lab.drills.compare import Comparison, ReplicaDirectory, compare
from lsmq_lab.drills.group_work import GroupWork, _Member
from lsmq_lab.drills.keyed_work import Ends, KeyDelays, Stretch, delays_of, reordered
from lsmq_lab.drills.members import slowness
from lsmq_lab.drills.report import DrillReport, OutageTimes, print_report, verdict_fields
from lsmq_lab.drills.task_work import conduct_of
from lsmq_lab.drills.transaction_work import TransactionWork
from lsmq_lab.drills.transactors import read_ledger
from lsmq_lab.drills.workers import VISIBILITY_MS, WorkerEvent
from lsmq_lab.drills.workload import DrillWorkload
from lsmq_lab.history import History, Verdict
from lsmq_node.storage import ShardStore, StoredTopic, StoreOptions
from support.node_process import NodeProcess

OPTIONS = StoreOptions(segment_bytes=1 << 20, memtable_bytes=1 << 20, max_message_bytes=1 << 16, min_free_bytes=0)


def test_a_workload_on_a_healthy_node_is_clean(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(shards=2).start()

    async def work() -> None:
        async with DrillWorkload([node.url], 2) as workload:
            began = time.monotonic()
            await workload.acknowledged_on([0, 1], count=20)
            assert 0 < workload.longest_gap_s(0, began) < time.monotonic() - began
            await workload.finish()
        verdict = workload.verdict()
        assert verdict.ok, verdict.anomalies
        assert verdict.acknowledged >= 3 * 20 * 2
        assert (verdict.unknown, workload.offsets_that_went_back, workload.errors) == (0, 0, [])
        assert set(verdict.received.values()) == {verdict.acknowledged}
        assert len(verdict.received) == 3

    asyncio.run(work())


def test_a_workload_survives_a_kill_and_sees_the_gap(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(shards=1).start()

    async def work() -> None:
        async with DrillWorkload([node.url], 1) as workload:
            began = time.monotonic()
            await asyncio.to_thread(node.kill9)
            killed = time.monotonic()
            await asyncio.to_thread(node.start)
            await workload.acknowledged_on([0])
            first = bisect.bisect_right(workload._acknowledged_at[0], killed)
            assert workload.longest_gap_s(0, began) >= workload._acknowledged_at[0][first] - killed > 0
            await workload.finish()
        assert workload.verdict().ok

    asyncio.run(work())


def test_gaps_are_measured_from_the_last_acknowledgement_before() -> None:
    workload = DrillWorkload([], 1)
    workload._acknowledged_at = [[1.0, 2.0, 2.5, 6.0, 6.1, 20.0]]
    assert workload.longest_gap_s(0, since=2.7, until=10.0) == pytest.approx(13.9)
    assert workload.longest_gap_s(0, since=2.7, until=6.05) == 3.5
    assert workload.longest_gap_s(0, since=30.0) == 0.0


def worked(*received: tuple[int, bytes]) -> Verdict:
    """The verdict of a run in which three messages were acknowledged at offsets 0 to 2 of queue 0, and one reader got
    these offsets and bodies."""
    workload = DrillWorkload([], 1)
    receipts = workload._readings["reader"] = DrillColumns()
    for columns, rows in ((workload._acknowledged, enumerate(BODIES)), (receipts, received)):
        for offset, body in rows:
            columns.add(0, offset, body)
    return workload.verdict()


BODIES = [b"0 k first", b"1 k second", b"2 k third"]


def test_the_verdict_tells_what_a_reader_did_not_get_got_twice_or_got_changed() -> None:
    complete = list(enumerate(BODIES))
    assert worked(*complete).ok
    assert verdict_fields(worked(*complete[:2]))["lost"] == 1
    assert verdict_fields(worked(*complete, complete[2]))["duplicates"] == 1
    assert verdict_fields(worked(*complete[:2], (2, b"2 k thirD")))["other_anomalies"] == 1
    swapped = verdict_fields(worked((0, BODIES[1]), (1, BODIES[0]), complete[2]))
    assert swapped["order_violations"] > 0 and swapped["other_anomalies"] > 0


# Comparing


class Pair:
    """A leader's store and a follower's, which got the leader's log byte for byte."""

    def __init__(self, path: Path) -> None:
        self.leader, self.follower = (ShardStore.open(path / name, OPTIONS, replicated=True) for name in ("n1", "n2"))
        self.path = path
        self.leader.replica.begin_epoch(1, 7, 1)
        topic = self.leader.put_topic(StoredTopic(1, "t", 2), 0, 2)
        self.lsn = self.commit(self.leader)
        assert topic.lsn <= self.lsn

    def put(self, store: ShardStore, body: bytes) -> None:
        builder = BatchBuilder()
        builder.add(0, body)
        store.append(1, RecordBatch(builder.build()))

    def commit(self, store: ShardStore) -> int:
        return store.replica.advance(store.replica.write())

    def ship(self) -> None:
        while piece := self.leader.replica.read(self.follower.replica.end_lsn, 1 << 20):
            self.follower.replica.receive(self.follower.replica.end_lsn, piece)
        self.follower.replica.sync()

    def compare(self, high_watermark: int) -> Comparison:
        self.leader.close()
        self.follower.close()
        replicas = [ReplicaDirectory(name, self.path / name) for name in ("n1", "n2")]
        return compare({7: (high_watermark, replicas)}, OPTIONS)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.leader.close()
    pair.follower.close()


def test_equal_replicas_are_equal_whatever_each_has_flushed_or_has_beyond(pair: Pair) -> None:
    for number in range(50):
        pair.put(pair.leader, b"%d" % number)
    high_watermark = pair.commit(pair.leader)
    pair.ship()
    pair.leader.flush()
    pair.put(pair.leader, b"nobody else has this")
    pair.commit(pair.leader)
    assert pair.compare(high_watermark) == Comparison(2, 0, ())


def test_a_replica_that_lacks_something_is_named(pair: Pair) -> None:
    pair.ship()
    pair.put(pair.leader, b"one")
    found = pair.compare(pair.commit(pair.leader))
    assert (found.compared, found.differ) == (2, 1)
    assert "shard 7 on n2: its log ends at LSN" in found.findings[0]


def test_another_log_and_other_messages_are_found(pair: Pair) -> None:
    pair.ship()
    pair.follower.replica.advance(pair.lsn)
    pair.put(pair.leader, b"one")
    high_watermark = pair.commit(pair.leader)
    pair.follower.replica.begin_epoch(2, 7, 1)
    for _ in range(10):
        pair.put(pair.follower, b"two")
    assert pair.commit(pair.follower) > high_watermark
    found = pair.compare(high_watermark)
    assert found.differ == 1
    assert any("its log differs" in finding for finding in found.findings)
    assert any("messages of t queue 0" in finding for finding in found.findings)


def test_a_store_that_cannot_be_opened_differs(pair: Pair) -> None:
    high_watermark = pair.commit(pair.leader)
    pair.ship()
    (pair.path / "n2" / "MANIFEST").write_bytes(b"damaged")
    found = pair.compare(high_watermark)
    assert found.differ == 1
    assert found.findings[0].startswith("shard 7 on n2: ")


# Groups


def test_a_member_never_finds_its_slowness_half_written() -> None:
    async def work() -> None:
        group = GroupWork(["http://127.0.0.1:1"], "n", 4)
        try:
            group.members[1] = _Member()
            group.slow_down(1, 0.2, block=False)
            with slowness(group._record(1)).open() as found:
                group.slow_down(1, 3.0, block=True)
                assert found.read() == "crawl 0.2"
            assert slowness(group._record(1)).read_text() == "block 3.0"
        finally:
            await group.close()

    asyncio.run(work())


# Transactions


def test_what_transactions_must_show_is_what_their_ledgers_say(tmp_path: Path) -> None:
    async def work() -> None:
        transactions = TransactionWork(["http://127.0.0.1:1"], "n", 4)
        try:
            ledger = tmp_path / "1"
            ledger.write_bytes(b"a k-n-first-0 0 1 11 k-n-second-1 1 2 12\nb k-n-first-0 0 3 13\ncut off k-n-first-0")
            transactions._entries = read_ledger(ledger)

            def verdict(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> list[dict[str, Any]]:
                """What the drill says when these were seen: offset and sequence, in both readings."""
                for topic, queue, rows in (("n-first", 0, first), ("n-second", 1, second)):
                    seen = DrillColumns()
                    for offset, sequence in rows:
                        seen.add_fields(queue, offset, f"k-{topic}-{queue}", sequence, 10 + sequence)
                    transactions._live[topic] = transactions._again[topic] = seen
                return [verdict_fields(found) for found in transactions.judge(History()).verdicts]

            good = verdict([(0, 1), (1, 3)], [(0, 2)])
            assert [(each["lost"], each["duplicates"], each["other_anomalies"]) for each in good] == [(0, 0, 0)] * 2
            assert [each["acknowledged"] for each in good] == [2, 1]
            assert "2 transactions" in transactions.judge(History()).notes[0]
            assert verdict([(0, 1), (1, 3)], [])[1]["lost"] == 2, "once a reading"
            assert verdict([(0, 1), (1, 3), (2, 3)], [(0, 2)])[0]["duplicates"]
            assert verdict([(0, 1), (1, 3)], [(0, 2), (1, 4)])[1]["other_anomalies"], "never to be seen"
            assert verdict([(0, 3), (1, 1)], [(0, 2)])[0]["order_violations"]
        finally:
            await transactions.close()

    asyncio.run(work())


# Work queues


HIDDEN_S = VISIBILITY_MS / 1000


def begins(at: float, *, worker: str = "a", queue: int = 0, offset: int = 0, sequence: int = 1) -> WorkerEvent:
    return WorkerEvent(at, "B", worker, queue, offset, until=at + HIDDEN_S, key="k", sequence=sequence)


def does(
    kind: str, at: float, *, worker: str = "a", until: float = 0.0, queue: int = 0, offset: int = 0
) -> WorkerEvent:
    return WorkerEvent(at, kind, worker, queue, offset, since=at, until=until)


def letter(queue: int, offset: int) -> DeadLetter:
    properties = {"lsmq-dlq-queue": f"{queue}", "lsmq-dlq-offset": f"{offset}"}
    return DeadLetter(Message("t.dlq", 0, 0, 7, b"0 k", properties=properties))


def handled(at: float, offset: int) -> list[WorkerEvent]:
    return [begins(at, offset=offset, sequence=offset + 1), does("H", at, offset=offset), does("A", at, offset=offset)]


SOON, LATE = HIDDEN_S / 2, HIDDEN_S + 0.1
CHANGED = [(SOON - 0.1, SOON)]
WORKED = {
    "handled once": ([begins(0), does("H", 0.1), does("A", 0.2)], [], ""),
    "again when its visibility is over": ([begins(0), begins(LATE, worker="b")], [], ""),
    "again while it is hidden": ([begins(0), begins(SOON, worker="b")], [], "too early"),
    "again when leaders changed": ([begins(0), begins(SOON, worker="b")], CHANGED, ""),
    "again after it was given back": ([begins(0), does("F", 0.1), begins(0.2, worker="b")], [], ""),
    "given back by who does not have it": (
        [begins(0), does("F", 0.1, worker="c"), begins(0.2, worker="b")],
        [],
        "too early",
    ),
    "before its delay is over": (
        [begins(0), does("F", 0.1), does("N", 0.2, until=9.0), begins(8.0, worker="b")],
        CHANGED,
        "delay",
    ),
    "after its delay": ([begins(0), does("F", 0.1), does("N", 0.2, until=9.0), begins(9.1, worker="b")], [], ""),
    "again after it was acknowledged": ([begins(0), does("A", 0.1), begins(LATE)], [], "acknowledged"),
}


@pytest.mark.parametrize("name", WORKED)
def test_the_verdict_on_a_work_queue_tells_deliveries_that_should_not_have_been(name: str) -> None:
    events, changes, finding = WORKED[name]
    conduct = conduct_of(events, [], changes)
    assert conduct.doubled == bool(finding) and conduct.wrong == 0
    assert finding in "".join(conduct.findings)


def test_dead_letters_are_poison_once_each_and_hold_nothing_up() -> None:
    failing = [begins(at, sequence=0) for at in (0.0, LATE)]
    passing = [event for offset in range(1, 60) for event in handled(1.0, offset)]
    behind = [event for offset in range(1, 60) for event in handled(LATE + 1, offset)]
    good = conduct_of([*failing[:1], *passing, *failing[1:]], [letter(0, 0)], [])
    assert (good.doubled, good.wrong, good.dead, good.handled, good.again) == (0, 0, 1, 59, 1)
    assert conduct_of([*failing[:1], *passing, *failing[1:]], [letter(0, 0)] * 2, []).doubled == 1
    assert conduct_of([*failing, *behind], [letter(0, 0)], []).wrong == 1, "held up"
    assert conduct_of(passing, [letter(0, 7)], []).wrong == 1, "no poison"


def test_a_message_that_begins_before_its_key_is_told() -> None:
    in_turn = [*handled(0.0, 0), *handled(0.1, 1)]
    assert reordered(in_turn, []) == []
    at_once = [begins(0.0, offset=0), begins(0.1, offset=1)]
    assert reordered(at_once, []) == ["queue 0 offset 1 began before offset 0 of its key was handled"]
    assert reordered(at_once, [letter(0, 0)]) == [], "a dead letter frees its key"
    others = [begins(0.0, offset=0), replace(begins(0.1, offset=1), key="another"), begins(0.2, offset=0)]
    assert reordered(others, []) == [], "of another key, and again"


def of_key(key: str, events: Iterable[WorkerEvent]) -> list[WorkerEvent]:
    return [replace(event, key=key) for event in events]


def test_a_key_that_fails_is_told_where_it_held_up_another_that_might_go_on() -> None:
    failing, letters = [begins(at, sequence=0) for at in (1.0, 2.0, 6.0)], [letter(0, 0)]
    own, other = handled(7.0, 1), of_key("another", handled(7.5, 2))
    there: list[Ends] = [(0.5, {0: 3})]

    def told(*events: WorkerEvent, ends: Sequence[Ends] = there, disturbed: Sequence[Stretch] = ()) -> KeyDelays:
        return delays_of(sorted([*failing, *events], key=lambda event: event.at), letters, ends, disturbed)

    finding = "queue 0 offset 0 failed, and held up offset 2, of another key"
    assert told(*own, *other) == KeyDelays(1, (finding,))
    assert told(*own).asked == 0, "those of its own key wait for it"
    assert told(*other, ends=[(0.5, {0: 2}), (1.5, {0: 3})]).asked == 0, "it may not have been there"
    assert told(*other, disturbed=[(5.0, 5.5)]).asked == 0, "somebody may have died with it"
    before = of_key("another", handled(7.2, 1))
    assert told(*before, *other).findings == (finding.replace("offset 2", "offset 1"),)
    resting = [replace(begins(0.1, offset=1), key="another"), *of_key("another", handled(7.2, 1))]
    assert told(*resting, *other).asked == 0, "its own key waits for one that rests"
    third = of_key("third", handled(3.0, 3))
    assert told(*other, *third) == KeyDelays(1, ()), "not by this one, which others have passed"


# Reporting


REPORT = DrillReport(
    drill="kill-leader",
    rounds=2,
    rounds_done=2,
    seed=1,
    nodes=3,
    shards=3,
    seconds=1.0,
    acknowledged=10,
    refused=OutageTimes.of([0.1, 0.3, 0.2]),
)


def test_a_clean_report_is_good_and_tells_its_figures() -> None:
    assert REPORT.ok
    document = REPORT.to_dict()
    assert (document["ok"], document["refused_p50_ms"], document["refused_max_ms"]) == (True, 200.0, 300.0)
    json.dumps(document)


@pytest.mark.parametrize(
    "bad",
    [
        {"lost": 1},
        {"duplicates": 1},
        {"order_violations": 1},
        {"offsets_went_back": 1},
        {"other_anomalies": 1},
        {"replicas_differ": 1},
        {"rounds_done": 1},
        {"failures": ("x",)},
        {"acknowledged": 0},
    ],
)
def test_anything_wrong_makes_a_report_bad(bad: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    report = replace(REPORT, **bad)
    assert not report.ok
    print_report(report)
    assert "FAILED" in capsys.readouterr().out

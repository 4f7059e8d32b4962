"""Members in processes of their own, killed while they work: nothing is lost, and what repeats was not committed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lsmq import Client, Producer
from lsmq.groups import Group
from lsmq_lab.history import History
from support.dying import PHASES
from support.group_member import MemberProcess
from support.node_process import NodeProcess
from support.waiting import comes_true

QUEUES = 6


class Work:
    """A topic that is written to, and members that come and go."""

    def __init__(self, client: Client, node: NodeProcess, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.members: list[MemberProcess] = []
        self._node = node
        self._history = History()
        self.count = 0

    def member(self, **options: Any) -> MemberProcess:
        self.members.append(MemberProcess(self._node.url, self.topic, self.topic, **options))
        return self.members[-1]

    async def send(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        self.count += count
        async with Producer(self.client, self.topic) as producer:
            sent = [await producer.send(f"{number}", queue=number % QUEUES, key=f"{number % 12}") for number in numbers]
            places = [await receipt for receipt in sent]
        self._history.acknowledged(
            [place.queue for place in places],
            [place.offset for place in places],
            [f"{number % 12}" for number in numbers],
            numbers,
        )

    def ended(self) -> Counter[int]:
        """How often each message was handled to its end."""
        return Counter(int(event["body"]) for member in self.members for event in member.of("end"))

    async def until_all_is_handled(self) -> None:
        await comes_true(lambda: len(self.ended()) >= self.count, f"all {self.count} are handled", 120)

    async def committed(self) -> dict[int, int]:
        return await self.client.committed_offsets(self.topic, self.topic)

    async def is_committed(self) -> bool:
        return sum((await self.committed()).values()) == self.count

    def check(self, *, redelivery: bool) -> None:
        """Nothing is lost or made up; and unless ``redelivery`` nothing was handled twice, or out of order."""
        reading = self._history.reading("members")
        for number, member in enumerate(self.members):
            events = member.of("end")
            reading.received(
                [event["queue"] for event in events],
                [event["offset"] for event in events],
                [event["key"] for event in events],
                [int(event["body"]) for event in events],
                consumer=number,
            )
        verdict = self._history.check(redelivery=redelivery)
        # A queue that goes to another member and comes back has gone on meanwhile.
        allowed = {"skipped"}
        assert not [str(found) for found in verdict.anomalies if found.kind.value not in allowed]

    def check_order(self) -> None:
        """No message begins before the one before it in its queue has ended, whoever handles the two."""
        for queue in range(QUEUES):
            events = [event for member in self.members for what in ("begin", "end") for event in member.of(what)]
            of_queue = sorted((event for event in events if event["queue"] == queue), key=lambda event: event["at"])
            steps = [(event["what"], event["offset"]) for event in of_queue]
            ends = [offset for what, offset in steps if what == "end"]
            assert steps == [(what, offset) for offset in ends for what in ("begin", "end")]
            assert ends == list(range(len(ends)))


@pytest.fixture
def work(shared_node: NodeProcess, topic_name: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Work]:
        async with Client(shared_node.url) as client:
            await client.create_topic(topic_name, queues=QUEUES)
            work = Work(client, shared_node, topic_name)
            try:
                yield work
            finally:
                for member in work.members:
                    if member.alive:
                        member.kill9()

    return make


async def test_a_member_killed_while_it_handles_loses_nothing(work: Callable[[], Any]) -> None:
    """Its queues go to the other. Only what it had not committed is handled again: its last moments."""
    async with work() as at:
        await at.send(300)
        victim = at.member(session_ms=1_000, handle_s=0.003, concurrency=3)
        await victim.until(lambda: len(victim.of("end")) > 20, "it handles")
        other = at.member(session_ms=1_000, handle_s=0.003, concurrency=3)
        await other.until(lambda: len(other.owned) == 3, "it has its share")
        await victim.until(lambda: len(victim.owned) == 3, "it has given up the others")
        await at.send(600)
        mine = set(victim.owned)
        seen = len(victim.of("end"))
        await victim.until(lambda: len(victim.of("end")) > seen + 30, "it handles on")
        victim.kill9()
        committed = await at.committed()
        await at.until_all_is_handled()
        assert other.owned == set(range(QUEUES))
        repeated = {number for number, times in at.ended().items() if times > 1}
        places = {int(event["body"]): event for event in victim.of("end")}
        for number in repeated:
            place = places[number]
            assert place["queue"] in mine and place["offset"] >= committed.get(place["queue"], 0)
        assert max(at.ended().values()) <= 2
        assert other.stop() == 0
        at.check(redelivery=True)
        assert sum((await at.committed()).values()) == at.count


@pytest.mark.slow
async def test_a_member_may_die_in_any_phase(shared_node: NodeProcess, topic_name: str) -> None:
    """Of joining, taking over, committing, giving up. The other one gets its queues, and nothing is lost."""

    async def die(client: Client, phase: str) -> None:
        topic = f"{topic_name}-{phase.replace(' ', '-')}"
        await client.create_topic(topic, queues=QUEUES)
        at = Work(client, shared_node, topic)
        await at.send(60)
        first, second = ({"dies": phase}, {}) if phase.startswith("giv") else ({}, {"dies": phase})
        members = [at.member(session_ms=1_500, handle_s=0.005, **first)]
        try:
            await members[0].until(lambda: len(members[0].owned) == QUEUES, "it has all queues")
            members.append(at.member(session_ms=1_500, handle_s=0.005, **second))
            victim, other = members if first else reversed(members)
            await comes_true(lambda: not victim.alive or bool(victim.owned), "it has its share, or is dead")
            await at.send(60)
            await comes_true(lambda: not victim.alive, f"it is dead while {phase}")
            await other.until(lambda: other.owned == set(range(QUEUES)), "the other has all queues")
            await comes_true(at.is_committed, "all is handled and committed")
            assert other.stop() == 0
            at.check(redelivery=True)
        finally:
            for member in members:
                member.kill9()

    async with Client(shared_node.url) as client, asyncio.TaskGroup() as tasks:
        for phase in PHASES:
            tasks.create_task(die(client, phase))


@pytest.mark.part(3)
async def test_a_clean_end_repeats_nothing_and_keeps_each_queue_in_order(work: Callable[[], Any]) -> None:
    async with work() as at:
        sending = asyncio.create_task(at.send(1_200))
        staying = at.member(handle_s=0.001, concurrency=3)
        for _ in range(2):
            guests = [at.member(handle_s=0.001, concurrency=3) for _ in range(2)]
            for guest in guests:
                await guest.until(lambda guest=guest: len(guest.of("end")) > 20, "it handles its share")
            for guest in guests:
                assert guest.stop() == 0
            await at.send(200)
        await sending
        await at.until_all_is_handled()
        assert staying.stop() == 0
        at.check(redelivery=False)
        at.check_order()
        assert set(at.ended().values()) == {1}


async def test_a_static_member_that_is_killed_comes_back_to_its_queues(work: Callable[[], Any]) -> None:
    """Within its session nothing moves: the other one is not even told."""
    async with work() as at:
        other = at.member(static_id="other", session_ms=30_000)
        victim = at.member(static_id="victim", session_ms=30_000)
        await victim.until(lambda: len(victim.owned) == 3, "it has its share")
        await at.send(120)
        await at.until_all_is_handled()
        group = Group(at.client, at.topic)
        before = (await group.describe()).generation
        told = len(other.of("assigned")) + len(other.of("revoked"))
        victim.kill9()
        await at.send(120)
        again = at.member(static_id="victim", session_ms=30_000)
        await again.until(lambda: again.owned == victim.owned, "it has the same queues")
        await at.until_all_is_handled()
        assert (await group.describe()).generation == before
        assert len(other.of("assigned")) + len(other.of("revoked")) == told
        assert again.stop() == 0 and other.stop() == 0
        at.check(redelivery=True)


async def test_a_paused_process_finds_itself_replaced_and_commits_nothing(work: Callable[[], Any]) -> None:
    async with work() as at:
        await at.send(300)
        sleeper = at.member(session_ms=1_000, handle_s=0.02)
        await sleeper.until(lambda: len(sleeper.of("end")) > 3, "it handles")
        sleeper.signal(signal.SIGSTOP)
        other = at.member(session_ms=1_000)
        await other.until(lambda: other.owned == set(range(QUEUES)), "it has all queues")
        await at.until_all_is_handled()
        committed = await at.committed()
        before = len(sleeper.of("revoked"))
        sleeper.signal(signal.SIGCONT)
        await sleeper.until(lambda: len(sleeper.of("revoked")) > before, "it notices")
        await sleeper.until(lambda: len(sleeper.owned) == 3, "it has a share again")
        await at.send(60)
        await at.until_all_is_handled()
        now = await at.committed()
        assert all(now[queue] >= offset for queue, offset in committed.items())
        assert sleeper.stop() == 0 and other.stop() == 0
        at.check(redelivery=True)


async def test_a_handler_that_blocks_its_process_is_not_waited_for(work: Callable[[], Any]) -> None:
    """Its event loop stands still, so its heartbeat thread gives up what is asked of it."""
    async with work() as at:
        await at.send(QUEUES)
        blocked = at.member(block_s=60, max_handler_ms=500, session_ms=2_000)
        await blocked.until(lambda: bool(blocked.of("begin")), "it handles something")
        other = at.member()
        await other.until(lambda: len(other.owned) == 3, "it has its share all the same")
        found = (await Group(at.client, at.topic).describe()).members
        assert [member.stalled for member in found if member.id == blocked.of("started")[0]["member"]] == [True]
        blocked.kill9()
        await other.until(lambda: other.owned == set(range(QUEUES)), "it has all")
        await at.until_all_is_handled()
        assert other.stop() == 0
        at.check(redelivery=True)


async def test_the_command_is_a_member_like_any_other(
    shared_node: NodeProcess, topic_name: str, work: Callable[[], Any]
) -> None:
    command = [sys.executable, "-m", "lsmq", "consume", topic_name, "--group", topic_name, "--format", "%q %b\\n"]
    environment = {**os.environ, "LSMQ_URL": shared_node.url, "PYTHONWARNINGS": "error"}
    async with work() as at:
        await at.send(60)
        following = await asyncio.to_thread(
            subprocess.Popen[str],
            [*command, "--follow", "--static-id", "printer"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert following.stdout is not None
        lines = [following.stdout.readline().split() for _ in range(60)]
        assert sorted(int(body) for _, body in lines) == list(range(60))
        other = at.member()
        await other.until(lambda: len(other.owned) == 3, "it has its share")
        await at.send(60)
        lines += [following.stdout.readline().split() for _ in range(30)]
        following.send_signal(signal.SIGINT)
        await asyncio.to_thread(following.communicate)
        assert following.returncode == 0
        await other.until(lambda: len(other.of("end")) == 30, "it handles its share")
        numbers = [int(body) for _, body in lines] + [int(event["body"]) for event in other.of("end")]
        assert sorted(numbers) == list(range(120))
        (place,) = [member for member in (await Group(at.client, topic_name).describe()).members if member.static_id]
        assert place.static_id == "printer" and place.queues == 3, "its place is kept"
        assert other.stop() == 0
        wrong = [*command, "--offset", "earliest"]
        refused = await asyncio.to_thread(subprocess.run, wrong, capture_output=True, text=True, env=environment)
        assert refused.returncode == 2 and "lsmq group reset" in refused.stderr

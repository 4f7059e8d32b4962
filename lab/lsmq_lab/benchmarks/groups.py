"""``lsmq bench groups``: a member of a large group is killed; how long until others have its queues. Idle heartbeats.

Members heartbeat against a real node from one client process. One of them stops without a word. When its session is
over, the others are given its queues, fence them and read where to go on; that is the end of the rebalance. Beside it:
what a heartbeat costs that has nothing to say, in a group of many members.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lsmq.client import Client
from lsmq.groups import Group, Heartbeat, Ranges, new_member_id

from .callable import CallableBench
from .environment import describe, environment, resident_bytes
from .isolate import scratch
from .node_servers import LSMQ, Server, Setup, running
from .report import QUICK, BenchReport, Option, TellProgress, TextTable, spread

_TOPIC = "bench"
_GROUP = "bench"


class _Member:
    """A consumer's membership without its messages: takes over what it is given, gives up what it is told to."""

    def __init__(self, client: Client, session_ms: int, changed: asyncio.Event) -> None:
        """``changed`` is set whenever it has other queues."""
        self.changed = changed
        self.group = Group(client, _GROUP)
        self.beat = Heartbeat(new_member_id(), (_TOPIC,), session_ms=session_ms)
        self.ready: Ranges = ()  # fenced

    async def run(self) -> None:
        wait_ms = 0
        while True:
            answer = await self.group.heartbeat(self.beat, wait_ms=wait_ms)
            wait_ms = answer.heartbeat_ms
            self.beat = replace(self.beat, epoch=answer.epoch, version=answer.version, owned=answer.assigned)
            owned = answer.assigned.get(_TOPIC, ())
            fresh = tuple(part for part in owned if part not in self.ready)
            if fresh:
                await self.group.fence(_TOPIC, fresh, member=answer.member, epoch=answer.epoch)
            if self.ready != owned:
                self.ready = owned
                self.changed.set()

    @property
    def queues(self) -> int:
        return sum(map(len, self.ready))


async def _until_whole(members: list[_Member], queues: int) -> float:
    while sum(member.queues for member in members) != queues:
        members[0].changed.clear()
        await members[0].changed.wait()
    return time.monotonic()


async def _rebalances(server: Server, values: Mapping[str, Any], progress: TellProgress) -> dict[str, Any]:
    queues, session_ms = values["queues"], values["session_ms"]
    from_kill: list[float] = []
    from_session: list[float] = []
    async with Client(server.address) as client:
        await client.create_topic(_TOPIC, queues=queues)
        before, changed = resident_bytes(server.pid), asyncio.Event()
        members = [_Member(client, session_ms, changed) for _ in range(values["members"])]
        tasks = {member.beat.member: asyncio.create_task(member.run()) for member in members}
        began = time.monotonic()
        joined_s = await _until_whole(members, queues) - began
        progress(f"{len(members)} members share {queues:,} queues after {joined_s:.2f} s")
        for _ in range(values["repeat"]):
            victim = members.pop(0)
            killed = time.monotonic()
            tasks.pop(victim.beat.member).cancel()
            whole = await _until_whole(members, queues)
            from_kill.append(1000 * (whole - killed))
            from_session.append(max(0.0, 1000 * (whole - killed) - session_ms))
            progress(f"whole again {from_kill[-1]:,.0f} ms after the kill, session of {session_ms:,} ms included")
            members.append(_Member(client, session_ms, changed))
            tasks[members[-1].beat.member] = asyncio.create_task(members[-1].run())
            await _until_whole(members, queues)
        used = resident_bytes(server.pid) - before
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {
        "joined_ms": 1000 * joined_s,
        "from_kill_ms": spread(from_kill),
        "from_session_ms": spread(from_session),
        "node_bytes": used,
    }


async def _idle(server: Server, values: Mapping[str, Any], progress: TellProgress) -> dict[str, Any]:
    count, rounds = values["idle_members"], 5
    async with Client(server.address) as client:
        await client.create_topic(f"{_TOPIC}-idle", queues=values["queues"])
        group = Group(client, f"{_GROUP}-idle")
        beats = [Heartbeat(new_member_id(), (f"{_TOPIC}-idle",), session_ms=300_000) for _ in range(count)]
        slots = asyncio.Semaphore(64)

        async def beat(at: int) -> bool:
            async with slots:
                answer = await group.heartbeat(beats[at])
            changed = answer.version != beats[at].version or bool(answer.waiting_for)
            beats[at] = replace(beats[at], epoch=answer.epoch, version=answer.version, owned=answer.assigned)
            return changed

        began = time.monotonic()
        turns = 0
        while any(await asyncio.gather(*(beat(at) for at in range(count)))):
            turns += 1
        joined_s = time.monotonic() - began
        progress(f"{count:,} members have joined and settled after {joined_s:.2f} s")
        lsn = (await client.status())["shards"][0]["committed_lsn"]
        began = time.monotonic()
        for _ in range(rounds):
            await asyncio.gather(*(beat(at) for at in range(count)))
        seconds = time.monotonic() - began
        written = (await client.status())["shards"][0]["committed_lsn"] - lsn
    return {
        "members": count,
        "joined_ms": 1000 * joined_s,
        "rounds_to_settle": turns,
        "heartbeats_per_s": rounds * count / seconds,
        "log_bytes": written,
    }


def _run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        with running(Setup(LSMQ, "sync"), directory / "node") as server:
            rebalance = asyncio.run(_rebalances(server, values, progress))
            idle = asyncio.run(_idle(server, values, progress))
    figures = {"environment": facts, "rebalance": rebalance, "idle": idle, **{key: values[key] for key in _SIZES}}
    session = rebalance["from_session_ms"]
    tables = [
        TextTable(
            f"{values['queues']:,} queues, {values['members']} members, one killed",
            ("", "least", "median", "most"),
            [
                ("ms from the end of its session to whole", *(f"{session[key]:,.0f}" for key in _SPREAD)),
                ("ms from the kill", *(f"{rebalance['from_kill_ms'][key]:,.0f}" for key in _SPREAD)),
            ],
        ),
        TextTable(
            f"{idle['members']:,} members",
            ("", "figure"),
            [
                ("ms until all have joined and settled", f"{idle['joined_ms']:,.0f}"),
                ("idle heartbeats a second", f"{idle['heartbeats_per_s']:,.0f}"),
                ("bytes they write to the log", f"{idle['log_bytes']:,}"),
            ],
        ),
    ]
    notes = [
        describe(facts),
        f"the node's memory grew by {rebalance['node_bytes'] / 2**20:.1f} MiB for the group and its fences",
        "members and their requests share the machine with the node",
    ]
    return BenchReport(figures, tables, notes)


_SPREAD = ("min", "median", "max")
_SIZES = ("queues", "members", "session_ms", "repeat")

BENCH = CallableBench(
    "groups",
    "Kill a member of a group over a million queues, and see how long the others need to take over. Then a group of "
    "many members with nothing to do.",
    (
        Option("queues", 1_000_000, "Queues of the topic.", quick=10_000),
        Option("members", 10, "Members of the group.", quick=3, low=2),
        Option("session_ms", 1_000, "Session of a member: how long it may be silent.", low=1_000),
        Option("idle_members", 1_000, "Members of the group that has nothing to do.", quick=50),
        Option("repeat", 5, "Members killed, one after the other.", quick=1),
        Option("directory", "", "Where to keep the node's files; a temporary directory by default."),
        QUICK,
    ),
    _run,
)

"""Voters in virtual time: the product's state machine and journal records, a network and disks that misbehave.

Everything follows from the seed. After each event the invariants of Raft are checked (:meth:`Group.check`).

Who votes changes as the entries say it. Voters are connected that know of each other, by their logs or since others
told them, as nodes do over HTTP (:meth:`Group.tell`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgpack

from lsmq_coordinator.raft_core import RaftCore
from lsmq_coordinator.raft_kept import Restore
from lsmq_coordinator.raft_membership import Electorate, marked, unwrapped
from lsmq_coordinator.raft_messages import RaftMessage, pack, unpack
from lsmq_coordinator.raft_outbox import SaveEntry, SaveSnapshot, SaveState, Write
from lsmq_coordinator.raft_records import MAGIC, encode_snapshot, encode_synced, encode_write, replay
from lsmq_coordinator.raft_terms import HardState, RaftEntry, RaftRole, RaftTiming

FIRST = MAGIC + encode_write(SaveState(HardState()), 0)


@dataclass(slots=True)
class SimDisk:
    """One journal. ``content`` is durable; what a crash leaves of ``unsynced`` is up to chance."""

    content: bytes = FIRST
    unsynced: bytes = b""
    #: A journal that is to take this one's place, once it is synced.
    replacing: bytes | None = None
    busy: bool = False
    sync_s: float = 0.002

    def begin(self, writes: Sequence[Write]) -> None:
        base: bytes | None = None
        parts: list[bytes] = []
        for write in writes:
            if isinstance(write, SaveSnapshot):
                snapshot = write.snapshot
                base = MAGIC + encode_snapshot(snapshot.index, snapshot.term, snapshot.encode())
                base += encode_write(SaveState(write.state), 0)
                base += b"".join(encode_write(SaveEntry(entry), 0) for entry in write.entries)
                parts = []
            else:
                parts.append(encode_write(write, 0 if base else len(self.content)))
        self.busy = True
        if base is None:
            self.unsynced += b"".join(parts)
        else:
            self.replacing = base + b"".join(parts)

    def end(self, commit: int) -> None:
        self.content = self.replacing if self.replacing is not None else self.content + self.unsynced
        self.replacing = None
        self.unsynced = encode_synced(len(self.content), commit)

    def crash(self, random: Random) -> None:
        if self.replacing is not None and random.random() < 0.5:
            self.content = self.replacing
        else:
            self.content += self.unsynced[: random.randint(0, len(self.unsynced))]
        self.busy, self.replacing, self.unsynced = False, None, b""


@dataclass(slots=True)
class SimVoter:
    name: str
    disk: SimDisk
    core: RaftCore | None = None
    #: The state machine: all commands so far.
    commands: list[bytes] = field(default_factory=list)
    applied: int = 0
    generation: int = 0
    #: Its thread does nothing before.
    paused_until: float = 0.0
    compact_above: int = 0
    #: Whom it knows besides its log, and the number of the membership by which it is known to be none of them.
    hints: frozenset[str] = frozenset()
    out_at: int = -1
    peers: frozenset[str] = frozenset()


class Group:
    """Some voters, all started; what happens to them is up to the test."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        sync_s: float = 0.002,
        timing: RaftTiming | None = None,
        compact_bytes: int = 2_000,
        latency_s: tuple[float, float] = (0.0005, 0.005),
    ) -> None:
        self.random = Random(seed)
        self.seed, self.timing, self.compact_bytes = seed, timing or RaftTiming(), compact_bytes
        self.latency_s, self.drop, self.repeat = latency_s, 0.0, 0.0
        #: How long the thread of a voter takes for each thing it does, about: more where others hold the interpreter.
        self.work_s = 0.0
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        names = [f"v{number}" for number in range(voters)]
        self.founded = Electorate(0, {name: name for name in names})
        self.voters = {name: SimVoter(name, SimDisk(sync_s=sync_s)) for name in names}
        self.cut: set[frozenset[str]] = set()
        self.leaders: dict[int, str] = {}
        #: What was applied anywhere, by index.
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.proposed = 0
        for name in names:
            self.start(name)

    def add(self, name: str, sync_s: float = 0.002) -> None:
        """A node that is none of the voters yet, and knows of none."""
        self.voters[name] = SimVoter(name, SimDisk(sync_s=sync_s))
        self.start(name)

    # Time

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), action))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until the condition holds: then True."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            if until is not None and until():
                return True
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end
        return until is not None and until()

    # Voters

    def start(self, name: str) -> None:
        voter = self.voters[name]
        loaded, end = replay(voter.disk.content)
        voter.disk.content = voter.disk.content[:end]
        seed = self.random.getrandbits(32)
        configured = self.founded if self.founded.has(name) else Electorate(0, {})
        voter.core = RaftCore(name, configured, loaded, self.timing, Random(seed), self.now)
        voter.commands = [] if loaded.snapshot is None else list(msgpack.unpackb(unwrapped(loaded.snapshot)[1]))
        voter.applied, voter.generation = loaded.snapshot_index, voter.generation + 1
        voter.disk.busy, voter.compact_above = False, self.compact_bytes
        writes, number = voter.core.take_writes()
        voter.disk.begin(writes)
        voter.disk.end(voter.core.kept.commit)
        voter.disk.busy = False
        voter.core.written(number, voter.disk.sync_s, self.now)
        voter.peers = self._known_to(voter)
        self._meet(name)
        self._pump(voter)
        self._tick(voter, voter.generation)

    def _meet(self, name: str) -> None:
        """Connections come up wherever both are there."""
        for other in self.voters.values():
            core, voter = other.core, self.voters[name]
            if core is None or voter.core is None or not self._connected(name, other.name):
                continue
            one = voter.core.connected(other.name, core.kept.state.life, core.kept.state.lives.get(name))
            core.connected(name, voter.core.kept.state.life, voter.core.kept.state.lives.get(other.name))
            if not one:
                self.at(0.2, lambda: self._meet(name))

    def _known_to(self, voter: SimVoter) -> frozenset[str]:
        assert voter.core is not None
        return frozenset(voter.core.peers) | voter.hints - {voter.name}

    def _connected(self, one: str, two: str) -> bool:
        return two in self.voters[one].peers and one in self.voters[two].peers and frozenset((one, two)) not in self.cut

    def newest(self) -> Electorate:
        """What is committed of who votes, by the voters that are there."""
        known = [self.founded]
        for voter in self.voters.values():
            if voter.core is not None:
                known.append(voter.core.kept.memberships.at(voter.core.kept.commit))
        return max(known, key=lambda membership: membership.number)

    def tell(self) -> None:
        """Who hears no leader asks the others, whatever they are to it, and learns who votes."""
        for voter in list(self.voters.values()):
            core = voter.core
            if core is None or self.now - core.leader_heard < 1.0 or core.leading is not None:
                continue
            known = core.kept.memberships.at(core.kept.commit)
            for other in self.voters.values():
                if other.core is not None and frozenset((voter.name, other.name)) not in self.cut:
                    told = other.core.kept.memberships.at(other.core.kept.commit)
                    known = max(known, told, key=lambda membership: membership.number)
            if known.number > 0 and not known.has(voter.name) and self.founded.has(voter.name):
                self.crash(voter.name)
                voter.out_at = known.number
            elif not known.addresses <= voter.peers | {voter.name}:
                voter.hints |= known.addresses
                self._look_round(voter)

    def _look_round(self, voter: SimVoter) -> None:
        """Connections come and go as it is said who votes."""
        peers = self._known_to(voter)
        if peers != voter.peers:
            voter.peers = peers
            self._meet(voter.name)

    def change(self, **changes: Any) -> tuple[int, int] | None:
        """Have the leader say who votes: what is different from now."""
        leader = self.leader()
        core = None if leader is None else self.voters[leader].core
        if core is None:
            return None
        now = core.membership.to_dict()
        membership = {**now, "number": now["number"] + 1, **changes}
        return self.propose(marked(msgpack.packb({"membership": membership})))

    def crash(self, name: str, *, heard: bool = True) -> None:
        voter = self.voters[name]
        voter.disk.crash(self.random)
        voter.core = None
        voter.generation += 1
        if heard:
            for other in self.voters.values():
                if other.core is not None:
                    other.core.lost(name, self.now)
                    self._pump(other)

    def pause(self, name: str, seconds: float) -> None:
        self.voters[name].paused_until = self.now + seconds

    def isolate(self, name: str) -> None:
        self.cut |= {frozenset((name, other)) for other in self.voters if other != name}

    def heal(self) -> None:
        self.cut.clear()
        for name in self.voters:
            self._meet(name)

    def befall(self, random: Random, name: str, fault: int) -> None:
        """A voter's fault, 0 to 6: it crashes, starts, is paused, is cut off, or all are together again."""
        running = self.voters[name].core is not None
        match fault:
            case 0 | 1:
                if running:
                    self.crash(name, heard=random.random() < 0.8)
            case 2 | 3:
                if not running:
                    self.start(name)
            case 4:
                self.pause(name, random.expovariate(1.0))
            case 5:
                self.isolate(name)
            case 6:
                self.heal()

    def work(self, random: Random) -> None:
        """Some commands."""
        for _ in range(random.randrange(4)):
            self.propose(b"x" * random.choice([10, 200, 2000]))

    def leader(self) -> str | None:
        """Who leads in the highest term and is ready."""
        ready = [voter.core for voter in self.voters.values() if voter.core is not None and voter.core.ready]
        return max(ready, key=lambda core: core.term).name if ready else None

    def propose(self, command: bytes | None = None) -> tuple[int, int] | None:
        leader = self.leader()
        core = None if leader is None else self.voters[leader].core
        if leader is None or core is None:
            return None
        self.proposed += 1
        found = core.propose(command or b"command-%d" % self.proposed)
        self._pump(self.voters[leader])
        return found

    def agreed(self) -> bool:
        """Whether all voters are there and have applied the same."""
        voters = [self.voters[name] for name in self.newest().addresses]
        return all(voter.core is not None for voter in voters) and len({voter.applied for voter in voters}) == 1

    # The shell

    def _tick(self, voter: SimVoter, generation: int) -> None:
        if voter.core is None or voter.generation != generation:
            return
        if self.now < voter.paused_until:
            self.at(voter.paused_until - self.now, lambda: self._tick(voter, generation))
            return
        voter.core.tick(self.now)
        self._pump(voter)
        self.at(max(0.001, voter.core.wake_at() - self.now), lambda: self._tick(voter, generation))

    def _pump(self, voter: SimVoter) -> None:
        core = voter.core
        if core is None:
            return
        for item in core.kept.take_committed():
            self._apply(voter, item)
        core.tick(self.now)
        self._look_round(voter)
        if self.work_s:
            voter.paused_until = max(voter.paused_until, self.now + self.work_s * self.random.uniform(0.2, 1.8))
        for receiver, message in core.take_messages():
            self._send(voter.name, receiver, message)
        self._write(voter)
        if len(voter.disk.content) > voter.compact_above and voter.applied > core.log.base_index:
            commands = tuple(voter.commands)
            voter.compact_above = len(voter.disk.content) + 3 * self.compact_bytes
            core.kept.compact(core.kept.snapshot(lambda: msgpack.packb(commands)))
        if core.leading is not None and core.leading.wants_snapshot():
            snapshot = core.kept.snapshot(lambda: msgpack.packb(voter.commands))
            core.leading.offer(snapshot.index, snapshot.term, snapshot.encode())
        self.check(voter)

    def _apply(self, voter: SimVoter, item: RaftEntry | Restore) -> None:
        if isinstance(item, Restore):
            voter.commands, voter.applied = list(msgpack.unpackb(item.content)), item.index
            return
        index, term, command = item.index, item.term, item.command
        assert index == voter.applied + 1
        voter.applied = index
        known = self.committed.setdefault(index, (term, command))
        assert known == (term, command), (
            f"seed {self.seed}: entry {index} was applied as {known} and as {term, command}"
        )
        if command:
            voter.commands.append(command)

    def _write(self, voter: SimVoter) -> None:
        core, disk, generation = voter.core, voter.disk, voter.generation
        if core is None or disk.busy:
            return
        writes, number = core.take_writes()
        if not writes:
            return
        commit, took = min(core.kept.commit, core.kept.durable), disk.sync_s * self.random.uniform(0.8, 1.2)
        disk.begin(writes)

        def done() -> None:
            if voter.generation != generation or voter.core is None:
                return
            disk.end(commit)
            if self.now < voter.paused_until:
                self.at(voter.paused_until - self.now, report)
            else:
                report()

        def report() -> None:
            if voter.generation == generation and voter.core is not None:
                disk.busy = False
                voter.core.written(number, took, self.now)
                self._pump(voter)

        self.at(took, done)

    def _send(self, sender: str, receiver: str, message: RaftMessage) -> None:
        if receiver not in self.voters or not self._connected(sender, receiver) or self.random.random() < self.drop:
            return
        content = msgpack.packb(pack(message))
        generation = self.voters[receiver].generation
        for _ in range(2 if self.random.random() < self.repeat else 1):
            self.at(self.random.uniform(*self.latency_s), lambda: self._deliver(sender, receiver, content, generation))

    def _deliver(self, sender: str, receiver: str, content: bytes, generation: int) -> None:
        voter = self.voters[receiver]
        if voter.core is None or voter.generation != generation:
            return
        if self.now < voter.paused_until:
            self.at(voter.paused_until - self.now, lambda: self._deliver(sender, receiver, content, generation))
            return
        message = unpack(msgpack.unpackb(content, use_list=False))
        assert message is not None
        voter.core.receive(sender, message, self.now)
        self._pump(voter)

    # Invariants

    def check(self, voter: SimVoter) -> None:
        """Election safety, leader completeness, log matching, state machine safety. The last one is in ``_apply``."""
        core = voter.core
        assert core is not None
        if core.role is RaftRole.LEADER:
            leader = self.leaders.setdefault(core.term, voter.name)
            assert leader == voter.name, f"seed {self.seed}: {leader} and {voter.name} lead term {core.term}"
            if self.leaders and core.term == max(self.leaders):
                for index in range(max(core.log.base_index, 1), max(self.committed, default=0) + 1):
                    known = self.committed.get(index)
                    assert known is None or core.log.term_at(index) == known[0], (
                        f"seed {self.seed}: the leader of {core.term} does not have entry {index} of {known[0]}"
                    )

    def check_logs(self) -> None:
        """Logs that agree on an entry agree on all before it, and on its command."""
        cores = [voter.core for voter in self.voters.values() if voter.core is not None]
        for one, two in itertools.combinations(cores, 2):
            low = max(one.log.base_index, two.log.base_index)
            high = min(one.log.last_index, two.log.last_index)
            same = [index for index in range(low + 1, high + 1) if one.log.term_at(index) == two.log.term_at(index)]
            if same:
                ours, theirs = (log.after(low, 1 << 40, same[-1] - low) for log in (one.log, two.log))
                assert ours == theirs, f"seed {self.seed}: logs of {one.name} and {two.name} differ below {same[-1]}"

"""Golden scripts: a few replicas with perfect disks and network, driven line by line; everything they do is shown.

A script is commands, then ``----``, then what the replicas took in and asked for; blocks are parted by empty lines::

    start NODE... [disk=empty|damaged|older]
                                         open replicas, whose starts the control plane has registered by the next view;
                                         ``start`` after ``crash`` opens what is left
    view EPOCH.VERSION leader=N in_sync=a,b replicas=a,b,c min=2 [adding=c] [to=a,b]
    lease NODE until=SECONDS             the control plane confirms what the node's view says
    write NODE SIZE                      a producer's write at the leader
    run                                  disk and network work until all is quiet
    cut A B | mend A B                   messages between two nodes are dropped
    crash NODE [keep=LSN]                the process and its unsynced bytes go, or the log from an LSN on
    trim NODE LSN                        the log before an LSN is recycled
    time SECONDS                         time passes and every node gets a tick
    show                                 role, epoch, log and answers of each node
    hush                                 of the rest of the block only ``show`` is shown
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from lsmq_coordinator.lives import InSyncMember, LifeId, RegisteredStart
from lsmq_node.replication import (
    ControlView,
    Recovered,
    ReplicaAction,
    ReplicaCore,
    ReplicaEvent,
    ReplicaMessage,
    Timings,
)
from lsmq_node.replication import actions as act
from lsmq_node.replication import events as ev
from lsmq_node.replication.messages import Frame

from .perfect_disk import Disk, Log, LogEntry, describe

SEPARATOR = "----"


class Node:
    """A replica whose disk needs one step for each operation."""

    def __init__(self) -> None:
        self.core: ReplicaCore | None = None
        self.disk = Disk()
        self.starts = 0
        self.frame: list[LogEntry] = []


class Script:
    """Runs one script; its nodes are named by letters, and their incarnations count from 11, 21, 31..."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._now = 0.0
        self._work: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._cut: set[frozenset[str]] = set()
        self._payload = 0
        self._output: list[str] = []
        self._hushed = False
        self._starts: dict[str, RegisteredStart] = {}
        self._leading: dict[int, LifeId] = {}

    def block(self, commands: list[str]) -> list[str]:
        """Run the commands of one block; returns what happened."""
        self._output, self._hushed = [], False
        for command in commands:
            name, *words = command.split()
            plain = [word for word in words if "=" not in word]
            named = dict(word.split("=", 1) for word in words if "=" in word)
            getattr(self, f"_do_{name}")(*plain, **named)
        return self._output or ["(nothing)"]

    # Commands.

    def _do_start(self, *names: str, disk: str = "") -> None:
        for name in names:
            node = self._nodes.setdefault(name, Node())
            if disk == "empty":
                node.disk = Disk()
            node.starts += 1
            kept = node.disk
            fresh = 10 * (ord(name) - ord("a") + 1) + node.starts
            log = kept.log
            recovered = Recovered(
                record=kept.record,
                fresh_incarnation=fresh,
                log_start_lsn=kept.start_lsn,
                applied_lsn=kept.flushed_lsn,
                end_lsn=log.end_lsn,
                history=log.history(),
                damaged=disk == "damaged",
                went_back=disk == "older",
                token=node.starts,
            )
            node.core = ReplicaCore(name, recovered, Timings())
            self._say(name, "<", f"start {describe(recovered)}")
            record = node.core.record
            self._starts[name] = RegisteredStart(name, record.incarnation, *record.starts[-1], confirmed=True)
            self._perform(name, node.core.start(self._now))

    def _do_view(self, order: str, *, replicas: str, in_sync: str, min: str, leader: str = "", **rest: str) -> None:
        epoch, version = order.split(".")
        leading = None
        if leader:
            leading = self._leading.setdefault(int(epoch), self._starts[leader].life)
        view = ControlView(
            epoch=int(epoch),
            version=int(version),
            leader=leader or None,
            in_sync=frozenset(self._member(name) for name in in_sync.split(",") if name),
            replicas=frozenset(replicas.split(",")),
            min_in_sync=int(min),
            adding=frozenset(name for name in rest.get("adding", "").split(",") if name),
            leading=leading,
            starts=frozenset(start for name, start in self._starts.items() if name in replicas.split(",")),
        )
        to = rest["to"].split(",") if "to" in rest else sorted(self._nodes)
        for name in to:
            self._feed(name, ev.ControlViewed(view))

    def _member(self, word: str) -> InSyncMember:
        """``a`` is the node as it is; ``a.11`` says the incarnation."""
        name, _, incarnation = word.partition(".")
        core = self._nodes[name].core
        return InSyncMember(name, int(incarnation) if incarnation else core.record.incarnation if core else 0)

    def _do_lease(self, name: str, *, until: str) -> None:
        core = self._nodes[name].core
        assert core is not None and core.view is not None
        self._feed(name, ev.LeaseGranted(float(until), core.view))

    def _do_write(self, name: str, size: str) -> None:
        node = self._nodes[name]
        assert node.core is not None and node.core.serving, f"{name} does not serve"
        self._payload += 1
        entry = node.disk.log.append(node.core.epoch, self._payload, int(size))
        self._feed(name, ev.LogWritten(entry.end_lsn))
        self._sync(name)

    def _do_run(self) -> None:
        for _ in range(1000):
            if not self._work:
                return
            heapq.heappop(self._work)[2]()
        raise AssertionError("the replicas do not come to rest")

    def _do_hush(self) -> None:
        self._hushed = True

    def _do_cut(self, first: str, second: str) -> None:
        self._cut.add(frozenset((first, second)))

    def _do_mend(self, first: str, second: str) -> None:
        self._cut.discard(frozenset((first, second)))

    def _do_crash(self, name: str, *, keep: str = "") -> None:
        node = self._nodes[name]
        node.core = None
        node.disk.log.cut(int(keep) if keep else node.disk.durable_lsn)
        node.disk.durable_lsn = node.disk.log.end_lsn

    def _do_trim(self, name: str, lsn: str) -> None:
        disk = self._nodes[name].disk
        disk.start_lsn = disk.flushed_lsn = int(lsn)
        self._feed(name, ev.LogRecycled(int(lsn)))

    def _do_time(self, seconds: str) -> None:
        self._now = float(seconds)
        for name in sorted(self._nodes):
            self._feed(name, ev.Tick())

    def _do_show(self) -> None:
        for name, node in sorted(self._nodes.items()):
            core = node.core
            if core is None:
                self._output.append(f"{name} is down")
                continue
            log = core.log
            answers = "answers" if core.may_answer(self._now) else "serves" if core.serving else "-"
            self._output.append(
                f"{name} {core.role.value} epoch={core.epoch} of {core.leader} history={describe(core.log.history)} "
                f"high_watermark={log.high_watermark} durable={log.durable_lsn} end={log.end_lsn} {answers}"
            )

    # Replicas.

    def _say(self, name: str, direction: str, what: str) -> None:
        if not self._hushed:
            self._output.append(f"{name} {direction} {what}")

    def _feed(self, name: str, event: ReplicaEvent) -> None:
        waiting = deque([event])
        while waiting:
            event = waiting.popleft()
            core = self._nodes[name].core
            if core is None:
                return
            actions = core.handle(event, self._now)
            if not isinstance(event, ev.Tick) or actions:
                self._say(name, "<", describe(event))
            waiting.extend(self._perform(name, actions))

    def _later(self, rank: int, step: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._work, (rank + self._count, self._count, step))

    def _sync(self, name: str) -> None:
        disk = self._nodes[name].disk
        end_lsn = disk.log.end_lsn

        def synced() -> None:
            if self._nodes[name].core is not None and end_lsn <= disk.log.end_lsn:
                disk.durable_lsn = max(disk.durable_lsn, end_lsn)
                self._feed(name, ev.LogDurable(end_lsn))

        self._later(3, synced)

    def _deliver(self, sender: str, peer: str, message: ReplicaMessage, entries: list[LogEntry]) -> None:
        if frozenset((sender, peer)) in self._cut or peer not in self._nodes:
            return

        def arrive() -> None:
            self._nodes[peer].frame = entries
            self._feed(peer, ev.MessageReceived(sender, message))

        self._later(0, arrive)

    def _perform(self, name: str, actions: list[ReplicaAction]) -> list[ReplicaEvent]:
        """Carry the actions out; returns events that follow at once."""
        node, disk, at_once = self._nodes[name], self._nodes[name].disk, list[ReplicaEvent]()
        for action in actions:
            self._say(name, ">", describe(action))
            match action:
                case act.Send(peer, message):
                    self._deliver(name, peer, message, [])
                case act.Ship(peer, session, epoch, lsn, limit_lsn, high_watermark):
                    frame = Frame(session, epoch, lsn, limit_lsn, high_watermark)
                    self._deliver(name, peer, frame, disk.log.between(lsn, limit_lsn))
                    if limit_lsn > lsn:
                        at_once.append(ev.Shipped(peer, session, limit_lsn))
                case act.AppendFrame():
                    for entry in node.frame:
                        disk.log.put(entry)
                    self._sync(name)
                case act.BeginEpoch(epoch, life):
                    entry = disk.log.begin(epoch, life)
                    at_once.insert(0, ev.EpochBegun(epoch, entry.lsn, entry.end_lsn))
                    self._sync(name)
                case act.Persist(record):
                    self._later(2, lambda record=record: self._persisted(name, record))  # type: ignore[misc]
                case act.TruncateLog(lsn):
                    disk.log.cut(lsn)
                    disk.durable_lsn = lsn
                    self._later(2, lambda lsn=lsn: self._feed(name, ev.Truncated(lsn)))  # type: ignore[misc]
                case act.FetchSnapshot(peer):
                    self._later(5, lambda peer=peer: self._fetched(name, peer))  # type: ignore[misc]
                case _:
                    pass
        return at_once

    def _persisted(self, name: str, record: act.ReplicaRecord) -> None:
        node = self._nodes[name]
        if node.core is not None:
            node.disk.record = replace(record)
            self._feed(name, ev.Persisted(record))

    def _fetched(self, name: str, peer: str) -> None:
        source, disk = self._nodes[peer].disk, self._nodes[name].disk
        lsn = source.flushed_lsn
        disk.log = Log(source.log.between(0, lsn))
        disk.start_lsn = disk.flushed_lsn = disk.durable_lsn = lsn
        self._feed(name, ev.SnapshotInstalled(lsn, lsn, lsn, disk.log.history()))


def run(text: str) -> str:
    """The script with its outputs as they are now."""
    script = Script()
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split(f"\n{SEPARATOR}")[0].splitlines()
        output = script.block([line for line in commands if not line.startswith("#")])
        blocks.append("\n".join([*commands, SEPARATOR, *output]))
    return "\n\n".join(blocks) + "\n"

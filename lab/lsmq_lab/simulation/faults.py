"""What goes wrong and when. Each run picks the kinds of fault it has, and how often they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lsmq_node.replication.identity import with_new_start

from .cluster import Cluster
from .disk import SimDisk
from .network import CONTROL
from .replica import SimReplica


class Faults:
    """Strikes until told to end. Never are ``min_in_sync`` disks lost before the in-sync set has made up for them.

    A control plane that goes back is combined with neither lost disks nor changes of the replicas: no protocol can
    do with both its memory and its witnesses gone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._ended = False
        self._lost_at = float("-inf")
        random = cluster.world.random
        self._pace_s = random.choice((0.2, 0.5, 1.0))
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash,
            self._crash_leader,
            self._crash_leader,
            self._pause,
            self._pause_leader,
            self._cut_link,
            self._isolate,
            self._deafen,
            self._reset,
            self._control_away,
            self._transfer,
            self._all_power,
        ]
        self._disks_may_go = random.random() >= 0.25
        if not self._disks_may_go:
            kinds += [self._control_back] * 3
        else:
            kinds += [self._lose_disk, self._lose_tail, self._change_replicas, self._change_replicas]
            kinds += [self._set_back] * 3 + [self._lead_twice] * 2
        self._kinds = random.sample(kinds, random.randint(2, len(kinds)))

        self._delicacy = random.choice((0.0, 0.0, 0.02, 0.1))
        cluster.at_delicate_moment = self._delicate

    def start(self) -> None:
        self._world.after(0.5, self._strike)
        self._world.after(0.5, self._copy_disk)

    def _strike(self) -> None:
        if self._ended:
            return
        self._world.random.choice(self._kinds)()
        self._world.after(self._pace_s * 2 * self._world.random.random(), self._strike)

    def end(self) -> None:
        """Everything is well again."""
        self._ended = True
        cluster = self._cluster
        cluster.network.heal()
        cluster.publishing_loss = cluster.stale_views = 0.0
        cluster.control.return_from_absence()
        for replica in cluster.replicas.values():
            if replica.core is None:
                replica.start()

    # Processes.

    def _any(self) -> SimReplica:
        return self._cluster.replicas[self._world.random.choice(self._cluster.names)]

    def _leader(self) -> SimReplica:
        leader = self._cluster.control.view.leader
        return self._cluster.replicas[leader] if leader is not None else self._any()

    def _kill(self, replica: SimReplica, *, power: bool) -> None:
        if replica.core is None:
            return
        replica.crash(power=power)
        random = self._world.random
        back_after = random.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + random.random())
        self._world.after(back_after, partial(self._restart, replica, replica.life))

    def _restart(self, replica: SimReplica, life: int) -> None:
        """What it first hears of the control plane may be old."""
        if replica.core is None and replica.life == life:
            replica.start()
            control = self._cluster.control
            if self._cluster.stale_views or self._world.chance(0.2):
                self._cluster.show(replica.name, self._world.random.choice(control.past[-4:]))

    def _crash(self) -> None:
        self._kill(self._any(), power=self._world.chance(0.7))

    def _crash_leader(self) -> None:
        self._kill(self._leader(), power=self._world.chance(0.7))

    def _all_power(self) -> None:
        for replica in self._cluster.replicas.values():
            self._kill(replica, power=True)

    def _reset(self) -> None:
        """All connections of the leader are reset, and what answers at its port says that nobody listens: it lives."""
        self._cluster.stream_ends(self._leader().name)

    def _pause(self) -> None:
        self._any().pause(self._world.random.choice((0.1, 0.6, 1.5)) * (0.5 + self._world.random.random()))

    def _pause_leader(self) -> None:
        self._leader().pause(self._world.random.choice((0.3, 0.6, 1.5)) * (0.5 + self._world.random.random()))

    def _delicate(self, replica: SimReplica) -> None:
        """A crash when it hurts most: within the time of an fsync after a step of an election or a cut."""
        if not self._ended and self._delicacy and self._world.chance(self._delicacy):
            self._world.after(0.01 * self._world.random.random() ** 2, partial(self._strike_at, replica, replica.life))

    def _strike_at(self, replica: SimReplica, life: int) -> None:
        if self._ended or replica.life != life:
            return
        match self._world.random.randrange(8):
            case 0 | 1:
                replica.pause(1.5 * self._world.random.random())
            case 2 if self._disks_may_go:
                self._lose_disk_of(replica)
            case 3 if self._disks_may_go:
                self._lose_tail_of(replica)
            case 4 if self._disks_may_go:
                self._set_back_of(replica)
            case _:
                self._kill(replica, power=True)

    # Links.

    def _break(self, sender: str, receiver: str, seconds: float) -> None:
        network = self._cluster.network
        network.break_link(sender, receiver)
        self._world.after(seconds, partial(network.mend_link, sender, receiver))

    def _cut_link(self) -> None:
        """Between two ends, in one direction or both."""
        random = self._world.random
        first, second = random.sample([*self._cluster.names, CONTROL], 2)
        seconds = 2.0 * random.random()
        self._world.note("network", f"CUT {first} to {second} for {seconds:.3f} s")
        self._break(first, second, seconds)
        if self._world.chance(0.5):
            self._break(second, first, seconds)

    def _isolate(self) -> None:
        """One node from all others, sometimes not from the control plane."""
        random = self._world.random
        alone = self._leader().name if random.random() < 0.5 else self._any().name
        ends = [name for name in self._cluster.names if name != alone]
        if random.random() < 0.7:
            ends.append(CONTROL)
        seconds = 3.0 * random.random()
        self._world.note("network", f"ISOLATE {alone} from {ends} for {seconds:.3f} s")
        for end in ends:
            self._break(alone, end, seconds)
            self._break(end, alone, seconds)

    def _deafen(self) -> None:
        """One node hears no other, all of them hear it: for long enough, sometimes, that a leader gives up."""
        deaf = self._leader().name
        seconds = 5.0 * self._world.random.random()
        self._world.note("network", f"DEAFEN {deaf} for {seconds:.3f} s")
        for name in self._cluster.names:
            if name != deaf:
                self._break(name, deaf, seconds)

    # Disks.

    def _may_lose(self, replica: SimReplica) -> bool:
        """Fewer than ``min_in_sync`` disks may be lost before the in-sync set has made up for them."""
        view = self._cluster.control.view
        if view.min_in_sync < 2 or not view.in_sync or self._world.now < self._lost_at + 2.0:
            return False
        intact = {
            member.node
            for member in view.in_sync
            if self._cluster.replicas[member.node].disk.is_intact(member.incarnation)
        }
        lost_count = len(view.in_sync) - len(intact - {replica.name})
        if lost_count >= min(view.min_in_sync, max(1, len(view.in_sync))):
            return False
        self._lost_at = self._world.now
        return True

    def _lose_disk(self) -> None:
        self._lose_disk_of(self._any())

    def _lose_disk_of(self, replica: SimReplica) -> None:
        if self._may_lose(replica):
            self._kill(replica, power=True)
            replica.lose_disk()

    def _lose_tail(self) -> None:
        self._lose_tail_of(self._any())

    def _lose_tail_of(self, replica: SimReplica) -> None:
        """A part of the log that the record knows to have been durable is gone."""
        record = replica.disk.record
        if record is None or not self._may_lose(replica):
            return
        self._kill(replica, power=True)
        ends = [0, *(end for end in replica.disk.log.ends if end < record.floor_lsn)]
        if record.floor_lsn > 0:
            replica.lose_tail(self._world.random.choice(ends))

    def _copy_disk(self) -> None:
        """No fault yet: somebody makes a copy."""
        if not self._ended:
            replica = self._any()
            replica.copies.append(replica.disk.copy())
            self._world.after(self._world.random.random(), self._copy_disk)

    def _set_back(self) -> None:
        self._set_back_of(self._any())

    def _set_back_of(self, replica: SimReplica) -> None:
        """An older copy comes in the disk's place. Not one of which nobody can know: of the very life that ends here,
        and beyond what is known of its log."""
        copies = [copy for copy in replica.copies if self._can_be_known(replica.name, copy)]
        if copies and self._may_lose(replica):
            self._kill(replica, power=True)
            replica.set_back(self._world.random.choice(copies))

    def _can_be_known(self, node: str, copy: SimDisk) -> bool:
        if copy.record is None:
            return True
        return self._cluster.control.refusal(node, with_new_start(copy.record, 0), copy.durable_lsn) is not None

    def _lead_twice(self) -> None:
        """What must never be, but may be found: an epoch that was begun by another life as well, on a disk that comes
        to this cluster. Nothing that anybody counts on was there, and it is behind every member of the in-sync set."""
        cluster, monitor = self._cluster, self._cluster.monitor
        replica = self._any()
        whole = [other.disk.log for other in cluster.replicas.values() if monitor.is_committed(other.disk.log)]
        if not whole or replica.name in {member.node for member in cluster.control.view.in_sync}:
            return
        self._kill(replica, power=True)
        log, record, committed_lsn = replica.disk.log, replica.disk.record, monitor.committed_lsn
        if record is not None and not replica.disk.is_intact(record.incarnation):
            return  # A log that is too short must stay so.
        starts = [begun for begun in whole[0].begun() if log.end_lsn <= begun.lsn and begun.end_lsn < committed_lsn]
        if starts and whole[0].holds(log.end_lsn, log.chain_at(log.end_lsn)):
            start = self._world.random.choice(starts)
            replica.lead_unasked(whole[0], start, self._sizes_within(committed_lsn - start.end_lsn))

    def _sizes_within(self, room: int) -> list[int]:
        """Of a few entries that take less than ``room``."""
        sizes: list[int] = []
        while room > 1 and len(sizes) < 4:
            sizes.append(self._world.random.randint(1, min(40, room - 1)))
            room -= sizes[-1]
        return sizes

    # Control plane.

    def _control_away(self) -> None:
        control = self._cluster.control
        if not control.away:
            self._world.note("control", "AWAY")
            control.away = True
            self._world.after(2.0 * self._world.random.random(), control.return_from_absence)

    def _transfer(self) -> None:
        self._cluster.control.transfer()

    def _control_back(self) -> None:
        self._cluster.monitor.control_went_back = True
        self._cluster.control.go_back()

    def _change_replicas(self) -> None:
        """One replica more or less, one change at a time: the newest must be in sync before another goes."""
        control = self._cluster.control
        view = control.view
        if not self._cluster.spares or view.adding:
            return
        absent = sorted(set(self._cluster.names) - view.replicas)
        if absent:
            control.set_replicas(view.replicas | {absent[0]})
        elif {member.node for member in view.in_sync} == view.replicas:
            control.set_replicas(view.replicas - {self._world.random.choice(sorted(view.replicas))})

"""What a replica knows of its shard from the control plane, and what it keeps of itself on its disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lsmq.errors import InvalidRequest
from lsmq_coordinator.lives import UNCLAIMED, InSyncMember, LifeId, RegisteredStart

NOBODY = LifeId(UNCLAIMED, 0)


class DiskStart(NamedTuple):
    """A start of an incarnation: counted up from 1, and a random number that no copy of the disk can know."""

    number: int
    token: int


@dataclass(frozen=True, slots=True)
class ControlView:
    """The shard's control state, as far as it has come to this node. Views may come late, twice or out of order.

    ``epoch`` and ``version`` only rise; ``version`` with every change of the shard. Views are ordered by both.
    ``adding`` are replicas that were never in the in-sync set: they are shipped to, but their promises count
    nothing until the set has taken them in. Nor do those of ``distrusted`` ones: their disks went back to older copies,
    perhaps with what they held of the control plane's own log. They are trusted again when the set has taken them in,
    or when a majority of the control plane besides them is known to have forgotten nothing.

    ``leading`` is the life that was elected: the same node is another leader after a restart. None while nobody of
    the leader's node was registered yet. An epoch that is ``revived_epoch`` was given to one replica by an operator,
    whatever others may hold.
    """

    epoch: int
    version: int
    leader: str | None
    in_sync: frozenset[InSyncMember]
    replicas: frozenset[str]
    min_in_sync: int
    adding: frozenset[str] = frozenset()
    leading: LifeId | None = None
    starts: frozenset[RegisteredStart] = frozenset()
    distrusted: frozenset[str] = frozenset()
    revived_epoch: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.epoch, self.version

    @property
    def voters(self) -> frozenset[str]:
        """The replicas whose promises count."""
        return (self.replicas - self.adding) | {member.node for member in self.in_sync}

    @property
    def promises_needed(self) -> int:
        """Promises a new leader needs, its own included.

        ``voters - min_in_sync + 1`` meet every set of ``min_in_sync`` replicas that may ever have acknowledged a
        write; a majority keeps two leaders from beginning the same epoch, even if the control plane went back
        to an earlier state. The majority costs nothing: to serve, a leader needs ``min_in_sync`` anyway.

        In a revived epoch nobody is asked for what may be lost: that was accepted.
        """
        if self.epoch == self.revived_epoch:
            return 1
        count = len(self.voters)
        return max(count - self.min_in_sync + 1, count // 2 + 1)

    def listed(self, node: str) -> int | None:
        """The incarnation under which the in-sync set lists a node."""
        return next((member.incarnation for member in self.in_sync if member.node == node), None)

    def lists_another(self, member: InSyncMember) -> bool:
        """Whether the set takes the member's node for another incarnation than it is."""
        return self.listed(member.node) not in (None, UNCLAIMED, member.incarnation)

    def start_of(self, node: str) -> RegisteredStart | None:
        """The latest start of the node's disk that was registered."""
        return next((start for start in self.starts if start.node == node), None)

    def acts(self, node: str, life: LifeId) -> bool:
        """Whether this life of the node's replica is the one that may act."""
        start = self.start_of(node)
        return start is not None and start.confirmed and start.life == life

    def may_promise(self, node: str, life: LifeId) -> bool:
        """Whether a promise counts: of a voter that is what the set takes it for, and whose disk forgot nothing."""
        if node not in self.voters or self.lists_another(InSyncMember(node, life.incarnation)):
            return False
        trusted = node not in self.distrusted or self.listed(node) is not None
        return trusted and self.acts(node, life)


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What a replica keeps on its disk besides the log. Replaced as a whole: write, fsync, rename, fsync directory.

    ``epoch`` is the highest epoch it ever accepted, ``leader`` the one node it accepted for it, and ``leading`` the
    one life of that node. ``floor_lsn``: the log was durable up to here when the record was written; a log that ends
    before it has lost something.

    ``starts`` are the latest starts of this incarnation, the one at hand last; its number orders sessions. Those up to
    ``registered`` are known to be registered in the control plane, the others may be. ``went_back``: this incarnation
    began with an older copy of the disk of another one.
    """

    incarnation: int
    starts: tuple[DiskStart, ...] = ()
    registered: int = 0
    epoch: int = 0
    leader: str | None = None
    leading: LifeId | None = None
    floor_lsn: int = 0
    went_back: bool = False

    @property
    def start(self) -> int:
        """The number of the start at hand, 0 before the first."""
        return self.starts[-1].number if self.starts else 0

    @property
    def life(self) -> LifeId:
        return LifeId(self.incarnation, self.start)


@dataclass(frozen=True, slots=True)
class Timings:
    """Times in seconds of a monotonic clock. ``validate`` checks them against each other.

    heartbeat_s         A leader sends every follower at least one frame in this time. Shorter costs packets.
    retry_s             Unanswered promise requests and proposals are repeated after this time; hellos ever later.
    replica_timeout_s   A follower not heard of for this long is proposed out of the in-sync set. Too short, and a
                        pause of the garbage collector or of a virtual machine shrinks the set; too long, and quorum
                        writes wait that long when a follower dies. Longer than the control lease.
    replica_lag_s       So is a follower that has not caught up with the leader's end for this long.
    deaf_s              A leader that for this long has heard of too few members of the in-sync set to acknowledge
                        anything asks for another leader: they may hear it, and it not them. Writes wait that long
                        then. Too short, and what mends by itself (an election, a follower found dead) costs an epoch.
    ask_elsewhere_s     It asks again so often, as the control plane counts on.
    window_bytes        Bytes shipped to a follower and not yet reported durable. Bounds memory of both.
    """

    heartbeat_s: float = 0.1
    retry_s: float = 0.1
    replica_timeout_s: float = 0.5
    replica_lag_s: float = 1.0
    deaf_s: float = 2.0
    ask_elsewhere_s: float = 0.5
    window_bytes: int = 8 * 1024 * 1024

    def validate(self) -> Timings:
        """Raises ``InvalidRequest`` naming what does not fit; returns itself."""
        if min(self.heartbeat_s, self.retry_s, self.ask_elsewhere_s, self.window_bytes) <= 0:
            raise InvalidRequest("heartbeat_s, retry_s, ask_elsewhere_s and window_bytes must be above zero")
        if self.replica_timeout_s < 2 * self.heartbeat_s:
            raise InvalidRequest(
                f"replica_timeout_s is {self.replica_timeout_s}; it must be at least twice heartbeat_s "
                f"({self.heartbeat_s}), or one lost heartbeat shrinks the in-sync set"
            )
        if self.replica_lag_s < self.replica_timeout_s:
            raise InvalidRequest(
                f"replica_lag_s is {self.replica_lag_s}; it must not be below replica_timeout_s, "
                f"which is {self.replica_timeout_s}"
            )
        if self.deaf_s < 2 * self.replica_timeout_s:
            raise InvalidRequest(
                f"deaf_s is {self.deaf_s}; it must be at least twice replica_timeout_s ({self.replica_timeout_s}), "
                "or a leader would give up before silent followers have left the in-sync set"
            )
        return self

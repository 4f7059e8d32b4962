"""Who a replica is: the incarnation of its log, and which start of that one acts."""

from __future__ import annotations

from typing import NamedTuple

#: The incarnation under which a new shard lists its replicas, before any of them was started.
UNCLAIMED = 0


class LifeId(NamedTuple):
    """One life of a replica: its incarnation, and which of that one's starts. Whoever promises, leads or answers does
    so for one life, and says which."""

    incarnation: int
    start: int


class InSyncMember(NamedTuple):
    """A member of an in-sync set: a node, and the incarnation of its log.

    An incarnation is a random number made with the replica's directory and kept in it. A replica whose disk was
    emptied or whose log lost something that was durable has another one, so that it cannot be taken for the
    member that the set lists. (Kafka takes a broker id for granted here: KIP-966 names what is lost then.)

    A new shard's set may list its replicas as ``UNCLAIMED``, before any of them was started. An unclaimed member is
    durable up to 0, so nothing is acknowledged until the leader has proposed the replicas as they are.
    """

    node: str
    incarnation: int


class RegisteredStart(NamedTuple):
    """The latest start of a replica's disk that was registered: the ``number`` of the start, and a random ``token``
    that no copy of the disk knows.

    ``confirmed``: the disk is known to remember that this start was registered. Only then the replica acts, so a disk
    that does not remember a confirmed start is an older copy. ``floor_lsn``: the log of this incarnation is known to
    have been durable up to here; the control plane's own affair.
    """

    node: str
    incarnation: int
    number: int
    token: int
    confirmed: bool
    floor_lsn: int = 0

    @property
    def life(self) -> LifeId:
        return LifeId(self.incarnation, self.number)

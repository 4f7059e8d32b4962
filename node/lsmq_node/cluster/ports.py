"""What a replica asks of its node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from lsmq_node.replication import ReplicaMessage
from lsmq_node.replication.actions import ProposeInSync, ProposeLeave, RegisterStart
from lsmq_node.storage import StoredTopic

from .writes import Touched

#: ``(bytes done, bytes in all)``
TransferProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    """All run on the loop thread, return at once and must not raise.

    Attributes:
        send: ``(peer, shard, message, payload)``: best effort; ``payload`` is a frame's bytes. ``Links.send``.
        propose_in_sync: ``(shard, action)``: submit ``set_in_sync``, once: the replica repeats itself.
        propose_leave: ``(shard, action)``: submit ``leave_in_sync``, once.
        register_start: ``(shard, action, refused)``: submit ``register_start``, once; ``refused(reason)`` when the disk
            is an older copy.
        ask_election: ``(shard, above_epoch, elsewhere)``.
        fetch_snapshot: ``(shard, peer, path, progress)``: fetch a snapshot from ``peer`` into the shard's directory
            ``path``, while the store there is open. Returns what installs it: a blocking function, to be called in a
            thread when the store is closed, which leaves the file ``REPLICA`` alone. Raises any ``Exception`` when the
            snapshot cannot be had; may be cancelled.
        gather_snapshot: the same arguments: only fetch it, to lie beside the files until one is wanted.
        let_snapshot_go: ``(path)``: none is wanted; remove what was fetched. Raises ``OSError``.
        client_url: of a node id or None, its URL for clients, for ``NotLeader``.
        touched: ``(topic_id, pieces of queues)``: readers can see more of these queues.
        changed: ``(shard)``: role, epoch, leader, serving or failure changed.
        placed: ``(shard, topic)``: the topic as it is agreed on, and the queues ``[first, end)`` that the shard holds.
            Raises ``UnknownTopic`` where it is gone.
        congested: ``(peer)``: so much waits to be sent there that log is better not shipped now. ``Links.congested``.
    """

    send: Callable[[str, int, ReplicaMessage, bytes | memoryview], None]
    propose_in_sync: Callable[[int, ProposeInSync], None]
    propose_leave: Callable[[int, ProposeLeave], None]
    register_start: Callable[[int, RegisterStart, Callable[[str], None]], None]
    ask_election: Callable[[int, int, bool], None]
    fetch_snapshot: Callable[[int, str, Path, TransferProgress], Awaitable[Callable[[], None]]]
    gather_snapshot: Callable[[int, str, Path, TransferProgress], Awaitable[object]]
    let_snapshot_go: Callable[[Path], Awaitable[None]]
    client_url: Callable[[str | None], str | None] = lambda node: node
    touched: Touched = lambda topic_id, pieces: None
    changed: Callable[[int], None] = lambda shard: None
    placed: Callable[[int, StoredTopic], tuple[StoredTopic, int, int]] = lambda shard, topic: (topic, 0, topic.queues)
    congested: Callable[[str], bool] = lambda peer: False

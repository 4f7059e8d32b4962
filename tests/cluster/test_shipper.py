"""What a leader ships where links are full and replicas are opened again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from lsmq_node.cluster.log_tail import Piece
from lsmq_node.cluster.shipper import Shipper
from lsmq_node.replication import ReplicaSession
from lsmq_node.replication.actions import Ship
from lsmq_node.storage import ShardStore

from .replica_group import run, until


def test_what_a_full_link_held_back_is_sent_when_there_is_room_also_after_the_replica_was_opened_again() -> None:
    async def test() -> None:
        full, sent = [True], list[str]()
        store = cast("ShardStore", SimpleNamespace(replica=SimpleNamespace(end_lsn=10)))
        nothing: Any = lambda *_: None  # noqa: E731
        shipper = Shipper(
            1 << 20, lambda: store, lambda peer, *_: sent.append(peer), lambda _: full[0], nothing, nothing
        )
        for peer in ("b", "c"):
            shipper.wrote(Piece(0, 10, bytes(10), [10]))
            shipper.ship(Ship(peer, ReplicaSession(1, 1), 1, 0, 10, 0))
            assert peer not in sent
            if peer == "b":
                shipper.log_changes()
                await shipper.close()
        full[0] = False
        await until(lambda: sent == ["c"], "it is tried again by itself")
        await shipper.close()

    run(test)

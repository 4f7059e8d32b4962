"""Deleting what a work queue has settled for good, where its settings ask for that (``delete_on_ack``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq.errors import LsmqError
from lsmq_node.broker import Ack

if TYPE_CHECKING:
    from .shard_work import ShardWork

_log = structlog.get_logger("lsmq.workqueue")
_MAX_QUEUES = 100_000


def delete_settled(work: ShardWork, queues: NDArray[Any], cursors: NDArray[Any]) -> None:
    """Below these cursors; in line, not waited for: the next one goes further, and so does whoever leads next."""
    try:
        work.port.check_writable(Ack.QUORUM)
        trimmed = work.store.trim(work.topic.id, queues.astype(np.uint32), cursors.astype(np.int64))
        future = work.port.wait(trimmed, Ack.QUORUM)
        if future is not None:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
    except LsmqError as error:
        _log.info("work_not_trimmed", group=work.group, topic=work.topic.name, code=error.code)


async def delete_all_settled(work: ShardWork) -> None:
    """What was settled before that was asked for, or is left of an earlier leader. Costs a look at all queues."""
    store, topic_id = work.store, work.topic.id

    def settled() -> tuple[NDArray[Any], NDArray[Any]]:
        committed, earliest = store.committed_offsets(work.group, topic_id), store.earliest_offsets(topic_id)
        size = min(len(committed), len(earliest))  # the topic may grow meanwhile
        places = np.flatnonzero(committed[:size] > earliest[:size])
        return places + store.numbers(topic_id)[0], committed[places]

    queues, cursors = await work.in_readers(settled)
    for at in range(0, len(queues), _MAX_QUEUES):
        if work.is_current:
            delete_settled(work, queues[at : at + _MAX_QUEUES], cursors[at : at + _MAX_QUEUES])

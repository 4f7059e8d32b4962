"""Requests about many queues: each is done at the leaders of their shards, where these are several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.topics import format_ranges
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.storage import StoredTopic

from .codec import Format, encode
from .forwarding import ShardPart, each_at_leader, is_split
from .routing import Call

QueueColumns = dict[str, NDArray[Any]]


async def read_queues(
    call: Call, topic: StoredTopic, queues: NDArray[Any], read: Callable[[NDArray[Any]], Awaitable[QueueColumns]]
) -> QueueColumns:
    """What ``read`` finds of those queues of a GET that are led here, and their leaders of the others.

    Columns of one length, ``queues`` among them, in the order of those asked for, of which some may be missing.
    """
    parts = split_by_shard(queues, topic, call.broker.topology.home_shards)
    if not is_split(call, (shard for shard, _ in parts)):
        return await read(queues)

    def part(shard: int, places: NDArray[np.int64]) -> ShardPart:
        some = queues[places]
        url = call.request.rel_url.update_query(queues=",".join(format_ranges(some.tolist())))
        return ShardPart(shard, lambda: read(some), path=url.raw_path_qs)

    answers = await each_at_leader(call, [part(*each) for each in parts])
    columns = [{name: np.asarray(column, np.int64) for name, column in found.items()} for found in answers]
    places = [own[np.isin(queues[own], found["queues"])] for (_, own), found in zip(parts, columns, strict=True)]
    order = np.argsort(np.concatenate(places))
    return {name: np.concatenate([found[name] for found in columns])[order] for name in columns[0]}


async def write_queues(
    call: Call,
    topic: StoredTopic,
    document: dict[str, Any],
    columns: tuple[NDArray[np.uint32], NDArray[np.int64]],
    write: Callable[[NDArray[np.uint32], NDArray[np.int64]], Awaitable[None]],
) -> None:
    """Have something done to ``columns``, queues and offsets of a ``document``: by ``write``, and by the leaders of
    those that are not led here.

    What belongs to one shard is done, or none of it. Raises as :func:`each_at_leader`.
    """
    queues, offsets = columns
    parts = split_by_shard(queues, topic, call.broker.topology.home_shards)
    if not is_split(call, (shard for shard, _ in parts)):
        await write(queues, offsets)
        return

    def part(shard: int, places: NDArray[np.int64]) -> ShardPart:
        some = queues[places], offsets[places]

        async def here() -> dict[str, Any]:
            await write(*some)
            return {}

        def body() -> bytes:
            packed = {"queues": some[0].astype("<u4").tobytes(), "offsets": some[1].astype("<i8").tobytes()}
            return encode({**document, **packed}, Format.MSGPACK)

        return ShardPart(shard, here, body)

    await each_at_leader(call, [part(*each) for each in parts])

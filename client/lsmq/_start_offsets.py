"""Where a consumer begins that reads queues of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from lsmq._fetch_loop import FetchLoop
from lsmq._reader import Reader
from lsmq.errors import InvalidRequest

Start = Literal["earliest", "latest", "committed"] | datetime | int | Mapping[int, int]

EDGES = ("earliest", "latest")


def check_start(start: Start | None, group: str | None, topics: Sequence[str], *, with_queues: bool) -> Start:
    """Where to begin, with the default filled in. Raises ``InvalidRequest``."""
    if not topics or len(set(topics)) < len(topics) or (with_queues and len(topics) > 1):
        raise InvalidRequest(f"topics are {list(topics)}; name at least one, each once, and only one with queues")
    if start is None:
        start = "committed" if group is not None else "earliest"
    if isinstance(start, str) and start not in (*EDGES, "committed"):
        raise InvalidRequest(f"start is {start!r}; it must be 'earliest', 'latest', 'committed', a time or offsets")
    if start == "committed" and group is None:
        raise InvalidRequest("start='committed' needs a group, whose committed offsets to start from")
    if group is not None and not with_queues and start != "committed":
        raise InvalidRequest(
            "a member of a group begins where the group has committed: move that with 'lsmq group reset', give"
            " uncommitted='latest' for a new group, or name the queues to read outside of the group's sharing"
        )
    if len(topics) > 1 and isinstance(start, Mapping):
        raise InvalidRequest("offsets to start from are of one topic; this consumer has several")
    return start


async def start_alone(
    reader: Reader,
    topics: Iterable[str],
    queues: Sequence[int] | None,
    start: Start,
    *,
    group: str | None,
    uncommitted: str,
) -> None:
    """Begin to read ``queues`` of the topics, or all."""
    if queues is not None and not queues:
        raise InvalidRequest("a consumer needs at least one queue")
    loops = []
    for name in topics:
        topic = await reader.client.topic(name)
        loop = reader.add(topic, queues)
        for queue in (loop.positions.queues[0], loop.positions.queues[-1]):
            topic.check_queue(queue)
        await find_start(reader, loop, start, group, uncommitted)
        await loop.check_bounds()
        loops.append(loop)
    for loop in loops:
        reader.begin(loop.topic.name)


async def find_start(reader: Reader, loop: FetchLoop, start: Start, group: str | None, uncommitted: str) -> None:
    """Put the positions of a topic where reading is to begin."""
    client, positions = reader.client, loop.positions
    match start:
        case str() if start != "committed":
            edges = await reader.edge_offsets(loop.topic, positions.queues, start)
        case str():
            assert group is not None
            committed = await client._committed_offsets(group, loop.topic)
            known = {queue: offset for queue, offset in committed.items() if queue in positions}
            edges = await reader.edge_offsets(loop.topic, positions.queues, uncommitted, besides=known)
            loop.start_at(known)
        case datetime() | int():
            found = await client._offsets(loop.topic, positions.queues, start)
            edges = dict(zip(found.queues, found.at_time, strict=True))
        case _:
            edges = await reader.edge_offsets(loop.topic, positions.queues, "earliest", besides=start)
            loop.start_at(start)
    positions.start_at(list(edges), list(edges.values()))

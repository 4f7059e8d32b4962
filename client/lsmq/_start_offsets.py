"""Where a consumer begins that reads queues of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

from lsmq._arguments import check_offsets
from lsmq._fetch_loop import FetchLoop
from lsmq._named_selection import NamedSelection
from lsmq._reader import Reader
from lsmq.errors import InvalidRequest
from lsmq.messages import whole_queue
from lsmq.queue_names import check_pattern, check_queue_name
from lsmq.topics import Topic

Start = Literal["earliest", "latest", "committed"] | datetime | int | Mapping[int, int] | Mapping[str, int]

EDGES = ("earliest", "latest")
#: Names in one request, with their lengths within what a node takes.
MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """The queues that a consumer reads: by number, by name or by ``pattern``; with none of these, all."""

    numbers: Sequence[int] | None = None
    names: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def are_some(self) -> bool:
        """Whether they are said, rather than all."""
        return self.are_named_singly or self.pattern is not None

    @property
    def are_named_singly(self) -> bool:
        """Whether they are no share of a group: its members cannot be given these."""
        return self.numbers is not None or bool(self.names)


def chosen_queues(queues: Iterable[int] | Iterable[str] | None, pattern: str | None) -> Chosen:
    """As an application says them. Raises ``InvalidRequest``, ``InvalidQueueName``."""
    if pattern is not None and queues is not None:
        raise InvalidRequest("queues and pattern both say what to read: give one")
    if pattern is not None:
        return Chosen(pattern=check_pattern(pattern))
    if queues is None or isinstance(queues, range):
        return Chosen(queues)
    if isinstance(queues, str):
        raise InvalidRequest(f"queues is {queues!r}; it must be a list of names or numbers, such as [{queues!r}]")
    found = list(queues)
    if not found:
        raise InvalidRequest("a consumer needs at least one queue")
    if not any(isinstance(queue, str) for queue in found):
        return Chosen([whole_queue(queue) for queue in found])
    names = tuple(dict.fromkeys(check_queue_name(queue) for queue in found))
    if len(names) > MAX_NAMES:
        raise InvalidRequest(
            f"queues names {len(names)} queues, the limit is {MAX_NAMES}; give a pattern, or read in parts"
        )
    return Chosen(names=names)


def check_start(start: Start | None, group: str | None, topics: Sequence[str], chosen: Chosen) -> Start:
    """Where to begin, with the default filled in. Raises ``InvalidRequest``."""
    if not topics or len(set(topics)) < len(topics) or (chosen.are_some and len(topics) > 1):
        raise InvalidRequest(
            f"topics are {list(topics)}; name at least one, each once, and only one with queues or a pattern"
        )
    if start is None:
        start = "committed" if group is not None else "earliest"
    if isinstance(start, str) and start not in (*EDGES, "committed"):
        raise InvalidRequest(f"start is {start!r}; it must be 'earliest', 'latest', 'committed', a time or offsets")
    if start == "committed" and group is None:
        raise InvalidRequest("start='committed' needs a group, whose committed offsets to start from")
    if group is not None and not chosen.are_named_singly and start != "committed":
        raise InvalidRequest(
            "a member of a group begins where the group has committed: move that with 'lsmq group reset', give"
            " uncommitted='latest' for a new group, or name the queues to read outside of the group's sharing"
        )
    if isinstance(start, Mapping):
        if len(topics) > 1:
            raise InvalidRequest("offsets to start from are of one topic; this consumer has several")
        check_offsets(start.values(), "an offset of start")
    elif isinstance(start, bool) or not isinstance(start, str | int | datetime):
        raise InvalidRequest(f"start is {start!r}; it must be 'earliest', 'latest', 'committed', a time or offsets")
    return start


async def start_alone(
    reader: Reader,
    topics: Iterable[str],
    chosen: Chosen,
    start: Start,
    *,
    group: str | None,
    uncommitted: str,
) -> None:
    """Begin to read these queues of the topics."""
    loops: list[FetchLoop] = []
    for name in topics:
        topic = await reader.client.topic(name)
        if topic.named:
            loops.append(await _start_named(reader, topic, chosen, start, group, uncommitted))
            continue
        if chosen.names or chosen.pattern is not None:
            raise needs_names(topic)
        loop = reader.add(topic, chosen.numbers)
        for queue in (loop.positions.queues[0], loop.positions.queues[-1]):
            topic.check_queue(queue)
        await find_start(reader, loop, start, group, uncommitted)
        await loop.check_bounds()
        loops.append(loop)
    for loop in loops:
        reader.begin(loop.topic.name)


async def _start_named(
    reader: Reader, topic: Topic, chosen: Chosen, start: Start, group: str | None, uncommitted: str
) -> FetchLoop:
    check_named(topic, uncommitted)
    if chosen.numbers is not None:
        raise InvalidRequest(f"the queues of topic {topic.name!r} have names: give these as queues, not numbers")
    offsets: Mapping[str, int] = {}
    if isinstance(start, Mapping):
        offsets = {check_queue_name(name): offset for name, offset in start.items()}
        if unknown := offsets.keys() - set(chosen.names):
            remedy = "name it there too" if chosen.names else "say queues=[...]: a pattern takes no offsets"
            raise InvalidRequest(f"start has an offset of queue {min(unknown)!r}, which is not among queues; {remedy}")
    group = group if start == "committed" else None
    selection = NamedSelection(chosen.names, chosen.pattern, group=group, offsets=offsets)
    slots = [slot for part in selection.slots() for slot in part]
    loop = reader.add_named(topic, selection, slots)
    if start == "latest":
        await loop.begin_at_the_end()
    elif isinstance(start, datetime | int):
        await loop.begin_at_time(start)
    await loop.check_begins()
    return loop


def needs_names(topic: Topic) -> InvalidRequest:
    """Of a topic whose queues are said by name or pattern, and have none."""
    return InvalidRequest(f"the queues of topic {topic.name!r} have numbers, not names: give these as queues")


def check_named(topic: Topic, uncommitted: str) -> None:
    """Raises ``InvalidRequest`` for what cannot be said of queues that come later."""
    if uncommitted != "earliest":
        raise InvalidRequest(
            f"uncommitted is {uncommitted!r}, and topic {topic.name!r} has queues with names, of which any that comes"
            " begins at its first message: leave it out, and set the group to the latest with 'lsmq group reset'"
        )


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
            offsets = cast("Mapping[int, int]", start)
            edges = await reader.edge_offsets(loop.topic, positions.queues, "earliest", besides=offsets)
            loop.start_at(offsets)
    positions.start_at(list(edges), list(edges.values()))

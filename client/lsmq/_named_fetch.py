"""Fetching queues that have names: chosen by name, by a pattern, or by the slots that a member of a group was given.

A node is told once what is wanted, and keeps a session; queues that come later and are wanted join by themselves. An
answer names the queues that it has messages of, and says from which offset on: whole blocks may hold older ones. When a
session is lost another one is begun, with the positions that :class:`NamedPositions` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lsmq._fetch_loop import FetchLoop
from lsmq._fetcher import (
    MAX_QUEUES_PER_FETCH,
    FetchedBatches,
    Fetcher,
    FetchOptions,
    OutOfRange,
    Prefetch,
    out_of_range,
)
from lsmq._follower_reads import FollowerReadMode
from lsmq._named_follower_reads import NamedFollowerReads
from lsmq._named_positions import NO_SLOT, UNKNOWN_SLOTS, NamedPositions
from lsmq._named_selection import NamedSelection, named_ends
from lsmq._queue_ranges import contains
from lsmq._transport import BATCHES, MSGPACK
from lsmq._wire_values import little_endian
from lsmq.client import Client
from lsmq.filters import MessageFilter
from lsmq.queue_names import queue_slot
from lsmq.record_batch import Column, Flag, Message, RecordBatch, split_batches
from lsmq.topics import Topic

if TYPE_CHECKING:
    from lsmq.message_columns import MessageBatch


class NamedBatches(FetchedBatches):
    """One answer's messages. ``names`` are those of its queues."""

    __slots__ = ("names",)

    def __init__(
        self,
        batches: Sequence[RecordBatch],
        spans: dict[int, tuple[int, int]],
        size_bytes: int,
        topic: Topic,
        names: Mapping[int, str],
        filter: MessageFilter | None = None,
    ) -> None:
        super().__init__(batches, spans, size_bytes, topic, filter)
        self.names = names

    def messages(self) -> Iterator[Message]:
        for batch in self._batches:
            found = batch.messages(self.topic.name, self.topic.id, self.spans, self.names)
            yield from found if self._filter is None else filter(self._filter.passes, found)

    def columns(self) -> MessageBatch:
        from lsmq.message_columns import batch_of  # With numpy, which nobody else needs.

        return batch_of(self._batches, self.topic, self.spans, names=self.names, picked=self._filter)


class NamedFetcher(Fetcher):
    """Fetches queues with names from one leader. ``slots`` are those of its shards that are read."""

    _selection: NamedSelection
    _named: NamedPositions
    _numbers: dict[str, int]

    def select(
        self,
        selection: NamedSelection,
        positions: NamedPositions,
        numbers: dict[str, int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """What is asked for. To be said before it runs. ``numbers`` are of names with offsets, as they get known."""
        self._selection, self._named, self._numbers = selection, positions, numbers
        slots = self._follower_reads.near
        self._follower_reads = NamedFollowerReads(slots, self._fetch_at_follower, spawn, positions.away)

    def _go_to_followers(self, manner: FollowerReadMode) -> None:
        """Which queues there are is the leader's to say."""

    def _request(
        self, url: str, slots: Sequence[range], wait_ms: int, session: tuple[Sequence[range], str] | None = None
    ) -> dict[str, Any]:
        options = self._options
        value: dict[str, Any] = {
            "max_messages": options.max_messages,
            "max_bytes": options.max_bytes,
            "wait_ms": wait_ms,
            **self._picks,
        }
        rest: dict[str, Any] = {"content_type": MSGPACK, "accept": BATCHES}
        if url != self._leader:
            numbers, offsets = self._named.where([queue for part in slots for queue in part])
            return {"value": {**value, "queues": numbers, "offsets": offsets}, **rest}
        if session is not None and session[0] is slots:
            return {"value": {**value, "session": session[1]}, **rest}
        rest["must_lead"] = self._shards
        value |= self._selection.request(slots) | {"keep": True}
        if any(self._is_to_be_met(name) for name in value.get("names", ())):
            del value["start"]
            value["offsets"] = little_endian("q", [self._begin_of(name) for name in value["names"]])
            return {"value": value, **rest}
        led = [place for place, route in enumerate(self._topic.routes) if route.leader == self._leader]
        numbers, offsets = self._named.kept_of(led, MAX_QUEUES_PER_FETCH)
        if numbers:
            value |= {"numbers": numbers, "offsets": offsets}
        return {"value": value, **rest}

    def _is_to_be_met(self, name: str) -> bool:
        """Whether a queue begins at an offset, and nothing has come of it. Others are known by their numbers: the name
        may be another queue's by now, which is read from its beginning."""
        return name in self._selection.offsets and self._numbers.get(name, -1) not in self._named

    def _begin_of(self, name: str) -> int:
        """Where a queue is to be read from that was to begin at an offset."""
        place = self._named.slot(self._numbers.get(name, -1))
        return self._selection.offsets.get(name, 0) if place < 0 else self._named.fetch[place]

    def _take_in(self, body: bytes, source: str) -> tuple[NamedBatches, list[tuple[str | None, list[int]]]]:
        positions = self._named
        spans: dict[int, tuple[int, int]] = {}
        names: dict[int, str] = {}
        begins: dict[int, int] = {}
        batches: list[RecordBatch] = []
        elsewhere: list[tuple[str | None, list[int]]] = []
        for batch in split_batches(body, source=f"answer of {source}"):
            flags = batch.column(Column.FLAGS)[0] if Column.FLAGS in batch.directory else 0
            if flags & Flag.ELSEWHERE:
                url = batch.payload.tobytes().decode().rstrip("/") or None
                if url is not None:
                    for queue, offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True):
                        if positions.slot(queue) < 0:
                            positions.meet(queue, NO_SLOT, offset)
                elsewhere.append((url, list(batch.column(Column.QUEUE))))
            elif flags & Flag.NAMES:
                queues = batch.column(Column.QUEUE)
                names.update(zip(queues, batch.texts(), strict=True))
                begins.update(zip(queues, batch.column(Column.OFFSET), strict=True))
            elif flags & Flag.POSITION:
                moved = zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True)
                spans.update((queue, (-1, next_offset)) for queue, next_offset in moved)
            else:
                batches.append(batch)
        for queue, (_, next_offset) in list(spans.items()):
            place = positions.slot(queue)
            asked = positions.fetch[place] if place >= 0 else begins.get(queue, next_offset)
            if (
                place >= 0
                and queue in names
                and positions.share(queue) not in (*UNKNOWN_SLOTS, queue_slot(names[queue]))
            ):
                asked = max(asked, begins[queue])  # It is another's by now, of which nothing is missing before.
            if queue not in names or not (source == self._leader or self._wants(names[queue])):
                asked = next_offset  # It was deleted meanwhile; its number may be another's that nobody asked for.
            if asked < next_offset and queue not in positions.held:
                spans[queue] = asked, next_offset
            else:
                del spans[queue]
        return NamedBatches(batches, spans, len(body), self._topic, names, self._options.filter), elsewhere

    def _wants(self, name: str) -> bool:
        return contains(self._named.ranges, queue_slot(name)) and self._selection.has(name)

    async def _check_gaps(self, chunk: FetchedBatches, gaps: Sequence[int]) -> None:
        """Queues that are met with this answer begin where they do: nothing of them was missed."""
        if met := [queue for queue in gaps if queue in self._named]:
            await super()._check_gaps(chunk, met)

    def _move(self, chunk: FetchedBatches) -> None:
        assert isinstance(chunk, NamedBatches)
        positions = self._named
        for queue, (asked, next_offset) in chunk.spans.items():
            name = chunk.names.get(queue)
            if name is not None and name in self._selection.offsets:
                self._numbers[name] = queue
            positions.meet(queue, NO_SLOT if name is None else queue_slot(name), asked)
            positions.fetch[positions.slot(queue)] = next_offset


class NamedFetchLoop(FetchLoop):
    """Reads what ``selection`` says, as far as it lies in the slots of its positions."""

    def __init__(
        self,
        client: Client,
        topic: Topic,
        options: FetchOptions,
        selection: NamedSelection,
        slots: Iterable[int],
        policy: OutOfRange,
        buffer: Prefetch,
        *,
        is_patient_with: Callable[[Exception], bool],
        track_changes: bool,
    ) -> None:
        self.selection = selection
        self._numbers: dict[str, int] = {}
        self._named = NamedPositions(slots, track_changes=track_changes, forgets=selection.group is not None)
        super().__init__(client, topic, options, self._named, policy, buffer, is_patient_with=is_patient_with)

    async def _fetch_all(self) -> None:
        self._named.away.clear()  # Whoever was reading them has ended.
        await super()._fetch_all()

    async def check_bounds(self) -> bool:
        self._unchecked = {queue for queue in self._unchecked if queue in self._named}  # Others were committed since.
        return await super().check_bounds()

    def hold(self, queue: int) -> None:
        positions = self._named
        place = positions.slot(queue)
        if place >= 0 and queue in self._drop_where(lambda other: other == queue):
            positions.fetch[place] = positions.handed[place]
        positions.held.add(queue)
        positions.generation += 1
        self._restart.set()

    def release(self, queue: int) -> None:
        if queue in self._named.held:
            self._named.held.discard(queue)
            self._restart.set()

    async def begin_at_the_end(self) -> None:
        """Read only what comes from now on, and queues that are not there yet from their first message on."""
        latest, _ = await self._ends()
        self._stand_at(latest.items())

    async def begin_at_time(self, moment: datetime | int) -> None:
        """Read what was stored since then, and queues that are not there yet from their first message on."""
        latest, _ = await self._ends()
        found = await self._client._offsets(self.topic, sorted(latest), moment)
        self._stand_at(zip(found.queues, found.at_time, strict=True))

    def _stand_at(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Of each queue that nothing is known of."""
        for queue, offset in offsets:
            if self._named.slot(queue) < 0:
                self._named.meet(queue, NO_SLOT, offset)

    async def check_begins(self) -> None:
        """Apply the policy to offsets that are said by name, where their queues do not have them.

        One that is not there has none but 0. Raises ``OffsetOutOfRange`` if that is the policy.
        """
        wanted = {name: offset for name, offset in self.selection.offsets.items() if offset}
        if not wanted:
            return
        ends, names = await self._ends()
        if ends and not names:
            return  # A node of a release before does not say which is which.
        bounds = await self._client._offsets(self.topic, sorted(names), None)
        known = {names[queue]: (earliest, latest) for queue, earliest, latest in bounds.rows()}
        begins = dict(self.selection.offsets)
        for name, offset in wanted.items():
            earliest, latest = known.get(name, (0, 0))
            if earliest <= offset <= latest:
                continue
            if self._policy == "error":
                raise out_of_range(self.topic.name, name, offset, earliest, latest)
            begins[name] = earliest if self._policy == "earliest" else latest
        self.selection = replace(self.selection, offsets=begins)

    async def _ends(self) -> tuple[dict[int, int], dict[int, str]]:
        return await named_ends(self._client, self.topic, self.selection, self.positions.ranges)

    def _fetcher(
        self,
        topic: Topic,
        leader: str | None,
        slots: Sequence[range],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> Fetcher:
        fetcher = NamedFetcher(
            self._client,
            self._options,
            topic,
            leader,
            slots,
            self._named,
            self.buffer,
            self._attempts,
            policy=self._policy,
            spawn=spawn,
        )
        fetcher.select(self.selection, self._named, self._numbers, spawn)
        return fetcher

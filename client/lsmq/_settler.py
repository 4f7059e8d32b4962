"""Settling tasks of a work queue: what is acknowledged at about the same time shares a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lsmq._paths import group_path
from lsmq._retries import Deadline
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.errors import LsmqError, from_dict
from lsmq.topics import Topic

if TYPE_CHECKING:
    from lsmq.client import Client

_MAX_RECEIPTS = 1_000


class Settler:
    """One for each work queue. A shard has one request under way; what is acknowledged meanwhile is the next."""

    def __init__(self, client: Client, group: str, deadline_ms: int) -> None:
        self._client = client
        self._path = group_path(group)
        self._deadline_ms = deadline_ms
        self._pending: dict[int, list[tuple[Topic, str, asyncio.Future[None]]]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._background = BackgroundTasks()  # What a task does not live to do, it says to those who wait for it.

    async def ack(self, topic: Topic, shard: int, receipt: str) -> None:
        """Durable on return. Raises ``ReceiptExpired``, ``UnknownReceipt``, and what a request raises."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(shard, []).append((topic, receipt, future))
        if shard not in self._sending:
            self._sending[shard] = self._background.begin(self._send(shard), f"lsmq acknowledge shard {shard}")
        await future

    async def _send(self, shard: int) -> None:
        part: list[tuple[Topic, str, asyncio.Future[None]]] = []
        try:
            while pending := self._pending.get(shard):
                part, self._pending[shard] = pending[:_MAX_RECEIPTS], pending[_MAX_RECEIPTS:]
                try:
                    outcome: Sequence[LsmqError | None] = await self.settle(
                        "ack", part[0][0], shard, [receipt for _, receipt, _ in part]
                    )
                except Exception as error:
                    outcome = [as_lsmq_error(error, "acknowledging")] * len(part)
                for (_, _, future), failed in zip(part, outcome, strict=True):
                    if future.done():
                        continue
                    if failed is None:
                        future.set_result(None)
                    else:
                        future.set_exception(failed)
        finally:
            del self._sending[shard]
            for _, _, future in [*part, *self._pending.pop(shard, [])]:
                if not future.done():
                    future.set_exception(
                        LsmqError("acknowledging was cut off: the message may be acknowledged, or come again")
                    )

    async def settle(
        self, how: str, topic: Topic, shard: int, receipts: Sequence[str], deadline_ms: int | None = None, **more: Any
    ) -> list[LsmqError | None]:
        """``ack``, ``nack`` or ``extend`` deliveries of one shard; why each was refused, or None."""
        deadline = Deadline(self._deadline_ms if deadline_ms is None else deadline_ms)
        value = {"topic": topic.name, "receipts": list(receipts), **more}
        answer = await self._client._router.ask_leader(
            topic, shard, "POST", f"{self._path}/{how}", value=value, deadline=deadline
        )
        outcome: list[LsmqError | None] = [None] * len(receipts)
        for at, error in answer.parsed(lambda fields: _refused(fields, len(receipts))):
            outcome[at] = error
        return outcome

    async def close(self) -> None:
        """Let what is under way come to its end."""
        while self._sending:
            await asyncio.wait(set(self._sending.values()))


def _refused(fields: Mapping[str, Any], count: int) -> list[tuple[int, LsmqError]]:
    """Of ``count`` receipts, which by their places were refused, and why."""
    found = [({**each}, range(count)[each["index"]]) for each in fields["refused"]]
    return [(at, from_dict({name: value for name, value in each.items() if name != "index"})) for each, at in found]

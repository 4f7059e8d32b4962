"""What the pieces of code on a page take for granted: names, topics, and somebody at the other end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

import lsmq
from lsmq import Client, ClientClosed, Consumer, Producer  # As they are, whatever stands in their place for pages.

NUMBERED = ("orders", "payments", "invoices", "mails", "events", "reminders", "jobs", "prices", "locations")


class HandlesOne:
    """Handlers are called once, so that what never ends does."""

    async def run(self, handler: Any, **options: Any) -> None:
        await super().run(_once(self, handler), **options)  # type: ignore[misc]  # of the class beside it


class GivesOne(HandlesOne):
    """Loops over it end after one turn."""

    _given = False

    async def __anext__(self) -> Any:
        self._given = not self._given
        if not self._given:
            raise StopAsyncIteration
        return await super().__anext__()  # type: ignore[misc]  # of the class beside it


class OneMessage(GivesOne, lsmq.Consumer):
    """A message."""


class OnePushed(HandlesOne, lsmq.PushConsumer):
    """A message that is pushed."""


class OneTask(GivesOne, lsmq.WorkQueue):
    """A task."""


def _once(owner: Any, handler: Any) -> Callable[[Any], Awaitable[None]]:
    async def handle(item: Any) -> None:
        result = handler(item)
        if asyncio.iscoroutine(result):
            await result
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(owner.close()))

    return handle


ENDING = {"Consumer": OneMessage, "PushConsumer": OnePushed, "WorkQueue": OneTask}


class Database:
    """The application's own."""

    def pay(self, order: str, transaction: str) -> None:
        """Done."""

    def has_payment(self, transaction: str) -> bool:
        return True

    def rows_after(self, position: str | None) -> list[Any]:
        return [SimpleNamespace(id="1", event="one"), SimpleNamespace(id="2", event="two")]


class Outbox:
    def rows(self, after: int | None) -> list[Any]:
        return [SimpleNamespace(id=number, body="x", account="ada") for number in (1, 2)]


async def _cook(item: Any) -> None:
    """It is cooked."""


@asynccontextmanager
async def given(url: str, page: str, number: int, code: str) -> AsyncIterator[dict[str, Any]]:
    """Names for a piece of code, as long as it runs. Topics that it makes itself are not there."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(url))
        there = [name for name in NUMBERED if f'create_topic("{name}"' not in code]
        for name in there:
            await client.create_topic(name, queues=8)
            async with Producer(client, name) as producer:
                await producer.send_and_wait("one pizza", key="table 7", tag="gold")
        if "orders" not in there:
            yield {"client": client}
            return
        async with Producer(client, "orders") as producer:
            await producer.send_and_wait("back", type="refund", properties={"region": "eu", "amount": "200"})
        names: dict[str, Any] = {
            **vars(lsmq),
            **ENDING,
            "client": client,
            "producer": await stack.enter_async_context(Producer(client, "orders")),
            "consumer": await stack.enter_async_context(OneMessage(client, "orders", start="earliest")),
            "work": await stack.enter_async_context(OneTask(client, "orders", f"kitchen-{number}")),
            "cook": _cook,
            "cook_task": _cook,
            "handler": _cook,
            "body": "one pizza",
            "bodies": ["one", "two"],
            "bodies_or_key_body_pairs": ["one", ("key", "two")],
            "keys": ["a", "b"],
            "values": np.arange(4, dtype=np.int64),
            "sensors": [0, 1, 2, 3],
            "table": pa.table({"body": ["one", "two"], "key": ["a", "b"]}),
            "invoice": "an invoice",
            "mail": "a mail",
            "account": "ada",
            "number": 17,
            "database": Database(),
            "outbox": Outbox(),
            "was_it_paid": lambda transaction: "commit",
            "datetime": datetime,
            "timedelta": timedelta,
            "yesterday": datetime.now() - timedelta(days=1),
            "price_of": lambda text: "9.50",
            "url": url,
        }
        if (prepare := PREPARED.get((page, number))) is not None:
            await prepare(names, stack)
        yield names


async def _kitchen(names: dict[str, Any], stack: AsyncExitStack) -> None:
    async with Consumer(names["client"], "orders", group="kitchen") as consumer:
        await consumer.poll(1)
        await consumer.commit()


async def _more_orders(names: dict[str, Any], stack: AsyncExitStack) -> None:
    """Orders come all the time."""

    async def order() -> None:
        while True:
            await names["producer"].send_and_wait("one pizza")

    await _beside(order(), stack)


async def _answered(names: dict[str, Any], stack: AsyncExitStack) -> None:
    """Somebody who answers."""
    consumer = await stack.enter_async_context(Consumer(names["client"], "prices", group="who-answers"))

    async def answer() -> None:
        with contextlib.suppress(ClientClosed):
            async for message in consumer:
                with contextlib.suppress(lsmq.InvalidRequest):  # Of before, which nobody waits for.
                    await names["client"].reply(message, "9.50")

    await _beside(answer(), stack)


async def _asked(names: dict[str, Any], stack: AsyncExitStack) -> None:
    """Somebody who asks, and a consumer of what he asks."""
    client = names["client"]
    await client.create_topic("questions")
    names["consumer"] = await stack.enter_async_context(OneMessage(client, "questions", start="earliest"))
    await _beside(client.request("questions", "one pizza", timeout_ms=60_000), stack)


async def _inboxes(names: dict[str, Any], stack: AsyncExitStack) -> None:
    await names["client"].create_topic("agents", queues="named")
    async with Producer(names["client"], "agents") as producer:
        for name in ("agents.7.inbox", "agents.8.inbox"):
            await producer.send_and_wait("look around", queue=name)


async def _beside(work: Any, stack: AsyncExitStack) -> None:
    task = asyncio.ensure_future(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _transactional(names: dict[str, Any], stack: AsyncExitStack) -> None:
    producer = lsmq.TransactionalProducer(names["client"], "billing-sequences")
    names["producer"] = await stack.enter_async_context(producer)


PREPARED: dict[tuple[str, int], Callable[[dict[str, Any], AsyncExitStack], Awaitable[None]]] = {
    ("docs/client.md", 3): _more_orders,
    ("docs/client.md", 4): _more_orders,
    ("docs/client.md", 7): _kitchen,
    ("docs/named-queues.md", 1): _inboxes,
    ("docs/named-queues.md", 2): _inboxes,
    ("docs/requests.md", 0): _answered,
    ("docs/requests.md", 1): _asked,
    ("docs/transactions.md", 1): _transactional,
}

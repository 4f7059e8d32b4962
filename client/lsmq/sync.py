"""The client for plain blocking code: the names of :mod:`lsmq`, without ``async`` and ``await``.

::

    with Client() as client:
        with Producer(client, "orders") as producer:
            producer.send("one pizza", key="table 7")
        with Consumer(client, "orders", start="earliest") as consumer:
            for message in consumer:
                print(message.text())

Each client runs an event loop in a daemon thread of its own, in which the asyncio classes do all the work;
nothing here but the crossing. Objects may be used from any thread, a consumer from one at a time. A crossing
costs some 50 us, so send many messages with :meth:`Producer.send_many`; reading crosses once for many
messages already.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from lsmq import _outbox, client, consumer, producer
from lsmq._fetch import OutOfRange
from lsmq._outbox import Sent
from lsmq.consumer import Start
from lsmq.errors import ClientClosed, TimedOut
from lsmq.partitioners import Partitioner
from lsmq.producer import Body
from lsmq.record_batch import Codec, Message
from lsmq.topics import Offsets, Topic

T = TypeVar("T")

_READ_AHEAD_MESSAGES = 1_000
_SEND_PORTION_MESSAGES = 10_000


class _LoopThread:
    """An event loop in a daemon thread, for as long as a client lives."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lsmq", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` in the loop and wait for it. An interrupt or a timeout cancels it."""
        if self._loop.is_closed():
            work.close()
            raise ClientClosed("this client is closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (KeyboardInterrupt, concurrent.futures.TimeoutError):
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Client:
    """Blocking :class:`lsmq.Client`."""

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        deadline_ms: int = client.DEFAULT_DEADLINE_MS,
        request_timeout_ms: int = client.DEFAULT_REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = client.DEFAULT_CONNECT_TIMEOUT_MS,
    ) -> None:
        self._async = client.Client(
            urls,
            deadline_ms=deadline_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._thread = _LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and stop the thread. Close producers and consumers first."""
        try:
            self._thread.call(self._async.close())
        except ClientClosed:
            return
        self._thread.stop()

    @property
    def urls(self) -> list[str]:
        """All nodes known."""
        return self._async.urls

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        exist_ok: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        ack: str | None = None,
        max_message_bytes: int | None = None,
    ) -> Topic:
        """See :meth:`lsmq.Client.create_topic`."""
        return self._thread.call(
            self._async.create_topic(
                name,
                queues=queues,
                exist_ok=exist_ok,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                ack=ack,
                max_message_bytes=max_message_bytes,
            )
        )

    def topics(self) -> list[Topic]:
        """See :meth:`lsmq.Client.topics`."""
        return self._thread.call(self._async.topics())

    def topic(self, name: str) -> Topic:
        """See :meth:`lsmq.Client.topic`."""
        return self._thread.call(self._async.topic(name))

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """See :meth:`lsmq.Client.delete_topic`."""
        self._thread.call(self._async.delete_topic(name, missing_ok=missing_ok))

    def offsets(
        self, topic: str, queues: Iterable[int] | None = None, *, at_time: datetime | int | None = None
    ) -> Offsets:
        """See :meth:`lsmq.Client.offsets`."""
        return self._thread.call(self._async.offsets(topic, queues, at_time=at_time))

    def message(self, id: str) -> Message:
        """See :meth:`lsmq.Client.message`."""
        return self._thread.call(self._async.message(id))

    def groups(self) -> list[str]:
        """See :meth:`lsmq.Client.groups`."""
        return self._thread.call(self._async.groups())

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """See :meth:`lsmq.Client.committed_offsets`."""
        return self._thread.call(self._async.committed_offsets(group, topic))

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], *, reset: bool = False) -> None:
        """See :meth:`lsmq.Client.commit_offsets`."""
        self._thread.call(self._async.commit_offsets(group, topic, offsets, reset=reset))

    def status(self) -> dict[str, Any]:
        """See :meth:`lsmq.Client.status`."""
        return self._thread.call(self._async.status())


class Receipt:
    """A message that a producer has accepted; :meth:`result` waits for it to be stored."""

    __slots__ = ("_async", "_thread")

    def __init__(self, thread: _LoopThread, receipt: _outbox.Receipt) -> None:
        self._thread = thread
        self._async = receipt

    def done(self) -> bool:
        """Whether the message is stored or given up."""
        return self._async.done()

    def result(self, timeout_ms: float | None = None) -> Sent:
        """Where the message was stored. Raises the error it failed with, or ``TimedOut``."""
        if not self._async.done():
            _wait(self._thread, self._async._batch.wait(), timeout_ms)
        return self._async.result()


class Receipts:
    """Receipts of many messages in the order sent."""

    __slots__ = ("_parts", "_thread")

    def __init__(self, thread: _LoopThread, parts: list[_outbox.Receipts]) -> None:
        self._thread = thread
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Receipt]:
        for part in self._parts:
            for receipt in part:
                yield Receipt(self._thread, receipt)

    def done(self) -> bool:
        """Whether each is stored or given up."""
        return all(part.done() for part in self._parts)

    def wait(self, timeout_ms: float | None = None) -> None:
        """Return once all are stored. Raises the first error among them, or ``TimedOut``."""

        async def wait_for_all() -> None:
            for part in self._parts:
                await part.wait()

        _wait(self._thread, wait_for_all(), timeout_ms)

    def results(self, timeout_ms: float | None = None) -> list[Sent]:
        """Where each message was stored. Raises what :meth:`wait` raises."""
        self.wait(timeout_ms)
        return [receipt.result() for part in self._parts for receipt in part]


class Producer:
    """Blocking :class:`lsmq.Producer`: the same options, limits and guarantees."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        linger_ms: float = producer.DEFAULT_LINGER_MS,
        batch_bytes: int = producer.DEFAULT_BATCH_BYTES,
        max_buffer_bytes: int = producer.DEFAULT_MAX_BUFFER_BYTES,
        max_message_bytes: int | None = None,
        ack: str | None = None,
        partitioner: Partitioner | None = None,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
        codec: Codec = Codec.NONE,
    ) -> None:
        self._thread = client._thread

        async def make() -> producer.Producer:
            made = producer.Producer(
                client._async,
                topic,
                linger_ms=linger_ms,
                batch_bytes=batch_bytes,
                max_buffer_bytes=max_buffer_bytes,
                max_message_bytes=max_message_bytes,
                ack=ack,
                partitioner=partitioner,
                deadline_ms=deadline_ms,
                request_timeout_ms=request_timeout_ms,
                codec=codec,
            )
            await made.start()
            return made

        self._async = self._thread.call(make())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._async.__aexit__(kind, error, trace))

    @property
    def buffered_bytes(self) -> int:
        """See :attr:`lsmq.Producer.buffered_bytes`."""
        return self._async.buffered_bytes

    def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Receipt:
        """Accept one message; waits only while the buffer is full. See :meth:`lsmq.Producer.send`."""
        work = self._async.send(body, key=key, tag=tag, queue=queue, properties=properties, priority=priority)
        return Receipt(self._thread, self._thread.call(work))

    def send_nowait(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Receipt:
        """Like :meth:`send`, but raises ``BufferFull`` where that would wait."""

        async def send() -> _outbox.Receipt:
            return self._async.send_nowait(
                body, key=key, tag=tag, queue=queue, properties=properties, priority=priority
            )

        return Receipt(self._thread, self._thread.call(send()))

    def send_and_wait(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Sent:
        """Send one message and return where it was stored."""
        return self._thread.call(
            self._async.send_and_wait(body, key=key, tag=tag, queue=queue, properties=properties, priority=priority)
        )

    def send_many(
        self,
        messages: Iterable[Body | tuple[str | None, Body]],
        *,
        tag: str | None = None,
        queue: int | None = None,
    ) -> Receipts:
        """Accept many messages, crossing once for thousands. See :meth:`lsmq.Producer.send_many`.

        ``messages`` is read in the calling thread.
        """
        parts: list[_outbox.Receipts] = []
        source = iter(messages)
        while portion := list(islice(source, _SEND_PORTION_MESSAGES)):
            parts.append(self._thread.call(self._async.send_many(portion, tag=tag, queue=queue)))
        return Receipts(self._thread, parts)

    def flush(self) -> None:
        """See :meth:`lsmq.Producer.flush`."""
        self._thread.call(self._async.flush())

    def close(self) -> None:
        """See :meth:`lsmq.Producer.close`."""
        self._thread.call(self._async.close())

    def abort(self) -> None:
        """See :meth:`lsmq.Producer.abort`."""
        self._thread.call(self._async.abort())


class Consumer:
    """Blocking :class:`lsmq.Consumer`: the same options and guarantees.

    It reads ahead of the application; what counts as handed out is what left *this* object.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        queues: Iterable[int] | None = None,
        group: str | None = None,
        start: Start | None = None,
        uncommitted: Literal["earliest", "latest"] = "earliest",
        on_out_of_range: OutOfRange = "earliest",
        max_messages: int = consumer.DEFAULT_MAX_MESSAGES,
        max_bytes: int = consumer.DEFAULT_MAX_BYTES,
        wait_ms: int = consumer.DEFAULT_WAIT_MS,
        prefetch_bytes: int = consumer.DEFAULT_PREFETCH_BYTES,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> None:
        self._thread = client._thread
        self._ahead: deque[Message] = deque()

        async def make() -> consumer.Consumer:
            made = consumer.Consumer(
                client._async,
                topic,
                queues=queues,
                group=group,
                start=start,
                uncommitted=uncommitted,
                on_out_of_range=on_out_of_range,
                max_messages=max_messages,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                prefetch_bytes=prefetch_bytes,
                deadline_ms=deadline_ms,
                request_timeout_ms=request_timeout_ms,
            )
            await made.start()
            return made

        self._async = self._thread.call(make())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop fetching and drop what is buffered. Commits nothing."""
        self._ahead.clear()
        self._thread.call(self._async.close())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message; waits for it. The iteration ends when the consumer is closed."""
        if not self._ahead:
            try:
                self._ahead.extend(self._thread.call(self._async.poll(_READ_AHEAD_MESSAGES)))
            except ClientClosed:
                raise StopIteration from None
        return self._ahead.popleft()

    def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """See :meth:`lsmq.Consumer.poll`."""
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_messages, len(self._ahead)))]
        return self._thread.call(self._async.poll(max_messages, timeout_ms))

    def run(self, handler: Callable[[Message], None], *, concurrency: int = 1) -> None:
        """See :meth:`lsmq.Consumer.run`. The handler runs in threads, ``concurrency`` of them."""
        self._give_back()
        with concurrent.futures.ThreadPoolExecutor(concurrency, thread_name_prefix="lsmq-handler") as pool:

            async def handle(message: Message) -> None:
                await asyncio.get_running_loop().run_in_executor(pool, handler, message)

            self._thread.call(self._async.run(handle, concurrency=concurrency))

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to hand out of each queue, as of now."""
        return {**self._async.positions, **self._ahead_offsets()}

    def commit(self, offsets: Mapping[int, int] | None = None, *, reset: bool = False) -> None:
        """See :meth:`lsmq.Consumer.commit`."""
        if offsets is None:
            self._thread.call(self._async._commit_changed(self._ahead_offsets()))
        else:
            self._thread.call(self._async.commit(offsets, reset=reset))

    def seek(self, queue: int, offset: int) -> None:
        """See :meth:`lsmq.Consumer.seek`."""
        self._ahead = deque(message for message in self._ahead if message.queue != queue)

        async def seek() -> None:
            self._async.seek(queue, offset)

        self._thread.call(seek())

    def seek_to_time(self, moment: datetime | int, queues: Iterable[int] | None = None) -> None:
        """See :meth:`lsmq.Consumer.seek_to_time`."""
        chosen = None if queues is None else set(queues)
        self._ahead = deque(message for message in self._ahead if chosen is not None and message.queue not in chosen)
        self._thread.call(self._async.seek_to_time(moment, chosen))

    def _give_back(self) -> None:
        """Let what was read ahead be fetched again."""
        ahead = self._ahead_offsets()
        self._ahead.clear()

        async def seek() -> None:
            for queue, offset in ahead.items():
                self._async.seek(queue, offset)

        self._thread.call(seek())

    def _ahead_offsets(self) -> dict[int, int]:
        """The first offset of each queue that was read ahead and not handed out."""
        return {message.queue: message.offset for message in reversed(self._ahead)}


def _wait(thread: _LoopThread, work: Coroutine[Any, Any, None], timeout_ms: float | None) -> None:
    try:
        thread.call(work, None if timeout_ms is None else timeout_ms / 1000)
    except concurrent.futures.TimeoutError as error:
        raise TimedOut(f"not stored within {timeout_ms} ms; it may be still") from error

"""The blocking consumer."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from lsmq import consumer as asynchronous
from lsmq._fetch import OutOfRange
from lsmq.consumer import Start
from lsmq.errors import ClientClosed
from lsmq.record_batch import Message
from lsmq.sync._client import Client

_READ_AHEAD_MESSAGES = 1_000


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
        max_messages: int = asynchronous.DEFAULT_MAX_MESSAGES,
        max_bytes: int = asynchronous.DEFAULT_MAX_BYTES,
        wait_ms: int = asynchronous.DEFAULT_WAIT_MS,
        prefetch_bytes: int = asynchronous.DEFAULT_PREFETCH_BYTES,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> None:
        self._thread = client._thread
        self._ahead: deque[Message] = deque()

        async def make() -> asynchronous.Consumer:
            made = asynchronous.Consumer(
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

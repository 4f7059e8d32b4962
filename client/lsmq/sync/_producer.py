"""The blocking producer and its receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from lsmq import _batch_receipts, _receipts
from lsmq import producer as asynchronous
from lsmq._batch_receipts import SentBatch
from lsmq._message_parts import Body
from lsmq._receipts import Sent
from lsmq._shard_sender import ProducerStats
from lsmq._unclosed_producers import open_producers, warn_of_unclosed
from lsmq.errors import LsmqError
from lsmq.group_producer import GroupProducer
from lsmq.loop_thread import LoopThread, wait_for
from lsmq.messages import Key, MessageOptions, check_many
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_through, with_options_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEND_PORTION_MESSAGES = 10_000


class Receipt:
    """A message that a producer has accepted; :meth:`result` waits for it to be stored."""

    __slots__ = ("_async", "_thread")

    def __init__(self, thread: LoopThread, receipt: _receipts.Receipt) -> None:
        self._thread = thread
        self._async = receipt

    def done(self) -> bool:
        """Whether the message is stored or given up."""
        return self._async.done()

    def result(self, timeout_ms: float | None = None) -> Sent:
        """Where the message was stored. Raises the error it failed with, or ``TimedOut``."""
        if not self._async.done():
            wait_for(self._thread, self._async._batch.wait(), timeout_ms)
        return self._async.result()

    def exception(self, timeout_ms: float | None = None) -> LsmqError | None:
        """The error it failed with, or ``None``. Raises ``TimedOut``."""
        if not self._async.done():
            wait_for(self._thread, self._async._batch.wait(), timeout_ms)
        return self._async.exception()

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call ``callback(receipt)``, in the client's thread and so not for long, once it is stored or given up."""
        self._thread.do(lambda: self._async.add_done_callback(lambda _: callback(self)))


class Receipts:
    """Receipts of many messages in the order sent."""

    __slots__ = ("_parts", "_thread")

    def __init__(self, thread: LoopThread, parts: list[_receipts.Receipts]) -> None:
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

        wait_for(self._thread, wait_for_all(), timeout_ms)

    def results(self, timeout_ms: float | None = None) -> list[Sent]:
        """Where each message was stored. Raises what :meth:`wait` raises."""
        self.wait(timeout_ms)
        return [receipt.result() for part in self._parts for receipt in part]


class BatchReceipt:
    """The messages of one ``send_batch``."""

    __slots__ = ("_async", "_thread")

    def __init__(self, thread: LoopThread, receipt: _batch_receipts.BatchReceipt) -> None:
        self._thread = thread
        self._async = receipt

    def __len__(self) -> int:
        return len(self._async)

    def done(self) -> bool:
        """Whether each is stored or given up."""
        return self._async.done()

    def wait(self, timeout_ms: float | None = None) -> None:
        """Return once all are stored. Raises the first error among them, or ``TimedOut``."""
        wait_for(self._thread, self._async.wait(), timeout_ms)

    def result(self, timeout_ms: float | None = None) -> SentBatch:
        """Where the messages were stored. Raises what :meth:`wait` raises."""
        self.wait(timeout_ms)
        return self._async.result()

    def failed_rows(self) -> NDArray[Any]:
        """See :meth:`lsmq.BatchReceipt.failed_rows`."""
        return self._async.failed_rows()


class BlockingSender:
    """What producers of all kinds have: ``with`` flushes, and what waits can be seen.

    One that is never closed is flushed when the interpreter ends, for at most five seconds; a ``ResourceWarning`` names
    it where it held messages then, or when it was dropped.
    """

    _thread: LoopThread
    _async: asynchronous.Producer | GroupProducer
    _holder: asynchronous.Producer  # of the messages that wait

    def _holds(self, holder: asynchronous.Producer) -> None:
        self._holder = holder
        open_producers.add(holder, self._thread)

    def __del__(self) -> None:
        if "_holder" in self.__dict__:
            warn_of_unclosed(self._holder, "use 'with', or close() it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call_through(self._async.__aexit__(kind, error, trace))

    @property
    def buffered_bytes(self) -> int:
        """See :attr:`lsmq.Producer.buffered_bytes`."""
        return self._async.buffered_bytes

    @property
    def stats(self) -> ProducerStats:
        """See :attr:`lsmq.Producer.stats`."""
        return self._async.stats

    flush = blocking(asynchronous.Producer.flush)
    close = blocking_through(asynchronous.Producer.close)
    abort = blocking_through(asynchronous.Producer.abort)


class Producer(BlockingSender):
    """Blocking :class:`lsmq.Producer`: the same options, limits and guarantees."""

    _async: asynchronous.Producer

    @with_options_of(asynchronous.Producer)
    def __init__(self, client: Client, topic: str, **options: Any) -> None:
        self._thread = client._thread

        async def make() -> asynchronous.Producer:
            made = asynchronous.Producer(client._async, topic, **options)
            await made.start()
            self._holds(made)
            return made

        self._async = self._thread.take(make, asynchronous.Producer.close)

    def send(self, body: Body, **options: Unpack[MessageOptions]) -> Receipt:
        """Accept one message; waits only while the buffer is full. See :meth:`lsmq.Producer.send`."""
        return Receipt(self._thread, self._thread.call(self._async.send(body, **options)))

    def send_nowait(self, body: Body, **options: Unpack[MessageOptions]) -> Receipt:
        """Like :meth:`send`, but raises ``BufferFull`` where that would wait."""

        return Receipt(self._thread, self._thread.do(lambda: self._async.send_nowait(body, **options)))

    send_and_wait = blocking(asynchronous.Producer.send_and_wait)

    def send_many(
        self,
        messages: Iterable[Body | tuple[Key | None, Body]],
        *,
        tag: str | None = None,
        queue: int | str | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Receipts:
        """Accept many messages, crossing once for thousands. See :meth:`lsmq.Producer.send_many`.

        ``messages`` is read in the calling thread.
        """
        check_many(messages)
        parts: list[_receipts.Receipts] = []
        source = iter(messages)
        while portion := list(islice(source, _SEND_PORTION_MESSAGES)):
            sending = self._async.send_many(
                portion, tag=tag, queue=queue, delay_ms=delay_ms, deliver_at_ms=deliver_at_ms
            )
            parts.append(self._thread.call(sending))
        return Receipts(self._thread, parts)

    def send_batch(
        self,
        bodies: Any,
        *,
        lengths: int | Sequence[int] | Any = None,
        queues: int | str | Sequence[int] | Sequence[str] | Any = None,
        keys: Key | Sequence[Key | None] | Any = None,
        tags: str | Sequence[str | None] | Any = None,
        types: str | Sequence[str | None] | Any = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str] | None] | Any = None,
        priorities: int | Sequence[int] | Any = None,
        ttl_ms: int | Sequence[int] | Any = None,
        subpriorities: int | Sequence[int] | Any = None,
        expires_at_ms: int | Sequence[int] | Any = None,
    ) -> BatchReceipt:
        """Accept many messages as columns. See :meth:`lsmq.Producer.send_batch`."""
        sending = self._async.send_batch(
            bodies,
            lengths=lengths,
            queues=queues,
            keys=keys,
            tags=tags,
            types=types,
            properties=properties,
            priorities=priorities,
            ttl_ms=ttl_ms,
            subpriorities=subpriorities,
            expires_at_ms=expires_at_ms,
        )
        return BatchReceipt(self._thread, self._thread.call(sending))

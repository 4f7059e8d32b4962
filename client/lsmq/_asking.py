"""What a client does of requests and replies: see :mod:`lsmq._requests`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from lsmq.messages import Message, MessageOptions

if TYPE_CHECKING:
    from lsmq._message_parts import Body
    from lsmq._receipts import Sent
    from lsmq._requests import Requests


class Asking:
    """The part of :class:`lsmq.Client` that asks and answers."""

    _requests: Requests | None = None

    async def request(
        self,
        topic: str,
        body: Body,
        *,
        timeout_ms: float = 30_000,
        reply_topic: str = "lsmq-replies",
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Send a message, and return the reply that whoever handles it sends with :meth:`reply` (``docs/requests.md``).

        ``options`` are those of :meth:`.Producer.send`; with a ``dedupe_id`` of which a request was stored before, the
        reply to that one is returned. Raises ``TimedOut`` when no reply has come in time, and ``QuotaExceeded`` where
        the topic is full and drops the request.
        """
        return await self._begin_requests().request(topic, body, timeout_ms, reply_topic, options)

    async def reply(self, message: Message, body: Body, **options: Unpack[MessageOptions]) -> Sent:
        """Answer a request; stored on return.

        Whoever may send requests can send some that cannot be answered, so go on with the next one after
        ``InvalidRequest``, for one that asks for no reply, or (``MessageTooLarge``) where its topic takes no such
        large one; ``UnknownTopic`` and ``UnknownQueue``, where there is no such place; ``Forbidden``; and
        ``QuotaExceeded`` where it is full.
        """
        return await self._begin_requests().reply(message, body, options)

    def _begin_requests(self) -> Requests:
        from lsmq._requests import Requests  # Which is made of producers and consumers, which are made of clients.

        self._requests = self._requests or Requests(self)  # type: ignore[arg-type]  # It is a client.
        return self._requests

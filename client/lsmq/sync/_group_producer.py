"""The blocking producer of a group."""

from __future__ import annotations

from typing import Any, Unpack

from lsmq import group_producer as asynchronous
from lsmq._message_parts import Body
from lsmq.messages import MessageOptions
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking_call, with_options_of
from lsmq.sync._producer import BlockingSender, Receipt


class GroupProducer(BlockingSender):
    """Blocking :class:`lsmq.GroupProducer`: the same options and guarantees. It takes over when it is made."""

    _async: asynchronous.GroupProducer

    @with_options_of(asynchronous.GroupProducer)
    def __init__(self, client: Client, topic: str, group: str, **options: Any) -> None:
        self._thread = client._thread

        async def make() -> asynchronous.GroupProducer:
            made = asynchronous.GroupProducer(client._async, topic, group, **options)
            await made.__aenter__()
            self._holds(made._producer)
            return made

        self._async = self._thread.take(make, asynchronous.GroupProducer.close)

    @property
    def epoch(self) -> int:
        """See :attr:`lsmq.GroupProducer.epoch`."""
        return self._async.epoch

    def send(self, body: Body, *, position: int, **options: Unpack[MessageOptions]) -> Receipt:
        """See :meth:`lsmq.GroupProducer.send`."""
        return Receipt(self._thread, self._thread.call(self._async.send(body, position=position, **options)))

    last_acknowledged = blocking_call(asynchronous.GroupProducer.last_acknowledged)

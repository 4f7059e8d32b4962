"""The blocking client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from lsmq import client as asynchronous
from lsmq import runtime
from lsmq._outages import OnOutage, Outage
from lsmq.errors import ClientClosed
from lsmq.loop_thread import LoopThread
from lsmq.sync._crossing import blocking, with_all_options_of
from lsmq.sync._lifecycle import BlockingCloseable


class Client(BlockingCloseable):
    """Blocking :class:`lsmq.Client`."""

    _async: asynchronous.Client

    @with_all_options_of(asynchronous.Client)
    def __init__(self, *urls: Any, on_outage: OnOutage | None = None, **options: Any) -> None:
        """``on_outage`` is called in a thread of its own, and may use the client."""

        def in_a_thread(outage: Outage) -> None:
            runtime.Thread(target=on_outage, args=(outage,), name="lsmq outage", daemon=True).start()

        told = None if on_outage is None else in_a_thread
        self._async = asynchronous.Client(*urls, on_outage=told, **options)
        self._async._told = True
        self._thread = LoopThread()
        # Names of nodes are looked up in threads, and since Python 3.12 none can be begun once the interpreter ends.
        try:
            self._thread.call(asyncio.to_thread(bool))
        except BaseException:
            self._thread.begin_stop()
            raise

    def _left_open(self) -> str:
        return f"a client of {', '.join(self.urls[:1])}" if self._thread.runs_here else ""

    def close(self) -> None:
        """Close the connections and stop the thread. Close producers and consumers first."""
        try:
            self._thread.call_through(self._async.close())
        except ClientClosed:
            return
        except BaseException:  # An interrupt: what is left of it is done at once, as the thread stops.
            self._thread.begin_stop()
            raise
        self._thread.stop()

    @property
    def urls(self) -> list[str]:
        """All nodes known."""
        return self._async.urls

    @property
    def deadline_ms(self) -> int:
        """As it was given."""
        return self._async.deadline_ms

    @property
    def request_timeout_ms(self) -> int:
        """As it was given."""
        return self._async.request_timeout_ms

    create_topic = blocking(asynchronous.Client.create_topic)
    grow_topic = blocking(asynchronous.Client.grow_topic)
    spread_topic = blocking(asynchronous.Client.spread_topic)
    alter_topic = blocking(asynchronous.Client.alter_topic)
    topics = blocking(asynchronous.Client.topics)
    topic = blocking(asynchronous.Client.topic)
    topic_usage = blocking(asynchronous.Client.topic_usage)
    delete_topic = blocking(asynchronous.Client.delete_topic)
    trim_topic = blocking(asynchronous.Client.trim_topic)
    purge_topic = blocking(asynchronous.Client.purge_topic)
    offsets = blocking(asynchronous.Client.offsets)
    queues = blocking(asynchronous.Client.queues)
    top_queues = blocking(asynchronous.Client.top_queues)
    queue = blocking(asynchronous.Client.queue)
    declare_queue = blocking(asynchronous.Client.declare_queue)
    delete_queue = blocking(asynchronous.Client.delete_queue)
    trim_queue = blocking(asynchronous.Client.trim_queue)
    alter_queue = blocking(asynchronous.Client.alter_queue)
    queue_options = blocking(asynchronous.Client.queue_options)
    message = blocking(asynchronous.Client.message)
    find_messages = blocking(asynchronous.Client.find_messages)
    latest = blocking(asynchronous.Client.latest)
    groups = blocking(asynchronous.Client.groups)
    committed_offsets = blocking(asynchronous.Client.committed_offsets)
    commit_offsets = blocking(asynchronous.Client.commit_offsets)
    request = blocking(asynchronous.Client.request)
    reply = blocking(asynchronous.Client.reply)
    status = blocking(asynchronous.Client.status)
    ask = blocking(asynchronous.Client.ask)

    def delete_messages(self, topic: str, places: Iterable[tuple[int, int]]) -> None:
        """See :meth:`lsmq.Client.delete_messages`."""
        self._thread.call(self._async.delete_messages(topic, list(places)))

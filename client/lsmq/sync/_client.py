"""The blocking client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from lsmq import client as asynchronous
from lsmq import runtime
from lsmq._loop_thread import LoopThread
from lsmq._outages import OnOutage, Outage
from lsmq.errors import ClientClosed
from lsmq.record_batch import Message
from lsmq.sync._lifecycle import Closing
from lsmq.topics import Ack, Offsets, Topic


class Client(Closing):
    """Blocking :class:`lsmq.Client`."""

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        zookeeper: str | None = None,
        cluster: str | None = None,
        refresh_s: float = asynchronous.DEFAULT_REFRESH_S,
        cache_dir: str | Path | None = None,
        deadline_ms: int = asynchronous.DEFAULT_DEADLINE_MS,
        request_timeout_ms: int = asynchronous.DEFAULT_REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = asynchronous.DEFAULT_CONNECT_TIMEOUT_MS,
        on_outage: OnOutage | None = None,
    ) -> None:
        """``on_outage`` is called in a thread of its own, and may use the client."""

        def in_a_thread(outage: Outage) -> None:
            runtime.Thread(target=on_outage, args=(outage,), name="lsmq outage", daemon=True).start()

        self._async = asynchronous.Client(
            urls,
            zookeeper=zookeeper,
            cluster=cluster,
            refresh_s=refresh_s,
            cache_dir=cache_dir,
            deadline_ms=deadline_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            on_outage=None if on_outage is None else in_a_thread,
        )
        self._thread = LoopThread()
        # Names of nodes are looked up in threads, and since Python 3.12 none can be begun once the interpreter ends.
        self._thread.call(asyncio.to_thread(bool))

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

    @property
    def deadline_ms(self) -> int:
        """As it was given."""
        return self._async.deadline_ms

    @property
    def request_timeout_ms(self) -> int:
        """As it was given."""
        return self._async.request_timeout_ms

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        exist_ok: bool = True,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        ack: Ack | None = None,
        max_message_bytes: int | None = None,
        order: Literal["ordinary", "strict"] | None = None,
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
                order=order,
            )
        )

    def grow_topic(self, name: str, queues: int) -> Topic:
        """See :meth:`lsmq.Client.grow_topic`."""
        return self._thread.call(self._async.grow_topic(name, queues))

    def topics(self) -> list[Topic]:
        """See :meth:`lsmq.Client.topics`."""
        return self._thread.call(self._async.topics())

    def topic(self, name: str) -> Topic:
        """See :meth:`lsmq.Client.topic`."""
        return self._thread.call(self._async.topic(name))

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """See :meth:`lsmq.Client.delete_topic`."""
        self._thread.call(self._async.delete_topic(name, missing_ok=missing_ok))

    def trim_topic(self, name: str, offsets: Mapping[int, int]) -> None:
        """See :meth:`lsmq.Client.trim_topic`."""
        self._thread.call(self._async.trim_topic(name, offsets))

    def delete_messages(self, topic: str, places: Iterable[tuple[int, int]]) -> None:
        """See :meth:`lsmq.Client.delete_messages`."""
        self._thread.call(self._async.delete_messages(topic, list(places)))

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

    def ask(self, method: str, path: str, value: Any = None) -> Any:
        """See :meth:`lsmq.Client.ask`."""
        return self._thread.call(self._async.ask(method, path, value))

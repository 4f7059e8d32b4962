"""Dead letters, blocking."""

from __future__ import annotations

from collections.abc import Iterable

from lsmq import dead_letters as asynchronous
from lsmq.dead_letters import DeadLetter
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_iterator


class DeadLetters:
    """Blocking :class:`lsmq.DeadLetters`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._thread = client._thread
        self._async = asynchronous.DeadLetters(client._async, name)

    read = blocking_iterator(asynchronous.DeadLetters.read)
    replay = blocking(asynchronous.DeadLetters.replay)
    purge = blocking(asynchronous.DeadLetters.purge)

    def delete(self, letters: Iterable[DeadLetter]) -> None:
        """See :meth:`lsmq.DeadLetters.delete`."""
        self._thread.call(self._async.delete(list(letters)))

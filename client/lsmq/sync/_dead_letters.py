"""Dead letters, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lsmq import dead_letters as asynchronous
from lsmq.dead_letters import DeadLetter
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking

_PORTION = 500


class DeadLetters:
    """Blocking :class:`lsmq.DeadLetters`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._thread = client._thread
        self._async = asynchronous.DeadLetters(client._async, name)

    def read(self) -> Iterator[DeadLetter]:
        """See :meth:`lsmq.DeadLetters.read`."""
        letters = self._async.read()

        async def some() -> list[DeadLetter]:
            found: list[DeadLetter] = []
            async for letter in letters:
                found.append(letter)
                if len(found) == _PORTION:
                    break
            return found

        try:
            while portion := self._thread.call(some()):
                yield from portion
        finally:
            self._thread.call(letters.aclose())

    replay = blocking(asynchronous.DeadLetters.replay)
    purge = blocking(asynchronous.DeadLetters.purge)

    def delete(self, letters: Iterable[DeadLetter]) -> None:
        """See :meth:`lsmq.DeadLetters.delete`."""
        self._thread.call(self._async.delete(list(letters)))

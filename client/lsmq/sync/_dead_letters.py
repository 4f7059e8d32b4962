"""Dead letters, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lsmq import dead_letters as asynchronous
from lsmq.dead_letters import DeadLetter
from lsmq.sync._client import Client

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

    def replay(self, letters: Sequence[DeadLetter]) -> None:
        """See :meth:`lsmq.DeadLetters.replay`."""
        self._thread.call(self._async.replay(letters))

    def delete(self, letters: Iterable[DeadLetter]) -> None:
        """See :meth:`lsmq.DeadLetters.delete`."""
        self._thread.call(self._async.delete(list(letters)))

    def purge(self) -> int:
        """See :meth:`lsmq.DeadLetters.purge`."""
        return self._thread.call(self._async.purge())

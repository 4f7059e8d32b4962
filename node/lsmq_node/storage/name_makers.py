"""Who made the queues with names of a shard, of those that are there and were made since its store was opened.

Callers give *accounts*, texts that mean nothing here; a queue counts for each of those that were given when it got its
name. Nothing of it reaches the disk. Memory: 4 bytes for each number of a topic in which somebody made queues, and an
entry for each set of accounts that has any, of which a bounded number is known: who comes beyond it counts for nobody.
"""

from __future__ import annotations

import numpy as np

from lsmq import runtime

from .columns import U32

#: Whom a queue counts for; nobody where it is empty.
Accounts = tuple[str, ...]
_NOBODY = 0
#: So many sets of accounts are known of a shard.
MOST_MAKERS = 100_000


class NameMakers:
    """Of a shard. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.Lock()  # guards what follows; nothing else is locked meanwhile
        self._makers: dict[Accounts, int] = {}
        self._accounts: list[Accounts] = [()]  # by maker
        self._made: list[int] = [0]  # by maker
        self._free: list[int] = []
        self._counts: dict[str, int] = {}

    def count(self, account: str) -> int:
        """Queues that count for it."""
        return self._counts.get(account, 0)

    def take(self, accounts: Accounts, count: int) -> int:
        """So many more count for these; returns the maker's number."""
        if not accounts:
            return _NOBODY
        with self._lock:
            maker = self._makers.get(accounts)
            if maker is None and len(self._makers) >= MOST_MAKERS:
                return _NOBODY
            if maker is None:
                maker = self._makers[accounts] = self._free.pop() if self._free else len(self._made)
                if maker == len(self._made):
                    self._accounts.append(accounts)
                    self._made.append(0)
                self._accounts[maker] = accounts
            self._made[maker] += count
            for account in accounts:
                self._counts[account] = self._counts.get(account, 0) + count
            return maker

    def give_back(self, makers: U32) -> None:
        """Queues of these makers are gone, one for each entry."""
        found, counts = np.unique(makers, return_counts=True)
        with self._lock:
            for maker, count in zip(found.tolist(), counts.tolist(), strict=True):
                if maker == _NOBODY:
                    continue
                self._made[maker] -= count
                assert self._made[maker] >= 0, "no more queues go than were made"
                accounts = self._accounts[maker]
                for account in accounts:
                    self._counts[account] -= count
                    if not self._counts[account]:
                        del self._counts[account]
                if not self._made[maker]:
                    del self._makers[accounts]
                    self._free.append(maker)


class TopicMakers:
    """Of a topic on a shard, by number. Whoever calls it holds the lock of the topic's names."""

    def __init__(self, makers: NameMakers) -> None:
        self._makers = makers
        self._by_number: U32 = np.zeros(0, np.uint32)

    def made(self, numbers: U32, accounts: Accounts) -> None:
        """Queues have got these numbers, each once."""
        if not accounts and not len(self._by_number):
            return
        end = int(numbers.max()) + 1
        if end > len(self._by_number):
            grown = np.zeros(max(end, 2 * len(self._by_number)), np.uint32)
            grown[: len(self._by_number)] = self._by_number
            self._by_number = grown
        self.gone(numbers)
        self._by_number[numbers] = self._makers.take(accounts, len(numbers))

    def gone(self, numbers: U32) -> None:
        """There are no queues with these numbers, each given once, or soon: whether they go after all or not."""
        numbers = numbers[numbers < len(self._by_number)]
        makers = self._by_number[numbers]
        if makers.any():
            self._makers.give_back(makers)
            self._by_number[numbers] = _NOBODY

    def all_gone(self) -> None:
        """Nothing is known of the queues that there were."""
        if len(self._by_number):
            self._makers.give_back(self._by_number)
            self._by_number = np.zeros(0, np.uint32)

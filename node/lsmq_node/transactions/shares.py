"""What the transactions of one address hold that are not finished: a share, so that one cannot take all there is. Pure.

Counted by whoever leads the coordinator's shard, from when it began to: what was open before counts for nobody.
"""

from __future__ import annotations

from lsmq.errors import DocumentsFull, TooManyGroups, TooManyTransactions
from lsmq_node.broker import NOBODY, AddressShare, Made, Maker, SharedThing

from .book import MAX_UNFINISHED
from .records import BookChange, RecordKey

SHARED = SharedThing(
    TooManyTransactions,
    "transactions in this shard that are open or not delivered",
    f"the {MAX_UNFINISHED} that a producer group may have",
    "finish some",
)

SHARED_GROUPS = SharedThing(
    TooManyGroups,
    "producer groups with members in this shard",
    "max_groups",
    "let producers share a group, or wait until members leave",
)


class ProducerGroupShares:
    """Which address brought each producer group its first member, of those that have any. Loop thread only."""

    def __init__(self, share: AddressShare) -> None:
        self._share = share
        self._owner: dict[str, str | None] = {}

    def begin(self, group: str, address: str | None) -> None:
        """It has no member, and is to have one. Raises ``TooManyGroups``."""
        if group not in self._owner:
            self._share.check(address)
            self._share.add(address)
            self._owner[group] = address

    def end(self, group: str) -> None:
        """It has no member any more."""
        if group in self._owner:
            self._share.remove(self._owner.pop(group))


class AddressShares:
    """Loop thread only."""

    def __init__(self, share: AddressShare, share_bytes: int, made: Made | None = None) -> None:
        """``share``: of transactions; ``made``: which are of principals with limits."""
        self.share_bytes = share_bytes
        self._share = share
        self._made = made
        self._owner: dict[RecordKey, tuple[str, int]] = {}  # client and bytes, of what is not finished
        self._makers: dict[RecordKey, Maker] = {}
        self._bytes: dict[str, int] = {}

    def check(self, key: RecordKey, client: str, more_bytes: int) -> None:
        """Whether ``client`` may begin this one, or add to it. Raises ``TooManyTransactions``, ``DocumentsFull``."""
        if key not in self._owner:
            self._share.check(client or None)
        held = self._bytes.get(client, 0)
        if held + more_bytes > self.share_bytes:
            raise DocumentsFull(
                f"transactions of your address that are not finished hold {held} bytes in this shard, and "
                f"{more_bytes} more are over its share of {self.share_bytes} (address_share_percent of half of "
                "max_documents_bytes); finish some",
                used_bytes=held,
                limit=self.share_bytes,
            )

    def begun(self, key: RecordKey, client: str) -> None:
        """This client begins it. Raises ``TooManyTransactions`` for a principal who may not."""
        if key not in self._owner:
            if self._made is not None:
                self._made.make(key)
            self._owner[key] = client, 0
            self._makers[key] = Maker.asking()
            self._share.add(client or None)

    def maker(self, key: RecordKey) -> Maker:
        """Who began it, and has not had it finished; nobody where that is not known."""
        return self._makers.get(key, NOBODY)

    def follow(self, plan: BookChange) -> None:
        """What a plan changes is in line."""
        for key, transaction in plan.transactions.items():
            known = self._owner.get(key)
            if known is None:
                continue
            client, size = known
            if transaction is None or transaction.is_finished:
                del self._owner[key], self._makers[key]
                if self._made is not None:
                    self._made.gone(key)
                self._share.remove(client or None)
                self._hold(client, -size)
            else:
                self._owner[key] = client, transaction.size_bytes
                self._hold(client, transaction.size_bytes - size)

    def _hold(self, client: str, more_bytes: int) -> None:
        held = self._bytes.pop(client, 0) + more_bytes
        if held:
            self._bytes[client] = held

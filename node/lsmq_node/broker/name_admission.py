"""How many queues with names there may be in a shard, of all its topics, and how many of these one who asks may make.

Only what somebody asks for is refused: what was accepted before, a transaction or a message that comes later, makes the
queues that it is for, and they count in all. Whose queues are whose is known of those that were made since this node
opened the shard's store; what goes by itself, or is deleted, counts no longer.
"""

from __future__ import annotations

from collections.abc import Callable

from lsmq.errors import TooManyQueues
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Accounts, AdmitNames, ShardStore

from .address_limits import SharedThing
from .allowances import Allowances, Limited, Maker

_SETTING = "max_named_queues"
_REMEDY = "delete some, or have empty ones forgotten (forget_empty_ms)"
_SHARED = SharedThing(TooManyQueues, "queues with names in this shard that are its own", _SETTING, _REMEDY)


class NameAdmission:
    """Of one node. Loop thread only."""

    def __init__(self, config: NodeConfig, allowances: Allowances) -> None:
        self._limit = config.max_named_queues
        self._allowances = allowances
        self._share = allowances.addresses.share(self._limit, _SHARED)

    def of(self, store: ShardStore) -> AdmitNames:
        """What whoever asks now may make in a shard. What is returned raises ``TooManyQueues``."""
        maker = Maker.asking()

        def admit(count: int) -> Accounts:
            there = store.named.count()
            if there + count > self._limit:
                raise TooManyQueues(
                    f"this shard has {there} queues with names, and {count} more are over its limit of {self._limit} "
                    f"({_SETTING}); {_REMEDY}",
                    setting=_SETTING,
                    limit=self._limit,
                    sent=False,
                )
            return self._accounts(maker, store.named.makers.count, count)

        return admit

    def _accounts(self, maker: Maker, had: Callable[[str], int], count: int) -> Accounts:
        accounts = []
        if maker.address is not None:
            accounts.append(account := f"address {maker.address}")
            if (made := had(account)) + count > self._share.limit:
                raise self._share.refusal(made)
        if maker.principal is not None and (limit := self._allowances.limit(Limited.QUEUES, maker.principal)):
            accounts.append(account := f"principal {maker.principal}")
            if (made := had(account)) + count > limit:
                raise self._allowances.refusal(Limited.QUEUES, maker.principal, made, limit)
        return tuple(accounts)

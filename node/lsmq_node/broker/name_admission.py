"""How many queues with names there may be in a shard, of all its topics, and how many of these one who asks may make.

Only what somebody asks for is refused: what was accepted before, a transaction or a message that comes later, makes the
queues that it is for, and they count. Whose queues are whose is known of those that were made since this node opened
the shard's store; what goes by itself, or is deleted, counts no longer.
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

    def of(self, store: ShardStore, maker: Maker | None = None) -> AdmitNames:
        """What ``maker``, or whoever asks now, may make in a shard. What is returned raises ``TooManyQueues``."""
        who = maker or Maker.asking()

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
            self._check(who, store.named.makers.count, count)
            return self.accounts(who)

        return admit

    def accounts(self, maker: Maker) -> Accounts:
        """Whom the queues count for that he makes."""
        found = []
        if maker.address is not None:
            found.append(_of_address(maker.address))
        if maker.principal is not None and self._limit_of(maker.principal):
            found.append(_of_principal(maker.principal))
        return tuple(found)

    def _check(self, maker: Maker, had: Callable[[str], int], count: int) -> None:
        if maker.address is not None and (made := had(_of_address(maker.address))) + count > self._share.limit:
            raise self._share.refusal(made)
        if maker.principal is None or not (limit := self._limit_of(maker.principal)):
            return
        if (made := had(_of_principal(maker.principal))) + count > limit:
            raise self._allowances.refusal(Limited.QUEUES, maker.principal, made, limit)

    def _limit_of(self, principal: str) -> int:
        return self._allowances.limit(Limited.QUEUES, principal)


def _of_address(address: str) -> str:
    return f"address {address}"


def _of_principal(principal: str) -> str:
    return f"principal {principal}"

"""Delayed messages: kept in a shard by the time when they are due, and put in their queues at that time.

How they lie in a store is :mod:`lsmq_node.storage.delayed`'s. The leader of a shard sleeps until the next one is due
(:mod:`.shard_delayed`), reads what is due by then, makes batches of it (:mod:`.deliveries`, pure) and stores them, in
one piece of the log with how far it has come.
"""

from .ids import DelayedId
from .service import DelayedService
from .shard_delayed import PendingMessage

__all__ = ["DelayedId", "DelayedService", "PendingMessage"]

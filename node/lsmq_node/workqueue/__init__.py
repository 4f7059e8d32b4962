"""Work queues: consumers compete for single messages and own no queues.

:mod:`.ledger`, :mod:`.tasks`, :mod:`.chunks`, :mod:`.receipts` and :mod:`.settings` are pure; :mod:`.shard_work` stores
and waits for them on a shard, :mod:`.burial` puts dead letters away; :class:`WorkService` is what the API asks.
"""

from .service import WorkService
from .settings import WorkSettings
from .tasks import Refusal

__all__ = ["Refusal", "WorkSettings", "WorkService"]

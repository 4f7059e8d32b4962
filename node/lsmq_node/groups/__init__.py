"""Consumer groups: who shares which queues, how far they are, and who may say so.

:mod:`.assignment`, :mod:`.plan`, :mod:`.holdings` and :mod:`.group` are pure; :mod:`.coordinator` stores and waits for
them on a shard; :class:`GroupService` is what the API asks.
"""

from .declared import DeclaredGroups
from .group import Beat, BeatAnswer, CoordinatedGroup
from .plan import Mode
from .service import GroupService

__all__ = ["BeatAnswer", "Beat", "CoordinatedGroup", "DeclaredGroups", "GroupService", "Mode"]

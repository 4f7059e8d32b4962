"""Messages that go to another topic instead of being lost: dead letters of work queues, what has expired, and
what was dropped at a limit.

:mod:`.letter` makes a message's letter, for whoever moves one; :class:`LetterService` moves the others, of topics that
say where to (``expired_to``, ``dropped_to``). Where letters may go: :mod:`lsmq_node.broker.letter_targets`.
"""

from .letter import LetterRecord, add_letter, origin, records_of
from .service import LetterService

__all__ = ["LetterService", "LetterRecord", "add_letter", "origin", "records_of"]

"""Messages that go to another topic instead of being lost: dead letters of work queues, and what has expired.

:mod:`.letter` makes a message's letter, for whoever moves one; :class:`LetterService` moves what expires in topics that
say where to (``expired_to``). Where letters may go: :mod:`lsmq_node.broker.letter_targets`.
"""

from .letter import Record, add_letter, origin, records_of
from .service import LetterService

__all__ = ["LetterService", "Record", "add_letter", "origin", "records_of"]

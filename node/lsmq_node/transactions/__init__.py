"""Transactions and producer groups: messages that appear all together, or not at all, and who decides that.

:mod:`.records`, :mod:`.memory`, :mod:`.book` and :mod:`.lanes` are pure; :mod:`.coordinator` stores and sends;
:class:`TransactionService` is what the API asks. docs/transactions.md says what is promised.
"""

from .delivery import TransactionDelivery
from .records import TransactionPart, TransactionRecord, TransactionState
from .service import TransactionService

__all__ = ["TransactionDelivery", "TransactionPart", "TransactionState", "TransactionRecord", "TransactionService"]

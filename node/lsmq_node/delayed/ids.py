"""Ids of messages that come later: addresses, as those of other messages are.

32 hex digits: 4 of the shard, with the second highest bit set, so that they are nobody else's; 12 of the time when it
is due, milliseconds since 1970; 16 of its offset there. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from lsmq.errors import UnknownMessage
from lsmq.record_batch import delayed_id
from lsmq_node.storage import DuePlace

_ID = re.compile("[0-9a-f]{32}")
_MARK = 0x4000


class DelayedId(NamedTuple):
    """Where a pending message lies."""

    shard: int
    due_ms: int
    offset: int

    @property
    def place(self) -> DuePlace:
        """In its shard."""
        return self.due_ms, self.offset

    def __str__(self) -> str:
        return delayed_id(*self)

    @classmethod
    def parse(cls, text: str, shard_count: int) -> Self:
        """Raises ``UnknownMessage`` for what is no id of a message that comes later."""
        lowered = text.lower()
        head = int(lowered[:4], 16) if _ID.fullmatch(lowered) else 0
        if head >> 14 != 1 or head - _MARK >= shard_count or int(lowered[16], 16) >= 8:
            raise UnknownMessage(
                f"{text!r:.80} is not the id of a delayed message; such an id is in the answer to sending one", id=text
            )
        return cls(head - _MARK, int(lowered[4:16], 16), int(lowered[16:], 16))

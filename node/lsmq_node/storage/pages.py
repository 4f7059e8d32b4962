"""Pages of queues: what is kept of a topic's queues changes, and goes to the checkpoint, by so many together."""

from __future__ import annotations

#: Of so many queues (a power of two) the numbers change together, as far as checkpoints are concerned.
PAGE_BITS = 12
PAGE_QUEUES = 1 << PAGE_BITS

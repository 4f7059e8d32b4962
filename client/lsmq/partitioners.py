"""Which queue a message goes to when its sender names none.

The default needs no object from here: a message with a key goes to ``key_hash(key) % queues``, so that
equal keys share a queue and keep their order (``queues`` being those that the topic was made with where its order is
strict: for any partitioner, where there is a key); messages without one go to a queue together until the batch
is full or due, and then to the next queue, which keeps batches large however many queues there are.

Any callable ``(key, body, queues) -> queue`` does as well. It runs once a message, on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from lsmq import runtime
from lsmq.messages import Key, key_hash

Partitioner = Callable[[Key | None, bytes, int], int]


def round_robin(first: int | None = None) -> Partitioner:
    """Every message to the next queue, keys or not; from a random queue unless ``first`` is given."""
    turn = -1 if first is None else first - 1

    def choose(key: Key | None, body: bytes, queues: int) -> int:
        nonlocal turn
        if turn < 0 and first is None:
            turn = runtime.random.randrange(queues)
        turn = (turn + 1) % queues
        return turn

    return choose


def by_key(key: Key | None, body: bytes, queues: int) -> int:
    """By hash of the key; messages without one all go to queue 0, so that they keep their order as well."""
    return 0 if key is None else key_hash(key) % queues


def among(queues: list[int]) -> Partitioner:
    """Every message to the next of these queues in turn."""
    turns = cycle(queues)

    def choose(key: Key | None, body: bytes, queues: int) -> int:
        return next(turns)

    return choose

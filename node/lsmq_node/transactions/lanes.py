"""What a shard has had from each coordinator: that is how a delivery that comes twice is stored once.

A coordinator numbers the batches that a shard is to get, and sends them in order. The shard stores, behind the batches
and in the same unit, the number of the last: the document ``transaction-lane/<shard of the coordinator>``. A crash can
leave batches without the document (see ``ShardStore.append_many``), so each batch is also one of an idempotent
producer: its id says the coordinator, its epoch the number. Whoever begins to lead takes the greater of the two.

One document and one producer a coordinator, however many transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from lsmq.errors import DeliveriesAhead, InvalidRequest
from lsmq_node.broker import BROKER_PRODUCERS
from lsmq_node.storage.documents import LANE

from .delivery import TransactionDelivery

_EPOCH_BITS = 32
_MAX_AHEAD = 1 << 20  # a delivery has far fewer batches


def lane_key(coordinator: int) -> str:
    return f"{LANE}{coordinator}"


def producer_of(coordinator: int, number: int) -> tuple[int, int]:
    """Producer id and epoch of a coordinator's batch."""
    return BROKER_PRODUCERS | coordinator << 40 | number >> _EPOCH_BITS, number & ((1 << _EPOCH_BITS) - 1)


def fresh_batches(shard: int, last: int, delivery: TransactionDelivery) -> list[tuple[int, int, str, bytes]]:
    """Those that ``shard`` has not had, which has had all up to ``last``.

    Numbers may be missing: of what was decided and lost. Raises ``DeliveriesAhead``, and ``InvalidRequest`` for numbers
    that no coordinator gives: one that is far ahead would make the shard take all that is to come for what it has had.
    """
    numbers = [0, *(number for number, *_ in delivery.batches)]
    if any(number <= before for before, number in pairwise(numbers)) or numbers[-1] > delivery.limit + _MAX_AHEAD:
        raise InvalidRequest(
            f"the numbers of a delivery ascend, up to {delivery.limit + _MAX_AHEAD} at most, since none above "
            f"{delivery.limit} was sent before; these are {numbers[1]} to {numbers[-1]}"
        )
    if last > delivery.limit:
        raise DeliveriesAhead(
            f"shard {shard} has had delivery {last} of the coordinator in shard {delivery.coordinator}, which has sent "
            f"none above {delivery.limit}: it has lost what it had decided, or another one leads by now",
            shard=shard,
            coordinator=delivery.coordinator,
            last=last,
        )
    return [batch for batch in delivery.batches if batch[0] > last]


def last_numbers(
    documents: Iterable[tuple[str, bytes]], coordinators: int, producer_epoch: Callable[[int], int | None]
) -> tuple[dict[int, int], dict[str, bytes | None]]:
    """By coordinator, the number of the last batch that is stored; and documents that do not say so yet."""
    last = {int(key.removeprefix(LANE)): int(body) for key, body in documents}
    behind: dict[str, bytes | None] = {}
    for coordinator in range(coordinators):
        known = last.get(coordinator, 0)
        for high in (known >> _EPOCH_BITS, (known >> _EPOCH_BITS) + 1):
            epoch = producer_epoch(producer_of(coordinator, high << _EPOCH_BITS)[0])
            if epoch is not None:
                known = max(known, high << _EPOCH_BITS | epoch)
        if known > last.get(coordinator, 0):
            last[coordinator] = known
            behind[lane_key(coordinator)] = b"%d" % known
    return last, behind

"""How a group's work queue on a topic behaves, and what of it is stored: only what was set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq.messages import key_hash, tag_hash, type_hash
from lsmq.topics import dead_letter_topic
from lsmq_node.machines import documents

VERSION = 1
MIN_VISIBILITY_MS = 100
MAX_VISIBILITY_MS = 43_200_000
MAX_DELAY_MS = 604_800_000
MAX_DELIVERIES = 1_000
MAX_WEIGHT = 1_000
MIN_RATE = 0.001
MAX_RATE = 1_000_000
MAX_WEIGHTS = 1_000
MAX_WEIGHT_NAME_BYTES = 1_024
MAX_PROPERTY_NAME_BYTES = 255
#: Among what was set, which an earlier release passes over.
_BEGUN = "begun"
_QUEUE_NUMBER = re.compile(r"[0-9]{1,10}")
_SHOWN = 60


class Order(StrEnum):
    """In which messages are worked on. The values are what users write."""

    NONE = "none"
    KEY = "key"
    PRIORITY = "priority"


class FairBy(StrEnum):
    """Who takes turns. The values are what users write."""

    QUEUE = "queue"
    KEY = "key"
    TAG = "tag"
    TYPE = "type"
    PROPERTY = "properties."  # and its name behind that


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Attributes:
    max_deliveries: a message that was delivered so often and not acknowledged becomes a dead letter.
    visibility_ms: how long a delivery hides its message from others, unless the pop says otherwise.
    retry_first_ms, retry_max_ms: the delay after the first negative acknowledgement, doubled each time up to the most.
    dead_letter: topic of dead letters; None: the topic's name with ``.dlq``.
    delete_on_ack: messages below the first unsettled one of a queue are deleted, for every group.
    order: with ``key``, the messages of a key are handed out one after the other, in the order of their queue; with
        ``priority``, those of a higher one first.
    fair_by: what takes turns: queues, or the keys, tags, types or values of a property of messages. Each is called a
        tenant.
    fair_property: which property, where it is one.
    weights: how many messages a tenant gets in its turn, by number of the queue, key, tag, type or value; 1 else.
    priority_ageing_ms: a message that waits counts one priority higher for each such time; None: it never does.
    max_in_flight_per: messages of a tenant that may be in flight in each shard; None: any number.
    max_rate_per: deliveries of a tenant a second in each shard, a second's worth at once; None: any number.
    """

    max_deliveries: int = 16
    visibility_ms: int = 30_000
    retry_first_ms: int = 1_000
    retry_max_ms: int = 600_000
    dead_letter: str | None = None
    delete_on_ack: bool = False
    order: Order = Order.NONE
    fair_by: FairBy = FairBy.QUEUE
    fair_property: str = ""
    weights: Mapping[str, int] = field(default_factory=dict)
    max_in_flight_per: int | None = None
    max_rate_per: float | None = None
    priority_ageing_ms: int | None = None

    @property
    def looks_ahead(self) -> bool:
        """Whether columns of a message decide when its turn comes: it is looked at before it is read."""
        return self.order is Order.PRIORITY or self.fair_by is not FairBy.QUEUE

    @property
    def turns(self) -> tuple[object, ...]:
        """What a ledger is built for, and cannot change."""
        limits = self.max_in_flight_per, self.max_rate_per
        return self.order, self.fair_by, self.fair_property, self.weights, limits, self.priority_ageing_ms

    @property
    def fair_by_text(self) -> str:
        """As users write it."""
        return self.fair_by.value + self.fair_property

    def tenant_weights(self) -> dict[int, int]:
        """By tenants as :class:`.ledger.Ledger` knows them."""
        match self.fair_by:
            case FairBy.QUEUE:
                tenant: Callable[[str], int] = int
            case FairBy.KEY | FairBy.PROPERTY:
                tenant = key_hash
            case FairBy.TAG:
                tenant = tag_hash
            case FairBy.TYPE:
                tenant = type_hash
        return {tenant(name): weight for name, weight in self.weights.items() if self._names_tenant(name)}

    def _names_tenant(self, name: str) -> bool:
        """Whether there may be such a tenant. An earlier release stored others: these are passed over."""
        if not _is_text(name) or len(name.encode()) > MAX_WEIGHT_NAME_BYTES:
            return False
        return self.fair_by is not FairBy.QUEUE or _QUEUE_NUMBER.fullmatch(name) is not None

    def check(self) -> None:
        """Raises ``InvalidRequest`` for settings that do not go together, naming one."""
        if len(self.weights) > MAX_WEIGHTS:
            raise InvalidRequest(
                f"weights names {len(self.weights)} tenants, the limit is {MAX_WEIGHTS}; others have the weight 1",
                field="weights",
                limit=MAX_WEIGHTS,
            )
        if self.priority_ageing_ms is not None and self.order is not Order.PRIORITY:
            raise InvalidRequest(
                f"priority_ageing_ms goes with order 'priority', and order is {self.order.value!r}; set that, or leave "
                "it out",
                field="priority_ageing_ms",
            )
        if self.fair_by is FairBy.PROPERTY and not (
            _is_text(self.fair_property) and 0 < len(self.fair_property.encode()) <= MAX_PROPERTY_NAME_BYTES
        ):
            raise InvalidRequest(
                f"fair_by names the property {self.fair_property[:_SHOWN]!r}; write 'properties.' and a name of 1 to "
                f"{MAX_PROPERTY_NAME_BYTES} bytes behind it, such as 'properties.customer'",
                field="fair_by",
                limit=MAX_PROPERTY_NAME_BYTES,
            )
        if self.order is Order.KEY and self.fair_by is not FairBy.QUEUE:
            raise InvalidRequest(
                f"fair_by is {self.fair_by_text[:_SHOWN]!r}, which does not go with order 'key': of each key one "
                "message is in flight at a time as it is; leave fair_by out",
                field="fair_by",
            )
        for name in self.weights:
            if not self._names_tenant(name):
                by_queue, remedy = self.fair_by is FairBy.QUEUE, ": leave it out"
                if by_queue:
                    remedy = "; with fair_by 'key', 'tag', 'type' or a property it may be any text"
                raise InvalidRequest(
                    f"weights names {name[:_SHOWN]!r}, which is no "
                    f"{'number of a queue' if by_queue else f'text of up to {MAX_WEIGHT_NAME_BYTES} bytes'}{remedy}",
                    field="weights",
                    limit=MAX_WEIGHT_NAME_BYTES,
                )

    def retry_delay_ms(self, deliveries: int) -> int:
        """How long a message rests after its ``deliveries``-th delivery has failed."""
        return min(self.retry_first_ms << min(max(deliveries - 1, 0), 40), self.retry_max_ms)

    def dead_letter_topic(self, topic: str) -> str:
        """The topic of dead letters of ``topic``."""
        return self.dead_letter if self.dead_letter is not None else dead_letter_topic(topic)

    def to_dict(self) -> dict[str, Any]:
        """As users write it."""
        shown = asdict(self)
        del shown["fair_property"]
        return {**shown, "fair_by": self.fair_by_text}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> WorkSettings:
        """``given`` over the defaults; what a newer release knows is passed over.

        Raises ``InvalidRequest`` for a ``fair_by`` that is none.
        """
        known = {item.name for item in fields(cls)} - {"fair_property"}
        own = {name: value for name, value in given.items() if name in known}
        order, by = Order(own.get("order", Order.NONE)), str(own.get("fair_by", FairBy.QUEUE.value))
        name = by.removeprefix(FairBy.PROPERTY.value) if by.startswith(FairBy.PROPERTY.value) else ""
        try:
            fair_by = FairBy(by.removesuffix(name) if name else by)
        except ValueError as error:
            raise InvalidRequest(
                f"fair_by is {by[:_SHOWN]!r}; it must be 'queue', 'key', 'tag', 'type', or a property such as "
                "'properties.customer'",
                field="fair_by",
            ) from error
        return cls(**{**own, "order": order, "fair_by": fair_by, "fair_property": name})


def _is_text(name: str) -> bool:
    """Half a surrogate pair, which JSON can write, has no bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_settings(given: Mapping[str, Any], begun: int) -> bytes:
    """The document that holds what was set, and as which of its group's work queues it was ``begun``, see
    :class:`.ledger.WorkLedger`."""
    return documents.pack([VERSION, {**given, _BEGUN: begun} if begun else dict(given)])


def decode_settings(body: bytes, key: str) -> tuple[dict[str, Any], int]:
    """What :func:`encode_settings` was given. Raises ``UnsupportedFormat``, ``CorruptFile``."""

    def build(fields: Any) -> tuple[dict[str, Any], int]:
        _, given = fields
        return {name: value for name, value in given.items() if name != _BEGUN}, int(given.get(_BEGUN, 0))

    return documents.decode(body, key, "settings of a work queue", VERSION, build)
